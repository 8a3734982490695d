"""A cluster as text for Kubernetes, Slurm and systemd, filled into the templates beside this file. Pure. ``<<name>>``
stands for a value. A line that ends with ``#? WORD`` is there if WORD holds, a document of Kubernetes if that of its
``---`` does."""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent
from typing import Any

from atta.errors import ConfigError
from atta.partition.graph.needs import Needs
from atta.wire.clusterfile import check_address

DRAIN_S = 30
"""How long daemons let sessions go on when an engine stops them."""
GRACE_S = 60
"""How long an engine waits before it kills a daemon: after draining it saves tables and closes connections."""
_MOST_PORT = 65_535


@dataclass(frozen=True)
class DeploymentPlan:
    """A cluster that an engine is to run: one daemon per partition, and trainers on ``nodes`` machines (0: daemons
    alone).

    ``data`` is the folder where daemons run. ``needs``: of each partition's daemon. ``train``: further words of ``atta
    train``. Without ``tls`` everybody who reaches a port is trusted. Raises ConfigError: numbers make no sense.
    """

    name: str
    data: str
    needs: tuple[Needs, ...]
    port: int = 7070
    link_port: int = 7071
    metrics_port: int = 9090
    meeting_port: int = 29400
    cache: int = 1 << 30
    buffer: int = 1 << 30
    nodes: int = 0
    trainers: int = 0
    train: tuple[str, ...] = ()
    tls: bool = True

    def __post_init__(self) -> None:
        ports = (self.port, self.link_port, self.metrics_port, self.meeting_port)
        if len({*ports}) < len(ports) or not all(1024 <= port <= _MOST_PORT for port in ports):
            raise ConfigError(f"ports {', '.join(map(str, ports))}: must differ, from 1024 to {_MOST_PORT}")
        if self.nodes and (self.trainers < self.nodes or self.trainers % self.nodes):
            raise ConfigError(f"--trainers {self.trainers}: is the number on all machines, which --nnodes must divide")
        if taken := sorted(_OURS.intersection(word.partition("=")[0] for word in self.train)):
            raise ConfigError(f"{taken[0]}: is set by atta render; leave it out")

    @property
    def parts(self) -> int:
        """Number of partitions, and of daemons."""
        return len(self.needs)

    @property
    def memory(self) -> int:
        """Bytes that the largest daemon asks for."""
        return max(needs.memory(self.cache, self.buffer) for needs in self.needs)

    def daemon(
        self, cluster: str, tls: Mapping[str, str], *, part: str = "auto", listen: str = "", metrics: str = ""
    ) -> list[str]:
        """The command of a daemon. ``cluster``: the cluster file there; ``tls``: options and files."""
        words = ["atta", "serve", "--data", self.data, "--part", part, "--peers", cluster]
        words += ["--listen", listen or f"0.0.0.0:{self.port}", "--link-port", str(self.link_port)]
        words += ["--metrics", metrics or f"0.0.0.0:{self.metrics_port}", "--drain", f"{DRAIN_S}s"]
        words += ["--cache", str(self.cache), "--buffer", str(self.buffer), "--log-format", "json"]
        return words + ([word for pair in tls.items() for word in pair] if self.tls else ["--insecure"])

    def trainer(self, cluster: str, first: str, *, node: str = "auto") -> list[str]:
        """The command of a machine with trainers. ``first``: host name of machine 0."""
        words = ["atta", "train", "--cluster", cluster, "--trainers", str(self.trainers)]
        words += ["--nnodes", str(self.nodes), "--node-rank", node]
        if self.nodes > 1:
            words += ["--rdzv-endpoint", f"{first}:{self.meeting_port}"]
        return [*words, *self.train]

    def cluster_file(self, hosts: Sequence[str], tls: Mapping[str, str]) -> str:
        """The text of the cluster file. ``hosts``: of each partition's daemon; ``tls``: what callers bring. Raises
        ConfigError: a host is none."""
        addresses = [check_address(f"{host}:{self.port}") for host in hosts]
        entries = [f'[[daemon]]\npart = {part}\naddress = "{address}"\n' for part, address in enumerate(addresses)]
        if self.tls:
            entries.append("[tls]\n" + "".join(f'{key} = "{path}"\n' for key, path in tls.items()))
        return "\n".join(entries)


_OURS = frozenset(("--cluster", "--data", "--trainers", "--nnodes", "--node-rank", "--rdzv-endpoint"))


TLS, DATA = "/etc/atta-tls", "/data"
CLUSTER = "/etc/atta/cluster.toml"
"""Where daemons and trainers find the cluster file, on Kubernetes and under systemd."""
DAEMON_FILES = ("ca.pem", "daemon.pem", "daemon.key")
"""Files of the Secret for daemons; ``tokens.toml`` may join them."""
CALLER_FILES = ("ca.pem", "trainer.pem", "trainer.key")
"""Files of the Secret for trainers."""
_SURROGATES = re.compile(r"\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}")


@dataclass(frozen=True)
class KubernetesPlan:
    """What Kubernetes is told beyond the cluster itself. ``claim``: PersistentVolumeClaim with the partitioned dataset.
    ``queue``: of Kueue, for the trainers; empty: none. ``cpu``: of each daemon and trainer. ``files``: contents of the
    certificates' files by name; empty without TLS."""

    cluster: DeploymentPlan
    image: str
    claim: str
    queue: str = ""
    cpu: int = 1
    files: Mapping[str, bytes] | None = None

    def daemon_hosts(self) -> list[str]:
        """Host names of the daemons, as pods of the same namespace know them."""
        owner = f"{self.cluster.name}-daemon"
        return [f"{owner}-{part}.{owner}" for part in range(self.cluster.parts)]


def kubernetes_manifest(plan: KubernetesPlan) -> str:
    """Objects of core resources alone, in the order in which they should be created."""
    cluster, files, hosts = plan.cluster, plan.files or {}, plan.daemon_hosts()
    here = cluster.trainers // max(1, cluster.nodes)
    mine = {"ca": f"{TLS}/ca.pem", "cert": f"{TLS}/trainer.pem", "key": f"{TLS}/trainer.key"}
    tls = {"--tls-ca": f"{TLS}/ca.pem", "--tls-cert": f"{TLS}/daemon.pem", "--tls-key": f"{TLS}/daemon.key"}
    if "tokens.toml" in files:
        tls["--tokens"] = f"{TLS}/tokens.toml"
    first = f"{cluster.name}-trainer-0.{cluster.name}-trainer"
    labels = {"app.kubernetes.io/name": "atta", "app.kubernetes.io/instance": cluster.name}
    values = {
        **_figures(cluster),
        "hosts": ", ".join(hosts),
        "cluster": indent(cluster.cluster_file(hosts, mine), " " * 4).strip(),
        "daemon": _flow(_expandable(cluster.daemon(CLUSTER, tls))),
        "trainer": _flow(_expandable(cluster.trainer(CLUSTER, first))) if cluster.nodes else "",
        "daemon_files": _flow(_encoded(files, (*DAEMON_FILES, "tokens.toml"))),
        "trainer_files": _flow(_encoded(files, CALLER_FILES)),
        "labels": _flow(labels),
        "daemon_labels": _flow({**labels, "app.kubernetes.io/component": "daemon"}),
        "trainer_labels": _flow({**labels, "app.kubernetes.io/component": "trainer"}),
        "job_labels": _flow({**labels, **({"kueue.x-k8s.io/queue-name": plan.queue} if plan.queue else {})}),
        "image": _flow(plan.image),
        "claim": _flow(plan.claim),
        "scheme": "https" if cluster.tls else "http",
        "probe": f"{'tcpSocket' if cluster.tls else 'grpc'}: {{port: {cluster.port}}}",
        "cpu": plan.cpu,
        "memory": f"{-(-cluster.memory >> 20)}Mi",
        "trainer_cpu": plan.cpu * here,
        "trainer_memory": f"{2 * here}Gi",
        "backoff": 6 * cluster.nodes,
    }
    held = _held(tls=cluster.tls, secrets=cluster.tls and files, trainers=cluster.nodes)
    return _filled("kubernetes.yaml", held, values)


def slurm_script(plan: DeploymentPlan, tls: Mapping[str, str], callers: Mapping[str, str]) -> str:
    """One batch script: daemons on all nodes, trainers on the first ones. ``tls``: options of daemons and their files;
    ``callers``: what trainers bring, by key."""
    file, memory = "$folder/cluster.toml", -(-plan.memory >> 20)
    values = {
        **_figures(plan),
        "all_nodes": max(plan.parts, plan.nodes),
        "memory": memory + (2048 * (plan.trainers // plan.nodes) if plan.nodes else 0),
        "parts": " ".join(map(str, range(plan.parts))),
        "daemons": plan.parts,
        "daemon": _bash(plan.daemon(file, tls)),
        "trainer": _bash(plan.trainer(file, "${hosts[0]}")) if plan.nodes else "",
        "tls": shlex.join(["[tls]", *(f'{key} = "{path}"' for key, path in callers.items())]),
    }
    return _filled("slurm.sh", _held(tls=plan.tls, trainers=plan.nodes, alone=not plan.nodes), values)


def systemd_units(
    plan: DeploymentPlan,
    hosts: Sequence[str],
    tls: Mapping[str, str],
    callers: Mapping[str, str],
    program: str = "/usr/local/bin/atta",
) -> dict[str, str]:
    """Files by name: the cluster file, a unit per partition, and one per machine with trainers. ``hosts``: the machine
    of each partition's daemon; trainers run on the first of them. ``program``: where ``atta`` is installed. Otherwise
    as ``slurm_script``. Raises ConfigError: hosts are missing, wrong or too few."""
    hosts = [f"[{host}]" if ":" in host and not host.startswith("[") else host for host in hosts]
    if len(hosts) != plan.parts:
        raise ConfigError(f"--host: {len(hosts)} are named, the dataset has {plan.parts} partitions")
    if len({*hosts}) < len(hosts):
        raise ConfigError("--host: name a machine once; several partitions have one daemon (docs/guide/daemon.md)")
    if plan.nodes > len(hosts):
        raise ConfigError(f"--nnodes {plan.nodes}: trainers run on the machines of daemons, which are {len(hosts)}")
    found = {"cluster.toml": plan.cluster_file(hosts, callers)}

    def unit(what: str, host: str, description: str, words: list[str], memory: int = 0) -> str:
        command = " ".join(map(_quoted, [program, *words[1:]]))
        own = {"host": host, "description": description, "command": command, "memory": -(-memory >> 20)}
        return _filled("systemd.service", {what}, {**_figures(plan), **own})

    for part, host in enumerate(hosts):
        every = "[::]" if host.startswith("[") else "0.0.0.0"
        ports = {"listen": f"{every}:{plan.port}", "metrics": f"{every}:{plan.metrics_port}"}
        words = plan.daemon(CLUSTER, tls, part=str(part), **ports)
        memory = plan.needs[part].memory(plan.cache, plan.buffer)
        found[f"{plan.name}-daemon-{part}.service"] = unit(
            "daemon", host, f"Atta daemon of partition {part}", words, memory
        )
    for node in range(plan.nodes):
        words = plan.trainer(CLUSTER, hosts[0], node=str(node))
        found[f"{plan.name}-trainer-{node}.service"] = unit(
            "trainers", hosts[node], f"Atta trainers of machine {node}", words
        )
    return found


def _figures(plan: DeploymentPlan) -> dict[str, Any]:
    names = ("name", "parts", "nodes", "port", "link_port", "metrics_port", "meeting_port")
    return {**{name: getattr(plan, name) for name in names}, "grace": GRACE_S}


def _held(**conditions: Any) -> set[str]:
    return {name for name, holds in conditions.items() if holds}


def _filled(template: str, held: Collection[str], values: Mapping[str, Any]) -> str:
    text = Path(__file__).with_name(template).read_text(encoding="utf-8")
    found, skipped = [], False
    for line in text.splitlines():
        content, mark, condition = line.partition("  #? ")
        fits = not mark or condition in held
        if content == "---":
            skipped = not fits
        if fits and not skipped:
            found.append(content)
    return re.sub(r"<<(\w+)>>", lambda match: str(values[match[1]]), "\n".join(found) + "\n")


def _flow(value: Any) -> str:
    """A value as YAML on one line. JSON is YAML, but for pairs of surrogates."""
    return _SURROGATES.sub(lambda pair: f"\\U{ord(json.loads(chr(34) + pair[0] + chr(34))):08x}", json.dumps(value))


def _encoded(files: Mapping[str, bytes], names: Sequence[str]) -> dict[str, str]:
    return {name: base64.b64encode(files[name]).decode("ascii") for name in names if name in files}


def _expandable(words: Sequence[str]) -> list[str]:
    """The arguments of a command. Kubernetes expands $(NAME), and $$ to one $."""
    return [word.replace("$", "$$") for word in words[2:]]


def _bash(words: Sequence[str]) -> str:
    """The words on one line. The script's own variables stay variables."""
    ours = ("$folder/", "${hosts[0]}:")
    return " ".join(f'"{word}"' if word.startswith(ours) else shlex.quote(word) for word in words)


def _quoted(word: str) -> str:
    """A word of ExecStart: systemd expands % and $, and splits at spaces."""
    safe = word.replace("\\", "\\\\").replace("%", "%%").replace("$", "$$")
    return '"' + safe.replace('"', '\\"') + '"' if not safe or set(safe) & set(" \t\"'\\;") else safe
