"""Runs a strategy once on the hosts, and finds the links on which it waits a share of its time."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from atta.train.dorylus.faults import FAULTS_VARIABLE
from atta_bench.lab.netlab import Host, NetLab, loopback, no_namespaces
from atta_bench.lab.rounds import Say
from atta_bench.strategies.figures import Figures, figures
from atta_bench.strategies.prices import values
from atta_bench.strategies.settings import StrategiesBench
from atta_bench.train.run import run_training

__all__ = ["calibrated", "external_rate", "hosts_of_servers", "system"]

_KBIT = 1e3
_TRIES = 3
_CALIBRATING = 20
"""Number of epochs that tell how long one takes."""
_CLOSE = 0.02
"""How far the share of external time may lie from the one asked for."""


def external_rate(seconds: float, sent_bytes: float, share: float) -> float:
    """Bits per second of a link that takes ``share`` of an epoch; ``seconds`` is the time of its other work."""
    return 8 * sent_bytes * (1 - share) / (share * seconds)


def calibrated(bench: StrategiesBench, say: Say) -> tuple[float, str]:
    """Seconds of an epoch of ``share_of`` on unshaped links, and the rate with which links take the share asked for.

    The time that a link adds is only about bytes / rate: computing hides a part of it, and messages wait for each
    other. So each try corrects the rate by the time that was measured with it.
    """
    assert bench.external_share is not None
    short = dataclasses.replace(bench, epochs=min(bench.epochs, _CALIBRATING), eval_every=None, target=None)
    with hosts_of_servers(bench, None) as hosts:
        found = _measured(short, bench.share_of, hosts)
    alone = found["epoch_seconds"]
    wanted = alone * bench.external_share / (1 - bench.external_share)  # seconds that the link must add
    rate = external_rate(alone, found["link_bytes"], bench.external_share)
    for _ in range(_TRIES):
        link = f"{max(1, round(rate / _KBIT))}kbit"
        with hosts_of_servers(bench, link) as hosts:
            seconds = _measured(short, bench.share_of, hosts)["epoch_seconds"]
        share = 1 - alone / seconds
        say(f"with {link} {bench.share_of} spends {100 * share:.0f} % of its time in the links")
        if abs(share - bench.external_share) <= _CLOSE:
            break
        rate *= max(0.1, (seconds - alone) / wanted)
    return alone, link


def _measured(bench: StrategiesBench, name: str, hosts: Sequence[Host]) -> Figures:
    with tempfile.TemporaryDirectory(prefix=f"atta-bench-{name}-") as folder:
        return system(bench, name, hosts, None)(Path(folder))


def system(bench: StrategiesBench, name: str, hosts: Sequence[Host], alone: float | None) -> Callable[[Path], Figures]:
    """A function that runs a strategy or variant once; ``alone`` is the time of an epoch of ``share_of`` without a slow link."""
    data, seeds = Path(bench.data).resolve(), itertools.count(bench.seed)

    def measure(folder: Path) -> Figures:
        seed = next(seeds)
        faults = bench.worker_faults
        trained = run_training(
            data,
            bench.options(name, seed),
            hosts,
            folder,
            trainers=bench.trainers_per_server,
            timeout_s=bench.timeout_s,
            stop=bench.stop,
            seed=seed,
            env=None if faults is None else {FAULTS_VARIABLE: f"{faults},seed={seed}"},
        )
        found = figures(trained, bench.warm_up, bench.target)
        if bench.prices is not None:
            found |= values(bench.prices, bench.servers, trained.epochs, bench.target)
        if name == bench.share_of and alone is not None:
            found["external_share"] = 1 - alone / found["epoch_seconds"]
        return found

    return measure


@contextlib.contextmanager
def hosts_of_servers(bench: StrategiesBench, link: str | None) -> Iterator[list[Host]]:
    """A host per server, inside the block."""
    if bench.link is None and bench.external_share is None and no_namespaces():
        yield loopback(bench.servers)
        return
    with NetLab(bench.servers, rate=link) as lab:
        yield list(lab.hosts)
