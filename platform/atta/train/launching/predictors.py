"""``atta predict`` in several processes, and the files of ids that it reads."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from atta.client.tables.string_ids import Numbers, StringIds, Strings
from atta.errors import AttaError, ConfigError, DataError, blaming
from atta.observe import html, lastwords
from atta.observe.machine.ending import end_with_parent
from atta.observe.machine.held import OwnFolder
from atta.observe.packages import machine, versions
from atta.observe.progress import Progress
from atta.partition.disk.files import open_regular
from atta.partition.graph.strings import NAME, to_rows
from atta.samplers.arguments import integers
from atta.train.launching.failure import end_of, failure_file
from atta.train.launching.predict import PredictJob, predicted_types
from atta.train.launching.trainers import Processes
from atta.train.settings.predict import PredictConfig

if TYPE_CHECKING:
    from atta.partition.dataset import Dataset
    from atta.train.launching.follow import FollowedVersion

_SEPARATORS = ("\t", ",")


def read_ids(path: str | Path, columns: int = 1, *, strings: bool = False) -> npt.NDArray[Any]:
    """User ids of a ``.npy`` file, or of a text file with one line per row: [n], or [n, columns] if there are several.

    Columns of ids that are numbers are separated by tabs, commas or blanks; of ``strings`` by the first of these that the
    first line has, and one column is the whole line. Raises DataError: the file is missing, or has something else.
    """
    kinds, wanted = ("iuU", "strings") if strings else ("iu", "whole numbers")
    shape = "[n]" if columns == 1 else f"[n, {columns}]"
    try:
        with open_regular(Path(path)) as file:
            if Path(path).suffix == ".npy":
                found = np.load(file, allow_pickle=False)
            else:
                lines = [line for line in file.read().decode("utf-8-sig").splitlines() if line.strip()]
                found = _parsed(lines, columns, strings=strings)
    except OSError as error:
        raise DataError(path, error.strerror or str(error)) from None
    except (ValueError, OverflowError, EOFError) as error:
        raise DataError(path, f"wanted are {wanted} {shape}, {columns} per line: {error}") from None
    if found.shape[1:] != ((columns,) if columns > 1 else ()) or found.ndim == 0 or found.dtype.kind not in kinds:
        raise DataError(path, f"wanted are {wanted} {shape}, not {found.dtype} of shape {list(found.shape)}")
    if not len(found):
        raise DataError(path, "has no ids")
    with blaming(DataError, path, of=ConfigError):
        return found if found.dtype.kind == "U" else integers("ids", found)


def _parsed(lines: Sequence[str], columns: int, *, strings: bool) -> npt.NDArray[Any]:
    """int64 or str [n], or [n, columns]. Raises ValueError."""
    rows: list[list[Any]] = [line.replace(",", " ").split() for line in lines]
    if strings:
        mark = next((mark for mark in _SEPARATORS if lines and mark in lines[0]), None)
        rows = [[word.strip() for word in line.split(mark)] if columns > 1 else [line.strip()] for line in lines]
    if wrong := next((row for row in rows if len(row) != columns), None):
        raise ValueError(f"a line has {len(wrong)}")
    found = np.array(rows, np.str_) if strings else np.array([[*map(int, row)] for row in rows], np.int64)
    return found.reshape(-1) if columns == 1 else found.reshape(-1, columns)


END_S = 10.0
"""How long other processes may take to end after one has failed; then they are killed."""
_LOOK_S = 0.5


@dataclass(frozen=True)
class PredictReport:
    """What a run has done: ``vertices`` (or pairs) asked for, numbers per row (``width``; 1 for classes), paths of files
    (none of a table), and ``seconds`` without the start of daemons."""

    config: PredictConfig
    vertices: int
    width: int
    files: list[str]
    seconds: float

    def _repr_html_(self) -> str:
        rows = [("vertices", self.vertices), ("numbers per row", self.width), ("seconds", self.seconds)]
        return html.table("Predicted", [*rows, *(("file", name) for name in self.files)])

    def to_json(self) -> dict[str, Any]:
        """What ``--json`` writes."""
        return {"schema": 1, **dataclasses.asdict(self), "machine": machine(), "versions": versions()}


def predict_as(config: PredictConfig, progress: Progress | None = None, *, overwrite: bool = False) -> PredictReport:
    """Predict as ``config`` says; repeated after it was broken off, what is missing. ``overwrite``: remove earlier
    predictions in its folder, once nothing asked is wrong. Raises ConfigError, DataError: bad settings, checkpoint, ids or
    dataset; RemoteError: a daemon failed; AttaError: another process did."""
    from atta.client.inference.sinks import FileSink
    from atta.train.launching.launch import handed

    _prepare_torch(config.processes)
    if config.data is not None:
        check_stored(config.data, lambda stored: _asked(config, stored), **{**_arguments(config, 0), "out": None})
    with _connected(config) as cluster, OwnFolder("atta-predict-") as folder:
        started = time.monotonic()
        asked = _asked(config, cluster)
        job = PredictJob(cluster, **_arguments(config, 0), **asked, overwrite=overwrite)
        task = {"config": dataclasses.asdict(config), **handed(cluster)}
        (Path(folder) / "task.json").write_text(json.dumps(task), encoding="utf-8")
        with _Helpers(Path(folder), 0 if job.finished else config.processes - 1) as helpers:
            inference = job.inference(progress, helpers.check)
            inference.run()
            helpers.await_end()
        inference.clean()
    files = [str(path) for path in job.sink.paths] if isinstance(job.sink, FileSink) else []
    return PredictReport(config, job.count, job.width, files, time.monotonic() - started)


def follow_as(config: PredictConfig) -> Iterator[FollowedVersion]:
    """Follow as ``config`` says, without an end; yields what was done. Raises as ``predict_as``."""
    from atta.train.launching.follow import InferenceFollower

    _prepare_torch(1)
    with _connected(config) as cluster:
        follower = InferenceFollower(
            cluster, config.checkpoint, table=str(config.table), what=config.what, tolerance=config.tolerance,
            batch_size=config.batch_size, device=_device(config.device, 0), node_type=config.node_type,
        )  # fmt: skip
        yield from follower.follow()


def check_stored(data: str, asked: Callable[[Any], Mapping[str, Any]] = lambda _: {}, **arguments: Any) -> None:
    """Refuse what is wrong with a ``PredictJob`` before daemons have read ``data``. ``asked``: arguments that need it."""
    from atta.partition.dataset import Dataset
    from atta.partition.deploy import local_dataset

    stored: Any = _Stored(Dataset.open(local_dataset(data, None), parts=[], verify=False))
    _CheckedJob(stored, **arguments, **asked(stored))


class _CheckedJob(PredictJob):
    def _present_version(self, nodes: object) -> int:
        return 0  # only daemons know


class _Stored:
    """What ``PredictJob`` asks of a cluster, answered from the files of the dataset."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self.schema, self.dataset_id, self.num_parts = dataset.schema, dataset.dataset_id, dataset.num_parts
        self.ids, self.tables = _StoredIds(dataset), self

    def locate(self, policy: str, ids: np.ndarray) -> np.ndarray:
        """Vertices only."""
        return self._dataset.to_internal(policy.removeprefix("nodes:"), ids)


class _StoredIds(StringIds):
    def __init__(self, dataset: Dataset) -> None:
        super().__init__(dataset.schema, [])
        self._dataset = dataset

    def _numbers(self, node_type: str, strings: Strings) -> tuple[Numbers, npt.NDArray[np.bool_]]:
        wanted = to_rows(strings)
        found, known = np.zeros(len(wanted), np.int64), np.zeros(len(wanted), np.bool_)
        for part in range(self._dataset.num_parts):
            rows = np.ascontiguousarray(self._dataset.part(part).table(node_type, NAME))
            width = max(rows.shape[1], wanted.shape[1])
            own, asked = (np.pad(r, ((0, 0), (0, width - r.shape[1]))).view(f"S{width}")[:, 0] for r in (rows, wanted))
            order = np.argsort(own)
            places = order[np.minimum(np.searchsorted(own, asked, sorter=order), max(0, len(own) - 1))]
            here = own[places] == asked if len(own) else np.zeros(len(asked), np.bool_)
            lo, hi = self._dataset.book.range(node_type, part)
            found[here] = self._dataset.ids(node_type)[lo:hi][places[here]]
            known |= here
        return found, known


@contextlib.contextmanager
def _connected(config: PredictConfig) -> Iterator[Any]:
    import atta

    if config.cluster is not None:
        with atta.connect(config.cluster) as running:
            yield running
        return
    from atta.train.launching.launch import own_daemons

    with own_daemons(str(config.data), config.threads, config.processes) as started:
        yield started


def _asked(config: PredictConfig, cluster: Any) -> Mapping[str, Any]:
    """The vertices or pairs that ``PredictJob`` is to compute."""
    from atta.train.checkpoint.files import load_model

    saved, pairs = load_model(config.checkpoint), config.links is not None or config.top is not None
    types = predicted_types(cluster.schema, saved, config.node_type, pairs=pairs)
    strings = any(cluster.ids.known(node_type) for node_type in types)
    if config.links is not None:
        return {"links": read_ids(config.links, 2, strings=strings)}
    return {"nodes": config.split if config.ids is None else read_ids(config.ids, strings=strings)}


_SAME = "what top relation num_neighbors seed out table format files batch_size node_type"
"""Settings that are arguments of ``PredictJob`` as they are."""


def _arguments(config: PredictConfig, rank: int) -> dict[str, Any]:
    own = {"model": config.checkpoint, "rank": rank, "world": config.processes, "device": _device(config.device, rank)}
    return {name: getattr(config, name) for name in _SAME.split()} | own


def _device(wanted: str, rank: int) -> str:
    """The CPU, or a GPU, which processes share if there are fewer."""
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "cuda" and not gpus:
        raise ConfigError("--device cuda: torch sees no GPU")
    return "cpu" if wanted == "cpu" or not gpus else f"cuda:{rank % gpus}"


def _prepare_torch(processes: int) -> None:
    """Give each process its share of the cores."""
    import torch

    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // processes))


class _Helpers(Processes):
    """The other processes of the run."""

    def __init__(self, folder: Path, count: int) -> None:
        super().__init__()
        self._folder, self._looked = folder, 0.0
        for rank in range(1, count + 1):
            words = ["atta.train.launching.predictors", str(folder), str(rank)]
            self.start(rank, words, {lastwords.VARIABLE: str(failure_file(folder, rank))})

    def check(self) -> None:
        """Raise the error of a process that has failed; looks now and then only."""
        if time.monotonic() - self._looked < _LOOK_S:
            return
        self._looked = time.monotonic()
        for rank, code in self.ended().items():
            if code:
                raise lastwords.read(failure_file(self._folder, rank)) or AttaError(f"process {rank} {end_of(code)}")

    def await_end(self) -> None:
        """Wait until all of them have done their parts."""
        while self.running:
            self.check()
            time.sleep(0.05)

    def __exit__(self, *error: object) -> None:
        self.stop(END_S)


def main(folder: str, rank: int) -> int:
    """Do the part of process ``rank``; returns the exit code."""
    threading.Thread(target=end_with_parent, args=(os.getppid(),), daemon=True).start()
    try:
        from atta.train.launching.launch import connect_handed

        task = json.loads((Path(folder) / "task.json").read_text(encoding="utf-8"))
        settings: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in task["config"].items()}
        config = PredictConfig(**settings)
        _prepare_torch(config.processes)
        with connect_handed(task) as cluster:
            asked = _asked(config, cluster)
            PredictJob(cluster, **_arguments(config, rank), **asked).inference().run()
    except KeyboardInterrupt:
        return 130
    except AttaError as error:
        lastwords.leave(error)
        return 1
    except Exception as error:
        lastwords.leave(AttaError(f"process {rank}: {type(error).__name__}: {error}"))
        return 1
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1], int(sys.argv[2]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
