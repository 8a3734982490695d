"""Shared by the tests of dropout: its masks in numpy, and PyG's models with these masks in one process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce

import numpy as np
import pytest
import torch
import xxhash

WORD = 2**64


def splitmix64(state: np.ndarray) -> np.ndarray:
    """The number that the generator of Steele, Lea and Flood gives in each state (uint64), as in their paper."""
    z = state + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def one(state: int) -> int:
    return int(splitmix64(np.array([state % WORD], np.uint64))[0])


def stream(seed: int, epoch: int, place: str, call: int) -> int:
    parts = [seed, epoch, 0, call, xxhash.xxh3_64_intdigest(f"dropout in {place}".encode())]
    return reduce(lambda key, part: one(key ^ part), parts, 0)


def kept(stream: int, keys: np.ndarray, columns: int, p: float) -> np.ndarray:
    """Bool [n, columns]: from the first numbers of a generator per row, which begins at a hash of stream and key."""
    state = np.array([one(stream ^ one(int(key))) for key in keys], np.uint64)
    rows = []
    for _ in range(columns):
        rows.append(splitmix64(state))
        state = state + np.uint64(0x9E3779B97F4A7C15)
    numbers = np.stack(rows, axis=1) if columns else np.zeros((len(keys), 0), np.uint64)
    return numbers.view(np.int64) >= int(p * WORD) - WORD // 2


def keys_of_edges(edges: np.ndarray) -> np.ndarray:
    """uint64 [e], one by one; the k-th edge between the same vertices has the number k."""
    before: Counter[tuple[int, int]] = Counter()
    keys = []
    for source, target in edges.T.tolist():
        keys.append(one(one(one(source) + target) + before[source, target]))
        before[source, target] += 1
    return np.array(keys, np.uint64)


def with_loops(edges: np.ndarray, vertices: int) -> np.ndarray:
    return np.concatenate([edges[:, edges[0] != edges[1]], np.tile(np.arange(vertices), (2, 1))], axis=1)


class Masks:
    """Dropout of a run on vertices 0 to n-1. ``places`` are the dropouts of a model in their order: names, each with how
    often it came before in this forward. Those called ``layer N`` are of edges."""

    def __init__(self, seed: int, edges: np.ndarray, vertices: int) -> None:
        self.seed, self.vertices, self.edges = seed, np.arange(vertices), keys_of_edges(with_loops(edges, vertices))

    def factors(self, epoch: int, place: tuple[str, int], shape: Sequence[int], p: float) -> torch.Tensor:
        """What the numbers of a tensor are multiplied by, float64: 0 or 1 / (1 - p)."""
        keys = self.edges if place[0].startswith("layer ") else self.vertices
        assert shape[0] == len(keys)
        mask = kept(stream(self.seed, epoch, *place), keys, int(np.prod(shape[1:])), p)
        return torch.from_numpy(mask.reshape(shape) / (1 - p))

    @contextmanager
    def instead_of_torch(self, epoch: int, places: Sequence[tuple[str, int]]) -> Iterator[None]:
        """Dropouts of the model that runs have the masks of ``places``, all of them."""
        left = list(places)

        def dropout(h: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
            return h * self.factors(epoch, left.pop(0), h.shape, p).to(h.dtype) if training and p else h

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(torch.nn.functional, "dropout", dropout)
            yield
        assert not left


def of_rows(layers: int) -> list[tuple[str, int]]:
    return [("model", call) for call in range(layers - 1)]


def of_gat(layers: int) -> list[tuple[str, int]]:
    between = [*of_rows(layers), ("model", 0)]
    return [place for number in range(layers) for place in ((f"layer {number}", 0), between[number])][:-1]


def of_deep(layers: int) -> list[tuple[str, int]]:
    """DeepGNN: before each layer but the first, and before the scores."""
    return [*((f"model.layers.{number}", 0) for number in range(1, layers)), ("model", 0)]


PLACES: dict[str, Callable[[int], list[tuple[str, int]]]] = {
    "sage": of_rows,
    "gcn": of_rows,
    "gat": of_gat,
    "resgcn": of_deep,
    "deepergcn": of_deep,
}
