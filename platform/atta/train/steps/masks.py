"""Masks of dropout that any trainer can compute for any row: as in sampling, a random number is a hash of what it is for."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from atta.samplers.hashing import mix64

Longs = npt.NDArray[np.int64]
_GOLDEN = 0x9E3779B97F4A7C15
_TOGETHER = {"cpu": 1 << 15}
"""Number of hashes that are computed at a time. On a CPU they stay in the cache of a core."""
_TOGETHER_ELSEWHERE = 1 << 22


def keep_mask(stream: int, keys: torch.Tensor, columns: int, p: float) -> torch.Tensor:
    """Which numbers of some rows dropout keeps: bool [n, columns], each True with probability 1 - ``p``.

    stream: a number of 64 bits, as ``stream_key`` makes it; keys: int64 [n], user ids, or other numbers that say what
    the rows are for; p: at least 0 and below 1, exact to 2**-64. The number of column c in the row of key k is draw c
    of the stream's vertex k, as in sampling (``VertexStream``): splitmix64 from the state ``mix64(stream ^ mix64(k))``.
    Dropout keeps it if the draw, read as int64, is at least ``p * 2**64 - 2**63``.
    """
    state = mixed(mixed(keys.clone()) ^ _signed(stream))
    steps = torch.arange(columns, device=keys.device) * _signed(_GOLDEN)
    least = int(p * 2**64) - 2**63
    kept = torch.empty((len(keys), columns), dtype=torch.bool, device=keys.device)
    rows = max(1, _TOGETHER.get(keys.device.type, _TOGETHER_ELSEWHERE) // max(1, columns))
    for first in range(0, len(keys), rows):
        torch.ge(mixed(state[first : first + rows, None] + steps), least, out=kept[first : first + rows])
    return kept


def dropped(h: torch.Tensor, stream: int, keys: torch.Tensor, p: float) -> torch.Tensor:
    """``h`` [n, ...] after dropout, with ``keep_mask`` of its rows' ``keys`` [n]."""
    kept = keep_mask(stream, keys, math.prod(h.shape[1:]), p).view(h.shape)
    return h * kept.to(h.dtype).div_(1 - p)


def with_loops(edge_index: Longs, own: int) -> Longs:
    """Edges as a layer of PyG sees them that adds self-loops: without those of the graph, then one per ``own`` vertex."""
    between = edge_index[:, edge_index[0] != edge_index[1]]
    return np.concatenate([between, np.tile(np.arange(own), (2, 1))], axis=1)


def edge_keys(ids: Longs, edge_index: Longs) -> Longs:
    """A key for each edge that follows from the ids of its ends: int64 [e], the bits of a hash. ids: int64 [n], user
    ids; edge_index: int64 [2, e], places in ``ids``. Parallel edges are numbered. Nothing tells them apart, so it does
    not matter which has which number."""
    source, target = edge_index
    order = np.lexsort((source, target))
    first = np.ones(len(order), np.bool_)
    first[1:] = (np.diff(source[order]) != 0) | (np.diff(target[order]) != 0)
    begin = np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
    number = np.empty(len(order), np.uint64)
    number[order] = (np.arange(len(order)) - begin).astype(np.uint64)
    bits: np.ndarray[Any, np.dtype[np.uint64]] = ids.view(np.uint64)
    return mix64(mix64(mix64(bits[source]) + bits[target]) + number).view(np.int64)


def mixed(x: torch.Tensor) -> torch.Tensor:
    """``mix64`` of int64 in place. torch has no logical shift: bits that come in at the left are cut off."""
    x.add_(_signed(_GOLDEN))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x.bitwise_xor_((x >> shift).bitwise_and_((1 << (64 - shift)) - 1)).mul_(_signed(factor))
    return x.bitwise_xor_((x >> 31).bitwise_and_((1 << 33) - 1))


def _signed(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63
