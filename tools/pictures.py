"""Draws the pictures of the documents from the code: `python tools/pictures.py`. `--check`: are they up to date?

- docs/pictures/layers.svg: the layers of the table in docs/architecture.md, which a test compares with all imports.
- docs/pictures/batch.svg: the sampling DAG of one mini-batch, as the daemons' own plan has it.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

from atta.samplers.dag.check import check_spec
from atta.samplers.dag.plan import Kind, Plan, PlanOp
from atta.samplers.dag.spec import Hops, neighbor_spec

DOCS = Path(__file__).resolve().parents[1] / "docs"
FAN_OUTS = (2, 2)  # as in docs/path-of-a-mini-batch.md
WIDTH, HEIGHT, GAP = 170, 52, 46
COLOURS = {Kind.SEED: "#ffe9c7", Kind.NEIGHBORHOOD: "#cfe3f7", Kind.FEATURE: "#d7efd3"}


class Box(NamedTuple):
    """A box with two lines of text; the upper left corner in pixels."""

    x: int
    y: int
    width: int
    title: str
    text: str
    colour: str


class _Schema:
    """One type of vertices with features, one of edges."""

    node_types = ("node",)
    edge_types = ("node__to__node",)
    node_tables = {"node": ("x",)}  # noqa: RUF012 - as a dataset's schema has it
    edge_tables: dict[str, tuple[str, ...]] = {}  # noqa: RUF012

    def endpoints(self, edge_type: str) -> tuple[str, str]:
        """Source and destination."""
        return "node", "node"


def batch_plan() -> Plan:
    """The plan of a mini-batch with two hops."""
    schema = _Schema()
    return check_spec(neighbor_spec(schema, Hops(FAN_OUTS), seed_type="node"), schema)


def batch_picture(plan: Plan) -> str:
    """SVG: what samples in the upper row, what fetches below, and an arrow for each input."""
    column: dict[str, int] = {}
    boxes: dict[str, Box] = {}
    for op in plan.ops:
        before = max((column[name] for name in op.inputs), default=-1)
        fetches = op.kind is Kind.FEATURE
        column[op.id] = before + (not fetches)
        x, y = 10 + column[op.id] * (WIDTH + GAP), 10 + fetches * (HEIGHT + GAP)
        boxes[op.id] = Box(x, y, WIDTH, op.id, _told(op), COLOURS[op.kind])
    arrows = [_arrow(boxes[name], boxes[op.id]) for op in plan.ops for name in op.inputs]
    return _svg(boxes.values(), arrows, "The sampling DAG of a mini-batch with two hops")


def _told(op: PlanOp) -> str:
    if op.kind is Kind.SEED:
        return "seeds of the batch"
    if op.kind is Kind.NEIGHBORHOOD:
        return f"{op.fan_outs[0][1]} in-neighbours of each"
    return f"rows of {', '.join(table for _, table in op.tables)}"


def layers_picture(table: str) -> str:
    """SVG: the rows of the table of layers, the highest on top. ``table``: docs/architecture.md."""
    rows = re.findall(r"^\| (\d+) \| (.+?) \| (.+?) \|$", table, re.MULTILINE)
    wide, step = 4 * WIDTH, HEIGHT + 8
    boxes = [
        Box(
            10,
            10 + step * at,
            wide,
            packages.replace("`", ""),
            holds.replace("`", ""),
            "#cfe3f7" if int(n) % 2 else "#e3eefa",
        )
        for at, (n, packages, holds) in enumerate(reversed(rows))
    ]
    return _svg(boxes, [], "Layers: each imports only what is below it, and its own")


def _arrow(start: Box, end: Box) -> str:
    if start.y == end.y:
        ends = (start.x + start.width, start.y + HEIGHT // 2, end.x - 4, end.y + HEIGHT // 2)
    else:
        ends = (start.x + start.width // 2, start.y + HEIGHT, end.x + end.width // 2, end.y - 4)
    names = ("x1", "y1", "x2", "y2")
    place = " ".join(f'{name}="{value}"' for name, value in zip(names, ends, strict=True))
    return f'<line {place} stroke="#555" marker-end="url(#head)"/>'


def _svg(boxes: Iterable[Box], arrows: Sequence[str], title: str) -> str:
    boxes = list(boxes)
    width = max(box.x + box.width for box in boxes) + 10
    height = max(box.y for box in boxes) + HEIGHT + 10
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="13">',
        f"<title>{escape(title)}</title>",
        '<defs><marker id="head" markerWidth="8" markerHeight="8" refX="4" refY="3" orient="auto">'
        '<path d="M0,0 L0,6 L6,3 z" fill="#555"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for box in boxes:
        middle = box.x + box.width // 2
        lines += [
            f'<rect x="{box.x}" y="{box.y}" width="{box.width}" height="{HEIGHT}" rx="6" fill="{box.colour}" stroke="#777"/>',
            f'<text x="{middle}" y="{box.y + 22}" text-anchor="middle" font-weight="bold">{escape(box.title)}</text>',
            f'<text x="{middle}" y="{box.y + 41}" text-anchor="middle" fill="#333">{escape(box.text)}</text>',
        ]
    return "\n".join([*lines, *arrows, "</svg>"]) + "\n"


def pictures() -> dict[Path, str]:
    """Every picture, by its file."""
    folder = DOCS / "pictures"
    return {
        folder / "layers.svg": layers_picture((DOCS / "architecture.md").read_text(encoding="utf-8")),
        folder / "batch.svg": batch_picture(batch_plan()),
    }


def main() -> int:
    """Write the pictures; with ``--check`` 1 if one is not what the code says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a picture is out of date")
    check = parser.parse_args().check
    old = [path for path, text in pictures().items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path, text in pictures().items() if not check else ():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for path in old if check else ():
        print(f"{path}: run python tools/pictures.py", file=sys.stderr)
    return int(check and bool(old))


if __name__ == "__main__":
    sys.exit(main())
