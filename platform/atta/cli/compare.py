"""``atta compare``: several training runs side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from atta.cli.figures import hand_out
from atta.cli.options import command
from atta.cli.output import json_option, need_torch, plot_option, quiet_option, size

if TYPE_CHECKING:
    from rich.console import RenderableType

    from atta.train.reports.comparison import RunComparison

_HEADINGS = {"validation": "validation, best epoch", "test": "test, best epoch", "last": "validation, last epoch"}


@command(epilog="Example: atta compare runs/sage-* runs/gcn-* --plot runs.png")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path())
@json_option
@plot_option("Draw the curves of all runs.")
@quiet_option
def compare(runs: tuple[str, ...], json_file: str | None, plot: str | None, quiet: bool) -> None:
    """Compare training runs: RUN is a folder of atta train --checkpoint, or a file of --json.

    Runs that differ only in the seed are a group, shown by mean and standard deviation. Each group is compared with the
    first one by Welch's t-test over seeds (three at least), multiplied by the number of tests (Bonferroni)."""
    need_torch("atta compare", quiet=quiet)
    from atta.train.reports.comparison import compare_runs, read_report

    hand_out(_Shown(compare_runs({run: read_report(run) for run in runs})), json_file, plot, quiet=quiet)


@dataclass(frozen=True)
class _Shown:
    found: RunComparison

    def to_json(self) -> dict[str, Any]:
        return self.found.to_json()

    def show(self) -> RenderableType:
        from rich.table import Table

        metric, several = self.found.watched.metric[4:], len(self.found.groups) > 1
        table = Table("group", "seeds", title=f"{metric}, mean ± standard deviation")
        # Nothing is sent by one daemon alone, or where all rows are cached.
        sent = any(sum(group.spread("bytes")) for group in self.found.groups)
        against = [f"{self.found.compared} against the first", "p (Welch, Bonferroni)"]
        for heading in [*_HEADINGS.values(), "seconds", *["bytes sent"] * sent, *against * several]:
            table.add_column(heading, justify="right", min_width=len(heading))
        scale, form, unit, step = (100.0, ".2f", " %", " points") if metric == "accuracy" else (1.0, ".4f", "", "")
        for group, difference in zip(self.found.groups, self.found.differences, strict=True):
            spreads = (group.spread(figure) for figure in _HEADINGS)
            cells = [" ± ".join(f"{scale * v:{form}}" for v in values) + unit * bool(values) for values in spreads]
            cells.append(" ± ".join(f"{v:,.4g}" for v in group.spread("seconds")))
            p = difference.said if difference.p is None else f"{difference.p:.3g}"
            gained = [p, ""] if difference.gain is None else [f"{scale * difference.gain:+{form}}{step}", p]
            cells += [*[size(group.spread("bytes")[0])] * sent, *gained * several]
            table.add_row(group.name, f"{len(group.by_seed('seconds'))}", *cells)
        return table

    def plot(self, path: str) -> None:
        from atta.cli.pictures import draw_runs

        groups = {group.name: [report.epochs for report in group.reports.values()] for group in self.found.groups}
        draw_runs(path, groups, self.found.watched)


COMMANDS: list[click.Command] = [compare]
