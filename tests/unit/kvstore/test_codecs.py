"""Codecs against numpy, bit for bit; the loss of int8; NaN and infinities."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from atta.kvstore import codecs

SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 6e-8, 6e-5, 65504.0, 65519.0, 65520.0, 1e38, 3.4028235e38]


def round_trip(codec: str, values: np.ndarray) -> np.ndarray:
    out = np.full(values.shape, 7, np.float32)
    codecs.decode(codec, codecs.encode(codec, values), out)
    return out


def test_every_half_is_decoded_as_by_numpy() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16)
    out = np.empty((1, 1 << 16), np.float32)
    codecs.decode("fp16", halves.view(np.uint8)[None], out)
    with np.errstate(invalid="ignore"):
        want = halves.view(np.float16).astype(np.float32)
    nan = np.isnan(want)
    assert np.isnan(out[0][nan]).all()
    assert np.array_equal(out[0].view(np.uint32)[~nan], want.view(np.uint32)[~nan])


def test_halves_are_encoded_as_by_numpy(rng: np.random.Generator) -> None:
    """Random bits, all halves, and the numbers half-way between two halves with their neighbours."""
    halves = np.arange(1 << 15, dtype=np.uint16).view(np.float16).astype(np.float32)
    halves = halves[np.isfinite(halves)]
    ties = (halves[:-1] + halves[1:]) / 2
    around = [np.nextafter(ties, np.float32(end)) for end in (0, np.inf)]
    random = rng.integers(0, 2**32, 1 << 18, dtype=np.uint32).view(np.float32)
    values = np.concatenate([halves, ties, *around, random, np.array(SPECIAL, np.float32)])
    values = np.concatenate([values, -values])[None]
    ours = codecs.encode("fp16", values).view(np.uint16)
    with np.errstate(over="ignore", invalid="ignore"):
        theirs = values.astype(np.float16).view(np.uint16)
    nan = np.isnan(values)
    assert np.array_equal(ours[~nan], theirs[~nan])
    assert np.isnan(ours.view(np.float16)[nan]).all()


@given(hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=20), elements=st.floats(width=32)))
def test_a_byte_is_half_a_scale_wrong_at_most(values: np.ndarray) -> None:
    out = round_trip("int8", values)
    finite = np.isfinite(values).all(axis=1)
    assert np.isnan(out[~finite]).all()
    encoded = codecs.encode("int8", values)
    scale = np.ascontiguousarray(encoded[:, :4]).view(np.float32)[finite].astype(np.float64)
    wrong = np.abs(out[finite].astype(np.float64) - values[finite])
    assert (wrong <= scale * 0.50001).all()  # the division and the product round, too
    largest = np.abs(values[finite].astype(np.float64)).max(axis=1, initial=0)
    assert (scale[:, 0] <= np.nextafter(np.float32(largest / 127), np.float32(np.inf))).all()


@pytest.mark.parametrize("codec", codecs.CODECS)
def test_rows_are_decoded_to_where_they_belong(codec: str, rng: np.random.Generator) -> None:
    values = rng.standard_normal((30, 9)).astype(np.float32)
    encoded = codecs.encode(codec, values)
    assert encoded.shape == (30, codecs.encoded_bytes(codec, 9))
    out, want = np.zeros((50, 9), np.float32), np.zeros((50, 9), np.float32)
    positions = rng.permutation(50)[:30]
    want[positions] = round_trip(codec, values)
    codecs.decode(codec, encoded, out, positions)
    assert np.array_equal(out, want)
    assert codecs.encode(codec, values[:0]).shape == (0, codecs.encoded_bytes(codec, 9))


def test_bad_input_is_refused() -> None:
    out, encoded = np.zeros((3, 4), np.float32), np.zeros((2, 8), np.uint8)
    for call, words in [
        (lambda: codecs.encode("fp8", out), "codec"),
        (lambda: codecs.decode("fp16", encoded, out), "one row per"),
        (lambda: codecs.decode("fp16", encoded[:, :7], out), "wrong size"),
        (lambda: codecs.decode("int8", encoded[:, :7], out), "wrong size"),
        (lambda: codecs.decode("fp16", encoded, out, np.array([0, 3])), "row 3"),
        (lambda: codecs.decode("fp16", encoded, out, np.array([0])), "one entry per"),
        (lambda: codecs.decode("fp16", encoded, out.astype(np.float64)), "float32"),
    ]:
        with pytest.raises(ValueError, match=words):
            call()
    assert not out.any()
