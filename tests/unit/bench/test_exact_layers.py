"""docs/reference/exact-layers.md says what bench/exact_layers.py finds now, and names every layer."""

from __future__ import annotations

import re

import pytest

from atta_bench.exact_layers import PAGE, page, row_of
from atta_bench.layer_kinds import Kind, dgl_kinds, pyg_kinds

TEXT = PAGE.read_text()
KINDS = [*pyg_kinds(), *dgl_kinds()]


def of_page() -> dict[tuple[str, str], tuple[str, ...]]:
    found = {}
    for part in TEXT.split("\n## ")[1:]:
        heading, _, text = part.partition("\n")
        for line in text.splitlines():
            if line.startswith("| `"):
                cells = tuple(cell.strip() for cell in line.strip("|").split("|"))
                found[heading, cells[0].strip("`")] = cells
    return found


def kind(group: str, name: str) -> Kind:
    return next(one for one in KINDS if (one.group, one.name) == (group, name))


def same_versions() -> bool:
    return all(version in TEXT for version in re.findall(r"(?:PyG|DGL|torch) [\d.]+\d", page([])))


@pytest.mark.parametrize(
    ("group", "name"),
    [
        ("Layers of PyG", "SAGEConv"),
        ("Layers of PyG", "GCNConv"),
        pytest.param("Layers of PyG", "GCNConv(cached=True)", marks=pytest.mark.slow),
        pytest.param("Layers of PyG", "LGConv", marks=pytest.mark.slow),
        pytest.param("Aggregations of PyG", "SortAggregation", marks=pytest.mark.slow),
        ("Norms and the like, after SAGEConv", "LayerNorm"),
        ("Layers of DGL", "GraphConv"),
    ],
)
def test_rows_come_out_again(group: str, name: str) -> None:
    if not same_versions():
        pytest.skip("the page is of other versions")
    row = row_of(kind(group, name))
    assert row.cause == ""
    assert tuple(cell.strip() for cell in row.cells()) == of_page()[group, name]


def test_the_page_has_every_kind_once_and_tells_exact_ones_from_others() -> None:
    found = of_page()
    assert found["Layers of PyG", "SAGEConv"][1:4] == ("=", "=", "=")
    assert "hop" in found["Layers of PyG", "GCNConv"][5]
    assert 'mode="node"' in found["Norms and the like, after SAGEConv", "LayerNorm"][5]
    assert "second" in found["Layers of PyG", "GCNConv(cached=True)"][4]
    assert "batch-wide" in found["Norms and the like, after SAGEConv", "nn.Softmax(0)"][4]
    assert not any("off" in cells[7] for cells in found.values()), "atta.predict gives other rows than the graph"
    if not same_versions():
        pytest.skip("the page is of other versions")
    found = of_page()
    for one in KINDS:
        part = TEXT.split(f"## {one.group}\n")[1].split("\n## ")[0]
        assert ((one.group, one.name) in found) != (f"`{one.name}`" in part.split("Not tried")[-1].split("\n|")[0])
    assert len({(one.group, one.name) for one in KINDS}) == len(KINDS)
