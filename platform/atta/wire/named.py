"""What a cluster is called by: its cluster file, the addresses of its daemons, or ``ray:NAME``, a name that Ray knows
(Ray is imported only for such a name).
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atta.errors import ConfigError, UnavailableError
from atta.observe.lastwords import first_line
from atta.observe.packages import load
from atta.wire.clusterfile import check_address, read_cluster, read_credentials
from atta.wire.parts import Addresses, groups_of

if TYPE_CHECKING:
    from atta.wire.credentials import Credentials

PREFIX = "ray:"
NAMESPACE = "atta"
"""Ray's namespace of the actors that know the addresses."""
KNOWN_S = 60.0
"""How long the addresses of daemons may be incomplete: while Ray moves one to another machine."""
ASK_S = 10.0
_RETRY_S = 0.2


@dataclass(frozen=True)
class NamedCluster:
    """What Ray knows of a cluster: ``host:port`` of each partition's daemon, Ray's ids of their machines, and the files that
    callers bring, as in a cluster file; empty: the daemons have no TLS."""

    addresses: tuple[str, ...]
    nodes: tuple[str, ...]
    tls: dict[str, str] = field(default_factory=dict)


def is_named(target: object) -> bool:
    """Whether a target is ``ray:NAME``."""
    return isinstance(target, str) and target.startswith(PREFIX)


def joined_ray(*, local: bool = False) -> Any:
    """The module ``ray``, connected to the cluster of ``RAY_ADDRESS`` or of this machine. local: whether to start Ray
    here if there is none. Raises ConfigError: Ray is not installed; UnavailableError: there is no Ray cluster."""
    ray = load("Ray", "ray")
    if not ray.is_initialized():
        address = None if local else "auto"
        try:
            ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="error")
        except (ConnectionError, RuntimeError) as error:
            raise UnavailableError("Ray", f"no cluster to connect to: {first_line(error)}") from None
    return ray


def ask_ray(target: str, *, within_s: float = KNOWN_S) -> NamedCluster:
    """What Ray knows of ``ray:NAME``. Raises ConfigError: Ray is not installed, or NAME is missing; UnavailableError:
    no such cluster runs, or its daemons have no addresses after ``within_s``."""
    name = target.removeprefix(PREFIX)
    if not name:
        raise ConfigError(f"{target!r}: name a cluster, such as ray:atta")
    ray = joined_ray()
    until = time.monotonic() + within_s
    while True:
        try:
            actor = ray.get_actor(name, namespace=NAMESPACE)
            found = ray.get(actor.known.remote(), timeout=ASK_S)
        except ValueError:
            raise UnavailableError(target, "Ray knows no such cluster: start one with atta.ray.serve") from None
        except ray.exceptions.RayError as error:
            raise UnavailableError(target, f"Ray does not answer: {type(error).__name__}") from None
        if found["addresses"]:
            return NamedCluster(tuple(found["addresses"]), tuple(found["nodes"]), dict(found["tls"]))
        if time.monotonic() > until:
            raise UnavailableError(target, f"not all daemons have an address after {within_s:g} s")
        time.sleep(_RETRY_S)


def resolve_target(target: str | Path | Sequence[str]) -> Mapping[int, Addresses]:
    """Addresses of the daemons that ``connect`` accepts as a target, each by its first partition; several: replicas."""
    return {parts.start: address for parts, address in groups_of(_by_partition(target)).items()}


def credentials_for(target: str | Path | Sequence[str]) -> Credentials | None:
    """What to bring to the daemons of a target: as its cluster file and the environment say; None: they have no TLS.
    Raises DataError, ConfigError: the cluster file is bad, or the authority's certificate is missing."""
    from atta.wire.credentials import Credentials  # it needs grpc, which checks of settings do not

    if isinstance(target, str) and is_named(target):
        return Credentials.of(target, ask_ray(target).tls)
    if isinstance(target, str | Path) and is_file(target):
        return read_credentials(target)
    return Credentials.of("the environment", {})


def is_file(target: str | Path) -> bool:
    """Whether a target is the path of a cluster file."""
    return isinstance(target, Path) or target.endswith(".toml") or "/" in target


def _by_partition(target: str | Path | Sequence[str]) -> Mapping[int, Addresses]:
    if isinstance(target, str) and is_named(target):
        return dict(enumerate(ask_ray(target).addresses))
    if isinstance(target, Path) or (isinstance(target, str) and is_file(target)):
        return read_cluster(target)
    if isinstance(target, str):
        target = [part.strip() for part in target.split(",") if part.strip()]
    if not target:
        raise ConfigError("no daemon address is given")
    return {part: check_address(address) for part, address in enumerate(target)}


RETRY_S = 0.5
"""How long to wait before names are asked for again."""


def resolves(host: str) -> bool:
    """Whether the name of a host has an address now."""
    try:
        socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return True


def await_names(
    addresses: Iterable[str],
    within_s: float,
    tell: Callable[[str], None],
    *,
    known: Callable[[str], bool] = resolves,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return when the hosts of all ``addresses`` (``host:port``) have been resolved, each once.

    ``tell`` gets one sentence if there is something to wait for.

    Raises UnavailableError: a name has no address after ``within_s``."""
    missing = _without([*dict.fromkeys(a.rpartition(":")[0] for a in addresses)], known)
    if not missing:
        return
    until = clock() + within_s
    tell(f"waiting up to {within_s:g} s for the host names {_listed(missing)}")
    while missing:
        left = until - clock()
        if left <= 0:
            cause = f"the host name has no address after {within_s:g} s"
            raise UnavailableError(_listed(missing), cause)
        sleep(min(RETRY_S, left))
        missing = _without(missing, known)


def _without(hosts: Sequence[str], known: Callable[[str], bool]) -> list[str]:
    return [host for host in hosts if not known(host)]


def _listed(hosts: Sequence[str]) -> str:
    return ", ".join(hosts[:4]) + (f" and {len(hosts) - 4} more" if len(hosts) > 4 else "")
