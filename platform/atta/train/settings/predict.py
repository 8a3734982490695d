"""Settings of ``atta predict``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from atta.errors import ConfigError
from atta.observe.settings import NoOption, Option, check_bounds
from atta.train.settings.common import DEVICES, MOST_PROCESSES, ONE_PER_CORE

__all__ = ["WHAT", "PredictConfig"]

WHAT = ("embeddings", "scores", "classes")


@dataclass(frozen=True)
class PredictConfig:
    """What is predicted, and where it is written. Raises ConfigError for settings that make no sense together."""

    checkpoint: Annotated[str, Option("Folder of atta train --checkpoint; its best model is used.", metavar="DIR")]
    data: Annotated[str | None, Option("Partitioned dataset; its daemons are started for the run.")] = None
    cluster: Annotated[str | None, Option("Cluster file (or addresses) of daemons that run already.")] = None
    out: Annotated[str | None, Option("Write files into this folder.", metavar="DIR", path="folder")] = None
    table: Annotated[
        str | None, Option("Write into this mutable table of the daemons instead, with --cluster.", metavar="NAME")
    ] = None
    what: Annotated[
        str, Option("The last hidden layer's rows, the scores of all classes, or the best class.", choices=WHAT)
    ] = "embeddings"
    split: Annotated[str | None, Option("Only the vertices of this split.", unset="all vertices", metavar="NAME")] = (
        None
    )
    ids: Annotated[
        str | None, Option("Only the vertices whose ids this file has: .npy, or text with one per line.", path="file")
    ] = None
    format: Annotated[str, Option("Of the files; Parquet needs pyarrow.", choices=("parquet", "npy"))] = "parquet"
    processes: Annotated[
        int, Option("Processes on this machine.", at_least=1, at_most=MOST_PROCESSES, too_many=ONE_PER_CORE)
    ] = 1
    files: Annotated[
        int | None,
        Option("Files to write; each is finished for itself.", unset="one per process, or more with more partitions",
               at_least=1, at_most=1 << 16),
    ] = None  # fmt: skip
    batch_size: Annotated[
        int | None, Option("Vertices that a layer computes at a time.", unset="what takes about 128 MiB", at_least=1)
    ] = None
    device: Annotated[str, Option("Where layers compute; auto: a GPU if there is one.", choices=DEVICES)] = "auto"
    threads: Annotated[
        int | None,
        Option(
            "Worker threads per daemon started here.",
            unset="the cores, shared among the daemons",
            at_least=1,
            at_most=MOST_PROCESSES,
            too_many=ONE_PER_CORE,
        ),
    ] = None
    verbose: Annotated[bool, NoOption("the command has --quiet, its opposite")] = True

    def __post_init__(self) -> None:
        check_bounds(self)
        if (self.data is None) == (self.cluster is None):
            raise ConfigError("give either --data (a partitioned dataset) or --cluster (running daemons)")
        if (self.out is None) == (self.table is None):
            raise ConfigError("give either --out DIR (files) or --table NAME (a table on the daemons)")
        if self.table is not None and self.cluster is None:
            raise ConfigError("--table: needs --cluster; daemons started by --data end with the run, and the table too")
        if self.split is not None and self.ids is not None:
            raise ConfigError("give --split or --ids, not both")
