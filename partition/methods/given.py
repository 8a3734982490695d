"""Takes an assignment that exists already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import ConfigError, DataError
from atta.observe.progress import Progress
from atta.partition.disk.files import map_array
from atta.partition.graph import Graph
from atta.partition.names import file_name


@dataclass(frozen=True)
class Given:
    """Reads the partition of each vertex from ``path``, an npy file of integers or a folder with one for every node
    type, or from the ``table`` of this name that every node type has."""

    path: str = ""
    table: str = ""

    def __post_init__(self) -> None:
        if bool(self.path) == bool(self.table):
            raise ConfigError("the method given needs the option path or the option table")

    def check_balance(self, balance: Sequence[str]) -> None:
        """Refuse: nothing is balanced."""
        raise ConfigError(f"--balance {','.join(balance)}: an assignment that is given is taken as it is")

    def assign(
        self, graph: Graph, parts: int, *, seed: int, balance: Sequence[str] | None = None, progress: Progress
    ) -> dict[str, npt.NDArray[np.int32]]:
        progress.stage("reading the assignment", None)
        counts, path = graph.schema.node_counts, Path(self.path)
        if self.table:
            tables = {t: graph.table(t, self.table) for t in counts}
            return {t: _checked(graph.path, values, counts[t], parts) for t, values in tables.items()}
        if not path.is_dir() and len(counts) > 1:
            raise ConfigError(f"{path}: with several node types, a folder with TYPE.npy for each is needed")
        files = {t: _file_of(path, t) if path.is_dir() else path for t in counts}
        return {t: _checked(file, map_array(file), counts[t], parts) for t, file in files.items()}


def _checked(path: Path, values: npt.NDArray[Any], count: int, parts: int) -> npt.NDArray[np.int32]:
    if values.dtype.kind not in "iu" or values.shape != (count,):
        raise DataError(path, f"holds {values.dtype} {list(values.shape)}, wanted are integers [{count}]")
    if count and not (values.min() >= 0 and values.max() < parts):
        raise DataError(path, f"names partitions {values.min()} to {values.max()}, there are {parts} from 0 on")
    return values.astype(np.int32)


def _file_of(folder: Path, node_type: str) -> Path:
    path = folder / file_name(node_type, ".npy")
    return path if path.exists() or "/" in node_type else folder / f"{node_type}.npy"
