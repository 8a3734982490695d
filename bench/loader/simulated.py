"""The simulator and real daemons: seeds per second of clusters in network namespaces, simulated and measured.

    python -m bench.loader.simulated --data DATASET-2p --data4 DATASET-4p --data8 DATASET-8p

``costs`` measures the costs once per dataset, fan-outs and batch size, as ``atta simulate --measure`` does: in
namespaces with unshaped links, without round trips, computing consumers or a cache, under one policy. The clusters that
are compared differ from that, and nothing is fitted to them. Both run as many whole epochs. Namespaces share the cores
of the machine, and so do the simulated machines. Bound: 15 %. From the costs with the most partitions it then forecasts
larger clusters of larger machines, and what limits them. Writes simulated.json and simulated.md.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from atta.scheduler.config import SchedulerConfig, link_threads
from atta.scheduler.policies import POLICIES
from atta.simulate.cluster import Outcome, simulate
from atta.simulate.measure import measure
from atta.simulate.profile import Profile, load_profile, save_profile
from atta.simulate.scenario import Scenario
from atta.wire.clusterfile import write_cluster
from atta_bench.lab.netlab import Host, NetLab, bits_per_s
from atta_bench.lab.rounds import cache_options, run_atta, serve_command
from atta_bench.lab.workload import BenchWorkload
from atta_bench.results import Maybe, arguments_of, document, head, rows_of, write


def measure_costs() -> None:
    """Measure, and write the profile."""
    given = json.loads(sys.argv[2])
    hosts = [Host(host["address"], host["interface"], tuple(host["prefix"])) for host in given["hosts"]]

    def start(rank: int, command: Sequence[str]) -> subprocess.Popen[bytes]:
        return hosts[rank].popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    profile = measure(
        Path(given["cluster"]),
        data=given["data"],
        batch_size=given["batch_size"],
        fan_outs=given["fan_outs"],
        epochs=given["epochs"],
        say=lambda what: print(what, file=sys.stderr),
        start=start,
    )
    save_profile(given["out"], profile)


BOUND = 0.15
WARM_UP_BATCHES = 24
"""Least number of batches of a consumer before those that are measured."""
FORECAST_MACHINES = (8, 64, 256)
FORECAST_LINKS = ("1gbit", "10gbit", "25gbit")
FORECAST_CORES = 8
FORECAST_RTT_S = 2e-4
FORECAST_BATCHES = 30


@dataclass(frozen=True)
class ClusterSetting:
    """One cluster, without caches of remote rows; ``share``: batches that need a row at the same time pull it once."""

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
        """Machines, batches, link and round trip, in words."""
        words = [f"{self.machines} machines", f"{self.batch_size} seeds", ",".join(map(str, self.fan_outs))]
        words += [self.link] if self.link else []
        words += [f"round trip {self.rtt_ms:g} ms"] if self.rtt_ms else []
        words += [f"consumers compute {self.think_ms:g} ms"] if self.think_ms else []
        words += [self.policy + (f"-{self.prefetch}" if POLICIES[self.policy].has_depth else "")]
        words += ["rows under way shared"] if self.share else []
        return "; ".join(words)

    @property
    def costs(self) -> tuple[int, tuple[int, ...], int]:
        """What the costs of its batches depend on."""
        return self.machines, self.fan_outs, self.batch_size


SETTINGS: tuple[ClusterSetting, ...] = (
    ClusterSetting(2),
    ClusterSetting(2, link="1gbit"),
    ClusterSetting(2, link="500mbit"),
    ClusterSetting(2, think_ms=120),
    ClusterSetting(2, batch_size=256, link="1gbit", rtt_ms=5),
    ClusterSetting(2, batch_size=128, fan_outs=(10, 10), rtt_ms=10),
    ClusterSetting(2, batch_size=128, fan_outs=(10, 10), rtt_ms=10, policy="sequential"),
    ClusterSetting(2, batch_size=128, fan_outs=(10, 10), rtt_ms=10, policy="prefetch", prefetch=2),
    ClusterSetting(4),
    ClusterSetting(4, link="1gbit"),
    ClusterSetting(4, link="200mbit"),
    ClusterSetting(4, batch_size=128, fan_outs=(10, 10), rtt_ms=10, policy="prefetch", prefetch=2),
    ClusterSetting(4, think_ms=300),
    ClusterSetting(2, link="1gbit", share=True),
    ClusterSetting(2, link="500mbit", share=True),
    ClusterSetting(2, batch_size=256, link="1gbit", rtt_ms=5, share=True),
    ClusterSetting(4, link="200mbit", share=True),
    ClusterSetting(8),
    ClusterSetting(8, link="1gbit"),
    ClusterSetting(8, batch_size=128),
)


def main() -> None:
    """Measure and write the record."""
    arguments = arguments_of(
        __file__,
        __doc__,
        data=(str, "two partitions"),
        data4=(str, "four"),
        data8=Maybe(str, "eight; without it, these settings are left out"),
        only=Maybe(re.compile, "only settings whose names this expression matches, and no forecasts"),
        rounds=1,
        seconds=5.0,
        keep=Maybe(Path, "folder that keeps what was measured; what is there is not measured"),
    )
    with tempfile.TemporaryDirectory() as folder:
        measure_and_simulate(arguments, arguments.keep or Path(folder))


def measure_and_simulate(arguments: argparse.Namespace, kept: Path) -> None:
    """Measure what is not in the folder ``kept`` yet, then simulate all of it."""
    kept.mkdir(parents=True, exist_ok=True)
    rates = kept / "seeds_per_s.json"
    done: dict[str, Any] = json.loads(rates.read_text()) if rates.exists() else {}
    data = {2: arguments.data, 4: arguments.data4}
    if arguments.data8:
        data[8] = arguments.data8
    profiles: dict[tuple[int, tuple[int, ...], int], Profile] = {}
    settings = [
        setting
        for setting in SETTINGS
        if setting.machines in data and (arguments.only is None or arguments.only.search(setting.name))
    ]
    measured = []
    for setting in settings:
        if setting.costs not in profiles:
            print(f"== measuring costs: {setting.machines} partitions, fan-outs {setting.fan_outs}", file=sys.stderr)
            profiles[setting.costs] = costs(setting, data[setting.machines], kept)
        if setting.name not in done:
            seeds = profiles[setting.costs].epoch_seeds
            rounds = [real(setting, data[setting.machines], arguments.seconds, seeds) for _ in range(arguments.rounds)]
            done[setting.name] = asdict(min(rounds, key=lambda run: abs(run.seeds_per_s - _median(rounds))))
            rates.write_text(json.dumps(done, indent=1))
        measured.append(RealRun(**done[setting.name]))
        print(f"{setting.name}: {measured[-1].seeds_per_s:,.0f} seeds/s", file=sys.stderr)
    usual = max(settings, key=lambda s: (s.machines, s.batch_size))
    scenarios = [
        scenario(setting, profiles[setting.costs], run.epochs) for setting, run in zip(settings, measured, strict=True)
    ]
    larger = [] if arguments.only else forecast_scenarios(profiles[usual.costs])
    print("== simulating", file=sys.stderr)
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        outcomes = list(pool.map(simulate, [*larger, *scenarios]))
    found = [
        asdict(setting)
        | {"name": setting.name, "measured": run.seeds_per_s, "measured_cpu_us": run.cpu_us}
        | {"simulated": outcome.seeds_per_s, "simulated_cpu_us": _cpu_us(cast, outcome)}
        for setting, run, cast, outcome in zip(settings, measured, scenarios, outcomes[len(larger) :], strict=True)
    ]
    forecasts = forecast(larger, outcomes[: len(larger)])
    record(found, forecasts, arguments.typed, arguments.out)


def costs(setting: ClusterSetting, data: str, kept: Path) -> Profile:
    """The profile of batches like those of ``setting``, measured with real daemons in namespaces."""
    out = kept / f"costs-{setting.machines}-{setting.batch_size}-{','.join(map(str, setting.fan_outs))}.json"
    if out.exists():
        return load_profile(out)
    with NetLab(setting.machines) as lab, tempfile.TemporaryDirectory() as folder:
        addresses = [f"{host.address}:7070" for host in lab.hosts]
        cluster = Path(folder) / "cluster.toml"
        write_cluster(cluster, addresses)
        daemons = []
        for part, (host, address) in enumerate(zip(lab.hosts, addresses, strict=True)):
            options = ["--threads", "1", "--peer-delay", "0s", *cache_options(0)]
            serve = serve_command(Path(data).resolve(), part, address, cluster, *options)
            daemons.append(host.popen(serve, stdin=subprocess.PIPE))
        about = {"cluster": str(cluster), "data": data, "hosts": [asdict(host) for host in lab.hosts], "epochs": 3}
        about |= {"batch_size": setting.batch_size, "fan_outs": setting.fan_outs, "out": str(out)}
        found = lab.hosts[0].popen([sys.executable, "-m", "atta_bench.loader.simulated", "--costs", json.dumps(about)])
        if found.wait(timeout=300):
            raise SystemExit("the costs could not be measured")
        for daemon in daemons:
            daemon.communicate(timeout=30)
        return load_profile(out)


@dataclass(frozen=True)
class RealRun:
    """What real daemons did: their rate, CPU microseconds per seed, and how many epochs each consumer had."""

    seeds_per_s: float
    cpu_us: float
    epochs: int


def _median(runs: Sequence[RealRun]) -> float:
    return statistics.median_low(run.seeds_per_s for run in runs)


def _cpu_us(cast: Scenario, outcome: Outcome) -> float:
    """CPU microseconds per seed of a simulation."""
    batches = cast.machines * cast.session_batches
    return 1e3 * outcome.cpu_ms_per_batch * batches / cast.epoch_seeds


def real(setting: ClusterSetting, data: str, seconds: float, epoch_seeds: int) -> RealRun:
    """Measure real daemons, without a cache."""
    cache = ["--cache-share", "0"] if setting.share else cache_options(0)
    warm_up = max(2, math.ceil(WARM_UP_BATCHES * setting.machines * setting.batch_size / epoch_seeds))
    workload = BenchWorkload(
        setting.fan_outs, setting.batch_size, warm_up=warm_up, seconds=seconds, threads=1, think_ms=setting.think_ms
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
    seeds = measured.total("seeds")
    epochs = len(measured.epochs) // setting.machines
    return RealRun(seeds / measured.window_s, 1e6 * measured.whole.cpu_s / seeds, epochs)


def scenario(setting: ClusterSetting, profile: Profile, epochs: int) -> Scenario:
    """What to simulate for a setting. A round trip is emulated by a timer of the daemon that asks."""
    config = SchedulerConfig(workers=1, policy=setting.policy, prefetch=setting.prefetch, log_events=0)
    return Scenario(
        profile,
        machines=setting.machines,
        cores=profile.cores,
        shared_cores=True,
        link=bits_per_s(setting.link) / 8 if setting.link else math.inf,
        rtt_s=setting.rtt_ms / 1e3 + (1e-6 * profile.timer_us if setting.rtt_ms else 0.0),
        scheduler=config,
        serve_threads=1,
        train_s=setting.think_ms / 1e3,
        share_pulls=setting.share,
        lockstep=False,
        epochs=epochs,
        known_batch_bytes=True,
    )


def forecast_scenarios(profile: Profile) -> list[Scenario]:
    """Clusters of machines with cores of their own and no cache, that do nothing but sample. The largest come first."""
    config = SchedulerConfig(workers=FORECAST_CORES, log_events=0)
    return [
        Scenario(
            profile,
            machines=machines,
            cores=FORECAST_CORES,
            link=bits_per_s(link) / 8,
            rtt_s=FORECAST_RTT_S,
            scheduler=config,
            serve_threads=link_threads(FORECAST_CORES),
            lockstep=False,
            batches=FORECAST_BATCHES,
            known_batch_bytes=True,
        )
        for machines in sorted(FORECAST_MACHINES, reverse=True)
        for link in FORECAST_LINKS
    ]


def forecast(scenarios: Sequence[Scenario], outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """The forecasts for the record, by link and then by size."""
    names = {bits_per_s(link) / 8: link for link in FORECAST_LINKS}
    order = sorted(range(len(scenarios)), key=lambda i: (scenarios[i].link, scenarios[i].machines))
    return [
        {"parts": cast.profile.parts, "machines": cast.machines, "link": names[cast.link], **outcome.to_dict()}
        for cast, outcome in ((scenarios[i], outcomes[i]) for i in order)
    ]


def _within(errors: Sequence[float]) -> str:
    return f"{sum(abs(e) <= BOUND for e in errors)} of {len(errors)}"


def _forecast_lines(forecasts: Sequence[dict[str, Any]]) -> list[str]:
    return [
        "",
        f"Larger clusters, from the costs with {forecasts[0]['parts']} partitions (1,024 seeds, 15,10,5): each machine with "
        f"{FORECAST_CORES} cores, round trips of {1e3 * FORECAST_RTT_S:g} ms, no cache, consumers that do not compute.",
        "",
        *rows_of(
            ("machines", "link", "seeds/s", "per machine", "requests per batch", "limited by"),
            *(
                (
                    cast["machines"],
                    cast["link"],
                    f"{cast['seeds_per_s']:,.0f}",
                    f"{cast['seeds_per_s'] / cast['machines']:,.0f}",
                    f"{cast['requests_per_batch']:,.0f}",
                    f"{cast['limit']}, {cast['limit_busy']:.0%}",
                )
                for cast in forecasts
            ),
        ),
    ]


def record(clusters: list[dict[str, Any]], forecasts: list[dict[str, Any]], typed: str, out: Path) -> None:
    """Write simulated.json and simulated.md."""
    found = document("simulated", command=typed, results=clusters) | {"forecasts": forecasts}
    errors = [c["simulated"] / c["measured"] - 1 for c in clusters]
    within = f"within {BOUND:.0%}: {_within(errors)}"
    by_machines: dict[int, list[float]] = defaultdict(list)
    for cluster, error in zip(clusters, errors, strict=True):
        by_machines[cluster["machines"]].append(error)
    rows = (
        (
            c["name"],
            f"{c['measured']:,.0f}",
            f"{c['simulated']:,.0f}",
            f"{error:+.1%}",
            f"{c['measured_cpu_us']:.1f}",
            f"{c['simulated_cpu_us']:.1f}",
        )
        for c, error in zip(clusters, errors, strict=True)
    )
    lines = [
        *head("The simulator beside real daemons", found),
        f"{within.capitalize()}; median error {statistics.median(map(abs, errors)):.1%}.",
        "",
        *rows_of(
            ("machines", f"within {BOUND:.0%}", "median error", "largest error"),
            *(
                (machines, _within(some), f"{statistics.median(map(abs, some)):.1%}", f"{max(some, key=abs):+.1%}")
                for machines, some in by_machines.items()
            ),
        ),
        "",
        *rows_of(("setting", "seeds/s measured", "simulated", "error", "CPU µs per seed measured", "simulated"), *rows),
        *(_forecast_lines(forecasts) if forecasts else ()),
    ]
    write(out / "simulated.json", found, lines)
    print(within)


if __name__ == "__main__":
    measure_costs() if sys.argv[1:2] == ["--costs"] else main()
