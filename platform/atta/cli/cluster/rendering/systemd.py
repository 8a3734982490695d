"""A cluster as units of systemd, for machines without another engine. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from atta.cli.cluster.rendering.plan import GRACE_S, DeploymentPlan, bracketed
from atta.errors import ConfigError

CLUSTER = "/etc/atta/cluster.toml"
_UNIT = """\
# Runs on {host}. Copy it to /etc/systemd/system there, and cluster.toml to /etc/atta on every machine.
[Unit]
Description={description}
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=exec
User=atta
ExecStart={command}
Restart={restart}
RestartSec=2
TimeoutStopSec={grace}
KillSignal=SIGTERM
KillMode=mixed
LimitNOFILE=65536
# What may be written: this folder, where relative paths begin.
StateDirectory={name}
WorkingDirectory=%S/{name}
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=read-only
ProtectKernelTunables=yes
ProtectControlGroups=yes
RestrictSUIDSGID=yes
{more}
[Install]
WantedBy=multi-user.target
"""
_OF_TRAINERS = """\
# They may need GPUs, and a run has files in /tmp. What daemons share with trainers (sockets, memory) has no file.
PrivateDevices=no
PrivateTmp=yes
"""


def units(
    plan: DeploymentPlan,
    hosts: Sequence[str],
    tls: Mapping[str, str],
    callers: Mapping[str, str],
    program: str = "/usr/local/bin/atta",
) -> dict[str, str]:
    """Files by name: the cluster file, a unit per partition, and one per machine with trainers.

    Args:
        plan: the cluster.
        hosts: the machine of each partition's daemon, an IPv6 address with or without brackets; trainers run on the
            first of them.
        tls: options of daemons and their files.
        callers: what trainers bring, by key.
        program: where ``atta`` is installed.

    Raises:
        ConfigError: there are not as many hosts as partitions, one has two daemons or is none, or trainers have too few
            machines.
    """
    hosts = [*map(bracketed, hosts)]
    if len(hosts) != plan.parts:
        raise ConfigError(f"--host: {len(hosts)} are named, the dataset has {plan.parts} partitions")
    if len({*hosts}) < len(hosts):
        raise ConfigError("--host: name a machine once; several partitions there have one daemon (docs/daemon.md)")
    if plan.nodes > len(hosts):
        raise ConfigError(f"--nnodes {plan.nodes}: trainers run on the machines of daemons, which are {len(hosts)}")
    found = {"cluster.toml": plan.cluster_file(hosts, callers)}
    for part, host in enumerate(hosts):
        every = "[::]" if host.startswith("[") else "0.0.0.0"
        ports = {"listen": f"{every}:{plan.port}", "metrics": f"{every}:{plan.metrics_port}"}
        words = [program, *plan.daemon(CLUSTER, tls, part=str(part), **ports)[1:]]
        memory = f"MemoryLow={-(-plan.needs[part].memory(plan.cache, plan.buffer) >> 20)}M\n"
        found[f"{plan.name}-daemon-{part}.service"] = _unit(
            plan,
            host,
            f"Atta daemon of partition {part}",
            words,
            restart="always",
            more=f"PrivateDevices=yes\n{memory}",
        )
    for node in range(plan.nodes):
        words = [program, *plan.trainer(CLUSTER, hosts[0], node=str(node))[1:]]
        found[f"{plan.name}-trainer-{node}.service"] = _unit(
            plan, hosts[node], f"Atta trainers of machine {node}", words, restart="on-failure", more=_OF_TRAINERS
        )
    return found


def _unit(plan: DeploymentPlan, host: str, description: str, words: Sequence[str], *, restart: str, more: str) -> str:
    """``more``: further lines of the section [Service]."""
    return _UNIT.format(
        name=plan.name,
        host=host,
        description=description,
        command=" ".join(map(_quoted, words)),
        restart=restart,
        grace=GRACE_S,
        more=more,
    )


def _quoted(word: str) -> str:
    """A word of ExecStart: systemd expands % and $, and splits at spaces."""
    safe = word.replace("\\", "\\\\").replace("%", "%%").replace("$", "$$")
    return '"' + safe.replace('"', '\\"') + '"' if not safe or set(safe) & set(" \t\"'\\;") else safe
