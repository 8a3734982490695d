"""``make exact-layers``: tries every layer, aggregation, norm and model of the installed PyG and DGL on a random graph and
on batches of it, and writes ``docs/exact-layers.md``.

    python -m bench.exact_layers [--only NAME] [--out FILE]
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch_geometric

from atta.errors import ConfigError
from atta.train.models.exactness import check_on
from atta.train.reports.exactness import ExactnessReport, Finding
from bench.layer_kinds import Kind, dgl_kinds, graph_of_rows, pyg_kinds

__all__ = ["PAGE", "Row", "page", "row_of", "rows_of"]

PAGE = Path(__file__).parents[1] / "docs/exact-layers.md"
DEPTHS = (1, 2, 3)
SEEDS = (3, 4, 5, 6)
WIDEST = 120
"""Most characters of a line."""
_COLUMNS = ("layer", "batch", "trimmed", "blocks", "also differs", "equal with", "fan-outs", "predict")


@dataclass(frozen=True)
class Row:
    """A line of the page.

    Attributes:
        kind: what was tried.
        reports: of models with one, two and three layers.
        cause: why it was not tried; then there are no reports.
        predicted: what ``atta.predict`` does with it.
    """

    kind: Kind
    reports: tuple[ExactnessReport, ...] = ()
    cause: str = ""
    predicted: str = ""

    @property
    def exact(self) -> bool:
        """Whether every form that it has is equal."""
        return all(report.ok for report in self.reports)

    @property
    def complete(self) -> bool:
        """Whether it has every form, and takes edges in any order."""
        return all(f.equal is not None for r in self.reports for f in r.findings) and not self._notes

    @property
    def _notes(self) -> tuple[str, ...]:
        return tuple(note for report in self.reports[:1] for note in report.notes)

    def cells(self) -> tuple[str, ...]:
        """The cells of its line in the table."""
        rest = [form for form in ("beside", "isolated", "repeated", "second") if self._off(form) not in ("=", "none")]
        notes = [short for text, short in _NOTES.items() if any(text in note for note in self._notes)]
        return (
            f"`{self.kind.name}`",
            self._off("batch"),
            self._off("trimmed"),
            self._off("blocks"),
            ", ".join(rest + notes),
            ", or ".join(self._remedies()),
            self._bias(),
            self.predicted,
        )

    def _off(self, form: str) -> str:
        found = [next(f for f in report.findings if f.form == form) for report in self.reports]
        texts = [_size(finding) for finding in found]
        return texts[0] if len(set(texts)) == 1 else ", ".join(texts)

    def _remedies(self) -> list[str]:
        found = [f.remedies for r in self.reports for f in r.findings if f.equal is False and f.form != "second"]
        also = [f.remedies for r in self.reports for f in r.findings if f.equal is False and f.form == "second"]
        kept = [text for text in (found[0] if found else ()) if all(text in texts for texts in found)]
        return [_short(text) for text in kept] + [_short(text) for texts in also[:1] for text in texts[:1]]

    def _bias(self) -> str:
        report = self.reports[0]
        if report.bias is None:
            return ""
        if not report.biased:
            return "unbiased"
        return " ".join([f"{report.bias:.1f}", *(f"({_short(text)})" for text in report.bias_remedies)])


_NOTES = {"no path leads": "batch-wide", "order of edges": "order", "sorted by target": "sorted", "at random": "random"}
_SHORT = ((r"\w+\((\w+=[^)]*)\)", r"\1"), (r"normalize=False and ", ""), (r"_?norm=\"none\" and ", ""), (" and ", ", "))


def _short(text: str) -> str:
    for pattern, short in _SHORT:
        text = re.sub(pattern, short, text)
    return text


def _size(finding: Finding) -> str:
    if finding.equal is None:
        return "none"
    if finding.equal:
        return "="
    if finding.error is None or not math.isfinite(finding.error):
        return "fails"
    return f"{finding.error:.2f}" if finding.error >= 0.005 else "< 0.01"


def row_of(kind: Kind, depths: Sequence[int] = DEPTHS) -> Row:
    """Try one kind with these numbers of layers; its cause if it cannot be made or called."""
    graph = graph_of_rows()
    try:
        reports = [check_on(kind.make(depth), graph, SEEDS, draws=2000 if depth == 1 else 0) for depth in depths]
    except (Exception, ConfigError) as error:  # whatever a layer raises that cannot be made or called so
        return Row(kind, cause=_cause(error))
    return Row(kind, tuple(reports))


def _cause(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:90].rstrip()


def rows_of(kinds: Iterable[Kind], depths: Sequence[int] = DEPTHS) -> Iterator[Row]:
    """The rows of all kinds, one after another; says on standard error where it is."""
    for kind in kinds:
        print(f"{kind.group}: {kind.name}", file=sys.stderr, flush=True)
        yield row_of(kind, depths)


def page(rows: Sequence[Row]) -> str:
    """The text of the page."""
    tried = [row for row in rows if row.reports]
    every = [row for row in tried if row.exact and row.complete]
    parts = [_HEAD.format(versions=_versions(), tried=len(tried), exact=len(every))]
    for group in dict.fromkeys(row.kind.group for row in rows):
        own = [row for row in rows if row.kind.group == group]
        parts.append(f"## {group}\n")
        if simple := [row for row in own if row in every]:
            names = ", ".join(f"`{row.kind.name}`{_aside(row)}" for row in simple)
            parts.append(_wrapped(f"Equal in every form: {names}.") + "\n")
        if others := [row for row in own if row.reports and row not in every]:
            lines = [_COLUMNS, ("---",) * len(_COLUMNS), *(row.cells() for row in others)]
            parts.append("\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n")
        if missing := [row for row in own if row.cause]:
            parts.append(_wrapped("Not tried, since they cannot be called on a graph of one type with the packages here: "
                                  + ", ".join(f"`{row.kind.name}`" for row in missing) + ".") + "\n")  # fmt: skip
    return "\n".join(parts)


def _aside(row: Row) -> str:
    said = [text for text in (row.cells()[6], row.predicted) if text not in ("", "unbiased", "exact")]
    return f" ({', '.join(said)})" if said else ""


def _wrapped(text: str) -> str:
    lines = [""]
    for word in re.findall(r"`[^`]*`\S*|\S+", text):
        if len(lines[-1]) + len(word) + 1 > WIDEST:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)


def _versions() -> str:
    found = [f"PyG {torch_geometric.__version__}", f"torch {torch.__version__.partition('+')[0]}"]
    try:
        import dgl
    except Exception:  # whatever its libraries raise
        return " and ".join(found)
    return ", ".join([f"PyG {torch_geometric.__version__}", f"DGL {dgl.__version__}"]) + f" and {found[1]}"


def main() -> None:
    """Write the page, or show some rows of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="show the rows of this kind; nothing is written")
    parser.add_argument("--out", type=Path, default=PAGE)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    kinds = [*pyg_kinds(), *dgl_kinds()]
    if given.only:
        for row in rows_of(kind for kind in kinds if kind.name.startswith(given.only)):
            print(row.cause or " | ".join(row.cells()))
            print("\n".join(map(str, row.reports)))
        return
    given.out.write_text(page([*rows_of(kinds)]), encoding="utf-8")


_HEAD = """# Which layers are exact on a batch

What a layer computes for a seed on a batch is not always what it computes on the graph, even with all neighbours. This
page is made by `make exact-layers`, which runs models of one, two and three layers of every kind on a random graph of
200 vertices in float64, and on batches of it: {versions}. Of {tried} kinds, {exact} are equal in every form.
[`atta check`](#check-your-own-model) does the same with a model of yours on your graph.

- **batch**: a batch with all neighbours and as many hops as the model reads. `=`: its rows are those of the graph.
  Numbers are the largest difference after one, two and three layers, as a share of the largest value.
- **trimmed**: each layer gets what later ones need (PyG's `trim_to_layer`). **blocks**: sources and targets apart, as in
  DGL's blocks and `layer((x, x[:n]), edge_index)`. `none`: the layer cannot be called so.
- **also differs**: `beside`: another seed in the batch changes a seed's row. `isolated`: a seed without edges.
  `repeated`: edges that come twice, and self-loops. `second`: a batch after another one. `batch-wide`: rows depend on
  vertices that no path leads from. `order`: on the order of edges. `sorted`: edges must be sorted by target, and those
  of a batch are. `random`: no two calls give the same.
- **equal with**: each was tried, and makes the batch, and all forms that differ, equal. `edge_norm` is an argument of
  `NeighborLoader`: the layer's own normalisation is off then (`normalize=False`; in DGL `norm="none"`), and it gets
  `edge_weight`. `one hop more`: one fan-out of -1 more than the model reads hops.
- **fan-outs**: with 2 of the neighbours the mean of one layer's rows over 2,000 draws is that with all (`unbiased`, within
  five standard errors), or off by this share of the largest value. In brackets: what makes it unbiased.
- **predict**: what [`atta.predict`](inference.md#a-model-of-your-own) does with the layer.

## Check your own model

<!-- fragment: needs a Python file with a model -->

    atta check models:net --data data/mine-2p

`models:net` is a torch module in `models.py`, or a function that returns one. The check takes some hundred vertices of
your graph with all edges among them, runs the model on all of them and on batches, and says for each form: equal, or the
first layer that differs, by how much, and which remedies were tried and work. From Python:

```python
import torch
from torch_geometric.nn import GCNConv

import atta


class Net(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = GCNConv(width, 16), GCNConv(16, 3)

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)


with atta.local("data/demo-2p") as cluster:
    report = atta.check(Net(cluster.schema.node_tables["node"]["x"].row_shape[0]), cluster)
print(report.ok)  # False
print(report)
```

## Why they differ

- **Degrees of the batch.** Layers that normalise by degrees (`GCNConv` and all that use PyG's `gcn_norm`, DGL's
  `GraphConv`) count those of the edges that they are given. The vertices of the last hop have none of theirs.
- **Statistics of the batch.** PyG's `LayerNorm` in its default mode, `GraphNorm`, `PairNorm` and attention among all
  vertices read whatever else the batch holds. `mode="node"` reads the vertex alone.
- **Padding.** Aggregations by an LSTM, a GRU or `LCMAggregation` pad to the longest neighbourhood in the batch.
- **The order of edges.** Batches have the edges into a vertex by the ids of their sources. `edge_order="file"` has them
  in the order of the user's file, for aggregations that read a sequence.
- **What was kept.** `cached=True` keeps the normalised edges of the first call: every other batch is wrong.
- **A sample.** With fan-outs a sum over some neighbours is less than that over all: see `unbiased=True` of
  `NeighborLoader`. A mean over some is on average that over all. Attention that adds self-loops gives these too much.
- **A histogram.** `PNAConv` and `DegreeScalerAggregation` scale by a histogram of degrees: take that of the whole graph.
"""

if __name__ == "__main__":
    main()
