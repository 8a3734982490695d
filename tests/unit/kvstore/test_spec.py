"""Descriptions of tables, and their initial values: the same for any cut, and as random as they should be."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from atta.errors import ConfigError
from atta.kvstore.spec import (
    MAX_ROW_BYTES,
    Constant,
    Initialiser,
    MutableSpec,
    Normal,
    OptimiserSpec,
    Uniform,
    Zeros,
    numbered_from,
)

INITS: list[Initialiser] = [Zeros(), Constant(3), Uniform(-1.5, 2.5, seed=9), Normal(1.0, 0.5, seed=2**64 - 1)]


def filled(init: Initialiser, rows: int, columns: int, *, dtype: str = "<f4", first: int = 0) -> np.ndarray:
    out = np.empty((rows, columns), dtype)
    init.fill(out, numbered_from(first))
    return out


def test_uniform_numbers_are_uniform() -> None:
    values, other = (filled(Uniform(-1, 3, seed=seed), 20_000, 10) for seed in (1, 2))
    assert np.intersect1d(values[:100], other[:100]).size <= 5
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


@pytest.mark.parametrize(
    ("dtype", "inits"),
    [
        ("<f2", [Constant(70000), Uniform(0, 1e38)]),
        (
            "<f4",
            [
                Constant(math.inf),
                Constant("1"),
                Uniform(2, 1),
                Uniform(0, 1, seed=-1),
                Normal(0, -1),
                Normal(math.nan, 1),
            ],
        ),
        ("<f8", [Uniform(-1.7e308, 1.7e308)]),
        ("<i4", [Constant(0.5), Uniform(0, 1)]),
        ("|u1", [Constant(300)]),
        ("|b1", [Constant(2)]),
    ],
)
def test_impossible_contents_are_refused(dtype: str, inits: list[Any]) -> None:
    for init in inits:
        with pytest.raises(ConfigError, match="init"):
            MutableSpec("t", 1, dtype, init=init)


SPECS = [
    MutableSpec("a", 0),
    MutableSpec("emb.user-1", 10, row_shape=(3, 4), optimiser=OptimiserSpec.adam(0.1), init=Normal(0, 1, seed=5)),
    MutableSpec("flags", 10, "|b1", init=Constant(1), versioned=True, max_rows=20),
    MutableSpec("g", 10, optimiser=OptimiserSpec.adagrad(lr_decay=0.1)),
    MutableSpec("s", 10, optimiser=OptimiserSpec.sgd()),
]


def test_descriptions_survive_json_also_with_integers_of_numpy() -> None:
    for spec in (*SPECS, *(replace(SPECS[0], init=init) for init in INITS)):
        assert MutableSpec.from_dict(json.loads(json.dumps(spec.to_dict(), allow_nan=False))) == spec
    spec = MutableSpec("a", np.int64(3), row_shape=(np.int32(2),), max_rows=np.uint8(4))
    assert json.dumps(spec.to_dict()) == json.dumps(MutableSpec("a", 3, row_shape=(2,), max_rows=4).to_dict())
    with pytest.raises(ConfigError, match=r"row shape \(1\.5,\)"):
        MutableSpec("a", 3, row_shape=(1.5,))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="init 5 is none of"):
        MutableSpec("a", 3, init=5)  # type: ignore[arg-type]
    spec = SPECS[1]
    assert spec.row_bytes == 48
    assert spec.nbytes(10) == 10 * 48 * 3
    assert SPECS[2].nbytes(10) == 90
    assert (SPECS[1].limit, SPECS[2].limit) == (10, 20)


WRONG: dict[str, list[dict[str, Any]]] = {
    "name": [{"name": name} for name in ("", "../x", ".x", "a/b", "a__b", "a" * 101, 3)],
    "rows": [{"rows": rows} for rows in (-1, True, 2**60, 1.0)],
    "max_rows": [{"max_rows": 9}],
    "dtype": [{"dtype": dtype} for dtype in (">f4", "f4", "<c8", "O", ["<f4"])],
    "row shape": [{"row_shape": shape} for shape in ([0], [-1], [True], 3, [1] * 9)],
    "bytes": [{"row_shape": [MAX_ROW_BYTES // 4 + 1]}],
    "versioned": [{"versioned": 1}],
    "float32": [{"optimiser": {"kind": "sgd", "lr": 1}, "dtype": "<f8"}],
    "kind": [{"optimiser": {"kind": "rmsprop", "lr": 1}}],
    "missing lr": [{"optimiser": {"kind": "sgd"}}],
    "unknown momentum": [{"optimiser": {"kind": "sgd", "lr": 1, "momentum": 1}}],
    "lr": [{"optimiser": {"kind": "sgd", "lr": lr}} for lr in (-1, "1", float("nan"))],
    "below 1": [{"optimiser": {"kind": "adam", "lr": 1, "betas": [0.9, 1.0]}}],
    "betas": [{"optimiser": {"kind": "adam", "lr": 1, "betas": [0.9]}}],
    "eps": [{"optimiser": {"kind": "adagrad", "lr": 1, "eps": -1}}],
    "optimiser": [{"optimiser": 3}],
    "init": [{"init": i} for i in (None, {}, *({"kind": k} for k in ("ones", ["zeros"], "uniform")))],
    "zeros does not take exactly value": [{"init": {"kind": "zeros", "value": 1}}],
    "unknown colour": [{"colour": "red"}],
    "lease_s": [{"lease_s": lease_s} for lease_s in (0, -1.0, float("nan"), float("inf"), "60", True, 3601)],
}


@pytest.mark.parametrize("words", WRONG)
def test_wrong_descriptions_are_refused(words: str) -> None:
    for change in WRONG[words]:
        with pytest.raises(ConfigError, match=words):
            MutableSpec.from_dict(MutableSpec("t", 10, row_shape=(2,)).to_dict() | change)


def test_what_is_no_description_is_refused() -> None:
    for value in (None, 3, [], {}, {"name": "a"}):
        with pytest.raises(ConfigError, match="table"):
            MutableSpec.from_dict(value)
