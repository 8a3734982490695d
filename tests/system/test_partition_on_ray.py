"""``atta partition --engine ray`` on three nodes: the files of one process, also after the loss of a node."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from atta.observe.packages import missing
from atta.partition import partition_graph
from atta.partition.cutting.by_tasks import partition_by_tasks
from atta.partition.cutting.tasks import TaskSizes
from atta.partition.generate import GenerateOptions, generate
from atta.train.launching.on_ray.partitioning import RayTasks
from tests.system.test_on_ray import nodes

__all__ = ["nodes"]  # a fixture

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(missing("ray")), reason="ray is not installed"),
]


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("partition") / "graph"
    generate("powerlaw", folder, GenerateOptions(nodes=6000, edges=90_000, features=4, classes=3, seed=2))
    return folder


@pytest.fixture(scope="module")
def expected(graph: Path) -> dict[str, bytes]:
    partition_graph(graph, graph.parent / "alone", parts=3, method="ldg", seed=1)
    return files(graph.parent / "alone")


def files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_the_command_gives_the_files_of_one_process(
    nodes: Any, graph: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    words = ["partition", str(graph), str(tmp_path / "out"), "--parts", "3", "--method", "ldg", "--seed", "1"]
    command = [sys.executable, "-m", "atta.cli.main", *words, "--engine", "ray"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert files(tmp_path / "out") == expected


class Slow(RayTasks):
    """TaskPool that take half a second more, and note where they ran."""

    def __init__(self, notes: Path) -> None:
        super().__init__()
        self._notes = notes

    def run(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], advance: Callable[[int], None]
    ) -> list[Any]:
        notes = self._notes

        def slowly(*given: Any) -> Any:
            import ray

            with notes.open("a") as file:
                file.write(f"{ray.get_runtime_context().get_node_id()} {os.getpid()}\n")
            time.sleep(0.5)
            return function(*given)

        return super().run(slowly, arguments, advance)


def test_a_lost_node_changes_nothing(nodes: Any, graph: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    extra = nodes.add_node(num_cpus=2)
    nodes.wait_for_nodes()
    progress = Mock()

    def lose(_: int) -> None:
        """Take the node away as the edges are sorted."""
        if progress.stage.call_args.args[0] == "union graph":
            progress.advance.side_effect = None
            nodes.remove_node(extra, allow_graceful=False)

    progress.advance.side_effect = lose
    sizes = TaskSizes(slice_edges=10_000, chunk_edges=4000, block_edges=40_000, bucket_edges=20_000)
    notes = tmp_path / "notes"
    how: dict[str, Any] = {"parts": 3, "seed": 1, "sizes": sizes, "progress": progress}
    partition_by_tasks(Slow(notes), graph, tmp_path / "out", verify=False, **how)
    ran = [line.split()[0] for line in notes.read_text().splitlines()]
    assert progress.advance.side_effect is None
    assert extra.node_id in ran
    assert len(set(ran)) >= 3
    assert files(tmp_path / "out") == expected
