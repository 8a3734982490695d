"""``atta.ray.serve``: the daemons of a dataset, placed and restarted by Ray."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atta.client.control import Connection
from atta.errors import ConfigError, DeadlineError, QuotaExceededError, RemoteError, UnavailableError
from atta.observe import lastwords
from atta.partition.deploy import described_dataset
from atta.partition.disk.store import is_url
from atta.partition.graph.needs import needs_of
from atta.train.launching.on_ray.keepers import END_S, DaemonKeeper
from atta.train.launching.on_ray.placement import Registry, bundles, check_name
from atta.wire.clusterfile import NAMESPACE, PREFIX, ask_ray, joined_ray
from atta.wire.credentials import Credentials

GIB = 1 << 30
_TRY_S = 0.5
_KEPT: dict[str, Served] = {}
"""By name. Ray ends actors that nobody refers to, and a program need not keep what ``serve`` returns."""


@dataclass
class Served:
    """Daemons that Ray keeps for this program. They end with ``stop``, ``ray.shutdown()``, or this process.

    Attributes:
        name: what others find them by.
    """

    name: str
    _registry: Any = None
    _keepers: list[Any] = field(default_factory=list)
    _group: Any = None

    @property
    def target(self) -> str:
        """What stands wherever a cluster file does: ``ray:NAME``."""
        return f"{PREFIX}{self.name}"

    @property
    def addresses(self) -> tuple[str, ...]:
        """``host:port`` of each partition's daemon; raises UnavailableError while Ray moves one for too long."""
        return ask_ray(self.target).addresses

    def states(self) -> list[dict[str, Any]]:
        """Of each daemon: ``address``, ``pid``, number of ``starts``, ``failures`` in a row, and its last ``words``."""
        found: list[dict[str, Any]] = joined_ray().get([keeper.state.remote() for keeper in self._keepers])
        return found

    def stop(self) -> None:
        """End the daemons: sessions may go on for ``--drain``, and tables are saved."""
        ray = joined_ray()
        try:
            if ending := [keeper.stop.remote() for keeper in self._keepers]:
                ray.wait(ending, num_returns=len(ending), timeout=2 * END_S)
        finally:
            for actor in (*self._keepers, *([self._registry] if self._registry is not None else [])):
                ray.kill(actor)
            if self._group is not None:
                ray.util.remove_placement_group(self._group)
            self._keepers, self._registry, self._group = [], None, None
            if _KEPT.get(self.name) is self:  # a second one of that name, which was refused, is not kept
                del _KEPT[self.name]

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        if self._keepers:
            self.stop()


def serve(
    data: str | Path,
    *,
    name: str = "atta",
    threads: int = 1,
    cache_bytes: int = GIB,
    buffer_bytes: int = GIB,
    options: Sequence[str] = (),
    insecure: bool = False,
    credentials: Credentials | None = None,
    deadline_s: float = 120.0,
) -> Served:
    """Have Ray run one daemon per partition, on as many machines as there are, and restart each without limit.

    Ray reserves ``threads`` cores for each daemon, and the memory that the manifest asks for. A daemon whose machine is
    lost starts on another one. The path of the dataset must be good on all machines, or be a URL of object storage.

    Args:
        data: folder of a partitioned dataset, or its URL.
        name: others find the daemons as ``ray:NAME``.
        threads: worker threads of a daemon.
        cache_bytes, buffer_bytes: memory of a daemon for hot rows and for batches.
        options: further options of ``atta serve``.
        insecure: trust the network. Otherwise ``options`` name certificates.
        credentials: what callers bring if ``options`` turn TLS on.
        deadline_s: how long Ray may take to find room, and then the daemons to start.

    Raises:
        ConfigError: a setting makes no sense, or a cluster has that name.
        DataError: the dataset is missing, truncated, altered or of another version.
        QuotaExceededError: Ray has no room for the daemons.
        UnavailableError, DeadlineError: there is no Ray cluster, or the daemons are not ready in time.
    """
    dataset = described_dataset(data)
    wanted = bundles(needs_of(dataset), threads, cache_bytes, buffer_bytes)
    place = str(data) if is_url(data) else str(Path(data).absolute())
    words = ["--data", place, "--threads", str(threads), "--cache", str(cache_bytes)]
    words += ["--buffer", str(buffer_bytes), *(["--insecure"] if insecure else []), *options]
    ray = joined_ray(local=True)
    served = Served(check_name(name))
    try:
        served._registry = _registry(ray, name, dataset.num_parts, credentials)
        served._group = _room(ray, wanted, deadline_s)
        served._keepers = [_keeper(ray, served, part, bundle, [*words]) for part, bundle in enumerate(wanted)]
        _await_daemons(ray, served, credentials, deadline_s)
    except BaseException:
        served.stop()
        raise
    _KEPT[name] = served
    return served


def _registry(ray: Any, name: str, parts: int, credentials: Credentials | None) -> Any:
    tls = {key: value for key, value in (credentials.to_dict() if credentials else {}).items() if value}
    kind = ray.remote(Registry).options(
        name=name, namespace=NAMESPACE, num_cpus=0, max_restarts=-1, max_task_retries=-1
    )
    try:
        return kind.remote(parts, tls)
    except ValueError:
        raise ConfigError(f"name {name!r}: a cluster of that name runs already") from None


def _room(ray: Any, wanted: list[dict[str, float]], within_s: float) -> Any:
    from ray.util import placement_group, remove_placement_group

    group = placement_group(wanted, strategy="SPREAD")
    if not group.wait(timeout_seconds=within_s):
        remove_placement_group(group)
        most, left = max(wanted, key=lambda bundle: bundle["memory"]), ray.available_resources()
        raise QuotaExceededError(
            f"Ray has no room for {len(wanted)} daemons: the largest needs {most['CPU']:g} cores and "
            f"{most['memory'] / GIB:.1f} GiB of memory; Ray has {left.get('CPU', 0):g} cores and "
            f"{left.get('memory', 0) / GIB:.1f} GiB on all machines"
        )
    return group


def _keeper(ray: Any, served: Served, part: int, bundle: dict[str, float], words: list[str]) -> Any:
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    kind = ray.remote(DaemonKeeper).options(
        name=f"{served.name}/{part}",
        namespace=NAMESPACE,
        num_cpus=bundle["CPU"],
        memory=bundle["memory"],
        scheduling_strategy=PlacementGroupSchedulingStrategy(served._group, placement_group_bundle_index=part),
        max_restarts=-1,
        max_task_retries=-1,
    )
    return kind.remote(part, words, served.name)


def _await_daemons(ray: Any, served: Served, credentials: Credentials | None, within_s: float) -> None:
    """Return when all daemons answer; raises the error of one that ended instead."""
    until = time.monotonic() + within_s
    for part, keeper in enumerate(served._keepers):
        while True:
            try:
                state = ray.get(keeper.state.remote(), timeout=max(_TRY_S, until - time.monotonic()))
            except ray.exceptions.RayError as error:
                raise UnavailableError(served.target, f"Ray did not start partition {part}: {error}") from None
            if state["failures"]:
                cause = "the daemon ended as it started; Ray's log of its worker says why"
                raise lastwords.error_in(state["words"]) or RemoteError(state["address"], cause)
            connection = Connection(state["address"], _TRY_S, part=part, credentials=credentials)
            try:
                connection.describe(wait=True, timeout=_TRY_S)
                break
            except (DeadlineError, UnavailableError):
                if time.monotonic() > until:
                    missing = (
                        "did not answer" if state["starts"] else "was not started, as Ray has not placed all daemons"
                    )
                    cause = f"the daemon of partition {part} {missing} within {within_s:g} s"
                    raise DeadlineError(state["address"], cause) from None
            finally:
                connection.close()
