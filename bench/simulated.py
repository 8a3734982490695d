"""The simulator beside real daemons: seeds per second of clusters in network namespaces, measured and simulated.

    python bench/simulated.py --data DATASET-2p --data4 DATASET-4p [--out bench/results]

Costs are measured once per dataset, fan-outs and batch size, by ``atta simulate --measure`` in namespaces with links that are not
shaped: without round trips, computing consumers or a cache, under one policy. The settings that are compared differ from that;
nothing is fitted to them. Namespaces share the machine's cores, so do the simulated machines. Writes OUT/simulated.json and
OUT/simulated.md. Bound: 15 %.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from atta.bench.lab.netlab import NetLab
from atta.bench.lab.platform_run import cache_options, run_atta, serve_command
from atta.bench.lab.workload import BenchWorkload
from atta.bench.scheduler import bits_per_s
from atta.observe.versions import machine, versions
from atta.scheduler import SchedulerConfig
from atta.simulate import Profile, Scenario, load_profile, simulate
from atta.wire.clusterfile import write_cluster

RESULTS = Path(__file__).resolve().parent / "results"
BOUND = 0.15


@dataclass(frozen=True)
class Setting:
    """One cluster; ``share``: whether rows under way are asked for once. Daemons keep no remote rows."""

    machines: int
    batch_size: int = 1024
    fan_outs: tuple[int, ...] = (15, 10, 5)
    link: str | None = None
    rtt_ms: float = 0.0
    think_ms: float = 0.0
    policy: str = "two-level"
    prefetch: int = 4
    share: bool = False

    @property
    def name(self) -> str:
        words = [f"{self.machines} machines", f"{self.batch_size} seeds", ",".join(map(str, self.fan_outs))]
        words += [self.link] if self.link else []
        words += [f"round trip {self.rtt_ms:g} ms"] if self.rtt_ms else []
        words += [f"consumers compute {self.think_ms:g} ms"] if self.think_ms else []
        words += [self.policy + (f"-{self.prefetch}" if self.policy == "prefetch" else "")]
        words += ["rows under way shared"] if self.share else []
        return "; ".join(words)


SETTINGS = (
    Setting(2),
    Setting(2, link="1gbit"),
    Setting(2, link="500mbit"),
    Setting(2, think_ms=120),
    Setting(2, batch_size=256, link="1gbit", rtt_ms=5),
    Setting(2, batch_size=128, fan_outs=(10, 10), rtt_ms=10),
    Setting(2, batch_size=128, fan_outs=(10, 10), rtt_ms=10, policy="sequential"),
    Setting(2, batch_size=128, fan_outs=(10, 10), rtt_ms=10, policy="prefetch", prefetch=2),
    Setting(4),
    Setting(4, link="1gbit"),
    Setting(4, link="200mbit"),
    Setting(4, batch_size=128, fan_outs=(10, 10), rtt_ms=10, policy="prefetch", prefetch=2),
    Setting(4, think_ms=300),
    Setting(2, link="1gbit", share=True),
    Setting(2, link="500mbit", share=True),
    Setting(2, batch_size=256, link="1gbit", rtt_ms=5, share=True),
    Setting(4, link="200mbit", share=True),
)


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="two partitions")
    parser.add_argument("--data4", required=True, help="four")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    data = {2: arguments.data, 4: arguments.data4}
    profiles: dict[tuple[int, tuple[int, ...], int], Profile] = {}
    found: list[dict[str, Any]] = []
    for setting in SETTINGS:
        key = setting.machines, setting.fan_outs, setting.batch_size
        if key not in profiles:
            print(f"== measuring costs: {setting.machines} partitions, fan-outs {setting.fan_outs}", file=sys.stderr)
            profiles[key] = costs(setting, data[setting.machines])
        rounds = [real(setting, data[setting.machines], arguments.seconds) for _ in range(arguments.rounds)]
        figures = {"measured": statistics.median(rounds), "simulated": simulated(setting, profiles[key])}
        found.append(asdict(setting) | {"name": setting.name} | figures)
        error = figures["simulated"] / figures["measured"] - 1
        print(f"{setting.name}: {figures['measured']:,.0f} seeds/s, simulated {error:+.1%}", file=sys.stderr)
    write(found, f"python bench/simulated.py {' '.join(sys.argv[1:])}", arguments.out)


def costs(setting: Setting, data: str) -> Profile:
    """The profile of batches like those of ``setting``, measured where real daemons run, too."""
    with NetLab(setting.machines) as lab, tempfile.TemporaryDirectory() as folder:
        addresses = [f"{host.address}:7070" for host in lab.hosts]
        cluster, out = Path(folder) / "cluster.toml", Path(folder) / "profile.json"
        write_cluster(cluster, addresses)
        daemons = []
        for part, (host, address) in enumerate(zip(lab.hosts, addresses, strict=True)):
            options = ["--threads", "1", "--peer-delay", "0s", *cache_options(0)]
            command = serve_command(Path(data).resolve(), part, address, cluster, *options)
            daemons.append(host.popen(command, stdin=subprocess.PIPE))
        words = ["--batch-size", str(setting.batch_size), "--fan-out", ",".join(map(str, setting.fan_outs))]
        words += ["--data", data, "--out", str(out), "--epochs", "4"]
        command = [sys.executable, "-m", "atta.cli.main", "simulate", "--measure", str(cluster), *words]
        found = lab.hosts[0].popen(command, stdout=subprocess.DEVNULL)
        if found.wait(timeout=300):
            raise SystemExit("the costs could not be measured")
        for daemon in daemons:
            daemon.communicate(timeout=30)
        return load_profile(out)


def real(setting: Setting, data: str, seconds: float) -> float:
    """Seeds per second of real daemons, without a cache."""
    cache = ["--cache-share", "0"] if setting.share else cache_options(0)
    workload = BenchWorkload(
        setting.fan_outs, setting.batch_size, warm_up=8, seconds=seconds, threads=1, think_ms=setting.think_ms
    )
    serve = ["--peer-delay", f"{setting.rtt_ms:g}ms", "--policy", setting.policy, "--prefetch", str(setting.prefetch)]
    with NetLab(setting.machines, rate=setting.link) as lab, tempfile.TemporaryDirectory() as folder:
        measured = run_atta(
            Path(data).resolve(),
            workload,
            lab.hosts,
            Path(folder),
            frontier="new",
            deliver="arrays",
            serve=(*cache, *serve),
        )
    return measured.total("seeds") / measured.window_s


def simulated(setting: Setting, profile: Profile) -> float:
    """Seeds per second of the simulator."""
    config = SchedulerConfig(workers=1, policy=setting.policy, prefetch=setting.prefetch, log_events=0)
    return simulate(
        Scenario(
            profile,
            machines=setting.machines,
            cores=profile.cores,
            shared_cores=True,
            link=bits_per_s(setting.link) / 8 if setting.link else math.inf,
            rtt_s=setting.rtt_ms / 1e3,
            scheduler=config,
            serve_threads=1,
            train_s=setting.think_ms / 1e3,
            share_pulls=setting.share,
            lockstep=False,
            batches=max(60, 40_000 // setting.batch_size),
            known_batch_bytes=True,
        )
    ).seeds_per_s


def write(found: list[dict[str, Any]], command: str, out: Path) -> None:
    """simulated.json and simulated.md."""
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    document = {"schema": 1, "bench": "simulated", "started": started, "command": command}
    document |= {"machine": machine(), "versions": versions(), "results": found}
    (out / "simulated.json").write_text(json.dumps(document, indent=1) + "\n")
    errors = [abs(f["simulated"] / f["measured"] - 1) for f in found]
    lines = [
        "# The simulator beside real daemons",
        "",
        f"Date: {started}  ",
        f"Machine: {machine()['cores']} cores, {machine()['cpu']}  ",
        f"Versions: {', '.join(f'{name} {number}' for name, number in versions().items())}  ",
        f"Command: `{command}`",
        "",
        f"Within {BOUND:.0%}: {sum(e <= BOUND for e in errors)} of {len(errors)}; median error {statistics.median(errors):.1%}.",
        "",
        "| setting | seeds/s measured | simulated | error |",
        "|---|---|---|---|",
        *(
            f"| {f['name']} | {f['measured']:,.0f} | {f['simulated']:,.0f} | {f['simulated'] / f['measured'] - 1:+.1%} |"
            for f in found
        ),
    ]
    target = out / "simulated.md"
    kept = target.read_text().partition("## What it means")[2].strip() if target.exists() else ""
    target.write_text("\n".join(lines) + f"\n\n## What it means\n\n{kept or '(to be written)'}\n")
    print(f"within {BOUND:.0%}: {sum(e <= BOUND for e in errors)} of {len(errors)}")


if __name__ == "__main__":
    main()
