"""Codecs of hidden rows: what they lose, how many bytes they take, and what damaged bytes give."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from atta.errors import ConfigError, StaleRowError, UnknownNameError
from atta.train.exchange.codecs import (
    MOST_DIGITS,
    ROW_CODECS,
    DeltaPacking,
    FixedCodec,
    History,
    PolylineCodec,
    row_codec,
)

shapes = hnp.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=9)
rows_of = hnp.arrays(np.float32, shapes, elements=st.floats(-1000, 1000, width=32))
digits_of = st.integers(0, MOST_DIGITS)


def by_the_book(values: np.ndarray, digits: int) -> bytes:
    """Google's description, one number after the other, in Python's integers."""
    text = bytearray()
    for row in values.astype(np.float64):
        before = 0
        for x in row:
            now = round(float(x * 10.0**digits))  # ties to even
            left, before = (now - before) << 1, now
            left = ~left if left < 0 else left
            while left >= 0x20:
                text.append((0x20 | (left & 0x1F)) + 63)
                left >>= 5
            text.append(left + 63)
    return bytes(text)


def test_the_example_of_the_format() -> None:
    points = np.array([[38.5, 40.7, 43.252], [-120.2, -120.95, -126.453]])
    longitude, latitude = (PolylineCodec(5).encode(points[i : i + 1]).tobytes() for i in (0, 1))
    assert longitude == b"_p~iF" + b"_ulL" + b"_mqN"
    assert latitude == b"~ps|U" + b"nnqC" + b"vxq`@"


@given(rows_of, digits_of)
def test_polyline_is_what_the_format_says_and_loses_half_a_digit(values: np.ndarray, digits: int) -> None:
    encoded = PolylineCodec(digits).encode(values)
    assert encoded.tobytes() == by_the_book(values, digits)
    assert len(encoded) == PolylineCodec(digits).nbytes(values)
    assert values.size <= len(encoded) <= 11 * values.size
    exact = PolylineCodec(digits).decode_exactly(encoded, *values.shape)
    wrong = np.abs(exact - values.astype(np.float64))
    assert (wrong <= 0.5 * 10.0**-digits + 4 * np.spacing(np.abs(exact))).all()  # float64 rounds the product
    assert np.array_equal(PolylineCodec(digits).encode(exact), encoded)
    codec = row_codec(f"polyline:{digits}")
    single = codec.decode(encoded, *values.shape)
    assert (np.abs(single - exact) <= np.spacing(np.abs(single)) / 2).all()
    assert np.array_equal(codec.decode(codec.encode(single), *values.shape), single)


@given(hnp.arrays(np.uint8, st.integers(0, 30)), st.integers(0, 4), st.integers(0, 4))
def test_damaged_polylines_are_refused_or_are_numbers(encoded: np.ndarray, rows: int, columns: int) -> None:
    try:
        found = PolylineCodec(2).decode_exactly(encoded, rows, columns)
    except ConfigError as error:
        assert "polyline" in str(error)  # noqa: PT017
    else:
        assert found.shape == (rows, columns)
        assert sum(1 for code in encoded if code - 63 < 32) == rows * columns


def test_polylines_of_numbers_that_cannot_be_rounded_and_without_end() -> None:
    for bad in (math.nan, math.inf, 1e30):
        with pytest.raises(ConfigError, match="not finite, or too large for 3 digits"):
            PolylineCodec(3).encode(np.array([[0.0, bad]]))
    with pytest.raises(ConfigError, match="12 characters"):
        PolylineCodec(0).decode(np.array([95] * 11 + [64], dtype=np.uint8), 1, 1)
    with pytest.raises(ConfigError, match="1 whole numbers instead of 1 rows of 2"):
        PolylineCodec(0).decode(np.array([64, 95], dtype=np.uint8), 1, 2)


@given(rows_of, st.sampled_from(ROW_CODECS))
def test_rows_of_fixed_size(values: np.ndarray, name: str) -> None:
    codec, (n, d) = FixedCodec(name), values.shape
    encoded = codec.encode(values)
    assert len(encoded) == codec.nbytes(n, d) == n * {"none": 4 * d, "fp16": 2 * d, "bf16": 2 * d, "int8": 4 + d}[name]
    found = codec.decode(encoded, n, d)
    as_torch = {"none": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
    if name in as_torch:
        assert np.array_equal(found, torch.from_numpy(values).to(as_torch[name]).float().numpy())
    else:
        largest = np.abs(values.astype(np.float64)).max(axis=1, initial=0, keepdims=True)
        assert (np.abs(found.astype(np.float64) - values) <= largest / 254 * 1.00001 + 1e-44).all()
    with pytest.raises(ConfigError, match=f"codec {name}"):
        codec.decode(np.append(encoded, np.uint8(0)), n, d)


def test_names_of_codecs_that_do_not_exist() -> None:
    for name in ("int4", "polyline", "", "delta", *(f"polyline:{digits}" for digits in ("-1", "10", "x", "²"))):
        with pytest.raises(ConfigError, match=r"codec|digits") as error:
            row_codec(name)
        assert "\n" not in str(error.value)
        assert isinstance(error.value, UnknownNameError) == (not name.startswith("polyline:"))


PEER: tuple[int, Any, int] = (1, "forward", 0)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**31))
def test_both_ends_hold_the_same_rows_and_errors_do_not_add_up(rows: int, columns: int, seed: int) -> None:
    draws, ends, like = torch.Generator().manual_seed(seed), DeltaPacking(), torch.empty(0, columns)
    values, before = torch.zeros(rows, columns), torch.zeros(rows, columns)

    def held(version: int) -> torch.Tensor:
        message = ends.pack(PEER, values, version)
        assert message.shape == ends.room(PEER, rows, like).shape == (8 + rows * (4 + columns),)
        return ends.unpack(PEER, message, like, version)

    def wrong(found: torch.Tensor) -> torch.Tensor:
        slack = 4 * np.spacing(values.abs().amax(1, keepdim=True).numpy())
        return (found.double() - values).abs() - torch.from_numpy(slack)

    for version in range(12):
        values = values + torch.randn(values.shape, generator=draws) * 10.0 ** int(
            torch.randint(-3, 2, (1,), generator=draws)
        )
        found = held(version)
        step = (values.double() - before).abs().amax(1, keepdim=True)
        assert (wrong(found) <= step / 254 * 1.001).all()
        before = found
    for version in range(12, 18):  # rows that stop to change become exact
        found = held(version)
    assert (wrong(found) <= 0).all()


def test_a_difference_to_other_rows_is_refused() -> None:
    sender, reader, values, like = DeltaPacking(), DeltaPacking(), torch.ones(2, 3), torch.empty(0, 3)
    first, second = sender.pack(PEER, values, 4), sender.pack(PEER, 2 * values, 6)
    with pytest.raises(StaleRowError, match="difference to version 4; the reader holds version -1"):
        reader.unpack(PEER, second, like, 6)
    reader.unpack(PEER, first, like, 4)
    with pytest.raises(ConfigError, match="bytes are not 2 rows of 3"):
        reader.unpack(PEER, second[:-1], like, 6)
    other = DeltaPacking()
    other.load_state(reader.state() | {"read": dict(reader.state()["read"])})
    assert torch.equal(other.unpack(PEER, second, like, 6), reader.unpack(PEER, second, like, 6))
    with pytest.raises(ConfigError, match="rows are"):
        sender.pack(PEER, torch.ones(3, 3), 7)


@pytest.mark.parametrize("name", ["none", "bf16", "polyline:2"])
def test_a_history_keeps_the_last_versions(name: str) -> None:
    codec, rng = row_codec(name), np.random.default_rng(0)
    history = History(4, 3, 3, codec)
    with pytest.raises(ConfigError, match="no rows"):
        history.window()
    all_rows, all_versions = [], [2, 5, 9, 11]
    for version in all_versions:
        values = rng.normal(size=(4, 3)).astype(np.float32)
        history.append(torch.from_numpy(values), version)
        all_rows.append(codec.decode(codec.encode(values), 4, 3))
        found = history.window()
        kept = all_rows[-3:]
        expected = [kept[0]] * (3 - len(kept)) + kept
        assert np.array_equal(found.numpy(), np.stack(expected))
    assert [version for version, _ in history.state()] == [5, 9, 11]
    assert history.nbytes == sum(len(codec.encode(kept)) for kept in all_rows[-3:])
    for rows, version in ((torch.zeros(3, 3), 12), (torch.zeros(4, 3), 11)):
        with pytest.raises(ConfigError, match="history"):
            history.append(rows, version)
