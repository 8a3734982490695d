"""Initial values of tables: the same for any cut, and as random as they should be."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from atta.errors import ConfigError
from atta.kvstore.mutable.table import MutableTable
from atta.kvstore.spec import (
    Constant,
    Initialiser,
    MutableSpec,
    Normal,
    Uniform,
    Zeros,
    initialiser_from_dict,
    initialiser_to_dict,
    numbered_from,
)

INITS: list[Initialiser] = [Zeros(), Constant(3), Uniform(-1.5, 2.5, seed=9), Normal(1.0, 0.5, seed=2**64 - 1)]


def filled(init: Initialiser, rows: int, columns: int, *, dtype: str = "<f4", first: int = 0) -> np.ndarray:
    out = np.empty((rows, columns), dtype)
    init.fill(out, numbered_from(first))
    return out


@pytest.mark.parametrize("init", INITS, ids=lambda i: i.kind)
@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8"])
def test_contents_do_not_depend_on_shards_or_growth(init: Initialiser, dtype: str) -> None:
    spec = MutableSpec("t", 101, dtype, (7,), init=init, max_rows=200)
    whole = MutableTable(spec).pull(np.arange(101)).values
    bounds = [0, 1, 40, 40, 101]
    shards = [MutableTable(spec, a, b - a) for a, b in itertools.pairwise(bounds)]
    pieces = [shard.pull(np.arange(shard.first_row, shard.first_row + shard.rows)).values for shard in shards]
    assert np.array_equal(np.concatenate(pieces), whole)
    grown = MutableTable(spec, 40, 3)
    grown.grow(20)
    grown.grow(61)
    assert np.array_equal(grown.pull(np.arange(40, 101)).values, whole[40:])


def test_uniform_numbers_are_uniform() -> None:
    values = filled(Uniform(-1, 3, seed=1), 20_000, 10)
    assert values.min() >= -1
    assert values.max() <= 3
    counts, _ = np.histogram(values, bins=50, range=(-1, 3))
    expected = values.size / 50
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 49 + 6 * math.sqrt(2 * 49)
    assert abs(np.corrcoef(values[:, 0], values[:, 1])[0, 1]) < 0.04
    assert abs(np.corrcoef(values[:-1, 0], values[1:, 0])[0, 1]) < 0.04


@pytest.mark.parametrize("columns", [1, 7, 10])
def test_normal_numbers_are_normal(columns: int) -> None:
    values = (filled(Normal(2, 3, seed=5), 200_000 // columns, columns, dtype="<f8") - 2) / 3
    n = values.size
    assert abs(values.mean()) < 6 / math.sqrt(n)
    assert abs(values.var() - 1) < 6 * math.sqrt(2 / n)
    assert abs((values**3).mean()) < 6 * math.sqrt(15 / n)
    assert abs((values**4).mean() - 3) < 6 * math.sqrt(96 / n)
    if columns > 1:
        assert abs(np.corrcoef(values[:, 0], values[:, 1])[0, 1]) < 6 / math.sqrt(len(values))


def test_seeds_differ() -> None:
    a, b = (filled(Uniform(0, 1, seed=s), 100, 10) for s in (0, 1))
    assert not np.intersect1d(a, b).size > 5


def test_descriptions_survive_json() -> None:
    for init in INITS:
        assert initialiser_from_dict(initialiser_to_dict(init)) == init


@pytest.mark.parametrize(
    ("init", "dtype"),
    [
        (Constant(math.inf), "<f4"),
        (Constant(70000), "<f2"),
        (Constant(300), "|u1"),
        (Constant(0.5), "<i4"),
        (Constant(2), "|b1"),
        (Constant("1"), "<f4"),  # type: ignore[arg-type]
        (Uniform(2, 1), "<f4"),
        (Uniform(0, 1), "<i4"),
        (Uniform(0, 1e38), "<f2"),
        (Uniform(-1.7e308, 1.7e308), "<f8"),
        (Uniform(0, 1, seed=-1), "<f4"),
        (Normal(0, -1), "<f4"),
        (Normal(math.nan, 1), "<f4"),
    ],
)
def test_impossible_contents_are_refused(init: Initialiser, dtype: str) -> None:
    with pytest.raises(ConfigError, match="init"):
        MutableSpec("t", 1, dtype, init=init)


def test_descriptions_of_nothing_are_refused() -> None:
    for value in (None, {}, {"kind": "ones"}, {"kind": ["zeros"]}, {"kind": "zeros", "value": 1}, {"kind": "uniform"}):
        with pytest.raises(ConfigError, match="init"):
            initialiser_from_dict(value)
