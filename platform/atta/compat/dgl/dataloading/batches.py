"""What the loaders share: epochs of Atta's batches, whose rows come along once the script has asked for them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

from atta.client.loaders.dag import DagLoader
from atta.compat.dgl.distributed.graph import DistGraph
from atta.compat.dgl.distributed.learned import LearnedRows
from atta.compat.dgl.distributed.recent import Wanted
from atta.compat.dgl.job import present
from atta.errors import ConfigError
from atta.observe.extras import need
from atta.samplers.arguments import flag, whole

_MEANINGLESS = {
    "num_workers", "persistent_workers", "pin_memory", "prefetch_factor", "queue_size", "use_ddp", "use_uva", "g_sampling",
    "ddp_seed", "use_prefetch_thread", "use_alternate_streams",
}  # fmt: skip


_State = tuple[frozenset[tuple[str, str]], frozenset[tuple[str, str]]]
"""What comes along: see ``Wanted.state``."""


class DistBatches:
    """An epoch of batches per iteration. ``make`` turns one into what DGL's loader gives."""

    def __init__(self, g: DistGraph, length: int, wanted: Wanted, *, trains: bool) -> None:
        """``wanted``: rows that come along from the start. ``trains``: the loader shuffles, so it is for training."""
        need(type(self).__name__, "dgl", "torch")
        self.g, self._length = g, length
        self._wanted, self._epoch, self._trains = wanted, 0, trains
        self._opened: tuple[_State, DagLoader] | None = None
        self._last: dict[str, weakref.ref[Any]] = {}
        self._prefetched: list[LearnedRows] = []
        self._running: Iterator[Any] | None = None

    def __len__(self) -> int:
        """Number of batches."""
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
                    yield self.made(batch)
                    if self._wanted.state() != wanted and done < len(self):
                        break  # go on with a session whose batches have these rows, too
                batches.close()
        finally:
            self._forget()
        self._wanted.settle()

    def _prefetch(self, inputs: Mapping[str, Any]) -> None:
        """Begin to pull rows of ``inputs`` (ids by node type) of the embeddings that the script has asked for by the ids
        of the last batch: all at once, while blocks are made, instead of one after the other.
        """
        self._forget()
        for node_type, ids in inputs.items():
            last, self._last[node_type] = self._last.get(node_type), weakref.ref(ids)
            for rows in present().learned:
                if rows.node_type == node_type and rows.asked is last is not None:
                    rows.prefetch(ids)
                    self._prefetched.append(rows)

    def _forget(self) -> None:
        while self._prefetched:
            self._prefetched.pop().forget()

    def _loader(self, epoch: int) -> tuple[_State, DagLoader]:
        """What comes along, and the loader of such batches.

        A script that trains for a second epoch will go on. So a third one is begun while the second ends, and so forth.
        """
        wanted = self._wanted.state()
        if self._opened is None or self._opened[0] != wanted:
            all_vertices, seeds = wanted
            self._opened = wanted, self.open(self._tables(all_vertices), [name for _, name in sorted(seeds)])
        self._opened[1].epochs = epoch + 2 if self._trains and epoch else None
        return self._opened

    def _tables(self, wanted: frozenset[tuple[str, str]]) -> dict[str, list[str]]:
        tables: dict[str, list[str]] = {node_type: [] for node_type in self.g.cluster.schema.node_types}
        for node_type, name in sorted(wanted):
            tables[node_type].append(name)
        return tables

    def open(self, tables: dict[str, list[str]], seed_tables: list[str]) -> DagLoader:
        """The loader of batches with rows of ``tables`` (by node type), and of ``seed_tables`` for the seeds."""
        raise NotImplementedError

    def made(self, batch: Any) -> Any:
        """What the script gets."""
        raise NotImplementedError


def probably_wanted(g: DistGraph, seed_types: Container[str]) -> Wanted:
    """What a script that trains will ask for: rows of numbers, such as features, of all vertices, and single numbers,
    such as classes, of the seeds. ``seed_types``: none if the seeds are edges.
    """
    tables = [(t, name, spec) for t, specs in g.cluster.schema.node_tables.items() for name, spec in specs.items()]
    wide = [(t, name) for t, name, spec in tables if spec.row_shape]
    return Wanted(wide, [(t, name) for t, name, spec in tables if not spec.row_shape and t in seed_types])


def loader_options(loader: str, options: dict[str, Any]) -> dict[str, Any]:
    """``batch_size``, ``shuffle`` and ``drop_last``, without options of DGL that mean nothing here.

    Raises:
        TypeError: an option that neither knows.
    """
    own = ("batch_size", "shuffle", "drop_last")
    if unknown := sorted(options.keys() - _MEANINGLESS - {*own}):
        raise TypeError(f"{loader}: unknown argument {unknown[0]!r}")
    return {name: options[name] for name in own if name in options}


def batch_count(ids: int, options: Mapping[str, Any]) -> int:
    """Number of batches of so many ids; ``options``: of ``loader_options``. Raises ConfigError."""
    full, rest = divmod(ids, whole("batch_size", options.get("batch_size", 1), 1))
    return full + (rest > 0 and not flag("drop_last", options.get("drop_last", False)))


def check_device(loader: str, device: Any) -> None:
    """Blocks are made on the CPU, as DGL's distributed loaders make them; raises ConfigError."""
    if device is not None and str(device) != "cpu":
        raise ConfigError(
            f"{loader}: device {device}: blocks of a distributed graph are on the CPU; move them with .to()"
        )


def one_type(given: Any, what: str, by_name: Callable[[Any], str]) -> tuple[str, Any]:
    """The dataset's name of the seeds' type, and their ids. ``given``: ids, or ``{DGL's name of a type: ids}``.

    Raises:
        ConfigError: several types have some, or no type is named. UnknownNameError: the type does not exist.
    """
    if not isinstance(given, Mapping):
        return by_name(None), given
    some = {name: ids for name, ids in given.items() if len(ids)} or dict([*given.items()][:1])
    if len(some) != 1:
        names = ", ".join(map(str, some)) or "no type"
        raise ConfigError(f"{what}: seeds of one type make batches; there are some of {names}")
    ((name, ids),) = some.items()
    return by_name(name), ids
