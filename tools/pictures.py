"""Draws the pictures of the documents from the code: `python tools/pictures.py`. `--check`: are they up to date?

- docs/pictures/overview.svg: what runs where.
- docs/pictures/partitions.svg: the ten vertices of docs/internals/path-of-a-mini-batch.md in two partitions.
- docs/pictures/batch.svg: the sampling DAG of one mini-batch, as the daemons' own plan has it.
- docs/pictures/strategies.svg: which version of a row is read in which epoch, as the strategies decide it.
- docs/pictures/epoch.svg: what a trainer of each strategy does in an epoch.
- docs/pictures/service.svg: the way from tables to answers that follow what is new.
- docs/pictures/layers.svg: the layers of the table in docs/internals/architecture.md, which a test compares with all imports.

`--screens` runs a small cluster, and takes top.svg, dashboard.png (with Chromium) and curve.svg of it.
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
from atta.train.exchange.policies import NEVER, DigestPolicy, PipeGcnPolicy, RowPolicy, SancusPolicy

DOCS = Path(__file__).resolve().parents[1] / "docs"
FAN_OUTS = (2, 2)  # as in docs/internals/path-of-a-mini-batch.md
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
    """SVG: the rows of the table of layers, the highest on top. ``table``: docs/internals/architecture.md."""
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


def overview_picture() -> str:
    """SVG: a graph is cut, daemons serve partitions on machines, and trainers take batches."""
    left, wide, gap = 200, 300, 90
    shapes = [
        _box(Box(10, 110, 150, "graph", "files of your own", "#eeeeee")),
        _label(85, 182, "atta import, atta partition", "middle"),
    ]
    for part in range(2):
        x = left + part * (wide + gap)
        middle = x + wide // 2
        shapes += [
            f'<rect x="{x}" y="10" width="{wide}" height="276" rx="10" fill="#fafafa" stroke="#999" stroke-dasharray="5"/>',
            _label(x + 10, 30, f"machine {part}"),
            _box(Box(x + 20, 44, wide - 40, f"partition {part}", "in-edges and rows of its vertices", "#d7efd3")),
            _box(Box(x + 20, 126, wide - 40, f"daemon {part}: atta serve", "scheduler, workers, cache", "#cfe3f7")),
            _box(Box(x + 20, 222, (wide - 50) // 2, f"trainer {2 * part}", "your script", "#ffe9c7")),
            _box(
                Box(
                    x + 30 + (wide - 50) // 2,
                    222,
                    (wide - 50) // 2,
                    f"trainer {2 * part + 1}",
                    "or atta train",
                    "#ffe9c7",
                )
            ),
            _line(middle, 96, middle, 122),
            _line(x + 60, 178, x + 60, 218),
            _line(x + wide - 60, 178, x + wide - 60, 218),
            _label(middle, 204, "batches, shared memory", "middle"),
        ]
    inner = left + wide - 20
    shapes += [
        _line(160, 136, left + 16, 76),
        _line(inner + 4, 146, inner + gap + 36, 146),
        _line(inner + gap + 36, 160, inner + 4, 160),
        _label(left + wide + gap // 2, 138, "rows, edges", "middle"),
        _line(inner, 248, inner + gap + 40, 248, both=True),
        _label(left + wide + gap // 2, 240, "gradients", "middle"),
    ]
    return _drawn(
        2 * wide + gap + left + 10, 296, shapes, "What runs where: daemons serve partitions, trainers take batches"
    )


def service_picture() -> str:
    """SVG: from tables of one's own to daemons that answer about the newest version."""
    column = [10 + at * (WIDTH + GAP) for at in range(4)]
    low = 10 + HEIGHT + GAP
    said = {
        "tables": (0, 10, "ids, times, features", "#eeeeee"),
        "graph": (1, 10, "atta import, partition", "#d7efd3"),
        "daemons": (2, 10, "atta serve --model", "#cfe3f7"),
        "callers": (3, 10, "predict, recommend", "#ffe9c7"),
        "model": (1, low, "atta train", "#d7efd3"),
        "new rows and edges": (2, low, "atta update", "#eeeeee"),
        "table of results": (3, low, "atta predict --follow", "#d7efd3"),
    }
    boxes = {name: Box(column[at], y, WIDTH, name, text, colour) for name, (at, y, text, colour) in said.items()}
    middle, bottom = column[2] + WIDTH // 2, 10 + HEIGHT
    arrows = [
        *(_arrow(boxes[start], boxes[end]) for start, end in (("tables", "graph"), ("graph", "daemons"))),
        _arrow(boxes["graph"], boxes["model"]),
        _line(column[1] + WIDTH, low + 10, column[2] + 12, bottom + 4),
        _line(middle, low, middle, bottom + 4),
        _line(column[2] + WIDTH - 12, bottom + 4, column[3] - 4, low + 10, both=True),
        _line(column[2] + WIDTH + 4, 10 + HEIGHT // 2, column[3] - 4, 10 + HEIGHT // 2, both=True),
    ]
    return _svg(boxes.values(), arrows, "From tables to answers that follow what is new")


VERTICES = {10: (90, 60), 12: (210, 70), 14: (70, 160), 16: (180, 210), 18: (250, 150),
            11: (420, 60), 13: (540, 90), 15: (400, 160), 17: (520, 210), 19: (590, 160)}  # fmt: skip
"""Where the vertices of the example are drawn."""
EDGES = (
    (13, 12), (14, 12), (17, 12), (10, 15), (11, 15), (18, 15), (12, 13), (16, 14), (19, 14), (12, 17), (19, 17), (16, 10),
    (12, 11), (13, 18), (15, 16), (10, 19),
)  # fmt: skip
"""Sources and destinations, by edge id, as in docs/internals/path-of-a-mini-batch.md."""
OWNERS = ("#9cc7ee", "#f6c66b")


def partitions_picture() -> str:
    """SVG: the vertices of the example by owner, their edges, and the HALO vertices of each partition."""
    shapes = []
    for part, x in enumerate((20, 350)):
        own = [vertex for vertex in VERTICES if vertex % 2 == part]
        halo = sorted({source for source, target in EDGES if target % 2 == part and source not in own})
        shapes += [
            f'<rect x="{x}" y="10" width="300" height="290" rx="10" fill="#fafafa" stroke="#999" stroke-dasharray="5"/>',
            _label(x + 10, 30, f"partition {part}, served by daemon {part}"),
            _label(x + 10, 270, f"owns: {', '.join(map(str, own))}"),
            _label(x + 10, 290, f"HALO vertices: {', '.join(map(str, halo))}"),
        ]
    for source, target in EDGES:
        crosses = (source + target) % 2
        shapes.append(_line(*_towards(VERTICES[source], VERTICES[target]), colour="#c0392b" if crosses else "#777"))
    for vertex, (x, y) in VERTICES.items():
        shapes += [
            f'<circle cx="{x}" cy="{y}" r="16" fill="{OWNERS[vertex % 2]}" stroke="#555"/>',
            _label(x, y + 5, str(vertex), "middle"),
        ]
    shapes.append(_label(335, 320, "An edge lies with the owner of its destination. Red edges are cut.", "middle"))
    return _drawn(670, 334, shapes, "A graph in two partitions")


def _towards(start: tuple[int, int], end: tuple[int, int]) -> tuple[float, float, float, float]:
    """A line between the rims of two circles, a little beside the straight one, so that both directions are seen."""
    x, y, u, v = *map(float, start), *map(float, end)
    length = ((u - x) ** 2 + (v - y) ** 2) ** 0.5
    dx, dy = (u - x) / length, (v - y) / length
    x, y, u, v = x + 17 * dx - 3 * dy, y + 17 * dy + 3 * dx, u - 20 * dx - 3 * dy, v - 20 * dy + 3 * dx
    return round(x, 1), round(y, 1), round(u, 1), round(v, 1)


class Timeline(NamedTuple):
    """What a reader reads of one owner's rows in each epoch, from 1.

    ``published``: epochs in which the owner publishes. ``versions``: the epoch that computed what is read.
    """

    name: str
    published: tuple[int, ...]
    versions: tuple[int, ...]


EPOCHS = 9
SHADES = ("#d7efd3", "#cfe3f7", "#ffe9c7", "#f9d0b4", "#f2b0a0")
"""Of ages 0, 1, 2, 3, and more."""


def timelines() -> list[Timeline]:
    """Of the strategies whose reads follow from the epoch alone, by the policies that trainers ask."""
    decided = {
        "exchange": RowPolicy(),
        "sancus: warm-up 2, age 1": SancusPolicy(warmup=2, eps=1.0),
        "pipegcn": PipeGcnPolicy(),
        "digest: every 3 epochs": DigestPolicy(sync_every=3),
        "digest: every 3, phase paper": DigestPolicy(sync_every=3, phase="paper"),
    }
    found = []
    for name, policy in decided.items():
        published: list[int] = []
        versions = []
        for epoch in range(1, EPOCHS + 1):
            if policy.publishes(epoch, "forward", 0, published[-1] if published else NEVER):
                published.append(epoch)
            rule = policy.reads(epoch, "forward")
            assert rule is not None
            versions.append(max(version for version in (0, *published) if version <= rule.newest))
        found.append(Timeline(name, tuple(published), tuple(versions)))
    return found


def strategies_picture(lines: Sequence[Timeline]) -> str:
    """SVG: a row of cells per strategy, with the version that is read, shaded by its age, and a star where A publishes."""
    left, cell, step = 230, 46, 58
    shapes = [_label(10, 28, "B reads rows that A computes")]
    shapes.append(_label(left - 8, 28, "epoch", "end"))
    shapes += [_label(left + cell * epoch - cell // 2 - 2, 28, str(epoch), "middle") for epoch in range(1, EPOCHS + 1)]
    for row, line in enumerate(lines):
        y = 42 + step * row
        shapes.append(_label(10, y + 24, line.name, weight="bold"))
        for epoch, version in enumerate(line.versions, 1):
            x = left + cell * (epoch - 1)
            age = min(epoch - version, len(SHADES) - 1)
            shapes += [
                f'<rect x="{x}" y="{y}" width="{cell - 4}" height="34" rx="4" fill="{SHADES[age]}" stroke="#999"/>',
                _label(x + cell // 2 - 2, y + 22, str(version), "middle"),
            ]
            if epoch in line.published:
                shapes.append(_label(x + cell // 2 - 2, y + 48, "*", "middle"))
    y = 42 + step * len(lines) + 16
    shapes.append(_label(10, y, "cell: the epoch that computed what is read; *: A publishes; age:"))
    for age, shade in enumerate(SHADES):
        x = 425 + 44 * age
        shapes += [
            f'<rect x="{x}" y="{y - 14}" width="16" height="16" rx="3" fill="{shade}" stroke="#999"/>',
            _label(x + 20, y, str(age) if age < len(SHADES) - 1 else f"{age}+"),
        ]
    return _drawn(left + cell * EPOCHS + 10, y + 14, shapes, "Which version of a row is read in which epoch")


KINDS = {"compute": "#cfe3f7", "wait": "#f2b0a0", "sum": "#ffe9c7", "travel": "#d7efd3"}
"""What a trainer does, and the colour of its bars: it computes, waits for rows, sums gradients up; messages travel."""
EPOCH = {
    "minibatch": (
        "compute 3 sum 1 compute 3 sum 1 compute 3 sum 1",
        "travel 3:batch . 1 travel 3:batch . 1 travel 3:batch",
    ),
    "full": ("compute 10:all that own vertices depend on sum 1",),
    "cooperative": ("compute 5:step 1 sum 1 compute 5:step 2 sum 1", "travel 5:next co-batch"),
    "exchange": (
        "compute 2:layer 1 wait 2:rows compute 2:layer 2 compute 2:back wait 2:gradients compute 2:back sum 1",
    ),
    "sancus": ("compute 2:layer 1 compute 2:layer 2 compute 2:back wait 2:gradients compute 2:back sum 1",),
    "pipegcn": (
        "compute 2:layer 1 compute 2:layer 2 compute 2:back compute 2:back sum 1",
        ". 2 travel 7:rows and gradients, for the next epoch",
    ),
    "digest, sat": (
        "compute 2:layer 1 compute 2:layer 2 compute 2:back compute 2:back sum 1",
        "travel 2:pull travel 6:push, every N epochs",
    ),
    "digest-async": (
        "compute 4:step 1 compute 4:step 2 compute 4:step 3",
        ". 4 travel 3:gradient . 1 travel 3:gradient",
    ),
    "dorylus": (
        "compute 2:gather travel 3:apply compute 2:scatter",
        ". 2 compute 2:gather travel 3:apply compute 2:scatter",
        ". 4 compute 2:gather travel 3:apply compute 2:scatter",
    ),
}
"""An epoch of a trainer, lane by lane: kinds of bars with their lengths and what they say; a dot leaves room."""


def epoch_picture() -> str:
    """SVG: what a trainer of each strategy does in an epoch, from left to right, and what travels meanwhile."""
    left, unit, high, y = 120, 46, 24, 12
    shapes: list[str] = []
    for name, lanes in EPOCH.items():
        shapes.append(_label(10, y + 17, name, weight="bold"))
        for lane in lanes:
            at = left
            for kind, length, words in re.findall(
                r"(\.|[a-z]+) (\d+)(?::(.+?))?(?= \.| (?:compute|wait|sum|travel) \d|$)", lane
            ):
                wide = int(length) * unit
                if kind != ".":
                    shapes += [
                        f'<rect x="{at}" y="{y}" width="{wide - 3}" height="{high}" rx="4" fill="{KINDS[kind]}" stroke="#999"/>',
                        _label(at + wide // 2 - 1, y + 17, words, "middle"),
                    ]
                at += wide
            y += high + 4
        y += 10
    for at, (kind, says) in enumerate(
        zip(KINDS, ("computes", "waits for", "sum of gradients", "travels, or a worker"), strict=True)
    ):
        x = left + 150 * at
        shapes += [
            f'<rect x="{x}" y="{y}" width="16" height="16" rx="3" fill="{KINDS[kind]}" stroke="#999"/>',
            _label(x + 22, y + 13, says),
        ]
    return _drawn(left + 14 * unit, y + 28, shapes, "An epoch of a trainer by strategy")


def _arrow(start: Box, end: Box) -> str:
    if start.y == end.y:
        return _line(start.x + start.width, start.y + HEIGHT // 2, end.x - 4, end.y + HEIGHT // 2)
    return _line(start.x + start.width // 2, start.y + HEIGHT, end.x + end.width // 2, end.y - 4)


def _line(*ends: float, colour: str = "#555", both: bool = False) -> str:
    place = " ".join(f'{name}="{value}"' for name, value in zip(("x1", "y1", "x2", "y2"), ends, strict=True))
    start = ' marker-start="url(#tail)"' if both else ""
    return f'<line {place} stroke="{colour}" marker-end="url(#head)"{start}/>'


def _label(x: float, y: float, text: str, anchor: str = "start", weight: str = "normal") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-weight="{weight}" fill="#333">{escape(text)}</text>'


def _box(box: Box) -> str:
    middle = box.x + box.width // 2
    return "\n".join((
        f'<rect x="{box.x}" y="{box.y}" width="{box.width}" height="{HEIGHT}" rx="6" fill="{box.colour}" stroke="#777"/>',
        f'<text x="{middle}" y="{box.y + 22}" text-anchor="middle" font-weight="bold">{escape(box.title)}</text>',
        f'<text x="{middle}" y="{box.y + 41}" text-anchor="middle" fill="#333">{escape(box.text)}</text>',
    ))  # fmt: skip


def _svg(boxes: Iterable[Box], arrows: Sequence[str], title: str) -> str:
    boxes = list(boxes)
    width = max(box.x + box.width for box in boxes) + 10
    height = max(box.y for box in boxes) + HEIGHT + 10
    return _drawn(width, height, [*map(_box, boxes), *arrows], title)


def _drawn(width: int, height: int, shapes: Sequence[str], title: str) -> str:
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="13">',
        f"<title>{escape(title)}</title>",
        '<defs><marker id="head" markerWidth="8" markerHeight="8" refX="4" refY="3" orient="auto">'
        '<path d="M0,0 L0,6 L6,3 z" fill="#555"/></marker>'
        '<marker id="tail" markerWidth="8" markerHeight="8" refX="4" refY="3" orient="auto-start-reverse">'
        '<path d="M0,0 L0,6 L6,3 z" fill="#555"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        *shapes,
    ]
    return "\n".join([*lines, "</svg>"]) + "\n"


def pictures() -> dict[Path, str]:
    """Every picture that the code alone decides, by its file."""
    folder = DOCS / "pictures"
    return {
        folder / "overview.svg": overview_picture(),
        folder / "partitions.svg": partitions_picture(),
        folder / "batch.svg": batch_picture(batch_plan()),
        folder / "strategies.svg": strategies_picture(timelines()),
        folder / "epoch.svg": epoch_picture(),
        folder / "service.svg": service_picture(),
        folder / "layers.svg": layers_picture((DOCS / "internals/architecture.md").read_text(encoding="utf-8")),
    }


def main() -> int:
    """Write the pictures; with ``--check`` 1 if one is not what the code says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a picture is out of date")
    parser.add_argument("--screens", action="store_true", help="run a small cluster, and take pictures of it, too")
    given = parser.parse_args()
    check = given.check
    if given.screens:
        from screens import take_screens

        take_screens(DOCS / "pictures")
    old = [path for path, text in pictures().items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path, text in pictures().items() if not check else ():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for path in old if check else ():
        print(f"{path}: run python tools/pictures.py", file=sys.stderr)
    return int(check and bool(old))


if __name__ == "__main__":
    sys.exit(main())
