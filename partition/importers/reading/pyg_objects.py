"""The graph in a file of PyG, as a ``Data`` or ``HeteroData`` object that PyG itself made anew. None of the file's classes is
unpickled: the fields are read, and PyG's own constructors get them. Sparse matrices ``adj_t`` and ``adj`` become
``edge_index``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from atta.errors import DataError
from atta.observe.packages import load
from atta.partition.graph import NODE_TYPE
from atta.partition.importers.reading.pickles import Foreign, foreign, load_torch, real_numbers
from atta.partition.importers.reading.source import ImportOptions

Store = dict[str, Any]
_DATA = "torch_geometric.data."
_GRAPHS = [f"{_DATA}{name}" for name in ("data.Data", "hetero_data.HeteroData", "temporal.TemporalData", "batch.Batch")]
_PARTS = [f"{_DATA}{name}" for name in (
    "data.DataEdgeAttr", "data.DataTensorAttr", "graph_store.EdgeAttr", "feature_store.TensorAttr", "storage.AttrType",
    *(f"storage.{kind}Storage" for kind in ("Base", "Node", "Edge", "Global")),
)]  # fmt: skip
_EDGES = (NODE_TYPE, "to", NODE_TYPE)


def load_graph(source: Path, options: ImportOptions) -> Any:
    """Return the ``Data`` or ``HeteroData`` of a file. Raises DataError if it holds no graph, or several."""
    load("importing PyG files", "torch", "torch_geometric.data")
    import torch_geometric

    admitted = {f"{_DATA}batch.DynamicInheritanceGetter": _Getter, f"{_DATA}batch.DynamicInheritanceGetter()": _base_of}
    for kind in (getattr(torch_geometric, name, None) for name in ("EdgeIndex", "Index")):
        if kind is not None:
            admitted[f"{kind.__module__}.{kind.__qualname__}"] = kind
    value = _single(source, load_torch(source, admitted, (*_GRAPHS, *_PARTS)))
    if isinstance(value, Foreign) and value.kind.startswith("torch_geometric."):
        if value.kind == f"{_DATA}temporal.TemporalData":
            return _of_events(source, _attributes(_store(value)), options)
        if "_node_store_dict" in value.fields:
            return _typed(source, _stores(value.fields), options)
        if "_store" in value.fields or value.kind in _GRAPHS:
            return _untyped(source, _attributes(_store(value)), options)
    if not isinstance(value, Mapping):
        raise DataError(source, _no_graph(value))
    if any(isinstance(key, tuple) or key == "_global_store" for key in value):
        return _typed(source, value, options)
    return _untyped(source, _attributes(value), options)


def _no_graph(value: Any) -> str:
    fields = value.fields if isinstance(value, Foreign) else {}
    how = ": save dataset[0]" if "slices" in fields else ""
    if "_store" in fields or "_node_store_dict" in fields:
        how = ": save Data.from_dict(data.to_dict()), or the same of HeteroData"
    return f"holds {kind_of(value)} instead of Data, HeteroData, TemporalData or a Batch{how}"


class _Getter:
    """Stands in for the class of a function with which PyG's pickles of a ``Batch`` begin."""

    def __new__(cls, *_: Any) -> Any:
        return _base_of


def _base_of(_: Any, base: Any) -> Any:
    """Stand in for that function: a batch comes in as an object of the class that it is a batch of."""
    if not (isinstance(base, type) and issubclass(base, Foreign)):
        raise TypeError("a batch of no class")
    return base()


def _single(source: Path, value: Any) -> Any:
    """The only graph in a list or tuple, or in what an in-memory data set saves: the graph or its fields, where each
    graph begins (None for a single one), and in newer files a class."""
    if not isinstance(value, list | tuple):
        return value
    if len(value) > 1 and (value[1] is None or isinstance(value[1], dict)) and isinstance(value[0], dict | Foreign):
        if value[1] and (graphs := _graphs(value[1])) != 1:
            raise DataError(source, f"holds {graphs} graphs of a data set: one is imported, save dataset[i] by itself")
        return value[0]
    if len(value) != 1:
        how = "one graph is imported, save the one you mean by itself, as torch.save(graphs[0], FILE)"
        raise DataError(source, f"holds {len(value)} objects: {how}")
    return _single(source, value[0])


def _graphs(slices: Mapping[Any, Any]) -> int:
    ends = {name: as_array(s) for name, s in slices.items()}
    counts = [_graphs(s) if isinstance(s, Mapping) else ends[name].size - 1 for name, s in slices.items()
              if isinstance(s, Mapping) or ends[name] is not None]  # fmt: skip
    return max(counts, default=1)


def _store(value: Any) -> Mapping[Any, Any]:
    """The attributes of an object, of one of its stores, or of a dictionary. Releases of PyG before 2.0 kept them in
    the object itself."""
    fields = value.fields if isinstance(value, Foreign) else value
    if isinstance(inner := fields.get("_store"), Foreign):
        fields = inner.fields
    if isinstance(inner := fields.get("_mapping"), dict):
        return inner
    old = {"num_nodes": fields.get("__num_nodes__"), **fields}
    return {name: rows for name, rows in old.items() if not str(name).startswith("__")}


def _stores(fields: Mapping[Any, Any]) -> dict[Any, Any]:
    found = {"_global_store": fields.get("_global_store")}
    for part in ("_node_store_dict", "_edge_store_dict"):
        found |= fields.get(part) or {}
    return {key: _store(store) if isinstance(store, Foreign) else {} for key, store in found.items()}


def _attributes(mapping: Mapping[Any, Any]) -> Store:
    return {str(name): _value(rows) for name, rows in mapping.items() if rows is not None and name != "_num_nodes"}


def _value(value: Any) -> Any:
    import torch

    try:
        value = real_numbers(value)
    except Exception:  # strings, objects; and a damaged pickle raises nearly any type
        return foreign("numpy.ndarray")()
    if isinstance(value, Foreign):
        return _from_torch_sparse(value)
    if isinstance(value, torch.Tensor) and type(value) not in (torch.Tensor, torch.nn.Parameter):
        data = value.__dict__.get("_data")
        return (
            _edge_index(data, value.__dict__.get("_sparse_size")) if type(data) is torch.Tensor else foreign("Index")()
        )
    if isinstance(value, torch.Tensor) and value.is_nested:  # PyG cannot ask for its shape
        return foreign("torch.nested.Tensor")()
    if isinstance(value, torch.Tensor | np.ndarray) and value.ndim == 0 and not _is_sparse(value):
        return value.item()
    return value


def _edge_index(ends: Any, size: Any) -> Any:
    import torch_geometric

    known = isinstance(size, tuple) and len(size) == 2 and all(n is None or (type(n) is int and n >= 0) for n in size)
    if not known or size == (None, None) or ends.ndim != 2 or str(ends.dtype) not in ("torch.int64", "torch.int32"):
        return ends
    return torch_geometric.EdgeIndex(ends.contiguous(), sparse_size=size)


def whole_number(value: Any) -> int | None:
    """``value`` as an int, None if it is no whole number."""
    return int(value) if isinstance(value, int | np.integer) and not isinstance(value, bool) else None


def _untyped(source: Path, store: Store, options: ImportOptions) -> Any:
    from torch_geometric.data import Data

    data = Data()
    _fill(source, data.stores[0], _with_ends(source, store, options), options)
    return data


def _typed(source: Path, stores: Mapping[Any, Any], options: ImportOptions) -> Any:
    from torch_geometric.data import HeteroData

    data = HeteroData()
    whole: Store = {}
    for key, store in stores.items():
        if key == "_global_store" or not isinstance(store, Mapping):
            whole |= _attributes(store if isinstance(store, Mapping) else {key: store})
        elif isinstance(key, str):
            _fill(source, data.get_node_store(key), _attributes(store), options)
        elif isinstance(key, tuple) and len(key) == 3 and all(isinstance(name, str) for name in key):
            _fill(source, data.get_edge_store(*key), _with_ends(source, _attributes(store), options), options)
        else:
            raise DataError(source, f"edge type {key!r}: expected (source, relation, destination)")
    _fill(source, data.stores[0], whole, options)
    return data


def _of_events(source: Path, store: Store, options: ImportOptions) -> Any:
    from torch_geometric.data import HeteroData

    ends = [as_array(store.pop(name, None)) for name in ("src", "dst")]
    if any(e is None or e.shape != ends[0].shape or e.ndim != 1 for e in ends):
        shapes = ["nothing" if e is None else list(e.shape) for e in ends]
        raise DataError(source, f"src {shapes[0]} and dst {shapes[1]} are no list of edges")
    if "t" in store:
        if "time" in store:
            options.refuse(source, "time", "the times of events are 't'")
        store["time"] = store.pop("t")
    data = HeteroData()
    count = store.pop("num_nodes", None)
    data.get_node_store(NODE_TYPE).num_nodes = whole_number(count) or max(
        int(e.max()) + 1 if e.size else 0 for e in ends
    )
    _fill(source, data.get_edge_store(*_EDGES), {"edge_index": np.stack(ends), **store}, options)
    return data


def _fill(source: Path, to: Any, store: Store, options: ImportOptions) -> None:
    for name, value in store.items():
        if name.startswith("_"):
            options.refuse(source, name, "names that begin with '_' are PyG's own")
        elif name == "num_nodes" and whole_number(value) is None:
            options.refuse(source, name, f"it is {kind_of(value)}, wanted is a number of vertices")
        else:
            to[name] = value


def _is_sparse(value: Any) -> bool:
    return "sparse" in str(getattr(value, "layout", ""))


def is_matrix(value: Any) -> bool:
    """Whether a value is a sparse matrix in one of the layouts that are read: COO, CSR, CSC. Entries may be rows."""
    known = str(getattr(value, "layout", "")) in ("torch.sparse_coo", "torch.sparse_csr", "torch.sparse_csc")
    return known and value.ndim - value.dense_dim() == 2


def sparse_ends(matrix: Any) -> tuple[Any, Any, Any]:
    """The rows, columns and values of a sparse matrix, in the order in which they are stored."""
    import torch

    if matrix.layout == torch.sparse_coo:
        return matrix._indices()[0], matrix._indices()[1], matrix._values()
    by_row = matrix.layout == torch.sparse_csr
    starts = matrix.crow_indices() if by_row else matrix.ccol_indices()
    outer = _repeated(starts)
    inner = matrix.col_indices() if by_row else matrix.row_indices()
    return (outer, inner, matrix.values()) if by_row else (inner, outer, matrix.values())


def _from_torch_sparse(value: Foreign) -> Any:
    """A ``SparseTensor`` of the package torch_sparse, which need not be installed, as a COO matrix of torch in the same
    order; without values it has ones. Other objects as they are."""
    import torch

    storage = value.fields.get("storage")
    if value.kind != "torch_sparse.tensor.SparseTensor" or not isinstance(storage, Foreign):
        return value
    row, starts, col, values = (storage.fields.get(f"_{name}") for name in ("row", "rowptr", "col", "value"))
    try:
        if row is None:
            if int(starts[-1]) != len(col) or bool((starts.diff() < 0).any()):  # type: ignore[index, arg-type, union-attr]
                return value
            row = _repeated(starts)
        values = torch.ones(len(col)) if values is None else values  # type: ignore[arg-type]
        size = (*storage.fields["_sparse_sizes"], *values.shape[1:])
        return torch.sparse_coo_tensor(torch.stack([row, col]), values, size, check_invariants=True)  # type: ignore[list-item]
    except (TypeError, RuntimeError, AttributeError, KeyError, IndexError):
        return value  # damaged: it is refused by its attribute's name


def _repeated(starts: Any) -> Any:
    import torch

    return torch.repeat_interleave(torch.arange(len(starts) - 1), starts.diff())


def _with_ends(source: Path, store: Store, options: ImportOptions) -> Store:
    """The store with ``edge_index`` in the place of sparse matrices, and their values as weights."""
    for name, transposed in (("adj_t", True), ("adj", False)):
        if is_matrix(store.get(name)):
            _take_matrix(source, name, store, options, transposed=transposed)
        elif name in store and "edge_index" not in store:
            options.refuse(source, name, "edges are read from edge_index or from a sparse matrix")
            del store[name]
    return store


def _take_matrix(source: Path, name: str, store: Store, options: ImportOptions, *, transposed: bool) -> None:
    """Put the edges of the sparse matrix ``name`` in its place. Beside ``edge_index`` it may only say the same. Values
    that are all one say nothing."""
    import torch

    matrix = store.pop(name).detach()
    row, col, values = sparse_ends(matrix)
    ends = torch.stack([col, row] if transposed else [row, col])
    size = tuple(int(n) for n in matrix.shape[:2])
    plain = bool((values == 1).all())
    if "edge_index" not in store:
        store["edge_index"] = _edge_index(ends, size[::-1] if transposed else size)
    elif not _same(np.asarray(ends), as_array(store["edge_index"]), ordered=not plain):
        options.refuse(source, name, "it is a sparse tensor whose edges are not those of edge_index")
        return
    table = "edge_weight" if values.ndim == 1 else "edge_attr"
    if not plain and not np.array_equal(np.asarray(store.setdefault(table, values)), np.asarray(values)):
        options.refuse(source, name, f"its values are not those of {table}")


def _same(ends: Any, known: Any, *, ordered: bool) -> bool:
    if known is None or ends.shape != known.shape:
        return False
    if ordered or np.array_equal(ends, known):
        return np.array_equal(ends, known)
    return np.array_equal(ends[:, np.lexsort(ends)], known[:, np.lexsort(known)])


def kind_of(value: Any) -> str:
    """The kind of a value, for people."""
    if _is_sparse(value):
        return "a sparse tensor"
    if isinstance(value, type):
        return f"the class or function {getattr(value, 'kind', value.__name__)}"
    if hasattr(value, "dtype"):
        return f"a tensor of {value.dtype}"
    kind = value.kind if isinstance(value, Foreign) else type(value).__name__
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def as_array(value: Any) -> Any:
    """A dense tensor, an array or a list of numbers as a numpy array; None for every value that numpy cannot hold."""
    if not hasattr(value, "detach") and not isinstance(value, np.ndarray | list | tuple):
        return None
    try:
        if hasattr(value, "as_tensor"):  # an EdgeIndex
            value = value.as_tensor()
        rows = np.asarray(value.detach().numpy() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, RuntimeError):  # sparse layouts, bfloat16, lists of unequal lengths
        return None
    return rows.astype(rows.dtype.newbyteorder("="), copy=False) if rows.dtype.kind in "biuf" else None
