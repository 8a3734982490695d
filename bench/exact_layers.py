"""``make exact-layers``: tries every layer, aggregation, norm and model of the installed PyG and DGL on a random graph and
on batches of it, and writes ``docs/reference/exact-layers.md``.

    python -m bench.exact_layers [--only NAME] [--out FILE]
"""

from __future__ import annotations

import argparse
import inspect
import math
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch_geometric

from atta.client.inference.block import Layer, LayerBlock, in_degrees
from atta.client.inference.trial import largest_difference
from atta.errors import ConfigError
from atta.partition.schema import TableSpec
from atta.train.models.exactness import check_on
from atta.train.models.forms import SmallGraph
from atta.train.models.own import own_layers
from atta.train.reports.exactness import ExactnessReport, Finding
from atta_bench.layer_kinds import EDGE_ARGUMENTS, Kind, dgl_kinds, graph_of_rows, pyg_kinds

PAGE = Path(__file__).parents[1] / "docs/reference/exact-layers.md"
DEPTHS = (1, 2, 3)
SEEDS = (3, 4, 5, 6)
BLOCKS, ROUNDING = 7, 1e-3
"""Blocks that a prediction is made in, and differences in float32 that count as none."""
WIDEST = 120
"""Most characters of a line."""
_COLUMNS = ("kind", "batch", "trimmed", "blocks", "also", "equal with", "fan-outs", "predict")


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
    def everywhere(self) -> bool:
        """Whether it has every form, and all are equal."""
        return all(finding.equal for report in self.reports for finding in report.findings)

    def cells(self) -> tuple[str, ...]:
        """The cells of its line in the table."""
        batch = self._off("batch")
        plain = batch.startswith("=") and self._off("beside") == "="
        forms = ("isolated", "repeated", "second") if plain else ("beside", "second")
        also = [form for form in forms if self._off(form) != "="]
        said = [short for text, short in _NOTES.items() if any(text in note for note in self.reports[0].notes)]
        return (
            f"`{self.kind.name}`",
            batch,
            self._off("trimmed"),
            self._off("blocks"),
            " ".join(also + said),
            " ".join(self._remedies()),
            self._bias(),
            self.predicted,
        )

    def _off(self, form: str) -> str:
        found = [next(f for f in report.findings if f.form == form) for report in self.reports]
        texts = [_size(finding) for finding in found]
        return texts[0] if len(set(texts)) == 1 else " ".join(texts)

    def _remedies(self) -> list[str]:
        """What makes all forms equal that differ; for a second batch, what makes that one equal."""
        off = [f for report in self.reports for f in report.findings if f.equal is False]
        plain = [f.remedies for f in off if f.form != "second"]
        kept = [text for text in (plain[0] if plain else ()) if all(text in texts for texts in plain)]
        return [_short(text) for text in [*kept, *(f.remedies[0] for f in off[-1:] if f.form == "second")]]

    def _bias(self) -> str:
        report = self.reports[0]
        if report.bias is None:
            return ""
        remedy = "".join(f" ({_short(text)})" for text in report.bias_remedies)
        return f"{_number(report.bias)}{remedy}" if report.biased else "unbiased"


_NOTES = {"no path leads": "batch-wide", "order of edges": "order", "sorted by target": "sorted"}
_SHORT = (
    (r'\w+\((?:normalize=False|_?norm="none")\) and ', ""),
    (r"\w+\((\w+=[^)]*)\)", r"\1"),
    (r'edge_norm="(\w+)"( and unbiased=True)?', r"\1"),
    (r"unbiased=True", "unbiased"),
    (r'edge_order="file"', "file"),
    (r"cached=False", "uncached"),
    (r"one hop more", "hop"),
    (r"(\d) hops more", r"\1-hops"),
    (r" and ", "+"),
)


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
    return _number(finding.error) if finding.error >= 0.005 else "<.01"


def _number(value: float) -> str:
    return f"{value:.2f}".removeprefix("0")


def row_of(kind: Kind, depths: Sequence[int] = DEPTHS) -> Row:
    """Try one kind with these numbers of layers; its cause if it cannot be made or called."""
    graph = graph_of_rows()
    try:
        reports = [check_on(kind.make(depth), graph, SEEDS, draws=2000 if depth == 1 else 0) for depth in depths]
    except (Exception, ConfigError) as error:  # whatever a layer raises that cannot be made or called so
        return Row(kind, cause=_cause(error))
    return Row(kind, tuple(reports), predicted=predicted(kind))


def predicted(kind: Kind) -> str:
    """What ``atta.predict`` makes of one layer: ``exact``, ``no`` (it is refused), or how far rows are off."""
    graph = _cast(graph_of_rows().by_target())
    specs = {name: TableSpec(rows.numpy().dtype.str, tuple(rows.shape[1:])) for name, rows in graph.edge.items()}
    refusals = Exception if kind.group == "Layers of DGL" else ConfigError  # DGL has errors of its own
    for given in EDGE_ARGUMENTS:
        modules = kind.parts()
        try:
            layers, _ = own_layers(
                modules, torch.device("cpu"), graph.x.shape[1], specs, {name: name for name in given}
            )
        except refusals:
            continue
        rows, whole = graph.x, graph.x
        for layer in layers:
            rows = _by_blocks(layer, replace(graph, x=rows))
        with torch.no_grad():
            for module in modules:
                known = inspect.signature(module.forward).parameters
                edges = {"edge_index": graph.edge_index, **{name: graph.edge[name] for name in given}}
                whole = module(whole, **{name: value for name, value in edges.items() if name in known})
        off = largest_difference(rows.numpy(), whole.numpy())
        return "exact" if off < ROUNDING else f"off {off:.2g}"
    return "no"


def _by_blocks(layer: Layer, graph: SmallGraph) -> torch.Tensor:
    """[n, width]: what a layer gives, block by block."""
    every = np.arange(graph.num_nodes)
    edge = {name: graph.edge[name].numpy() for name in layer.edge_arguments}
    whole = LayerBlock(graph.x.numpy(), graph.edge_index.numpy(), len(every), {}, edge)
    degrees = {} if layer.degrees is None else {layer.degrees: in_degrees(whole, layer.degrees)}
    found = []
    for part in np.array_split(every, BLOCKS):
        batch = graph.batch(part.tolist(), [-1] * layer.hops)
        near = {rule: values[batch.n_id.numpy()] for rule, values in degrees.items()}
        rows = {name: batch.edge[name].numpy() for name in layer.edge_arguments}
        found.append(layer(LayerBlock(batch.x.numpy(), batch.edge_index.numpy(), len(part), near, rows)))
    return torch.from_numpy(np.concatenate(found))


def _cast(graph: SmallGraph) -> SmallGraph:
    edge = {name: rows.float() if rows.is_floating_point() else rows for name, rows in graph.edge.items()}
    return SmallGraph(graph.x.float(), graph.edge_index, edge)


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
    parts = [_HEAD.format(versions=_versions(), tried=len(tried), exact=sum(row.everywhere for row in tried))]
    for group in dict.fromkeys(row.kind.group for row in rows):
        own = [row for row in rows if row.kind.group == group]
        lines = [_COLUMNS, ("---",) * len(_COLUMNS), *(row.cells() for row in own if row.reports)]
        parts += [f"## {group}\n", "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"]
        if missing := [f"`{row.kind.name}`" for row in own if row.cause]:
            parts.append(
                _wrapped(f"Not tried, as they cannot be called on such a graph here: {', '.join(missing)}.") + "\n"
            )
    return "\n".join(parts)


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
    return f"{found[0]}, DGL {dgl.__version__} and {found[1]}"


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
200 vertices in float64, and on batches of it: {versions}.
Of {tried} kinds, {exact} have every form and are equal in all of them. [`atta check`](#check-your-own-model) does the
same with a model of yours on your graph.

- **batch**: a batch with all neighbours and as many hops as the model reads. `=`: its rows are those of the graph.
  Numbers are the largest difference after one, two and three layers, as a share of the largest value.
- **trimmed**: each layer gets what later ones need (PyG's `trim_to_layer`). **blocks**: sources and targets apart, as
  in DGL's blocks and `layer((x, x[:n]), edge_index)`. `none`: the layer cannot be called so.
- **also**: `beside`: another seed in the batch changes a seed's row. `second`: so does a batch before. `isolated`: a
  seed without edges; `repeated`: edges that come twice, and self-loops (both named where the plain batch is equal).
  `batch-wide`: rows depend on vertices that no path leads from. `order`: rows depend on the order of edges. `sorted`:
  edges must be sorted by target, and those of a batch are.
- **equal with**: each was tried, and makes all forms equal that differ. `hop`: one fan-out of -1 more than the model
  reads hops. `gcn`, `both`, `row`: this `edge_norm` of `NeighborLoader`, and the layer's own normalisation off
  (`normalize=False`; in DGL `norm="none"`). `file`: `edge_order="file"`. `uncached`: `cached=False`.
- **fan-outs**: with 2 of the neighbours the mean of one layer's rows over 2,000 draws is that with all (`unbiased`:
  within five standard errors), or off by this share of the largest value. In brackets: what makes it unbiased; `gcn`
  and the like with `unbiased=True`.
- **predict**: what [`atta.predict`](../guide/inference.md#a-model-of-your-own) does with the layer. `exact`: it gives
  the rows of the graph. `no`: it refuses the layer, with the cause.

## Check your own model

<!-- fragment: needs a Python file with a model -->

    atta check models:net --data data/mine-2p

`models:net` is a torch module in `models.py`, or a function that returns one. The check takes some hundred vertices of
your graph with all edges among them, runs the model on all of them and on batches, and says for each form: equal, or
the first layer that differs, by how much, and which remedies were tried and work. A model of DGL that is called as
`model(blocks, x)` needs `--hops`, the number of blocks. From Python:

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
- **A histogram.** `PNAConv` and `DegreeScalerAggregation` scale by a histogram of degrees: take that of the graph.
- **Other directions.** `ChebConv` and `DirGNNConv` read out-edges, which batches of in-neighbours do not have.
- **No neighbours.** PyG's median and quantiles give a vertex without in-edges a value of another vertex.
"""

if __name__ == "__main__":
    main()
