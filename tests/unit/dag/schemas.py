"""Two small schemas for tests of DAGs: one node type, and three."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class FakeSchema:
    node_types: tuple[str, ...]
    edge_types: tuple[str, ...]
    node_tables: dict[str, tuple[str, ...]]
    edge_tables: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def endpoints(self, edge_type: str) -> tuple[str, str]:
        source, _, target = edge_type.split("__")
        return source, target


PLAIN = FakeSchema(("node",), ("node__to__node",), {"node": ("x", "y")})
CITES, WRITES, HAS = "paper__cites__paper", "author__writes__paper", "paper__has__topic"
TYPED = FakeSchema(
    ("author", "paper", "topic"), (WRITES, CITES, HAS), {"author": ("x",), "paper": ("x", "y"), "topic": ()}
)
