"""One small graph in every imported format, with the parts that a test asks for."""

from __future__ import annotations

import gzip
import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

N, M = 6, 9
SRC = np.array([0, 1, 2, 2, 2, 3, 4, 5, 5])  # a self-loop (3), an edge twice (2 to 0)
DST = np.array([1, 2, 0, 0, 1, 3, 5, 4, 0])
X = np.arange(12, dtype=np.float32).reshape(N, 2) / 8
Y = np.array([1, 0, 2, 1, 0, 2])
TRAIN, VAL = np.array([1, 0, 0, 1, 0, 0], bool), np.array([0, 1, 0, 0, 0, 0], bool)
SPLITS = {"train": TRAIN, "val": VAL}
MASKS = {f"{name}_mask": rows for name, rows in SPLITS.items()}
AGE = np.array([30, 41, 19, 7, 88, 60])
IDS = np.array([70, 10, 2**40, -3, 5, 11])
ATTR = np.arange(18, dtype=np.float32).reshape(M, 2) / 4
WEIGHT = np.arange(M, dtype=np.float32) / 2 + 1
TIME = np.arange(M) * 10 + 2**33
ORDER = np.array([4, 0, 8, 1, 2, 3, 5, 7, 6])  # edge ids that differ from the positions
BUYS = np.array([[0, 5, 2], [1, 0, 3]])  # from six nodes to four items

Write = Callable[[Path, set[str]], Path]
Arrays = dict[str, Any]
NODES = {"features": {"x": X}, "labels": {"y": Y}, "splits": MASKS}
NODES |= {"other node tables": {"age": AGE}, "user ids": {"ids": IDS}}
LINKS = {"edge features": {"edge_attr": ATTR}, "weights": {"weight": WEIGHT}}
LINKS |= {"times": {"time": TIME}, "edge ids": {"e_id": ORDER}}


def of(things: set[str], tables: dict[str, Arrays], **names: str) -> Arrays:
    """The arrays of the ``things``, of NODES or LINKS, under the ``names`` that a format has for them."""
    chosen = (array for thing, arrays in tables.items() if thing in things for array in arrays.items())
    return {names.get(name, name): rows for name, rows in chosen}


def npz(folder: Path, things: set[str]) -> Path:
    for name, rows in of(things - {"splits"}, NODES).items():
        np.save(folder / f"{name}.npy", rows)
    if "splits" in things:
        np.save(folder / "train_mask.npy", TRAIN)
        np.savez(folder / "split.npz", val=np.flatnonzero(VAL))
    arrays, ends = of(things, LINKS, weight="edge_weight"), np.stack([SRC, DST])
    if "types" in things:
        arrays |= {"edge_index__node__buys__item": BUYS, "edge_index__node__to__node": ends}
    else:
        arrays["edge_index"] = ends
    np.savez(folder / "graph.npz", **arrays)
    types = {"node": N} | ({"item": 4} if "types" in things else {})
    (folder / "meta.json").write_text(json.dumps({"node_types": types, "target_type": "node", "name": "tiny"}))
    return folder


def planetoid(folder: Path, things: set[str]) -> Path:
    one_hot = np.eye(3, dtype=np.int32)[Y]
    parts = {
        "x": sp.csr_matrix(X[:2]), "y": one_hot[:2], "allx": sp.csr_matrix(X[:4]), "ally": one_hot[:4],
        "tx": sp.csr_matrix(X[4:]), "ty": one_hot[4:],
        "graph": {u: DST[u == SRC].tolist() for u in range(N)},
    }  # fmt: skip
    for name, value in parts.items():
        (folder / f"ind.tiny.{name}").write_bytes(pickle.dumps(value, protocol=2))
    (folder / "ind.tiny.test.index").write_text("4\n5\n")
    return folder


def _csv(path: Path, rows: np.ndarray, heading: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as out:
        out.write(heading)
        out.writelines(",".join(map(str, np.atleast_1d(row).tolist())) + "\n" for row in rows)


def ogb(folder: Path, things: set[str]) -> Path:
    nodes = edges = folder / "raw"
    if "types" in things:
        nodes, edges = folder / "raw/node-feat/node", folder / "raw/relations/node___to___node"
        _csv(folder / "raw/num-node-dict.csv.gz", np.array([[N, 4]]), "node,item\n")
        _csv(folder / "raw/triplet-type-list.csv.gz", np.array([["node", "to", "node"], ["node", "buys", "item"]]))
        _csv(folder / "raw/relations/node___buys___item/edge.csv.gz", BUYS.T)
    else:
        _csv(folder / "raw/num-node-list.csv.gz", np.array([N]))
    for name, rows in of(things - {"splits", "user ids"}, NODES, x="node-feat", y="node-label", age="node_age").items():
        _csv(nodes / f"{name}.csv.gz", rows)
    names = {"edge_attr": "edge-feat", "weight": "edge_weight", "time": "edge_time"}
    for name, rows in of(things - {"edge ids"}, LINKS, **names).items():
        _csv(edges / f"{name}.csv.gz", rows)
    _csv(edges / "num-edge-list.csv.gz", np.array([M]))
    _csv(edges / "edge.csv.gz", np.stack([SRC, DST], axis=1))
    if "splits" in things:
        _csv(folder / "split/time/train.csv.gz", np.flatnonzero(TRAIN))
        _csv(folder / "split/time/valid.csv.gz", np.flatnonzero(VAL))
    if "user ids" in things:
        _csv(folder / "mapping/nodeidx2id.csv.gz", np.stack([np.arange(N), IDS], axis=1), "node idx,id\n")
    return folder


def _tensors(value: Any) -> Any:
    import torch

    if isinstance(value, dict):
        return {k: _tensors(v) for k, v in value.items()}
    return torch.from_numpy(np.ascontiguousarray(value)) if isinstance(value, np.ndarray) else value


def pyg(folder: Path, things: set[str]) -> Path:
    import torch
    from torch_geometric.data import Data, HeteroData

    data: Any = HeteroData() if "types" in things else Data()
    nodes, edges = (data["node"], data["node", "to", "node"]) if "types" in things else (data, data)
    nodes.num_nodes = N
    nodes.update(_tensors(of(things, NODES, ids="n_id")))
    found = of(things, LINKS, weight="edge_weight", time="edge_time")
    edges.update(_tensors({"edge_index": np.stack([SRC, DST]), **found}))
    if "weights" in things:
        edges.edge_weight = edges.edge_weight[:, None]
    if "types" in things:
        data["item"].num_nodes = 4
        data["node", "buys", "item"].edge_index = torch.from_numpy(BUYS)
    torch.save(data, folder / "data.pt")
    return folder / "data.pt"


def pyg_parts(folder: Path, things: set[str]) -> Path:
    """Two parts as PyG's ``Partitioner`` writes them, made by hand. Odd and even numbers go to different parts."""
    import torch

    part_of, typed = np.arange(N) % 2, "types" in things
    feats, edge_feats = of(things - {"user ids"}, NODES), of(things - {"times", "edge ids"}, LINKS)
    key = ("node", "to", "node")
    shift = BUYS.shape[1] if typed else 0  # PyG numbers the edges of all types in one sequence
    for part in range(2):
        mine, edges = np.flatnonzero(part_of == part), np.flatnonzero(part_of[DST] == part)
        graph = {"edge_id": edges + shift, "row": SRC[edges], "col": DST[edges], "size": (N, N)}
        nodes = {"global_id": mine, "id": mine, "feats": {name: rows[mine] for name, rows in feats.items()}}
        tables: Arrays = {"global_id": edges, "feats": {name: rows[edges] for name, rows in edge_feats.items()}}
        if "times" in things:
            tables["edge_time"] = TIME[edges]
        values: dict[str, Any] = {"graph": graph, "node_feats": nodes, "edge_feats": tables}
        if typed:
            buys = np.arange(3) if part == 0 else np.empty(0, np.int64)
            items = np.arange(4) if part == 0 else np.empty(0, np.int64)
            more = {"edge_id": buys, "row": BUYS[0, buys], "col": BUYS[1, buys], "size": (N, 4)}
            values = {
                "graph": {key: graph, ("node", "buys", "item"): more}, "edge_feats": {key: tables},
                "node_feats": {"node": nodes, "item": {"global_id": items, "id": items, "feats": {}}},
            }  # fmt: skip
        for name, value in values.items():
            path = folder / f"part_{part}/{name}.pt"
            path.parent.mkdir(exist_ok=True)
            torch.save(_tensors(value), path)
    types: Arrays = {"node_types": None, "edge_types": None}
    if typed:
        types = {"node_types": ["node", "item"], "edge_types": [["node", "buys", "item"], list(key)]}
    (folder / "META.json").write_text(json.dumps({"num_parts": 2, "is_hetero": typed, **types}))
    maps = {"node_map": part_of, "edge_map": part_of[DST]}
    if typed:
        maps = {"node_map/node": part_of, "node_map/item": np.zeros(4, np.int64)}
        maps |= {"edge_map/node__to__node": part_of[DST], "edge_map/node__buys__item": np.zeros(3, np.int64)}
    for name, rows in maps.items():
        (folder / name).parent.mkdir(exist_ok=True)
        torch.save(torch.from_numpy(rows), folder / f"{name}.pt")
    return folder


def _dgl_graph(things: set[str]) -> Any:
    import dgl
    import torch

    ends = {("node", "to", "node"): (torch.from_numpy(SRC), torch.from_numpy(DST))}
    if "types" in things:
        ends["node", "buys", "item"] = tuple(map(torch.from_numpy, BUYS))
        graph = dgl.heterograph(ends, num_nodes_dict={"node": N, "item": 4})
    else:
        graph = dgl.graph(ends["node", "to", "node"], num_nodes=N)
    typed = "types" in things
    nodes, edges = graph.nodes["node" if typed else "_N"].data, graph.edges["to" if typed else "_E"].data
    nodes.update(_tensors(of(things - {"user ids"}, NODES, x="feat", y="label")))
    edges.update(_tensors(of(things - {"edge ids"}, LINKS)))
    if "weights" in things:
        edges["weight"] = edges["weight"][:, None]
    return graph


def dgl_file(folder: Path, things: set[str]) -> Path:
    import dgl
    import torch

    graph = _dgl_graph(things)
    if "user ids" in things:
        graph.ndata["_ID"] = torch.from_numpy(IDS)
    if "edge ids" in things:
        graph.edata["_ID"] = torch.from_numpy(ORDER)
    dgl.save_graphs(str(folder / "graph.bin"), [graph])
    return folder / "graph.bin"


def dgl_parts(folder: Path, things: set[str]) -> Path:
    import dgl

    dgl.distributed.partition_graph(_dgl_graph(things), "tiny", 1, str(folder))
    if "user ids" in things:
        np.save(folder / "nid_map.npy", IDS)
    if "edge ids" in things:
        np.save(folder / "eid_map.npy", ORDER)
    return folder / "tiny.json"


def dorylus(folder: Path, things: set[str]) -> Path:
    edges = np.stack([SRC, DST], axis=1).astype("<u4")
    (folder / "graph.bsnap").write_bytes(struct.pack("<iIQ", 4, N, M) + edges.tobytes())
    if "features" in things:
        (folder / "features.bsnap").write_bytes(struct.pack("<I", 2) + X.tobytes())
    if "labels" in things:
        (folder / "labels.bsnap").write_bytes(struct.pack("<I", 3) + Y.astype("<u4").tobytes())
    return folder


def table(folder: Path, things: set[str]) -> Path:
    import pyarrow as pa
    from pyarrow import parquet

    ids = IDS if "user ids" in things else np.arange(N)
    nodes: Arrays = {"id": ids, **of(things - {"features", "user ids"}, NODES)}
    entry: Arrays = {"files": "nodes.parquet", "id": "id", "tables": {n: n for n in ("y", "age") if n in nodes}}
    if "features" in things:
        nodes |= {"x0": X[:, 0], "x1": X[:, 1]}
        entry["tables"]["x"] = ["x0", "x1"]
    if "splits" in things:
        entry["splits"] = {name: f"{name}_mask" for name in SPLITS}
    links = {name: rows.tolist() for name, rows in of(things, LINKS).items()}
    edges: Arrays = {"a": ids[SRC], "b": ids[DST], **{"number" if n == "e_id" else n: r for n, r in links.items()}}
    to: Arrays = {"files": "edges.parquet", "src": "a", "dst": "b", "tables": {n: n for n in links if n != "e_id"}}
    schema: Arrays = {"nodes": {"node": entry}, "edges": {"node__to__node": to}}
    if "types" in things:
        schema["nodes"]["item"] = {"files": "items.parquet", "id": "id"}
        schema["edges"]["node__buys__item"] = {"files": "buys.parquet", "src": "a", "dst": "b"}
        parquet.write_table(pa.table({"id": np.arange(4)}), folder / "items.parquet")
        parquet.write_table(pa.table({"a": ids[BUYS[0]], "b": BUYS[1]}), folder / "buys.parquet")
    parquet.write_table(pa.table(nodes), folder / "nodes.parquet")
    parquet.write_table(pa.table(edges), folder / "edges.parquet")
    (folder / "schema.json").write_text(json.dumps(schema))
    return folder


def networkx(folder: Path, things: set[str]) -> Path:
    import networkx as nx

    graph = nx.MultiDiGraph()
    ids = (IDS if "user ids" in things else np.arange(N)).tolist()
    nodes = of(things - {"user ids"}, NODES) | of(things, {"types": {"kind": np.array(["user", "item"] * 3)}})
    links = of(things - {"edge ids"}, LINKS)
    for row in range(N):
        graph.add_node(ids[row], **{name: rows[row].tolist() for name, rows in nodes.items()})
    for place in np.argsort(SRC, kind="stable"):  # networkx keeps edges by their sources
        keys = {"key": int(ORDER[place])} if "edge ids" in things else {}
        values = {name: rows[place].tolist() for name, rows in links.items()}
        graph.add_edge(ids[SRC[place]], ids[DST[place]], **keys, **values)
    (folder / "graph.json").write_text(json.dumps(nx.node_link_data(graph)))
    return folder / "graph.json"


def matrix(folder: Path, things: set[str]) -> Path:
    weights = [f" {weight}" for weight in WEIGHT] if "weights" in things else [""] * M
    lines = [f"{u + 1} {v + 1}{weight}\n" for u, v, weight in zip(SRC, DST, weights, strict=True)]
    kind = "real" if "weights" in things else "pattern"
    head = f"%%MatrixMarket matrix coordinate {kind} general\n{N} {N} {M}\n"
    (folder / "graph.mtx").write_text(head + "".join(lines))
    return folder / "graph.mtx"


def edges(folder: Path, things: set[str]) -> Path:
    ends = IDS[np.stack([SRC, DST])] if "user ids" in things else np.stack([SRC, DST])
    tables = {**LINKS, "edge features": {"colour": ATTR[:, 0]}}
    columns = {"source": ends[0], "target": ends[1], **of(things, tables, e_id="number")}
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    (folder / "edges.csv").write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]))
    return folder / "edges.csv"


def _npy(folder: Path, name: str, rows: np.ndarray) -> str:
    np.save(folder / f"{name}.npy", rows)
    return f"{name}.npy"


def _of(things: set[str]) -> tuple[Arrays, Arrays]:
    return of(things - {"user ids"}, NODES, x="feat", y="label"), of(things - {"edge ids"}, LINKS)


def dgl_chunks(folder: Path, things: set[str]) -> Path:
    nodes, edges = _of(things)
    to, types = ("node:to:node", ["node", "item"]) if "types" in things else ("_N:_E:_N", ["_N"])
    ends = {to: np.stack([SRC, DST], axis=1)} | ({"node:buys:item": BUYS.T} if "types" in things else {})

    def spec(name: str, rows: np.ndarray) -> dict[str, Any]:
        return {"format": {"name": "numpy"}, "data": [_npy(folder, name.replace(":", "-"), rows)]}

    said = {
        "node_type": types, "num_nodes_per_type": [N, 4][: len(types)],
        "edge_type": list(ends), "num_edges_per_type": [len(rows) for rows in ends.values()],
        "edges": {key: spec(key, rows) for key, rows in ends.items()},
        "node_data": {types[0]: {name: spec(name, rows) for name, rows in nodes.items()}},
        "edge_data": {to: {name: spec(name, rows) for name, rows in edges.items()}},
    }  # fmt: skip
    (folder / "metadata.json").write_text(json.dumps(said))
    return folder


def dgl_csv(folder: Path, things: set[str]) -> Path:
    nodes, edges = _of(things)
    ids = IDS if "user ids" in things else np.arange(N)

    def write(name: str, columns: dict[str, np.ndarray]) -> str:
        cells = [[f'"{value}"' for value in rows.tolist()] for rows in columns.values()]
        lines = [",".join(columns), *map(",".join, zip(*cells, strict=True))]
        (folder / name).write_text("\n".join(lines))
        return name

    of_nodes: list[Arrays] = [{"file_name": write("node.csv", {"node_id": ids, **nodes})}]
    of_edges: list[Arrays] = [{"file_name": write("edge.csv", {"src_id": ids[SRC], "dst_id": ids[DST], **edges})}]
    if "types" in things:
        buys = write("buys.csv", {"src_id": ids[BUYS[0]], "dst_id": BUYS[1]})
        of_nodes[0]["ntype"], of_edges[0]["etype"] = "node", ["node", "to", "node"]
        of_nodes.append({"file_name": write("item.csv", {"node_id": np.arange(4)}), "ntype": "item"})
        of_edges.append({"file_name": buys, "etype": ["node", "buys", "item"]})
    said = {"dataset_name": "tiny", "node_data": of_nodes, "edge_data": of_edges}
    (folder / "meta.yaml").write_text(json.dumps(said))  # JSON is YAML
    return folder


def dgl_graphbolt(folder: Path, things: set[str]) -> Path:
    nodes, edges = _of(things - {"splits"})
    typed = "types" in things

    def of_type(name: str) -> dict[str, str]:
        return {"type": name} if typed else {}

    def file(name: str, rows: np.ndarray, node_or_edge_type: str) -> dict[str, str]:
        return {"format": "numpy", "path": _npy(folder, name, rows), "name": name, **of_type(node_or_edge_type)}

    features = [{"domain": "node", **file(name, rows, "node")} for name, rows in nodes.items()]
    features += [{"domain": "edge", **file(name, rows, "node:to:node")} for name, rows in edges.items()]
    counts: list[Arrays] = [{"num": N, **of_type("node")}]
    links = [file("to", np.stack([SRC, DST]), "node:to:node")]
    if typed:
        counts.append({"num": 4, "type": "item"})
        links.append(file("buys", BUYS, "node:buys:item"))
    sets = {"train_set": TRAIN, "validation_set": VAL} if "splits" in things else {}
    seeds = {key: {**file(key, np.flatnonzero(rows), "node"), "name": "seeds"} for key, rows in sets.items()}
    task = {key: [{"data": [data], **of_type("node")}] for key, data in seeds.items()}
    graph = {"nodes": counts, "edges": links}
    said = {"graph": graph, "feature_data": features, "tasks": [task] if task else []}
    (folder / "metadata.yaml").write_text(json.dumps(said))
    return folder


def tgb(folder: Path, things: set[str]) -> Path:
    ends = IDS[np.stack([SRC, DST])] if "user ids" in things else np.stack([SRC, DST])
    attr = ATTR if "edge features" in things else ATTR[:, :0]
    rows = zip(*ends.tolist(), TIME.tolist(), attr.tolist(), strict=True)
    lines = [",".join(map(str, (u, v, float(t), 0, *values))) for u, v, t, values in rows]
    heading = "source,destination,timestamp,state_label,comma_separated_list_of_features"
    (folder / "tiny.csv").write_text("\n".join([heading, *lines]))
    return folder / "tiny.csv"


# The row of the document: the format, its writer, and the package that it needs.
FORMATS: dict[str, tuple[str, Write, str]] = {
    "`npz`": ("npz", npz, ""),
    "`planetoid`": ("planetoid", planetoid, ""),
    "`ogb`": ("ogb", ogb, ""),
    "`pyg`": ("pyg", pyg, "torch_geometric"),
    "`pyg-parts`": ("pyg-parts", pyg_parts, "torch"),
    "`dgl`: file": ("dgl", dgl_file, "dgl"),
    "`dgl`: partitions": ("dgl", dgl_parts, "dgl"),
    "`dgl`: chunks": ("dgl", dgl_chunks, ""),
    "`dgl`: `CSVDataset`": ("dgl", dgl_csv, "yaml"),
    "`dgl`: GraphBolt": ("dgl", dgl_graphbolt, "yaml"),
    "`dorylus`": ("dorylus", dorylus, ""),
    "`table`": ("table", table, "pyarrow"),
    "`networkx`": ("networkx", networkx, ""),
    "`matrix`": ("matrix", matrix, ""),
    "`edges`": ("edges", edges, "pyarrow"),
    "`tgb`": ("tgb", tgb, ""),
}
