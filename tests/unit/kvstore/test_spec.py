"""Descriptions of tables: through JSON and back, and the values that they refuse."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from atta.errors import ConfigError
from atta.kvstore.spec import MAX_ROW_BYTES, Constant, MutableSpec, Normal, OptimiserSpec

SPECS = [
    MutableSpec("a", 0),
    MutableSpec("emb.user-1", 10, row_shape=(3, 4), optimiser=OptimiserSpec.adam(0.1), init=Normal(0, 1, seed=5)),
    MutableSpec("flags", 10, "|b1", init=Constant(1), versioned=True, max_rows=20),
    MutableSpec("g", 10, optimiser=OptimiserSpec.adagrad(lr_decay=0.1)),
    MutableSpec("s", 10, optimiser=OptimiserSpec.sgd()),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.name)
def test_descriptions_survive_json(spec: MutableSpec) -> None:
    assert MutableSpec.from_dict(json.loads(json.dumps(spec.to_dict(), allow_nan=False))) == spec


def test_integers_of_numpy_are_integers() -> None:
    spec = MutableSpec("a", np.int64(3), row_shape=(np.int32(2),), max_rows=np.uint8(4))
    assert json.dumps(spec.to_dict()) == json.dumps(MutableSpec("a", 3, row_shape=(2,), max_rows=4).to_dict())
    with pytest.raises(ConfigError, match=r"row shape \(1\.5,\)"):
        MutableSpec("a", 3, row_shape=(1.5,))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="init 5 is none of"):
        MutableSpec("a", 3, init=5)  # type: ignore[arg-type]


def test_sizes() -> None:
    spec = SPECS[1]
    assert spec.row_bytes == 48
    assert spec.nbytes(10) == 10 * 48 * 3
    assert SPECS[2].nbytes(10) == 90
    assert (SPECS[1].limit, SPECS[2].limit) == (10, 20)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": ""}, "name"),
        ({"name": "../x"}, "name"),
        ({"name": ".x"}, "name"),
        ({"name": "a/b"}, "name"),
        ({"name": "a__b"}, "name"),
        ({"name": "a" * 101}, "name"),
        ({"name": 3}, "name"),
        ({"rows": -1}, "rows"),
        ({"rows": True}, "rows"),
        ({"rows": 2**60}, "rows"),
        ({"rows": 1.0}, "rows"),
        ({"max_rows": 9}, "max_rows"),
        ({"dtype": ">f4"}, "dtype"),
        ({"dtype": "f4"}, "dtype"),
        ({"dtype": "<c8"}, "dtype"),
        ({"dtype": "O"}, "dtype"),
        ({"dtype": ["<f4"]}, "dtype"),
        ({"row_shape": [0]}, "row shape"),
        ({"row_shape": [-1]}, "row shape"),
        ({"row_shape": [True]}, "row shape"),
        ({"row_shape": 3}, "row shape"),
        ({"row_shape": [1] * 9}, "row shape"),
        ({"row_shape": [MAX_ROW_BYTES // 4 + 1]}, "bytes"),
        ({"versioned": 1}, "versioned"),
        ({"optimiser": {"kind": "sgd", "lr": 1}, "dtype": "<f8"}, "float32"),
        ({"optimiser": {"kind": "rmsprop", "lr": 1}}, "kind"),
        ({"optimiser": {"kind": "sgd"}}, "missing lr"),
        ({"optimiser": {"kind": "sgd", "lr": 1, "momentum": 1}}, "unknown momentum"),
        ({"optimiser": {"kind": "sgd", "lr": -1}}, "lr"),
        ({"optimiser": {"kind": "sgd", "lr": "1"}}, "lr"),
        ({"optimiser": {"kind": "sgd", "lr": float("nan")}}, "lr"),
        ({"optimiser": {"kind": "adam", "lr": 1, "betas": [0.9, 1.0]}}, "below 1"),
        ({"optimiser": {"kind": "adam", "lr": 1, "betas": [0.9]}}, "betas"),
        ({"optimiser": {"kind": "adagrad", "lr": 1, "eps": -1}}, "eps"),
        ({"optimiser": 3}, "optimiser"),
        ({"init": None}, "init"),
        ({"colour": "red"}, "unknown colour"),
    ],
)
def test_wrong_descriptions_are_refused(change: dict[str, Any], words: str) -> None:
    value = MutableSpec("t", 10, row_shape=(2,)).to_dict() | change
    with pytest.raises(ConfigError, match=words):
        MutableSpec.from_dict(value)


def test_what_is_no_description_is_refused() -> None:
    for value in (None, 3, [], {}, {"name": "a"}):
        with pytest.raises(ConfigError, match="table"):
            MutableSpec.from_dict(value)
