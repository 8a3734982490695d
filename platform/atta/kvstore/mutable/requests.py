"""Pulls and pushes of clients, each checked completely before it changes anything, and how they lie in memory that the
client lends: first the values, then the versions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict, Unpack

import numpy as np

from atta.errors import ConfigError
from atta.kvstore import codecs
from atta.kvstore.spec import MutableSpec

OPERATIONS = ("write", "add", "step")
ARRAYS = ("", "sum", "exp_avg", "exp_avg_sq", "steps")
"""What a push may write: the values, or an array of an optimiser's state. Logs on disk hold places in this order."""

Values = np.ndarray | bytes | bytearray | memoryview


class PushOptions(TypedDict, total=False):
    """How a push changes rows, apart from its operation."""

    version: int | None
    """Of rows that are written to a versioned table. Rows of a higher version stay as they are, rows of the same one are
    written again. None: all rows are written and keep their versions."""
    step: int | None
    """Number, from 1, of the optimiser's step for a push with "step". So one step may come in several pushes and touch
    several shards. None: one more than the shard has seen."""
    array: str
    """Of the optimiser's state, which "write" changes instead of the values."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """``values`` [n, *row shape] and, of a versioned table, ``versions`` int64 [n]: -1 where the row was never
    written."""

    values: np.ndarray
    versions: np.ndarray | None

    @classmethod
    def empty(cls, spec: MutableSpec, rows: int) -> Pulled:
        """Memory for so many rows of a table."""
        versions = np.empty(rows, dtype=np.int64) if spec.versioned else None
        return cls(np.empty((rows, *spec.row_shape), dtype=spec.dtype), versions)


@dataclass(frozen=True, slots=True)
class Push:
    """A checked push. ``rows`` int64 [n] are positions in the shard, ``values`` [n, *row shape] in the table's dtype;
    ``op`` is one of OPERATIONS; ``array`` is written: one of the optimiser's state, or "" for the rows themselves."""

    rows: np.ndarray
    values: np.ndarray
    op: str
    version: int | None
    step: int | None
    array: str = ""

    @classmethod
    def checked(
        cls, spec: MutableSpec, span: range, rows: np.ndarray, values: Values, op: str, **options: Unpack[PushOptions]
    ) -> Push:
        """Check a client's push to the shard with the rows ``span``; raises ConfigError."""
        version, step, array = options.get("version"), options.get("step"), options.get("array", "")
        _check_operation(spec, op, version)
        _check_step(spec, op, step)
        if array:
            check_array(spec, array)
            if op != "write" or version is not None:
                raise ConfigError(f"table {spec.name}: {array} of the optimiser is only written, without a version")
        local = local_rows(spec, span, rows)
        return cls(local, _values_of(spec, len(local), values), op, version, step, array)


def check_array(spec: MutableSpec, array: str) -> None:
    """Raise ConfigError unless the optimiser keeps an array of this name; "" are the rows themselves."""
    known = () if spec.optimiser is None else spec.optimiser.state_names
    if array and array not in known:
        raise ConfigError(f"table {spec.name}: its optimiser keeps no {array!r}, only {', '.join(known) or 'nothing'}")


def local_rows(spec: MutableSpec, span: range, rows: np.ndarray) -> np.ndarray:
    """Positions in the shard, int64 [n], of the global ``rows`` (integers [n] within ``span``); raises ConfigError."""
    rows = np.asarray(rows)
    if rows.ndim != 1 or (rows.dtype.kind not in "iu" and rows.size):
        raise ConfigError(f"table {spec.name}: rows are one-dimensional integers, not {rows.dtype}{list(rows.shape)}")
    if not rows.size:
        return np.empty(0, dtype=np.int64)
    for row in (int(rows.min()), int(rows.max())):
        if row not in span:
            raise ConfigError(
                f"table {spec.name}: row {row} is outside the rows {span.start}..{span.stop - 1} of this shard"
            )
    return rows.astype(np.int64) - span.start


def _check_operation(spec: MutableSpec, op: str, version: int | None) -> None:
    if op not in OPERATIONS:
        raise ConfigError(f"table {spec.name}: operation {op!r} is not one of {', '.join(OPERATIONS)}")
    if op == "add" and spec.dtype == "|b1":
        raise ConfigError(f"table {spec.name}: truth values cannot be added")
    if op == "step" and spec.optimiser is None:
        raise ConfigError(f"table {spec.name}: has no optimiser, so it cannot step")
    if version is None:
        return
    if op != "write" or not spec.versioned:
        raise ConfigError(f"table {spec.name}: a version comes with 'write' to a versioned table only")
    if type(version) is not int or not 0 <= version < 2**63:
        raise ConfigError(f"table {spec.name}: version {version!r} is not an integer from 0 to 2^63 - 1")


def _check_step(spec: MutableSpec, op: str, step: int | None) -> None:
    if step is None:
        return
    if op != "step":
        raise ConfigError(f"table {spec.name}: the number of a step comes with 'step' only")
    if type(step) is not int or not 1 <= step < 2**63:
        raise ConfigError(f"table {spec.name}: step {step!r} is not an integer from 1 to 2^63 - 1")


def _values_of(spec: MutableSpec, rows: int, values: Values) -> np.ndarray:
    """``values`` as an aligned, contiguous array [rows, *row shape] in the table's dtype. They may be such an array, or
    its bytes."""
    shape = (rows, *spec.row_shape)
    if isinstance(values, bytes | bytearray | memoryview):
        size = values.nbytes if isinstance(values, memoryview) else len(values)
        if size != rows * spec.row_bytes:
            raise ConfigError(f"table {spec.name}: {size} bytes for {rows} rows of {spec.row_bytes} bytes")
        values = np.frombuffer(values, dtype=spec.dtype).reshape(shape)
    values = np.asarray(values)
    if values.dtype.str != spec.dtype or values.shape != shape:
        have, want = f"{values.dtype.str}{list(values.shape)}", f"{spec.dtype}{list(shape)}"
        raise ConfigError(f"table {spec.name}: values are {have} instead of {want}")
    values = np.require(values, requirements=["C", "A"])
    if spec.dtype == "|b1" and values.size and int(values.view(np.uint8).max()) > 1:
        raise ConfigError(f"table {spec.name}: a truth value is neither 0 nor 1")
    return values


_ALIGNED = 8
"""Versions begin at a multiple of their size, if the memory does."""


@dataclass(frozen=True, slots=True)
class LentLayout:
    """Where values and versions of an answer of ``rows`` rows begin. ``row_bytes``: of a row's values, as they travel."""

    rows: int
    row_bytes: int
    versioned: bool

    @classmethod
    def of(cls, spec: MutableSpec, rows: int, codec: str, *, versioned: bool) -> LentLayout:
        """Of rows of a table, in a codec that fits it ("": as they are). ``versioned``: the answer has versions, if the
        table has."""
        row_bytes = codecs.encoded_bytes(codec, spec.row_bytes // 4) if codec else spec.row_bytes
        return cls(rows, row_bytes, versioned and spec.versioned)

    @property
    def nbytes(self) -> int:
        """Bytes of the answer."""
        return self._versions_at + 8 * self.rows if self.versioned else self.rows * self.row_bytes

    @property
    def _versions_at(self) -> int:
        return -(-self.rows * self.row_bytes // _ALIGNED) * _ALIGNED

    def values(self, memory: np.ndarray, first: int, count: int) -> np.ndarray:
        """Values of rows ``first`` to ``first + count`` within ``memory`` (uint8 [nbytes]): uint8 [count, row bytes].
        Raises ValueError: there are no such rows."""
        self._check(first, count)
        start = first * self.row_bytes
        return memory[start : start + count * self.row_bytes].reshape(count, self.row_bytes)

    def versions(self, memory: np.ndarray, first: int, count: int) -> np.ndarray | None:
        """Versions of these rows: int64 [count]; None: the answer has none. See ``values``."""
        self._check(first, count)
        start = self._versions_at + 8 * first
        return memory[start : start + 8 * count].view(np.int64) if self.versioned else None

    def _check(self, first: int, count: int) -> None:
        if not 0 <= first <= first + count <= self.rows:
            raise ValueError(f"rows {first} to {first + count} of an answer of {self.rows}")
