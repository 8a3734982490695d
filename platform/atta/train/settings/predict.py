"""Settings of ``atta predict``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from atta.daemon.config import WHAT
from atta.errors import ConfigError
from atta.observe.settings import NoOption, Option, check_bounds
from atta.train.settings.common import DEVICES, PROCESSES


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
    links: Annotated[
        str | None,
        Option("Score the pairs of ids that this file has by their embeddings: .npy [n, 2], or text with two per line.",
               path="file"),
    ] = None  # fmt: skip
    top: Annotated[
        int | None,
        Option("Find this many targets with the best scores for each vertex, without those it has an edge to.",
               metavar="K", at_least=1, at_most=1 << 16),
    ] = None  # fmt: skip
    relation: Annotated[
        str | None,
        Option("Of --top: the relation whose edges are left out.", metavar="NAME",
               unset="the model's, or the only one"),
    ] = None  # fmt: skip
    node_type: Annotated[
        str | None,
        Option("Of a model of pairs of a typed graph: the end whose vertices are computed.", unset="the targets'",
               metavar="TYPE"),
    ] = None  # fmt: skip
    follow: Annotated[
        bool, Option("Go on with each version that atta update publishes, until stopped; with --table.")
    ] = False
    tolerance: Annotated[
        float,
        Option("Of --follow: rows between layers that change by less than this part of their norm stay.", at_least=0),
    ] = 0.0
    mode: Annotated[
        str, Option("All in-neighbours, layer by layer, or sampled batches.", choices=("exact", "sampled"))
    ] = "exact"
    num_neighbors: Annotated[
        tuple[int, ...] | None,
        Option("Fan-outs of --mode sampled, one per layer that is computed, or one for all; -1 = all.", unset="none"),
    ] = None
    seed: Annotated[int, Option("Of --mode sampled.")] = 0
    format: Annotated[str, Option("Of the files; Parquet needs pyarrow.", choices=("parquet", "npy", "csv"))] = (
        "parquet"
    )
    processes: Annotated[int, Option("Processes on this machine.", **PROCESSES)] = 1
    files: Annotated[
        int | None,
        Option("Files to write; each is finished for itself.", unset="one per process, or more with more partitions",
               at_least=1, at_most=1 << 16),
    ] = None  # fmt: skip
    batch_size: Annotated[
        int | None, Option("Vertices that a layer computes at a time.", unset="what takes 64 to 128 MiB", at_least=1)
    ] = None
    device: Annotated[str, Option("Where layers compute; auto: a GPU if there is one.", choices=DEVICES)] = "auto"
    threads: Annotated[
        int | None,
        Option("Worker threads per daemon started here.", unset="the cores, shared among the daemons", **PROCESSES),
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
        if self.out is not None and self.out.endswith((".csv", ".npy", ".parquet")):
            folder, _, form = self.out.rpartition(".")
            raise ConfigError(f"--out {self.out}: is to be a folder of files: --out {folder} --format {form}")
        if self.split is not None and self.ids is not None:
            raise ConfigError("give --split or --ids, not both")
        check_apart(self, "--")
        self._check_follow()
        if (self.mode == "sampled") != (self.num_neighbors is not None):
            raise ConfigError("--mode sampled and --num-neighbors (its fan-outs) go together")
        if self.num_neighbors is not None and any(k < -1 or k == 0 for k in self.num_neighbors):
            text = ",".join(map(str, self.num_neighbors))
            raise ConfigError(f"--num-neighbors {text}: one number per layer, each -1 (all) or at least 1")
        if not 0 <= self.seed < 1 << 63:
            raise ConfigError(f"--seed {self.seed}: must be 0 to 2**63 - 1")

    def _check_follow(self) -> None:
        if not self.follow:
            if self.tolerance:
                raise ConfigError("--tolerance: goes with --follow")
            return
        if self.table is None:
            raise ConfigError("--follow: keeps a table of running daemons up to date: give --cluster and --table")
        if self.processes > 1:
            raise ConfigError(f"--processes {self.processes}: --follow is one process")
        for name in ("split", "ids", "num_neighbors"):
            if getattr(self, name) is not None:
                raise ConfigError(
                    f"--{name.replace('_', '-')}: does not go with --follow, which computes all vertices exactly"
                )


_APART = (
    ("links", ("nodes", "split", "ids"), "it has the vertices itself"),
    ("links", ("node_type",), "the model says of which types the ends are"),
    ("links", ("table",), "scores of pairs go into files"),
    ("top", ("links",), "it finds the pairs itself"),
    ("top", ("node_type",), "the model says of which types the ends are"),
    ("top", ("table",), "the best targets go into files"),
)


def check_apart(asked: Any, dashes: str = "") -> None:
    """Refuse what does not go together: settings, or arguments of ``atta.predict``. Raises ConfigError. dashes: before
    each name in messages."""
    for name, others, why in _APART:
        for other in others:
            if getattr(asked, name) is not None and getattr(asked, other, None) is not None:
                said = other.replace("_", "-") if dashes else other
                raise ConfigError(f"{dashes}{name}: does not go with {dashes}{said}: {why}")
    if asked.top is None and asked.relation is not None:
        raise ConfigError(f"{dashes}relation: goes with {dashes}top")
    if asked.top is not None and asked.what == "classes":
        raise ConfigError(f"{dashes}top: does not go with {dashes}what classes: pairs have scores")
