"""Messages of trainers and workers: what was packed comes out, and nothing else is read."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.errors import ConfigError
from atta.train.steps.pipeline.frames import packed, unpacked

ABOUT = {"part": "apply", "epoch": 3, "layer": {"kind": "gcn", "sizes": [1, 2]}}
ARRAYS = {
    "sums": np.arange(6.0).reshape(2, 3), "keys": np.array([1, -5]), "none": np.empty((0, 4), np.float32),
    "cut": np.arange(10.0, dtype=np.float32)[::2],
}  # fmt: skip


def test_what_was_packed_comes_out() -> None:
    about, arrays = unpacked(packed(ABOUT, ARRAYS))
    assert about == ABOUT
    assert arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(arrays[name], array)
        assert not arrays[name].flags.writeable


@settings(max_examples=200)
@given(st.data())
def test_damaged_messages_are_refused_or_read_as_arrays(data: st.DataObject) -> None:
    raw = bytearray(packed(ABOUT, ARRAYS))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    with contextlib.suppress(ConfigError):  # any other error is a mistake
        about, arrays = unpacked(cut)
        assert isinstance(about, dict)
        assert sum(array.nbytes for array in arrays.values()) <= len(cut)


def message(**header: Any) -> bytes:
    text = json.dumps({"__metadata__": {"about": "{}"}, **header}).encode()
    return len(text).to_bytes(8, "little") + text + bytes(16)


@pytest.mark.parametrize(
    "array",
    [
        {"dtype": "F64", "shape": [3], "data_offsets": [0, 16]},
        {"dtype": "F64", "shape": [-2], "data_offsets": [0, -16]},
        {"dtype": "F64", "shape": [1], "data_offsets": [8, 16]},
        {"dtype": "F64", "shape": [1 << 62, 4], "data_offsets": [0, 0]},
        {"dtype": "O", "shape": [2], "data_offsets": [0, 16]},
        {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]},
        {"dtype": "F64", "shape": [2.0], "data_offsets": [0, 16]},
        {"shape": [2]},
    ],
)
def test_headers_that_lie_are_refused(array: dict[str, Any]) -> None:
    unpacked(message(a={"dtype": "F64", "shape": [2], "data_offsets": [0, 16]}))
    with pytest.raises(ConfigError, match="cannot be read"):
        unpacked(message(a=array))
