"""Several runs beside each other: their reports, groups of runs that differ only in the seed, and whether the seeds show a
difference between groups."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from atta.errors import AttaError, ConfigError, DataError, near_path
from atta.train.config import TrainConfig
from atta.train.reports.epochs import EpochReport, Watched
from atta.train.reports.run import REPORT, TrainReport

FEWEST_SEEDS = 3
FIGURES = ("validation", "test", "last", "seconds", "bytes")
"""What ``figures_of_run`` gives."""
_BESIDE = {
    *("seed", "checkpoint", "checkpoint_every", "checkpoint_steps", "resume", "overwrite", "max_restarts"),
    *("rank_timeout", "logger", "metrics", "verbose"),
}
"""The seed, and settings that say nothing of what a run computes."""


def read_report(path: str | Path) -> TrainReport:
    """What ``atta train --json`` has written, or ``--checkpoint`` into a folder. Raises ConfigError, DataError: it is
    something else, and what."""
    path = Path(path)
    if path.is_dir() and not (path := path / REPORT).exists():
        raise ConfigError(f"{path.parent}: is a folder without a {REPORT}, which atta train --checkpoint writes")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if (schema := found["schema"]) != 1:
            raise ValueError(f"its schema is {schema!r}, and this Atta reads 1")
        epochs = [EpochReport.from_dict(epoch) for epoch in found["epochs"]]
        report = TrainReport(TrainConfig.from_dict(found["config"]), epochs)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}{near_path(path)}") from None
    except (LookupError, TypeError, AttributeError):
        raise DataError(path, "is no report of atta train --json, or one of another version of Atta") from None
    except (ValueError, AttaError) as error:
        raise DataError(path, f"is no report of atta train --json: {error}") from None
    if not epochs:
        raise DataError(path, "is a report without an epoch")
    return report


def figures_of_run(report: TrainReport) -> dict[str, float | None]:
    """Figures by name: of validation and test in the best epoch, of validation in the last one (None: not known), seconds of
    training, and bytes that daemons or trainers sent each other."""
    name, best, epochs = report.watched.metric, report.best, report.epochs
    test, last = best.metric(name.replace("val_", "test_", 1)), [e.metric(name) for e in epochs][-1]
    sent = sum(e.remote_bytes + e.exchanged_bytes for e in epochs)
    return dict(zip(FIGURES, (best.metric(name), test, last, sum(e.seconds for e in epochs), sent), strict=True))


@dataclass(frozen=True)
class RunGroup:
    """Runs that differ only in the seed: ``reports`` by their files."""

    name: str
    reports: dict[str, TrainReport]

    @property
    def figures(self) -> dict[str, dict[str, float | None]]:
        """``figures_of_run`` of each."""
        return {file: figures_of_run(report) for file, report in self.reports.items()}

    def spread(self, figure: str) -> list[float]:
        """Mean and standard deviation of a figure; the mean of a single run; empty if a run lacks the figure."""
        values = [value for run in self.figures.values() if (value := run[figure]) is not None]
        known = (statistics.fmean, statistics.stdev)[: len(values)] if len(values) == len(self.reports) else ()
        return [of(values) for of in known]

    def by_seed(self, figure: str) -> list[float]:
        """A figure once for each seed: a seed that was run twice gives no second observation."""
        found: dict[int, list[float]] = {}
        for report in self.reports.values():
            if (value := figures_of_run(report)[figure]) is not None:
                found.setdefault(report.config.seed, []).append(value)
        return [statistics.fmean(values) for values in found.values()]


@dataclass(frozen=True)
class Difference:
    """A group against the first one. gain: difference of means; p: of Welch's t-test over seeds, two-sided, times the
    number of tests (Bonferroni). What is None is ``said``."""

    gain: float | None
    p: float | None
    said: str = ""


@dataclass(frozen=True)
class RunComparison:
    """Groups of runs, and how each differs from the first one in ``compared``: ``test``, or ``validation`` if a run has no
    test."""

    watched: Watched
    groups: list[RunGroup]
    compared: str
    differences: list[Difference]

    def to_json(self) -> dict[str, Any]:
        """The document that ``--json`` writes."""
        groups = [
            {
                "name": group.name,
                "runs": {file: {"seed": group.reports[file].config.seed, **run} for file, run in group.figures.items()},
                "mean_and_deviation": {figure: group.spread(figure) for figure in FIGURES},
                "against_first": asdict(difference),
            }
            for group, difference in zip(self.groups, self.differences, strict=True)
        ]
        return {"schema": 1, "metric": self.watched.metric[4:], "compared": self.compared, "groups": groups}


def compare_runs(reports: Mapping[str, TrainReport]) -> RunComparison:
    """Compare runs by the name of their file. Raises ConfigError: they watch different metrics."""
    (first, watched), *others = ((file, report.watched) for file, report in reports.items())
    for file, other in others:
        if other != watched:
            raise ConfigError(f"{file}: is judged by {other.metric}, {first} by {watched.metric}: not to be compared")
    groups = _grouped(reports)
    compared = "test" if all(group.spread("test") for group in groups) else "validation"
    return RunComparison(watched, groups, compared, differences([g.by_seed(compared) for g in groups]))


def _grouped(reports: Mapping[str, TrainReport]) -> list[RunGroup]:
    configs = {file: report.config.to_dict() for file, report in reports.items()}
    first = next(iter(configs.values()))
    varied = [s for s in first if s not in _BESIDE and any(c[s] != first[s] for c in configs.values())]
    found: dict[str, dict[str, TrainReport]] = {}
    for file, config in configs.items():
        given = {s.replace("_", "-"): v for s in varied if (v := config[s]) is not None}
        texts = (f"{s}={','.join(map(str, v)) if isinstance(v, tuple) else v}" for s, v in given.items())
        name = " ".join(texts) or " ".join(f"no {s.replace('_', '-')}" for s in varied) or "all runs"
        found.setdefault(name, {})[file] = reports[file]
    return [RunGroup(name, of) for name, of in found.items()]


def differences(groups: Sequence[Sequence[float]]) -> list[Difference]:
    """How each group of values, one for each seed, differs from the first one. Pure."""
    found = [Difference(None, None, "the first"), *(_difference(groups[0], values) for values in groups[1:])]
    tests = sum(one.p is not None for one in found)
    return [one if one.p is None else replace(one, p=min(1.0, tests * one.p)) for one in found]


def _difference(base: Sequence[float], values: Sequence[float]) -> Difference:
    if not base or not values:
        return Difference(None, None, "no figure")
    gain = statistics.fmean(values) - statistics.fmean(base)
    if min(len(base), len(values)) < FEWEST_SEEDS:
        return Difference(gain, None, f"too few seeds: {len(values)} and {len(base)}, {FEWEST_SEEDS} are needed")
    if max(map(statistics.pstdev, (base, values))) <= 1e-12 * max(map(abs, (*base, *values))):
        return Difference(gain, None, "no spread over seeds")
    from scipy.stats import ttest_ind

    return Difference(gain, float(ttest_ind(values, base, equal_var=False).pvalue))
