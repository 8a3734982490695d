"""The sections of ``docs/internals/adding.md``: each diff applies to the sources, and what it adds works."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from atta.partition import Dataset, partition_graph
from tests.contributing import GUIDES, applied
from tests.system.conftest import SmallGraph


def run(env: dict[str, str], folder: Path, *arguments: str) -> str:
    """The output of a Python program in ``folder``, where ``env`` imports the changed copy."""
    found = subprocess.run(
        [sys.executable, *arguments], env=env, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert found.returncode == 0, f"{found.stdout}\n{found.stderr}"
    return found.stdout


def run_tests(env: dict[str, str], folder: Path, *arguments: str) -> None:
    """Run tests of the changed copy, as a newcomer would."""
    run(env, folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments)


NEIGHBOURS = """
import json, sys
import atta
from atta.samplers.methods import Method

found = {}
with atta.local(sys.argv[1], threads=1, verify=False) as cluster:
    loader = atta.NeighborLoader(cluster, [3], input_nodes=json.loads(sys.argv[2]), batch_size=100, method="first")
    for batch in loader:
        n_id, (row, col) = batch.n_id(), batch.edge_index()
        for source, target in zip(n_id[row].tolist(), n_id[col].tolist(), strict=True):
            found.setdefault(target, []).append(source)
print(json.dumps(found))
"""


def test_add_a_neighbour_method(tmp_path: Path, small_graph: SmallGraph) -> None:
    env = applied(GUIDES / "add-a-neighbour-method.diff", tmp_path)
    run_tests(env, tmp_path, "tests/unit/native/test_first.py")
    seeds = small_graph.ids.tolist()
    dataset = str(small_graph.dataset(2, "random"))
    found = json.loads(run(env, tmp_path, "-c", NEIGHBOURS, dataset, json.dumps(seeds)))
    expected = {
        str(seed): np.sort(small_graph.src_ids[small_graph.dst_ids == seed])[:3].tolist()
        for seed in seeds
        if (small_graph.dst_ids == seed).any()
    }
    assert found == expected


def test_the_neighbour_method_takes_one_file_and_one_line() -> None:
    lines = (GUIDES / "add-a-neighbour-method.diff").read_text().splitlines()
    files = [line.split(" b/")[1] for line in lines if line.startswith("diff --git") and " b/tests" not in line]
    assert len(files) == 2
    text = "\n".join(lines)
    registration = text[text.index("+++ b/samplers/methods/__init__.py") :].split("\ndiff --git")[0]
    changed = [line for line in registration.splitlines()[1:] if line.startswith(("+", "-"))]
    assert changed == ['+    FIRST = "first"']


def test_add_an_operator(tmp_path: Path) -> None:
    env = applied(GUIDES / "add-an-operator.diff", tmp_path)
    run_tests(env, tmp_path, "tests/unit/operators/test_cascade.py")
    run_tests(env, tmp_path, "tests/unit/operators/test_contract.py", "-k", "cascade")


@pytest.mark.parametrize("parts", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_add_a_partition_method(tmp_path: Path, small_graph: SmallGraph, parts: int) -> None:
    env = applied(GUIDES / "add-a-partition-method.diff", tmp_path)
    if parts == 1:
        run_tests(env, tmp_path, "tests/unit/partition/test_chunks.py")
    graph, out = str(small_graph.folder / "graph"), str(tmp_path / "dataset")
    run(env, tmp_path, "-m", "atta.cli.main", "partition", graph, out, "--parts", str(parts), "--method", "chunks")
    made = Dataset.open(out)
    assert made.num_parts == parts
    assert made.provenance["method"] == "chunks"
    with pytest.raises(Exception, match="chunks"):  # the installed package does not know it
        partition_graph(graph, tmp_path / "other", parts=parts, method="chunks")
