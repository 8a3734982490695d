"""What every importer is asked to do besides reading."""

from __future__ import annotations

from dataclasses import dataclass, field

from atta.errors import ConfigError
from atta.partition.progress import Progress, Silent

__all__ = ["ImportOptions"]


@dataclass(frozen=True)
class ImportOptions:
    """Options of an import.

    Attributes:
        undirected: add the missing reverse edges, once each.
        reverse: add an edge type ``rev_<relation>`` with the reverses of every edge type.
        normalize_features: divide each row of ``x`` by the sum of its absolute values.
        progress: told of the stages.
    """

    undirected: bool = False
    reverse: bool = False
    normalize_features: bool = False
    progress: Progress = field(default_factory=Silent)

    def __post_init__(self) -> None:
        if self.undirected and self.reverse:
            raise ConfigError("undirected or reverse: not both, an undirected graph has its reverse edges already")
