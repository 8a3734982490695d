"""What every importer is asked to do besides reading."""

from __future__ import annotations

from dataclasses import dataclass, field

from atta.partition.progress import Progress, Silent

__all__ = ["ImportOptions"]


@dataclass(frozen=True)
class ImportOptions:
    """Options of an import.

    Attributes:
        undirected: add the missing reverse edges, once each.
        normalize_features: divide each row of ``x`` by the sum of its absolute values.
        progress: told of the stages.
    """

    undirected: bool = False
    normalize_features: bool = False
    progress: Progress = field(default_factory=Silent)

    @classmethod
    def of(cls, undirected: bool, normalize_features: bool, progress: Progress | None) -> ImportOptions:
        """Fill in a silent progress receiver."""
        return cls(undirected, normalize_features, progress or Silent())
