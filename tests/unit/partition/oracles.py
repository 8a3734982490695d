"""Brute-force readings of graphs and datasets: plain loops over few edges, sharing no code with the writer."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atta.errors import DataError
from atta.partition import Dataset, Graph, GraphWriter
from atta.partition.graph.strings import to_strings
from atta.partition.importers import import_graph


def user_ids(graph: Graph, node_type: str) -> list[int]:
    ids = graph.user_ids(node_type)
    return list(range(graph.schema.node_counts[node_type])) if ids is None else [int(i) for i in ids]


def in_neighbours(graph: Graph, edge_type: str) -> dict[int, list[tuple[int, int]]]:
    source, target = edge_type.split("__", maxsplit=1)[0], edge_type.split("__")[2]
    sources, targets, edges = user_ids(graph, source), user_ids(graph, target), graph.edges(edge_type)
    found = defaultdict(list)
    for edge, (u, v) in enumerate(zip(edges.src.tolist(), edges.dst.tolist(), strict=True)):
        found[targets[v]].append((sources[u], edge))
    return {v: sorted(pairs) for v, pairs in found.items()}


def stored_in_neighbours(dataset: Dataset, edge_type: str) -> dict[int, list[tuple[int, int]]]:
    """The same from a dataset, in stored order. Checks that no destination is stored twice."""
    source, target = edge_type.split("__", maxsplit=1)[0], edge_type.split("__")[2]
    found: dict[int, list[tuple[int, int]]] = {}
    for part in range(dataset.num_parts):
        csc = dataset.part(part).csc(edge_type)
        lo, hi = dataset.book.range(target, part)
        assert len(csc.indptr) == hi - lo + 1
        for row in range(hi - lo):
            span = slice(int(csc.indptr[row]), int(csc.indptr[row + 1]))
            pairs = zip(dataset.ids(source)[csc.indices[span]].tolist(), csc.edge_ids[span].tolist(), strict=True)
            vertex = int(dataset.ids(target)[lo + row])
            assert vertex not in found
            found[vertex] = list(pairs)
    return {v: pairs for v, pairs in found.items() if pairs}


def check_dataset(graph: Graph, dataset: Dataset) -> None:
    schema = graph.schema
    assert dataset.schema == schema
    for t in schema.node_types:
        check_ids(graph, dataset, t)
        check_rows(graph, dataset, t)
    for e in schema.edge_types:
        assert stored_in_neighbours(dataset, e) == in_neighbours(graph, e)
        check_degrees(dataset, e)
    check_halo(dataset)
    check_quality(dataset)


def check_ids(graph: Graph, dataset: Dataset, node_type: str) -> None:
    users, internal = user_ids(graph, node_type), list(dataset.ids(node_type))
    assert sorted(internal) == sorted(users)  # the core vertices partition V
    assert dataset.to_internal(node_type, users).tolist() == [internal.index(u) for u in users]
    assert dataset.ids(node_type)[dataset.sorted_internal(node_type)].tolist() == sorted(users)
    for part in range(dataset.num_parts):
        lo, hi = dataset.book.range(node_type, part)
        assert internal[lo:hi] == sorted(internal[lo:hi])
        assert (dataset.book.owner(node_type, np.arange(lo, hi)) == part).all()
        assert dataset.part(part).num_core(node_type) == hi - lo
    for name in dataset.schema.splits[node_type]:
        got = dataset.split(node_type, name)
        assert got.tolist() == sorted(got)
        assert {internal[i] for i in got} == {users[r] for r in graph.split(node_type, name)}


def check_rows(graph: Graph, dataset: Dataset, node_type: str) -> None:
    row_of = {u: r for r, u in enumerate(user_ids(graph, node_type))}
    for name in dataset.schema.node_tables[node_type]:
        whole = graph.table(node_type, name)
        for part in range(dataset.num_parts):
            lo, hi = dataset.book.range(node_type, part)
            rows = [row_of[int(u)] for u in dataset.ids(node_type)[lo:hi]]
            np.testing.assert_array_equal(dataset.part(part).table(node_type, name), whole[rows])


def check_degrees(dataset: Dataset, edge_type: str) -> None:
    source, _, target = edge_type.split("__")
    into, out, loops = Counter[int](), Counter[int](), Counter[int]()
    weights: dict[int, float] = defaultdict(float)
    for part in range(dataset.num_parts):
        csc, lo = dataset.part(part).csc(edge_type), dataset.book.range(target, part)[0]
        for row in range(len(csc.indptr) - 1):
            for at in range(int(csc.indptr[row]), int(csc.indptr[row + 1])):
                into[lo + row] += 1
                out[int(csc.indices[at])] += 1
                loops[lo + row] += source == target and int(csc.indices[at]) == lo + row
                weights[lo + row] += 0 if csc.weight is None else float(csc.weight[at])
    found, counts = dataset.degrees(edge_type), dataset.schema.node_counts
    assert found.into.tolist() == [into[v] for v in range(counts[target])]
    assert found.out.tolist() == [out[v] for v in range(counts[source])]
    assert (loops.total() > 0) == (found.loops is not None)
    assert found.loops is None or found.loops.tolist() == [loops[v] for v in range(counts[target])]
    assert ("weight" in dataset.schema.edge_tables[edge_type]) == (found.weights is not None)
    assert found.weights is None or found.weights.tolist() == [np.float32(weights[v]) for v in range(counts[target])]


def check_halo(dataset: Dataset) -> None:
    for part in range(dataset.num_parts):
        for t in dataset.schema.node_types:
            lo, hi = dataset.book.range(t, part)
            types = [e for e in dataset.schema.edge_types if e.split("__")[0] == t]
            seen = {int(u) for e in types for u in dataset.part(part).csc(e).indices}
            assert dataset.part(part).halo(t).tolist() == sorted(u for u in seen if not lo <= u < hi)


def check_quality(dataset: Dataset) -> None:
    cut = total = 0
    for e in dataset.schema.edge_types:
        source = e.split("__")[0]
        for part in range(dataset.num_parts):
            lo, hi = dataset.book.range(source, part)
            indices = dataset.part(part).csc(e).indices
            cut += sum(not lo <= u < hi for u in indices)
            total += len(indices)
    assert total == sum(dataset.schema.edge_counts.values())  # each edge once
    assert dataset.quality["cut_edges"] == cut
    assert dataset.quality["edge_cut"] == (cut / total if total else 0)


def write_graph(path: Path, ids: list[int] | None, src: list[int], dst: list[int], n: int, *, width: int = 3) -> Graph:
    rng = np.random.default_rng(n)
    with GraphWriter(path) as out:
        tables = {"x": rng.random((n, width), dtype=np.float32), "y": np.arange(n) % 3}
        splits = {"train": np.arange(0, n, 3), "val": np.arange(1, n, 3)}
        out.add_nodes("node", n, ids=ids, tables=tables, splits=splits)
        weight = np.arange(len(src), dtype=np.float32)
        out.add_edges("node__to__node", np.array(src, np.int64), np.array(dst, np.int64), tables={"weight": weight})
    return Graph.open(path)


class Runs:
    """An object that pickles as a call, as in a hostile file."""

    def __init__(self, call, *args):
        self.call = (call, args)

    def __reduce__(self):
        return self.call


def labels(graph: Graph, node_type: str = "node") -> list[Any]:
    if "name" in graph.schema.node_tables[node_type]:
        return to_strings(graph.table(node_type, "name")).tolist()
    return user_ids(graph, node_type)


def ends_of(graph: Graph, edge_type: str = "node__to__node") -> np.ndarray:
    """The rows of the stored edges' sources and destinations [2, E]."""
    edges = graph.edges(edge_type)
    return np.stack([edges.src, edges.dst])


def edge_pairs(graph: Graph, edge_type: str = "node__to__node") -> list[tuple[int, int]]:
    return list(map(tuple, ends_of(graph, edge_type).T.tolist()))


def taken_in(fmt: str, source: Path, out: Path, **options: Any) -> Graph:
    import_graph(fmt, source, out, overwrite=True, **options)
    return Graph.open(out)


def came_in(value: Any, folder: Path, **options: Any) -> Graph:
    import torch

    torch.save(value, folder / "g.pt")
    return taken_in("pyg", folder / "g.pt", folder / "g", **options)


def content(graph: Graph) -> dict[Any, Any]:
    schema = graph.schema
    found: dict[Any, Any] = dict(schema.node_counts)
    found |= {(t, name): graph.table(t, name)[:].tolist() for t in schema.node_types for name in schema.node_tables[t]}
    found |= {(t, "split", s): graph.split(t, s)[:].tolist() for t in schema.node_types for s in schema.splits[t]}
    for t in schema.edge_types:
        edges = graph.edges(t)
        found[t] = list(zip(edges.src.tolist(), edges.dst.tolist(), strict=True))
        found |= {(t, name): rows[:].tolist() for name, rows in edges.tables.items()}
    return found


def files_of(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def refuses(kind: type[Exception], says: str, call: Callable[..., object], *given: Any, **options: Any) -> None:
    """The call raises an error of this kind, which says this."""
    with pytest.raises(kind, match=says or None):
        call(*given, **options)


def refused(fmt, source, folder, says, kind=DataError, **options):
    """The error of an import, which says in one line why it is refused; nothing is left in ``folder``."""
    with pytest.raises(kind, match=says or None) as error:
        import_graph(fmt, source, folder / "refused", **options)
    assert not re.search("\\n|\\x1b", str(error.value))
    assert not list(folder.glob("refused*"))
    return error.value


def graph_of(folder: Path, files: dict[str, str], nodes: dict[str, Any], edges: dict[str, Any], **more: Any) -> Graph:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    (folder / "schema.json").write_text(json.dumps({"nodes": nodes, "edges": edges, **more}))
    import_graph("table", folder, folder / "out" / "g", overwrite=True)
    return Graph.open(folder / "out" / "g")
