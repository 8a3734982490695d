"""Dropout after the exchange of rows, with the same masks for any number of servers and trainers. Rows travel as they
were before dropout, since a reader that keeps them for several epochs would keep their mask too. The reader drops out
the remote ones itself, with the mask that their owner uses for its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from atta.errors import ConfigError
from atta.samplers.hashing import hash_string, stream_key
from atta.train.cooperative.graph import Longs, WorkerView
from atta.train.steps.masks import dropped, edge_keys, with_loops


class Undropped(NamedTuple):
    """Own rows [o, ...] as they were before dropout, and what drops out the remote rows [r, ...] of the same tensor."""

    rows: torch.Tensor
    drop_remote: Callable[[torch.Tensor], torch.Tensor]


@dataclass
class _Place:
    """A module that runs: its name, the keys of the rows that it drops out, and how often it has done so."""

    name: str
    keys: torch.Tensor
    calls: int = 0


class RowDropout(TorchFunctionMode):
    """Takes the place of ``torch.nn.functional.dropout`` in the modules of a model. ``epoch``: that masks are for.

    Each module that reads neighbours, and each that contains such a module, runs ``within`` its own place. The mask of a
    number is a hash of seed, epoch, place, how many dropouts the module has done before in this call, user id and
    column. So a module that backward computes again, or that is called twice, has the same masks.

    Other kinds of dropout (``alpha_dropout``, ``dropout2d``, ...) stay what they are. Checkpoints of torch must be
    non-reentrant: a reentrant one computes a layer again on a copy, and nobody knows what that was before dropout.
    """

    def __init__(self, view: WorkerView, seed: int, device: torch.device | str = "cpu") -> None:
        super().__init__()
        self.epoch = 0
        self._seed, self._view, self._device = seed, view, device
        ids = self._tensor(view.global_ids)
        self._own, self._remote = ids[: len(view.own)], ids[len(view.own) :]
        self._edges: dict[bool, torch.Tensor] = {}
        self._place: _Place | None = None
        self._before: Any = WeakTensorKeyDictionary()

    @contextmanager
    def within(self, name: str, layer: torch.nn.Module | None = None) -> Iterator[None]:
        """Drop out as the module ``name`` does; ``layer``: this is a layer that reads neighbours. PyG's layers with a
        number ``dropout`` drop out attention, that is edges. All other modules drop out own rows."""
        of_edges = isinstance(getattr(layer, "dropout", None), float | int)
        keys = self._edges_of(layer) if of_edges else self._own
        outer, self._place = self._place, _Place(name, keys)
        try:
            if outer is None:
                with self:
                    yield
            else:
                yield
        finally:
            self._place = outer

    def rows_before(self, h: torch.Tensor) -> Undropped | None:
        """What ``h`` was before dropout; None if it is not a result of dropout."""
        found: Undropped | None = self._before.get(h)
        return found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = self._dropout if func is F.dropout else func
        return call(*args, **(kwargs or {}))

    def _dropout(self, h: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        """As torch's. With ``inplace`` the result is a new tensor all the same, because the old one may travel."""
        if not training or not 0 < p < 1:
            return F.dropout(h, p, training, inplace)  # nothing is drawn, or p is refused
        place = self._place
        assert place is not None
        if len(h) != len(place.keys):
            raise ConfigError(
                f"dropout in {place.name}: got {len(h)} rows, the trainer has {len(place.keys)}; "
                "only rows of vertices and attention of edges have masks that trainers agree on"
            )
        stream = stream_key(self._seed, self.epoch, 0, place.calls, hash_string(f"dropout in {place.name}"))
        place.calls += 1
        found = dropped(h, stream, place.keys, p)
        if place.keys is self._own:
            self._before[found] = Undropped(h, lambda rows: dropped(rows, stream, self._remote, p))
        return found

    def _edges_of(self, layer: Any) -> torch.Tensor:
        loops = bool(getattr(layer, "add_self_loops", False))
        if loops not in self._edges:
            edges = with_loops(self._view.edge_index, len(self._view.own)) if loops else self._view.edge_index
            self._edges[loops] = self._tensor(edge_keys(self._view.global_ids, edges))
        return self._edges[loops]

    def _tensor(self, array: Longs) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)
