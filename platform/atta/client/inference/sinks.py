"""Where the results of an inference go: to arrays, to a table, or to one Parquet, ``.npy`` or CSV file per share, which has
its final name only when it is complete. A folder of files also has ``_predictions.json``, which says what they are. A
repeated run goes on in a folder that has the same description, and refuses one that has another."""

from __future__ import annotations

import csv
import json
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from atta.client.cluster import Cluster
from atta.client.inference.task import Predictions, UserIds
from atta.errors import ConfigError, DataError, blaming
from atta.kvstore.spec import MutableSpec
from atta.observe.packages import load, need
from atta.partition.disk.files import NpyAppender
from atta.partition.disk.mirror import Mirror
from atta.partition.disk.staging import StagedFile, remove_partial_file
from atta.partition.disk.store import is_url


class ShareWriter(Protocol):
    """Takes the results of one share."""

    def write(self, ids: UserIds, values: npt.NDArray[Any]) -> None:
        """Take some rows: ids [n] or [n, 2], and their values [n, ...]."""


class Sink:
    """Takes the results of all shares. A share counts as finished when its ``open`` block is left without an error.
    ``takes_strings``: whether it takes string ids, where vertices have them. ``run``: the same of processes that work
    together."""

    takes_strings = True

    def __init__(self, run: str) -> None:
        self.run = run
        self._done: set[int] = set()

    def finished(self, share: int) -> bool:
        """Whether an earlier run, or this one, has finished the share."""
        return share in self._done

    @contextmanager
    def open(self, share: int) -> Iterator[ShareWriter]:
        """Begin a share. After an error nothing of it is to be seen."""
        yield self._writer(share)
        self._done.add(share)

    def _writer(self, share: int) -> ShareWriter:
        raise NotImplementedError


class MemorySink(Sink):
    """Keeps results as arrays."""

    def __init__(self) -> None:
        super().__init__(secrets.token_hex(8))
        self._shares: dict[int, _Kept] = {}

    def _writer(self, share: int) -> ShareWriter:
        self._shares[share] = _Kept([])
        return self._shares[share]

    def result(self) -> Predictions:
        """All shares one after another."""
        pieces = [piece for _, kept in sorted(self._shares.items()) for piece in kept.pieces]
        return Predictions(np.concatenate([ids for ids, _ in pieces]), np.concatenate([rows for _, rows in pieces]))


@dataclass(frozen=True)
class _Kept:
    pieces: list[tuple[np.ndarray, np.ndarray]]

    def write(self, ids: UserIds, values: npt.NDArray[Any]) -> None:
        self.pieces.append((ids.copy(), values.copy()))


class TableSink(Sink):
    """Writes rows of vertices into a mutable table, which stays for the next job. A repeated run writes all rows again."""

    takes_strings = False

    def __init__(self, cluster: Cluster, node_type: str, name: str, width: int | None) -> None:
        """``width``: numbers per row; None: one class, int64. Raises ConfigError if a table of that name has other rows."""
        super().__init__(name)
        spec = MutableSpec(
            name, cluster.schema.node_counts[node_type], dtype="<i8" if width is None else "<f4",
            row_shape=() if width is None else (width,), policy=f"nodes:{node_type}",
        )  # fmt: skip
        with blaming(ConfigError, f"--table {name}", of=ConfigError):
            self.table = cluster.tables.create(spec)

    def _writer(self, share: int) -> ShareWriter:
        return self

    def write(self, ids: UserIds, values: npt.NDArray[Any]) -> None:
        self.table.push(self.table.locate(ids), values).wait()


DESCRIPTION = "_predictions.json"
VERSION = 1
_RUN = "run"
"""In the description: what the first process has drawn."""
_SAID = {"column": "--what", "dataset": "the dataset", "model": "the model", "tables_version": "the graph's version"}
_SAID |= dict.fromkeys(("nodes", "sources"), "--split or --ids")
"""What messages call an entry of the description; others are called as options."""
_ATTEMPTS, _PAUSE_S = 20, 0.1
"""How often, and how long apart, a process tries to write the description that another one is writing."""


def discard(folder: str | Path) -> None:
    """Remove a folder on this machine if it holds predictions; any other is left alone."""
    if not is_url(folder) and described(folder) is not None:
        shutil.rmtree(folder)


def described(folder: str | Path) -> dict[str, Any] | None:
    """What the files of a folder are, as the run that began them has written it; None if nothing is there. Raises DataError."""
    path = Mirror(folder).pull(DESCRIPTION)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(path, f"cannot be read as a description of predictions: {error}") from None
    if not isinstance(found, dict) or found.get("version") != VERSION or not isinstance(found.get("files"), int):
        raise DataError(path, "does not describe predictions")
    return found


class FileSink(Sink):
    """A folder of files, perhaps on object storage. ``paths``: their final names."""

    def __init__(self, folder: str | Path, form: str, shares: int, column: str, about: Mapping[str, Any]) -> None:
        """Begin, or go on in, ``folder``; ``form``: one of ``FORMATS``, ``column``: name of the values. ``about``: JSON
        values on which the files depend; ``classes`` among them are the names of the values, which Parquet files have
        in the column ``name``. Raises ConfigError if the folder holds something else."""
        if form == "parquet":
            need("writing Parquet (--format parquet; npy and csv need nothing)", "pyarrow")
        self._form, self._column = form, column
        self._classes = about.get("classes")
        self._names = [f"part-{share:05d}-of-{shares:05d}.{form}" for share in range(shares)]
        self._place = Mirror(folder)
        self.paths: list[str | Path] = [
            f"{folder}/{name}" if self._place.remote else self._place.path / name for name in self._names
        ]
        whole = {"version": VERSION, "files": shares, "format": form, "column": column, **about}
        began = self._begin(folder, whole)
        super().__init__(str(folder).rstrip("/") if self._place.remote else str(began.get(_RUN, "")))

    def _begin(self, folder: str | Path, about: dict[str, Any]) -> dict[str, Any]:
        """Returns the description that is in the folder now."""
        here = self._place.path
        if here.exists() and not here.is_dir():
            raise ConfigError(f"{folder}: is not a folder")
        found = described(folder)
        if found is None:
            if any(not name.startswith(DESCRIPTION) for name in self._place.names()):
                raise ConfigError(f"{folder}: holds other files; choose another folder")
            _describe(self._place, about | {_RUN: secrets.token_hex(8)})
            found = described(folder) or {}  # another process may have been first
        other = sorted(name for name in (about.keys() | found.keys()) - {_RUN} if about.get(name) != found.get(name))
        if other:
            differ = ", ".join(sorted({_SAID.get(name, f"--{name.replace('_', '-')}") for name in other}))
            cure = "give another folder (--out), or replace them (--overwrite)"
            raise ConfigError(f"{folder}: holds other predictions, which differ in {differ}: {cure}")
        return found

    def finished(self, share: int) -> bool:
        return self._place.has(self._names[share])

    @contextmanager
    def open(self, share: int) -> Iterator[ShareWriter]:
        path = self._place.path / self._names[share]
        remove_partial_file(path)
        with StagedFile(path, overwrite=self._place.remote) as partial:
            made = FORMATS[self._form]
            with closing(made(partial, self._column, self._classes)) as writer:
                yield writer
        self._place.push(self._names[share])
        if self._place.remote:
            path.unlink()


def _describe(place: Mirror, about: dict[str, Any]) -> None:
    """Write the description, or wait until another process of the run has done so."""
    for attempt in range(_ATTEMPTS):
        try:
            with StagedFile(place.path / DESCRIPTION, overwrite=place.remote) as partial:
                partial.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
            place.push(DESCRIPTION)
            return
        except ConfigError:
            if attempt == _ATTEMPTS - 1:
                raise
            time.sleep(_PAUSE_S)
            if place.has(DESCRIPTION):
                return


class _NpyRows:
    """One array with the fields ``id`` (or ``source`` and ``target``) and that of the values."""

    def __init__(self, path: Path, column: str, names: Sequence[str] | None) -> None:
        self._path, self._column = path, column
        self._out: NpyAppender | None = None

    def write(self, ids: UserIds, values: npt.NDArray[Any]) -> None:
        columns = _columns(ids, values, self._column)
        fields = [(name, array.dtype.str, array.shape[1:]) for name, array in columns.items()]
        records = np.empty(len(ids), np.dtype(fields))
        for name, array in columns.items():
            records[name] = array
        if self._out is None:
            self._out = NpyAppender(self._path, records.dtype)
        self._out.append(records)

    def close(self) -> None:
        if self._out is not None:
            self._out.close()


class _ParquetRows:
    """The same columns; rows of numbers are lists of a fixed size. Beside classes are their names, if they have some."""

    def __init__(self, path: Path, column: str, names: Sequence[str] | None) -> None:
        self._path, self._column, self._names = path, column, names
        self._parquet = load("writing Parquet", "pyarrow.parquet")
        self._out: Any = None

    def write(self, ids: UserIds, values: npt.NDArray[Any]) -> None:
        import pyarrow as pa

        columns = {}
        for name, array in _columns(ids, values, self._column).items():
            flat = pa.array(np.ascontiguousarray(array).reshape(-1))
            columns[name] = flat if array.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, array.shape[1])
        if self._names is not None:
            # there may be more classes than names: num_classes can be stated
            codes = np.minimum(values.reshape(-1), len(self._names))
            columns["name"] = pa.array([*self._names, None], pa.string()).take(pa.array(codes))
        batch = pa.record_batch(columns)
        if self._out is None:
            self._out = self._parquet.ParquetWriter(self._path, batch.schema)
        self._out.write_batch(batch)

    def close(self) -> None:
        if self._out is not None:
            self._out.close()


class _CsvRows:
    # The same columns as text below their names; rows of numbers have a column for each (score_0).

    def __init__(self, path: Path, column: str, names: Sequence[str] | None) -> None:
        self._file, self._column, self._names = path.open("w", encoding="utf-8", newline=""), column, names
        self._out, self.close = csv.writer(self._file), self._file.close

    def write(self, ids: UserIds, values: npt.NDArray[Any]) -> None:
        columns: dict[str, Any] = {}
        for name, array in _columns(ids, values, self._column).items():
            wide = {f"{name}_{i}": array[:, i] for i in range(array.shape[1])} if array.ndim > 1 else {name: array}
            columns |= {name: cells.astype(str) for name, cells in wide.items()}
        if self._names is not None:
            known = dict(enumerate(self._names))
            columns["name"] = [known.get(code, "") for code in values.reshape(-1).tolist()]
        if not self._file.tell():
            self._out.writerow(columns)
        self._out.writerows(zip(*columns.values(), strict=True))


FORMATS: Mapping[str, Any] = {"parquet": _ParquetRows, "npy": _NpyRows, "csv": _CsvRows}


def _columns(ids: np.ndarray, values: np.ndarray, column: str) -> dict[str, np.ndarray]:
    named = {"id": ids} if ids.ndim == 1 else {"source": ids[:, 0], "target": ids[:, 1]}
    return {**named, column: values}
