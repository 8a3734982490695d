"""The loaders of distributed graphs: epochs of Atta's batches, whose rows come along once the script has asked for them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from atta.client.loaders.dag import DagLoader
from atta.client.loaders.dgl import pair_graph, to_blocks, typed_block
from atta.client.loaders.link import LinkNeighborLoader, NegativeSampling
from atta.client.loaders.minibatch import MiniBatch
from atta.client.loaders.neighbor import NeighborLoader
from atta.compat import NotOfferedError
from atta.compat.dgl.dataloading import NeighborSampler
from atta.compat.dgl.distributed.book import TypeBook, tensor
from atta.compat.dgl.distributed.embedding import LearnedRows
from atta.compat.dgl.distributed.graph import DistGraph
from atta.compat.dgl.distributed.recent import BatchTables, Wanted
from atta.compat.dgl.job import drawing_seed, present
from atta.compat.dgl.negative_sampler import Uniform
from atta.errors import ConfigError
from atta.observe.packages import need
from atta.samplers.arguments import flag, integers, whole

_MEANINGLESS = {
    "num_workers", "persistent_workers", "pin_memory", "prefetch_factor", "queue_size", "use_ddp", "use_uva", "g_sampling",
    "ddp_seed", "use_prefetch_thread", "use_alternate_streams",
}  # fmt: skip
_OPTIONS = ("batch_size", "shuffle", "drop_last")
_EXCLUDE = {None: None, "self": "self", "reverse_id": "reverse", "reverse_types": "reverse"}
_State = tuple[frozenset[tuple[str, str]], frozenset[tuple[str, str]]]
"""What comes along: see ``Wanted.state``."""


class DistBatches:
    """An epoch of batches per iteration. A loader that shuffles is for training."""

    def __init__(
        self,
        g: DistGraph,
        sampler: Any,
        device: Any,
        options: Mapping[str, Any],
        *,
        seeds: int,
        types: Iterable[str] = (),
    ) -> None:
        """``seeds``: how many there are; ``types``: of which node types, none if they are edges."""
        name = type(self).__name__
        need(name, "dgl", "torch")
        if device is not None and str(device) != "cpu":
            raise ConfigError(f"{name}: device {device}: blocks of a distributed graph are on the CPU: use .to()")
        if unknown := sorted(options.keys() - _MEANINGLESS - {*_OPTIONS}):
            raise TypeError(f"{name}: unknown argument {unknown[0]!r}")
        self.g, self._sampler, self._seed = g, _offered(name, sampler, NeighborSampler), drawing_seed()
        self._options = {option: options[option] for option in _OPTIONS if option in options}
        self._trains = bool(self._options.get("shuffle"))
        self._wanted, self._epoch = _probably_wanted(g, types) if self._trains else Wanted(), 0
        full, rest = divmod(seeds, whole("batch_size", options.get("batch_size", 1), 1))
        some = full or (rest and not flag("drop_last", options.get("drop_last", False)))
        self._length = len(self._open({}, [])) if some else 0
        self._opened: tuple[_State, DagLoader] | None = None
        self._last: dict[str, weakref.ref[Any]] = {}
        self._prefetched: list[LearnedRows] = []
        self._running: Iterator[Any] | None = None

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        if self._trains and epoch:
            present().settle()
        return self._batches(epoch)

    def __next__(self) -> Any:
        """The next batch of an epoch of its own, which the first call begins, and the first one after its end."""
        self._running = self._running or iter(self)
        try:
            return next(self._running)
        except StopIteration:
            self._running = None
            raise

    def _batches(self, epoch: int) -> Iterator[Any]:
        done = 0
        try:
            while done < len(self):
                wanted, loader = self._loader(epoch)
                batches: Any = loader.resume(epoch, done)
                for batch in batches:
                    done += 1
                    yield self._made(batch)
                    if self._wanted.state() != wanted and done < len(self):
                        break  # go on with a session whose batches have these rows, too
                batches.close()
        finally:
            self._forget()
        self._wanted.settle()

    def _inputs(self, batch: MiniBatch) -> tuple[dict[str, Any], BatchTables]:
        """The ids of a batch by node type, and its tables, in which the script's questions by these ids are looked up.
        Rows of embeddings that it has asked for in the last batch are pulled all at once, while blocks are made."""
        inputs = {t: tensor(batch.n_id(t)) for t in self.g.types.schema.node_types}
        tables = BatchTables(batch, self._wanted)
        self._forget()
        for node_type, ids in inputs.items():
            last, self._last[node_type] = self._last.get(node_type), weakref.ref(ids)
            for rows in present().learned:
                if rows.node_type == node_type and rows.asked is last is not None:
                    rows.prefetch(ids)
                    self._prefetched.append(rows)
            self.g.recent.remember(ids, node_type, tables, whole=True)
        return inputs, tables

    def _forget(self) -> None:
        while self._prefetched:
            self._prefetched.pop().forget()

    def _loader(self, epoch: int) -> tuple[_State, DagLoader]:
        """What comes along, and the loader of such batches. A script that trains for a second epoch will go on: a third
        one is begun while the second ends."""
        wanted = self._wanted.state()
        if self._opened is None or self._opened[0] != wanted:
            tables: dict[str, list[str]] = {node_type: [] for node_type in self.g.cluster.schema.node_types}
            for node_type, name in sorted(wanted[0]):
                tables[node_type].append(name)
            self._opened = wanted, self._open(tables, [name for _, name in sorted(wanted[1])])
        self._opened[1].epochs = epoch + 2 if self._trains and epoch else None
        return self._opened

    def _open(self, tables: dict[str, list[str]], seed_tables: list[str]) -> DagLoader:
        """The loader of batches with rows of ``tables`` (by node type), and of ``seed_tables`` for the seeds."""
        raise NotImplementedError

    def _made(self, batch: MiniBatch) -> Any:
        raise NotImplementedError

    @property
    def _how(self) -> dict[str, Any]:
        """What loaders of vertices and of edges are opened with."""
        alone = {"rank": 0, "world_size": 1, "home": self.g.home, "seed": self._seed}
        return {**alone, **self._sampler.options, **self._options}


class DistNodeDataLoader(DistBatches):
    """Gives ``(input_nodes, output_nodes, blocks)`` for each batch of this trainer's vertices.

    In graphs of several node types both are mappings from types to ids; ``output_nodes`` is one where ``nids`` is one.
    A vertex that is given twice for one batch is in it once. A share without vertices has no batches.
    ``g.ndata[name][input_nodes]`` costs no further request from the second batch on: daemons send these rows along."""

    def __init__(
        self, g: DistGraph, nids: Any, graph_sampler: NeighborSampler, device: Any = None, **options: Any
    ) -> None:
        """``nids``: ids of this trainer's vertices, or ``{node type: ids}``. ``options``: ``batch_size`` (1),
        ``shuffle`` (False), ``drop_last`` (False). Others of DGL mean nothing here. Raises ConfigError if a vertex
        does not exist."""
        self._mapped = isinstance(nids, Mapping)
        given = nids if isinstance(nids, Mapping) else {None: nids}
        self._ids = {g.types.node_type(ntype): integers("nids", ids).reshape(-1) for ntype, ids in given.items()}
        super().__init__(g, graph_sampler, device, options, seeds=sum(map(len, self._ids.values())), types=self._ids)

    def _open(self, tables: dict[str, list[str]], seed_tables: list[str]) -> NeighborLoader:
        g = self.g
        if len(self._ids) > 1:  # rows for seeds come with all vertices of their types
            known = g.cluster.schema.node_tables
            of_seeds = {t: [name for name in seed_tables if name in known[t]] for t in self._ids}
            tables = {t: [*dict.fromkeys([*names, *of_seeds.get(t, ())])] for t, names in tables.items()}
            seed_tables = []
        hops = self._sampler.hops(g.types)
        return NeighborLoader(g.cluster, hops, self._ids, tables=tables, seed_tables=seed_tables, **self._how)

    def _made(self, batch: MiniBatch) -> tuple[Any, Any, list[Any]]:
        types, (inputs, tables) = self.g.types, self._inputs(batch)
        counts = {t: len(batch.seeds_of(t)) for t in self._ids}
        seeds = {t: inputs[t][:count] for t, count in counts.items() if count}
        for node_type, ids in seeds.items():
            self.g.recent.remember(ids, node_type, tables, whole=False)
        outputs: Any = {types.ntype(t): ids for t, ids in seeds.items()}
        if not self._mapped and len(inputs) == 1:
            (outputs,) = seeds.values()
        return _by_type(inputs, types), outputs, blocks_of(batch, types)


class DistEdgeDataLoader(DistBatches):
    """Gives ``(input_nodes, pair_graph, blocks)`` for each batch of this trainer's edges, or ``(input_nodes, pair_graph,
    negative_graph, blocks)`` with a negative sampler.

    Both graphs have the same vertices: the destinations of the last block. In graphs of several types they have the
    seeds' edge type alone, and ``input_nodes`` is a mapping from types to ids. A share without edges has no batches."""

    def __init__(
        self,
        g: DistGraph,
        eids: Any,
        graph_sampler: NeighborSampler,
        device: Any = None,
        *,
        negative_sampler: Uniform | None = None,
        exclude: str | None = None,
        reverse_eids: Any = None,
        reverse_etypes: Any = None,
        **options: Any,
    ) -> None:
        """Describe the batches.

        Args:
            g, graph_sampler, negative_sampler: of this package.
            eids: ids of this trainer's edges, or ``{edge type: ids}`` with one type.
            exclude: ``"self"`` leaves a batch's edges out of its blocks, with those that are parallel to them,
                ``"reverse_id"`` also the edges of their type from their destinations to their sources,
                ``"reverse_types"`` those of another type: ``reverse_etypes`` is ``{edge type: type of its reverses}``.
            reverse_eids, device: mean nothing here: reverse edges are found by their ends.
            **options: as of ``DistNodeDataLoader``.

        Raises:
            UnknownNameError: another sampler, or another way to exclude.
            ConfigError: an edge does not exist, several types have edges, or ``reverse_etypes`` lacks the type.
        """
        if exclude not in _EXCLUDE:
            known = ", ".join(map(repr, _EXCLUDE))
            raise NotOfferedError(f"DistEdgeDataLoader does not offer exclude={exclude!r}; it offers: {known}")
        self._negatives = _offered(type(self).__name__, negative_sampler, Uniform | None)
        self._edge_type, chosen = _one_type(eids, "eids", g.types.edge_type)
        self._eids, self._exclude = integers("eids", chosen).reshape(-1), _EXCLUDE[exclude]
        self._reverse = _reverse_type(g.types, self._edge_type, exclude, reverse_etypes)
        self._ends = np.stack(g.ends(self._edge_type, self._eids))
        super().__init__(g, graph_sampler, device, options, seeds=len(self._eids))

    def _open(self, tables: dict[str, list[str]], seed_tables: list[str]) -> LinkNeighborLoader:
        negatives = None if self._negatives is None else NegativeSampling("triplet", self._negatives.k)
        return LinkNeighborLoader(
            self.g.cluster, self._sampler.hops(self.g.types), (self._edge_type, self._ends), neg_sampling=negatives,
            exclude_edges=self._exclude, reverse_type=self._reverse, tables=tables, **self._how,
        )  # fmt: skip

    def _made(self, batch: MiniBatch) -> tuple[Any, ...]:
        types, (inputs, _), links = self.g.types, self._inputs(batch), batch.links()
        seeds = {types.ntype(t): ids[: batch.num_sampled_nodes(t)[0]] for t, ids in inputs.items()}
        positives = "edge_label_index" if self._negatives is None else "src_index"
        source, target = links[positives] if self._negatives is None else (links[positives], links["dst_pos_index"])
        found = [_by_type(inputs, types), self._pairs(seeds, source, target, tensor(self._eids[batch.input_id]))]
        if self._negatives is not None:
            others = links["dst_neg_index"].reshape(len(source), -1)
            found.append(self._pairs(seeds, np.repeat(source, others.shape[1]), others.reshape(-1)))
        return *found, blocks_of(batch, types)

    def _pairs(self, seeds: Mapping[str, Any], source: np.ndarray, target: np.ndarray, e_id: Any = None) -> Any:
        """The graph of the edges between some of ``seeds``, ids by node type. ``source``, ``target``: places in them."""
        import dgl

        types = self.g.types
        etype = types.canonical(self._edge_type)
        if len(types.schema.node_types) == len(types.schema.edge_types) == 1:
            return pair_graph(source, target, next(iter(seeds.values())), e_id, etype[:2])
        counts = {ntype: len(ids) for ntype, ids in seeds.items()}
        made = dgl.heterograph({etype: (tensor(source), tensor(target))}, num_nodes_dict=counts)
        for ntype, ids in seeds.items():
            made.nodes[ntype].data[dgl.NID] = ids
        if e_id is not None:
            made.edges[etype].data[dgl.EID] = e_id
        return made


class DistDataLoader:
    """Gives ``collate_fn(ids)`` for each batch of ids, int64 [n]. The function runs here when its batch is asked for."""

    def __init__(  # noqa: PLR0917 - as in DGL
        self,
        dataset: Any,
        batch_size: int,
        shuffle: bool = False,
        collate_fn: Callable[[Any], Any] | None = None,
        drop_last: bool = False,
        queue_size: int | None = None,
    ) -> None:
        """``dataset``: ids, in another order in each epoch with ``shuffle``, which torch's seed decides. ``collate_fn``
        makes a batch of ids; None: they are the batch. ``queue_size`` means nothing here."""
        self._ids, self._size = integers("dataset", dataset).reshape(-1), whole("batch_size", batch_size, 1)
        self._shuffle, self._drop_last = flag("shuffle", shuffle), flag("drop_last", drop_last)
        self._collate = collate_fn or (lambda ids: ids)
        self._order = np.random.default_rng(drawing_seed() % (1 << 63))

    def __len__(self) -> int:
        whole_ones, rest = divmod(len(self._ids), self._size)
        return whole_ones + (rest > 0 and not self._drop_last)

    def __iter__(self) -> Iterator[Any]:
        ids = self._order.permutation(self._ids) if self._shuffle else self._ids
        for number in range(len(self)):
            yield self._collate(tensor(ids[number * self._size : (number + 1) * self._size].copy()))


def blocks_of(batch: MiniBatch, types: TypeBook) -> list[Any]:
    """The blocks of a batch whose hops draw for all known vertices, the input side first."""
    schema = types.schema
    if len(schema.node_types) == len(schema.edge_types) == 1:
        return to_blocks(batch, types.canonical(schema.edge_types[0]))
    names = {t: types.ntype(t) for t in schema.node_types}
    ids = {t: tensor(batch.n_id(t)) for t in names}
    nodes = {t: np.cumsum(batch.num_sampled_nodes(t)) for t in names}
    ends = {e: batch.edge_index(e) for e in schema.edge_types}
    e_ids = {e: batch.e_id(e) for e in schema.edge_types}
    edges = {e: np.concatenate([[0], np.cumsum(batch.num_sampled_edges(e))]) for e in schema.edge_types}
    blocks: list[Any] = []
    for hop in range(len(next(iter(edges.values()))) - 1):
        parts = {e: slice(starts[hop], starts[hop + 1]) for e, starts in edges.items()}
        # As DistDGL's, a block has only the edge types that were drawn: modules of the others are not called.
        parts = {e: part for e, part in parts.items() if part.start < part.stop} or parts
        made = typed_block(
            {types.canonical(e): (ends[e][0][part], ends[e][1][part]) for e, part in parts.items()},
            {name: ids[t][: nodes[t][hop + 1]] for t, name in names.items()},
            {name: ids[t][: nodes[t][hop]] for t, name in names.items()},
            {types.canonical(e): None if (of := e_ids[e]) is None else tensor(of[part]) for e, part in parts.items()},
        )
        blocks.insert(0, made)
    return blocks


def _by_type(ids: Mapping[str, Any], types: TypeBook) -> Any:
    """Ids by the dataset's node types as DGL gives them: by its own names, or without a mapping where there is one type."""
    return next(iter(ids.values())) if len(ids) == 1 else {types.ntype(t): some for t, some in ids.items()}


def _probably_wanted(g: DistGraph, seed_types: Iterable[str]) -> Wanted:
    """What a script that trains will ask for: rows of numbers, such as features, of all vertices, and single numbers,
    such as classes, of the seeds."""
    tables = [(t, name, spec) for t, specs in g.cluster.schema.node_tables.items() for name, spec in specs.items()]
    wide, single = ([(t, name) for t, name, spec in tables if bool(spec.row_shape) is rows] for rows in (True, False))
    return Wanted(wide, [(t, name) for t, name in single if t in {*seed_types}])


def _offered(loader: str, sampler: Any, kind: Any) -> Any:
    if not isinstance(sampler, kind):
        raise NotOfferedError(
            f"{loader} does not offer {type(sampler).__name__}: daemons sample, so take one of "
            "atta.compat.dgl.dataloading"
        )
    return sampler


def _one_type(given: Any, what: str, by_name: Callable[[Any], str]) -> tuple[str, Any]:
    """The dataset's name of the seeds' type, and their ids. ``given``: ids, or ``{DGL's name of a type: ids}``."""
    if not isinstance(given, Mapping):
        return by_name(None), given
    some = {name: ids for name, ids in given.items() if len(ids)} or dict([*given.items()][:1])
    if len(some) != 1:
        names = ", ".join(map(str, some)) or "no type"
        raise ConfigError(f"{what}: seeds of one type make batches; there are some of {names}")
    ((name, ids),) = some.items()
    return by_name(name), ids


def _reverse_type(types: TypeBook, edge_type: str, exclude: str | None, reverse_etypes: Any) -> str | None:
    """The edge type of the reverses to leave out; raises ConfigError."""
    source, target = types.schema.endpoints(edge_type)
    if exclude == "reverse_id":
        if source != target:
            raise ConfigError(f"exclude='reverse_id': {edge_type} has no reverse edges of its own type")
        return edge_type
    if exclude != "reverse_types":
        return None
    given = {types.edge_type(etype): types.edge_type(other) for etype, other in dict(reverse_etypes or {}).items()}
    found = given.get(edge_type)
    if found is None or types.schema.endpoints(found) != (target, source):
        raise ConfigError(
            f"reverse_etypes: name the type of the reverses of {edge_type}, from {target} to {source}, not {found}"
        )
    return found
