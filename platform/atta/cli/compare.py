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

_FORMS = {"validation": ".4f", "test": ".4f", "last": ".4f", "seconds": ",.4g"}


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

        table = Table("group", "seeds", title=f"{self.found.watched.metric[4:]}: mean ± standard deviation over runs")
        several = len(self.found.groups) > 1
        # Nothing is sent by one daemon alone, or where all rows are cached.
        sent = any(sum(group.spread("bytes")) for group in self.found.groups)
        headings = ["best validation", "test then", "last validation", "seconds", *["bytes sent"] * sent]
        for heading in [*headings, f"{self.found.compared} against the first"] if several else headings:
            table.add_column(heading, justify="right")
        for group, difference in zip(self.found.groups, self.found.differences, strict=True):
            cells = (" ± ".join(f"{v:{form}}" for v in group.spread(name)) for name, form in _FORMS.items())
            gain = "" if difference.gain is None else f"{difference.gain:+.4f}, "
            said = difference.said if difference.p is None else f"p = {difference.p:.3g} (Welch, Bonferroni)"
            nbytes = [size(group.spread("bytes")[0])] * sent
            against = [gain + said] if several else []
            table.add_row(group.name, f"{len(group.by_seed('seconds'))}", *cells, *nbytes, *against)
        return table

    def plot(self, path: str) -> None:
        from atta.cli.pictures import draw_runs

        groups = {group.name: [report.epochs for report in group.reports.values()] for group in self.found.groups}
        draw_runs(path, groups, self.found.watched)


COMMANDS: list[click.Command] = [compare]
