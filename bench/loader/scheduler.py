"""``atta bench scheduler``: compares launch policies by how busy each keeps the scarcest resource of the machine.

Every policy runs the same daemons, batches and links. Only *when* a batch is launched, and which task runs next,
differs. A policy is right when some resource is always busy: the cores, a link, or the consumer. Which one that is
depends on the setting, not on the policy. So the busiest one is compared. As a script: many settings, and whether a
fixed depth is faster.

    python -m bench.loader.scheduler --data DATASET [--depths 2,4,8] [--vs dgl] [--work FOLDER]

A setting is a batch size, a link and a kind of consumer. Each runs ``atta bench scheduler`` in network namespaces, one
partition per namespace; nothing is tuned between settings. Slow consumers compute ``--slow-us`` microseconds per seed
on every batch, on another device. A resource is the cores of the machine (which the namespaces share), the link and
direction that carries most, or the consumers. Settings that roofline.json already has do not run again, unless
``--again`` is given. Writes roofline.json and roofline.md. Bounds: 0.9 for the busiest resource, and 0.95 of the
seeds/s of the best fixed depth.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from atta.errors import AttaError, ConfigError
from atta.observe.settings import NoOption, Option
from atta.partition.dataset import Dataset
from atta.scheduler.config import SchedulerConfig
from atta.scheduler.policies import POLICIES, policy_named
from atta_bench.command import measured
from atta_bench.lab.netlab import Host, bits_per_s
from atta_bench.lab.processes import Measured
from atta_bench.lab.rounds import ComparisonBench, Say, System, atta_on, compared
from atta_bench.lab.workload import ints
from atta_bench.loader import benchmark as loader
from atta_bench.results import BenchReport, Maybe, arguments_of, cell, head, rows_of, write

OURS = SchedulerConfig.policy
_LOADING = ("cpu_percent", "cpu_us_per_seed", "link_bytes_per_seed")


@dataclass(frozen=True, kw_only=True)
class SchedulerBench(ComparisonBench):
    """Settings of the benchmark. The default policy is what the others are compared with."""

    warm_up: Annotated[int, Option("Epochs before measuring, per round.", at_least=1)] = 3
    seconds: Annotated[float, Option("At least this much is measured per round.", unit="s", at_least=0)] = 5.0
    think_ms: Annotated[
        float,
        Option("How long consumers compute on each batch, on another device.", name="think", unit="ms", at_least=0),
    ] = 0.0
    seeds: Annotated[str, NoOption("consumers get the seeds near them")] = "local"
    runs: Annotated[int, Option("Rounds; policies alternate within a round.", at_least=1)] = 3
    policies: Annotated[tuple[str, ...], Option("Of the daemons' schedulers.")] = tuple(POLICIES)
    depths: Annotated[tuple[int, ...], Option("A policy with a depth runs with each of these.", at_least=1)] = (4,)
    rtt_ms: Annotated[
        float, Option("Delay that daemons inject into every request to another one.", name="rtt", unit="ms", at_least=0)
    ] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for policy in self.policies:
            policy_named(policy)
        if OURS not in self.policies:
            raise ConfigError(
                f"--policies {','.join(self.policies)}: {OURS} must be among them, the others are compared with it"
            )
        if not self.depths:
            raise ConfigError("--depths: name at least one")
        if self.beside_dgl and self.rtt_ms:
            raise ConfigError("--vs dgl: only Atta's daemons can be slowed down by --rtt")

    @property
    def frontier(self) -> str:
        """What a hop expands: beside DGL what DGL expands."""
        return "all" if self.beside_dgl else "new"


def run(bench: SchedulerBench, say: Say = lambda _: None) -> BenchReport:
    """Run all rounds; ``say`` is told what happens. Raises as ``compared``."""
    dataset = Dataset.open(bench.data, verify=False)
    dataset.schema.split_size(dataset.schema.node_types[0], bench.split)
    report = BenchReport("scheduler", {"frontier": bench.frontier}, ours=OURS, drawn="seeds_per_s")
    measured = partial(figures, bench=bench, hosts=dataset.num_parts)
    return compared(bench, dataset, report, partial(_systems, bench), measured, say=say)


def figures(measured: Measured, *, bench: SchedulerBench, hosts: int) -> dict[str, float]:
    """Figures of one round.

    ``completion_ms`` is the time from the launch of a batch to its end. ``busy/cores``, ``busy/link`` (the link and
    direction that carries most) and ``busy/consumer`` (computing and taking batches) are shares of the time in which
    all consumers work. ``busiest`` is the largest of these shares, ``queue_bytes`` the most memory that finished
    batches took in any daemon.
    """
    found, together = loader.figures(measured), measured.together
    window = measured.window_s
    epochs = 1 + max(e["epoch"] for e in measured.epochs)
    chosen = {"seeds_per_s": found["seeds_per_s"], "epoch_s": window / epochs}
    if made := sorted(ms for e in measured.epochs for ms in e.get("make_ms") or ()):
        chosen["completion_ms"] = statistics.fmean(made)
        chosen["completion_ms_p95"] = made[min(len(made) - 1, math.ceil(0.95 * len(made)))]
    if queued := [e["queue_bytes"] for e in measured.epochs if e.get("queue_bytes")]:
        chosen["queue_bytes"] = max(queued)
    busy = {"cores": together.cpu_s / (together.seconds * len(os.sched_getaffinity(0)))}
    if bench.link and any(together.sent_bytes):
        busy["link"] = 8 * max(together.sent_bytes) / (together.seconds * bits_per_s(bench.link))
    if think_ms := bench.think_ms:
        # The first epoch does not count: no batch is ready when it begins.
        later = [e for e in measured.epochs if e["epoch"]] or measured.epochs
        thought = sum(e["batches"] for e in later) * think_ms / 1e3 / sum(e["stop"] - e["start"] for e in later)
        busy["consumer"] = min(1.0, thought + together.rank_cpu_s / (together.seconds * hosts))
    chosen |= {name: found[name] for name in _LOADING if name in found}
    chosen["busiest"] = max(busy.values())
    return chosen | {f"busy/{name}": share for name, share in busy.items()}


def _systems(bench: SchedulerBench, hosts: Sequence[Host]) -> dict[str, System]:
    """A system per policy, and per depth where a policy has one."""

    if bench.link and hosts[0].interface is None:
        raise AttaError(f"--link {bench.link}: the links of network namespaces are shaped, and there are none here")
    daemons = partial(atta_on, bench, hosts, bench.frontier, "arrays", "--peer-delay", f"{bench.rtt_ms:g}ms")
    found: dict[str, System] = {}
    for policy in bench.policies:
        if POLICIES[policy].has_depth:
            found |= {f"{policy}-{k}": daemons("--policy", policy, "--prefetch", str(k)) for k in bench.depths}
        else:
            found[policy] = daemons("--policy", policy)
    return found


BUSY, NEAR = 0.9, 0.95


def main() -> None:
    """Run all settings, and write the record after each of them."""
    arguments = arguments_of(
        __file__,
        __doc__,
        data=str,
        num_neighbors="15,10,5",
        batch_sizes="128,1024,4096",
        links="unshaped,1gbit",
        slow_us=(200.0, "per seed, of slow consumers"),
        depths="2,4,8",
        vs=("", "dgl: also run DistDGL"),
        work=Maybe(str, "keeps graphs converted for DistDGL"),
        seconds=8.0,
        warm_up=6,
        runs=1,
        again=(False, "run the named settings even if there are results"),
    )
    target = arguments.out / "roofline.json"
    known = json.loads(target.read_text())["settings"] if target.exists() else {}
    for size, link, slow in product(ints(arguments.batch_sizes), arguments.links.split(","), (False, True)):
        name = f"{size} seeds, {link}, {'slow' if slow else 'instant'}"
        if arguments.again or name not in known:
            print(f"== {name}", file=sys.stderr)
            known[name] = measure(arguments, size, link, arguments.slow_us * size / 1e3 if slow else 0.0)
            record(known, target, arguments.typed)
    record(known, target, arguments.typed)


def measure(arguments: argparse.Namespace, size: int, link: str, think_ms: float) -> dict[str, Any]:
    """The report of one setting."""
    bench = SchedulerBench(
        ints(arguments.num_neighbors),
        size,
        warm_up=arguments.warm_up,
        seconds=arguments.seconds,
        think_ms=think_ms,
        data=arguments.data,
        vs=tuple(filter(None, arguments.vs.split(","))),
        runs=arguments.runs,
        netns="on",
        link=None if link == "unshaped" else link,
        depths=ints(arguments.depths),
        work=arguments.work,
    )
    return run(bench, lambda text: print(text, file=sys.stderr)).to_json()


def record(settings: dict[str, Any], target: Path, typed: str) -> None:
    """Write roofline.json and roofline.md."""
    first = next(iter(settings.values()))
    systems = list(dict.fromkeys(name for report in settings.values() for name in report["results"]))
    busy = ((name, *(busiest(r["results"].get(s)) for s in systems)) for name, r in settings.items())
    rates = (
        (
            *(name, *(seeds(r["results"].get(s)) for s in systems), f"{of_best(r['results']):.2f}"),
            f"{r['results'][OURS]['queue_bytes']['max'] / 1e6:,.0f}",
        )
        for name, r in settings.items()
    )
    lines = [
        *head(
            "The busiest resource under every launch policy",
            {**first, "command": typed},
            "All figures: [roofline.json](roofline.json). Untuned, default cache. Two network namespaces share the machine's cores.",
        ),
        f"Share of time in which the busiest resource worked (bound for {OURS}: {BUSY}), and which it was:",
        "",
        *rows_of(("setting", *systems), *busy),
        "",
        f"Seeds per second (bound for {OURS}: {NEAR} of the best fixed depth), and the most bytes that finished batches took:",
        "",
        *rows_of(("setting", *systems, f"{OURS} / best depth", f"queued by {OURS}, MB"), *rates),
    ]
    write(target, {"schema": 1, "bench": "roofline", "command": typed, "settings": settings}, lines)
    short = [name for name, r in settings.items() if r["results"][OURS]["busiest"]["median"] < BUSY]
    behind = [name for name, r in settings.items() if of_best(r["results"]) < NEAR]
    kept = len(settings) - len(short)
    print(f"{kept} of {len(settings)} settings keep a resource {BUSY:.0%} busy; short: {short or 'none'}")
    print(f"behind the best fixed depth: {behind or 'none'}")


def busiest(found: dict[str, Any] | None) -> str:
    """``0.95 cores``."""
    if not found or "error" in found:
        return "-"
    share, which = max((f["median"], name.partition("/")[2]) for name, f in found.items() if name.startswith("busy/"))
    return f"{share:.2f} {which}"


def seeds(found: dict[str, Any] | None) -> str:
    return "-" if not found or "error" in found else cell(found["seeds_per_s"]).partition(" ")[0]


def of_best(results: dict[str, Any]) -> float:
    """Our seeds per second against the best of the fixed depths (``prefetch-K``)."""
    best = max(found["seeds_per_s"]["median"] for name, found in results.items() if name.startswith("prefetch-"))
    return float(results[OURS]["seeds_per_s"]["median"] / best)


@measured(SchedulerBench, run, "Draw seeds per second.")
def scheduler() -> None:
    """Launch policies: the launch score and simpler ones.

    Example: atta bench scheduler --data data/pl-2p --num-neighbors 10,10 --batch-size 128 --rtt 10ms --depths 1,2,4,8
    """


if __name__ == "__main__":
    main()
