"""``atta.ray.partition``: partition a graph that outgrows one machine, by tasks of Ray."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from atta.errors import AttaError, QuotaExceededError
from atta.observe.lastwords import first_line
from atta.observe.packages import load
from atta.observe.progress import Progress
from atta.partition.cutting.by_tasks import partition_by_tasks
from atta.wire.clusterfile import joined_ray

RETRIES = 10
"""How often Ray repeats a task whose process or machine was lost."""
AHEAD = 2
"""Tasks that wait for each core: enough that no core idles, few enough for any number of tasks."""

Result = TypeVar("Result")


class RayTasks:
    """Runs tasks on all machines of a Ray cluster, one per core. Ray repeats those that are lost. Raises ConfigError if
    Ray is not installed. It is joined, or started here, for the first tasks."""

    def __init__(self) -> None:
        self._ray = load("Ray", "ray")

    def run(
        self, function: Callable[..., Result], arguments: Sequence[tuple[Any, ...]], advance: Callable[[int], None]
    ) -> list[Result]:
        """Run the tasks on the machines of a cluster. Raises UnavailableError, QuotaExceededError: there is no cluster,
        or it has no core; AttaError: what a task raised, which may be any other error, too; or it was lost once too
        often."""
        joined_ray(local=True)
        limit = AHEAD * int(self._ray.cluster_resources().get("CPU", 0))
        if limit < 1:
            raise QuotaExceededError("Ray has no core for tasks")
        remote = self._ray.remote(function).options(num_cpus=1, max_retries=RETRIES, scheduling_strategy="SPREAD")
        results: dict[int, Result] = {}
        asked: dict[Any, int] = {}
        todo = iter(enumerate(arguments))
        try:
            while len(results) < len(arguments):
                while len(asked) < limit and (each := next(todo, None)) is not None:
                    asked[remote.remote(*each[1])] = each[0]
                (ready,), _ = self._ray.wait(list(asked), num_returns=1)
                results[asked.pop(ready)] = self._result(ready)
                advance(1)
        finally:
            for left in asked:
                self._ray.cancel(left, force=True)
        return [results[number] for number in range(len(arguments))]

    def _result(self, ready: Any) -> Any:
        try:
            return self._ray.get(ready)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None  # as if the task had run here: a full disk is one, say
        except self._ray.exceptions.RayError as error:
            raise AttaError(f"Ray gave a task up: {first_line(error)}") from None


def partition(
    src: str | Path,
    dst: str | Path,
    *,
    parts: int,
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
    balance: Sequence[str] | None = None,
    overwrite: bool = False,
    verify: bool = True,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Partition the graph folder ``src`` into the dataset ``dst`` by LDG, on all machines of the Ray cluster.

    The dataset is, bit for bit, the one that ``partition_graph(..., method="ldg")`` makes. Both folders must be the same
    on all machines. Tasks read slices of the graph and pass files to each other in ``DST.partial``; no rows pass through
    Ray's object store. This process places the vertices. It holds some 80 bytes per vertex, and a block of neighbours.
    ``options``: of ``ldg``; the order ``bfs`` is not among them. All else, and what is returned: as ``partition_graph``.

    Raises:
        ConfigError: an option is wrong, ``dst`` may not be written, or Ray is not installed.
        DataError: the graph folder is damaged.
        UnavailableError, QuotaExceededError: there is no Ray cluster, or it has no core.
    """
    given: dict[str, Any] = {"parts": parts, "options": options, "seed": seed, "balance": balance}
    return partition_by_tasks(RayTasks(), src, dst, **given, overwrite=overwrite, verify=verify, progress=progress)
