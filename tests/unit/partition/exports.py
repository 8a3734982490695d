"""Shared by the tests of exporters: random and given graphs for the formats, and a comparison of graph folders."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from atta.partition import Graph, GraphWriter

ETYPE = "node__to__node"
NAMES = ["", "a", "pear", "äpfel", "東京", "x" * 40, "0", "17"]
NEEDS = {"pyg": "torch_geometric", "dgl": "dgl", "table": "pyarrow"}


@dataclass(frozen=True)
class Can:
    """What a format can hold, as far as the tests below draw it."""

    typed: bool = True
    extra: bool = True  # node tables besides x and y
    everywhere: bool = True  # labels and splits on several types, edge tables on several edge types
    splits: tuple[str, ...] = ("train", "val", "test", "fold_mask", "a.b-c")
    edge_tables: tuple[str, ...] = ("weight", "time", "edge_attr", "colour")
    dtypes: str = "i2 u8 f2 f8 ?"  # of node tables, and of rows of labels
    empty: bool = True  # types without vertices
    classes: bool = True  # more classes than the labels use


CAN = {
    "npz": Can(extra=False, everywhere=False, edge_tables=("weight", "time", "edge_attr")),
    "pyg": Can(),
    "dgl": Can(dtypes="i2 u8 f2 f8"),
    "table": Can(),
    "ogb": Can(False, False, splits=("train", "val", "test"), edge_tables=(), dtypes="i8", empty=False, classes=False),
}


def need(fmt: str) -> None:
    if fmt in NEEDS:
        pytest.importorskip(NEEDS[fmt], reason=f"needs {NEEDS[fmt]}")


class Drawn:
    """A random graph that a format can hold: hypothesis draws its shape, numpy its values."""

    def __init__(self, draw: Any, can: Can) -> None:
        self.draw, self.can = draw, can
        self.rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def flag(self) -> bool:
        return bool(self.draw(st.booleans()))

    def write(self, path: Path) -> Graph:
        typed = self.can.typed and self.flag()
        types = ["item", "node", "user"] if typed else ["node"]
        counts = {t: self.draw(st.integers(0 if self.can.empty else 1, 9)) for t in types}
        labelled = types if self.can.everywhere else [self.draw(st.sampled_from(types))]
        edges = ["item__of__item", "user__buys__item", ETYPE] if typed else [ETYPE]
        with GraphWriter(path) as out:
            for t, count in counts.items():
                self.nodes(out, t, count, labelled=t in labelled)
            if self.can.classes and self.flag():
                out.num_classes = 4 + self.draw(st.integers(0, 3))
            kinds = edges[: self.draw(st.integers(1, len(edges)))]
            tables = self.can.edge_tables if self.can.everywhere or len(kinds) == 1 else ()
            for edge_type in kinds:
                source, _, target = edge_type.split("__")
                self.edges(out, edge_type, (counts[source], counts[target]), tables)
        return Graph.open(path)

    def nodes(self, out: GraphWriter, node_type: str, count: int, *, labelled: bool) -> None:
        tables: dict[str, Any] = {}
        ids = self.rng.choice(2**40, count, replace=False) - 2**39 if self.flag() else None
        if self.flag():
            tables["x"] = self.rng.normal(size=(count, 3)).astype(np.float32)
            tables["x"][:1, 0] = self.draw(st.sampled_from([np.nan, np.inf, 1e-42, 0.1]))
        if labelled and self.flag():
            dtype = self.draw(st.sampled_from(self.can.dtypes.split()))
            several = self.rng.integers(0, 2, (count, 3)).astype(dtype)
            tables["y"] = several if self.flag() else self.rng.integers(-1, 4, count)
        if self.can.extra and self.flag():
            dtype = self.draw(st.sampled_from(self.can.dtypes.split()))
            tables["year"] = self.rng.integers(0, 2000, (count, 2) if self.flag() else count).astype(dtype)
            tables["id"] = self.rng.normal(size=count)
            if count:
                tables["name"] = self.names(count) if self.flag() else self.rng.integers(0, 256, (count, 2), np.uint8)
        if not self.can.typed and self.flag():
            tables["node_year"] = self.rng.integers(1900, 2000, count)
        names = [name for name in self.can.splits if labelled and self.flag()]
        splits = {name: np.flatnonzero(self.rng.random(count) < 0.4) for name in names}
        out.add_nodes(node_type, count, ids=ids, tables=tables, splits=splits)

    def names(self, count: int) -> np.ndarray:
        chosen = self.rng.permutation(NAMES + [f"n{i}" for i in range(count)])[:count]
        encoded = np.array([name.encode() for name in chosen], np.bytes_)
        return encoded.view(np.uint8).reshape(count, -1)

    def edges(self, out: GraphWriter, edge_type: str, sizes: tuple[int, int], names: tuple[str, ...]) -> None:
        m = self.draw(st.integers(0, 12)) if min(sizes) else 0
        values = {
            "weight": self.rng.random(m, np.float32),
            "time": self.rng.integers(0, 2**60, m),
            "edge_attr": self.rng.random((m, 2)),
            "colour": self.rng.integers(0, 255, m).astype(np.uint8),
        }
        tables = {name: values[name] for name in names if self.flag()}
        src, dst = (self.rng.integers(0, max(size, 1), m) for size in sizes)
        out.add_edges(edge_type, src, dst, tables=tables)


def assert_same(one: Graph, other: Graph) -> None:
    assert one.schema == other.schema
    assert one.files == other.files


def target(fmt: str, folder: Path) -> Path:
    return folder / {"pyg": "out.pt", "dgl": "out.bin"}.get(fmt, "out")


def plain(path: Path, *, weight: bool = True) -> Graph:
    """10 vertices with scattered ids, 25 edges with multi-edges, self-loops and an isolated vertex."""
    rng = np.random.default_rng(3)
    with GraphWriter(path) as out:
        out.add_nodes(
            "node", 10, ids=rng.permutation(1000)[:10] + 2**33,
            tables={"x": rng.random((10, 4), np.float32), "y": np.arange(10) % 3 - 1},
            splits={"train": [0, 3, 9], "val": [1], "test": []},
        )  # fmt: skip
        tables = {"weight": rng.random(25, np.float32)} if weight else {}
        out.add_edges(ETYPE, rng.integers(0, 9, 25), rng.integers(0, 9, 25), tables=tables)
    return Graph.open(path)


def shop(path: Path) -> Graph:
    names = np.array([s.encode() for s in ("apple", "pear", "äpfel")], np.bytes_).view(np.uint8).reshape(3, -1)
    with GraphWriter(path) as out:
        out.add_nodes("user", 3, ids=[700, 5, 42], tables={"x": np.eye(3, 2, dtype=np.float32), "y": np.array([1, -1, 0])},
                      splits={"train": [0, 2]})  # fmt: skip
        out.add_nodes("item", 3, tables={"name": names})
        time = np.array([30, 10, 20])
        out.add_edges("user__buys__item", [2, 0, 2], [1, 1, 2], tables={"time": time, "price": time / 4})
        out.add_edges("user__knows__user", [0], [0])
    return Graph.open(path)
