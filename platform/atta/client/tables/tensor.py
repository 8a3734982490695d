"""``DistTensor``: a mutable table of the cluster, used like an array of rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from atta.client.cluster import Cluster
from atta.client.tables.remote import PIECE_BYTES
from atta.errors import ConfigError
from atta.kvstore.codecs import check_codec
from atta.kvstore.spec import Initialiser, MutableSpec, Zeros
from atta.observe import html
from atta.samplers.arguments import integers


class DistTensor:
    """Rows that live on the daemons, read and written by their numbers or by the ids of vertices or edges.

        state = atta.DistTensor(cluster, (cluster.schema.node_counts["node"], 64), name="h1", policy="nodes:node")
        state[batch.n_id()] = values
        old = state[batch.n_id()]

    Every row is read and written as a whole. A client reads what it has written. Creating a table that exists with the
    same specification opens it, so all trainers may run the same line.
    """

    def __init__(
        self,
        cluster: Cluster,
        shape: tuple[int, ...],
        *,
        name: str,
        dtype: Any = np.float32,
        policy: str = "range",
        init: Initialiser | None = None,
        versioned: bool = False,
        max_rows: int | None = None,
        codec: str = "",
    ) -> None:
        """Create or open the table ``name``.

        Args:
            cluster: from ``atta.connect`` or ``atta.local``.
            shape: number of rows, then the shape of a row.
            name: of the table; letters, digits, dots, dashes, single underscores.
            dtype: of its values, numpy's or torch's: bool, integers or floats.
            policy: ``"range"``: rows are numbers, spread evenly over the daemons; ``"nodes:TYPE"``, ``"edges:TYPE"``:
                one row per vertex or edge, on the daemon that owns it, addressed by the users' ids.
            init: values of rows that have not been written (default: zeros); see ``atta.kvstore.spec``.
            versioned: whether rows have versions.
            max_rows: number of rows that the table may grow to (``range`` only); default: it cannot grow.
            codec: fp16, bf16 or int8: float32 values cross the network in fewer bytes, with less precision.

        Raises:
            ConfigError: the table exists with another specification, or does not fit the dataset.
            UnknownNameError: a daemon has lost its rows of the table.
            QuotaExceededError: the daemons have no room for it.
        """
        try:
            rows, *row_shape = shape
        except (TypeError, ValueError):
            raise ConfigError(
                f"table {name}: shape {shape!r}: must be the number of rows, then a row's shape"
            ) from None
        spec = MutableSpec(
            name,
            rows,
            _numpy_dtype(name, dtype).newbyteorder("<").str,
            tuple(row_shape),
            init=Zeros() if init is None else init,
            versioned=versioned,
            max_rows=max_rows,
            policy=policy,
        )
        check_codec(spec, codec)
        self._cluster, self._codec = cluster, codec
        self._table = cluster.tables.create(spec)

    @property
    def name(self) -> str:
        """Name of the table."""
        return self._table.spec.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of rows, then the shape of a row."""
        return (len(self), *self._table.spec.row_shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values."""
        return np.dtype(self._table.spec.dtype)

    def __len__(self) -> int:
        return self._table.count()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self._table.spec.rows:,} rows)"

    def _repr_html_(self) -> str:
        spec = self._table.spec
        rows = [("rows", spec.rows), ("row", list(spec.row_shape)), ("dtype", spec.dtype), ("policy", spec.policy)]
        return html.table(f"{type(self).__name__} {spec.name}", rows)

    def __iter__(self) -> Iterator[np.ndarray]:
        """Rows [*row shape] by their numbers, pulled in pieces of a few megabytes."""
        piece = max(1, PIECE_BYTES // self._table.spec.row_bytes)
        for first in range(0, len(self), piece):
            yield from self[first : first + piece]

    def __getitem__(self, ids: Any) -> np.ndarray:
        """Values [n, *row shape] of ``ids`` (integers [n], or a slice of row numbers); a copy."""
        return self._table.pull(self._rows(ids), codec=self._codec).values

    def __setitem__(self, ids: Any, values: Any) -> None:
        """Write rows, and return when their owners have them. A single row is written to all ``ids``."""
        self.write(ids, values)

    def write(self, ids: Any, values: Any, *, version: int | None = None) -> None:
        """Write rows, with their ``version`` if the table has versions. Rows with a higher version stay as they are.

        ``values``: numbers, arrays or torch tensors. Arrays are cast to the table's dtype as numpy casts them. Raises
        ConfigError: the table does not take an id, a value, a shape or a version; UnknownNameError: a daemon does not
        have the table any more."""
        rows = self._rows(ids)
        self._table.push(rows, self._values(rows, values), version=version, codec=self._codec).wait()

    def add(self, ids: Any, values: Any) -> None:
        """Add to rows. If an id occurs twice, both values are added."""
        rows = self._rows(ids)
        self._table.push(rows, self._values(rows, values), "add", codec=self._codec).wait()

    def versions(self, ids: Any) -> tuple[np.ndarray, np.ndarray]:
        """Values and versions (int64 [n], -1: never written) of ``ids``, read together for each row."""
        found = self._table.pull(self._rows(ids), codec=self._codec, versions=True)
        assert found.versions is not None
        return found.values, found.versions

    def grow(self, rows: int) -> None:
        """Let the table have ``rows`` rows. The new rows hold initial values."""
        self._table.grow(rows)

    def delete(self) -> None:
        """Delete the table on all daemons."""
        self._cluster.tables.delete(self.name)

    def _rows(self, ids: Any) -> np.ndarray:
        if isinstance(ids, slice):
            if self._table.spec.policy != "range":
                raise ConfigError(f"table {self.name}: slices take row numbers, its rows are {self._table.spec.policy}")
            return np.arange(*ids.indices(len(self)))
        return self._table.locate(integers(f"table {self.name}: ids", ids).reshape(-1))

    def _values(self, rows: np.ndarray, values: Any) -> np.ndarray:
        return row_values(self.name, values, self.dtype, (len(rows), *self._table.spec.row_shape))


def row_values(name: str, values: Any, dtype: np.dtype[Any], wanted: tuple[int, ...]) -> np.ndarray:
    """``values`` (numbers, arrays or torch tensors) as rows of the shape ``wanted``, for the table ``name``. Raises
    ConfigError: they are no numbers of this dtype, or have a shape that cannot be ``wanted``."""
    try:
        if hasattr(values, "detach"):
            plain = values.detach().cpu()
            values = (plain.float() if str(plain.dtype) == "torch.bfloat16" else plain).numpy()  # numpy has no bfloat16
        given = np.asarray(values, dtype=dtype)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise ConfigError(f"table {name}: values are not {dtype}: {error}") from None
    try:
        return np.broadcast_to(given, wanted)
    except ValueError:
        raise ConfigError(f"table {name}: values {list(given.shape)} for {list(wanted)}") from None


def _numpy_dtype(name: str, dtype: Any) -> np.dtype[Any]:
    try:
        return np.dtype(str(dtype).removeprefix("torch.") if type(dtype).__module__ == "torch" else dtype)
    except (TypeError, ValueError):
        raise ConfigError(f"table {name}: dtype {dtype!r} is none of numpy") from None
