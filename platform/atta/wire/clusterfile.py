"""``cluster.toml``: which daemon serves which partition. Daemons read it to find their peers, clients to find daemons.

    [[daemon]]
    parts = [1, 2]            # or part = 0
    address = "10.0.0.2:7070"

Several daemons may name the same partitions: they are replicas, and the one that stands first is preferred. Who started
a daemon may add how it has ended: ``ended = "was killed"``. ``[tls]`` names the files that callers bring (``ca``,
``cert``, ``key``, ``token``). Paths begin at the folder of the file.

A cluster is called by such a file, by the addresses of its daemons, or by ``ray:NAME``, a name that Ray knows (Ray is
imported only for such a name).
"""

from __future__ import annotations

import ipaddress
import json
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from atta.errors import AttaError, ConfigError, DaemonEndedError, DataError, UnavailableError, blaming
from atta.observe.lastwords import first_line
from atta.observe.packages import load
from atta.wire.parts import Addresses, as_parts, check_keys, groups_of, parts_text, read_toml, replicas_of

if TYPE_CHECKING:
    from atta.wire.credentials import Credentials


_KEYS = ["part", "parts", "address", "ended"]


def read_cluster(path: str | Path) -> dict[int, Addresses]:
    """Addresses by partition; a tuple where a partition has replicas. Raises DataError: the file is missing or is not
    TOML; ConfigError: a key is unknown, missing or of the wrong type, or replicas serve different partitions."""
    return _parse(path, read_toml(path))


def ended_daemon(path: str | Path, address: str) -> DaemonEndedError | None:
    """How the daemon at ``address`` has ended, if all daemons of its partitions have. None: the file does not say so, or
    cannot be read."""
    try:
        entries = [entry for entry in read_toml(path).get("daemon", []) if isinstance(entry, dict)]
    except (AttaError, AttributeError, TypeError):
        return None
    mine = next((entry for entry in entries if entry.get("address") == address), {})
    same = [entry for entry in entries if _served(entry) == _served(mine)]
    if not same or not all(isinstance(entry.get("ended"), str) for entry in same):
        return None
    return DaemonEndedError(address, mine["ended"])


def _served(entry: Mapping[str, Any]) -> Any:
    return entry.get("parts", [entry.get("part")])


def read_credentials(path: str | Path) -> Credentials | None:
    """What callers bring to the daemons of a cluster file; the environment wins. None: nothing, they have no TLS.
    Raises DataError: the file is missing or is not TOML; ConfigError: a key is unknown or of the wrong type, or the
    authority is missing."""
    from atta.wire.credentials import Credentials  # it needs grpc, which checks of settings do not

    given = read_toml(path).get("tls", {})
    if not isinstance(given, dict):
        raise ConfigError(f"{path}: [tls] names files")
    return Credentials.of(f"{path} [tls]", given, Path(path).absolute().parent)


def prefer(path: str | Path, part: int, address: str) -> None:
    """Let ``address`` stand first among the daemons of ``part``, by changing places with the one that does now.
    Everything else in the file stays, also comments. It is replaced as a whole. Raises DataError: it cannot be read or
    written. ConfigError: it cannot be changed so. Then it stays as it is."""
    path, first = Path(path), replicas_of(read_cluster(path)[part])[0]
    if first == address:
        return
    text, mine, theirs = path.read_text(encoding="utf-8"), json.dumps(address), json.dumps(first)
    if text.count(mine) != 1 or text.count(theirs) != 1:
        raise ConfigError(f"{path}: cannot be changed by itself; let {address} stand before {first}")
    begun = path.with_name(f".{path.name}.begun")
    try:
        begun.write_text(theirs.join(piece.replace(theirs, mine) for piece in text.split(mine)), encoding="utf-8")
        if replicas_of(read_cluster(begun)[part])[0] != address:
            raise ConfigError(f"{path}: cannot be changed by itself; let {address} stand before {first}")
        begun.replace(path)
    except OSError as error:
        raise DataError(path, f"cannot be written: {error.strerror}") from error
    finally:
        begun.unlink(missing_ok=True)


def _parse(path: str | Path, content: Mapping[str, Any]) -> dict[int, Addresses]:
    check_keys(f"in {path}", content, ["daemon", "tls"])
    entries = content.get("daemon", [])
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"{path}: names no [[daemon]]")
    found: dict[range, tuple[str, ...]] = {}
    for entry in entries:
        if not isinstance(entry, dict):
            raise ConfigError(f"{path}: names no [[daemon]]")
        check_keys(f"in {path} [[daemon]]", entry, _KEYS)
        parts, address = _parts_of(path, entry), entry.get("address")
        if not isinstance(address, str):
            raise _incomplete(path)
        _add(path, found, parts, check_address(address))
    named: dict[int, Addresses] = {
        part: replicas if len(replicas) > 1 else replicas[0] for parts, replicas in found.items() for part in parts
    }
    if sorted(named) != list(range(len(named))):
        raise ConfigError(f"{path}: partitions {sorted(named)} are named; they must run from 0 without gaps")
    with blaming(ConfigError, path, of=ConfigError):
        groups_of(named)
    return named


def _add(path: str | Path, found: dict[range, tuple[str, ...]], parts: range, address: str) -> None:
    """Note the daemon of ``parts`` at ``address``, perhaps a replica of one that is known."""
    for others in found:
        if both := sorted({*others} & {*parts}) if others != parts else []:
            raise ConfigError(
                f"{path}: partition {both[0]} is named twice, once with {parts_text(others)} and once with "
                f"{parts_text(parts)}; replicas serve the same partitions"
            )
    if address in found.get(parts, ()):
        raise ConfigError(f"{path}: partition {parts_text(parts)} is named twice at {address}")
    found[parts] = (*found.get(parts, ()), address)


def _parts_of(path: str | Path, entry: Mapping[str, Any]) -> range:
    """The partitions that a daemon's entry names by ``part`` or ``parts``."""
    parts = entry.get("parts", [entry.get("part")])
    known = isinstance(parts, list) and all(isinstance(p, int) and not isinstance(p, bool) and p >= 0 for p in parts)
    if not parts or not known or ("part" in entry) == ("parts" in entry):
        raise _incomplete(path)
    with blaming(ConfigError, path, of=ConfigError):
        return as_parts(parts)


def _incomplete(path: str | Path) -> ConfigError:
    return ConfigError(f'{path}: every [[daemon]] needs part = N, or parts = [N, ...], and address = "host:port"')


def check_address(address: str) -> str:
    """``address`` if it is ``host:port`` or ``[IPv6 address]:port``, otherwise ConfigError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not port.isascii() or not 0 <= int(port) <= 65_535:
        raise ConfigError(f"{address!r} is not an address: give host:port{_bracketed(address, ':PORT')}")
    if host.startswith("[") and host.endswith("]"):
        if not _is_ipv6(host[1:-1]):
            raise ConfigError(f"{address!r} is not an address: {host[1:-1]!r} is not an IPv6 address")
    elif ":" in host:
        raise ConfigError(
            f"{address!r} is not an address: give host:port{_bracketed(host, f':{port}') or _bracketed(address, ':PORT')}"
        )
    elif not host.isprintable() or set(host) & set(" /[]"):
        raise ConfigError(f"{address!r} is not an address: {host!r} is not the name of a host")
    return address


def listening_at(option: str, address: str) -> tuple[str, int]:
    """Host and port of an ``address`` that others are to find; ``option``: what errors name. Raises ConfigError: it is
    not an address, or its port is 0."""
    host, _, port = check_address(address).rpartition(":")
    if int(port) == 0:
        raise ConfigError(f"{option} {address}: name a port, so that it can be found")
    return host, int(port)


def may_be_at(address: str, listens: str) -> bool:
    """Whether a daemon that ``listens`` may be found at ``address``. Names of hosts, and ``0.0.0.0``, may mean any."""
    host, own = (ip_of(each.rpartition(":")[0].strip("[]")) for each in (address, listens))
    same_port = address.rpartition(":")[2] == listens.rpartition(":")[2]
    return same_port and (host is None or own is None or own.is_unspecified or host == own)


def ip_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that ``host`` is, without brackets; None: it is a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _bracketed(host: str, rest: str) -> str:
    return f"; an IPv6 address stands in brackets: [{host}]{rest}" if _is_ipv6(host) else ""


def _is_ipv6(text: str) -> bool:
    return isinstance(ip_of(text), ipaddress.IPv6Address)


def write_cluster(
    path: str | Path,
    addresses: Sequence[Addresses],
    credentials: Credentials | None = None,
    ended: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write a cluster file. ``addresses``: of the daemon of each partition, or of its replicas; one daemon may serve
    consecutive partitions. ``ended``: how some have ended, by address."""
    entries = []
    for parts, replicas in groups_of(dict(enumerate(addresses))).items():
        served = f"part = {parts.start}" if len(parts) == 1 else f"parts = {[*parts]}"
        for address in replicas_of(replicas):
            how = f"ended = {json.dumps(ended[address])}\n" if address in ended else ""
            entries.append(f'[[daemon]]\n{served}\naddress = "{address}"\n{how}')
    if credentials is not None:
        named = {key: value for key, value in credentials.to_dict().items() if value}
        lines = (f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in named.items())
        entries.append("[tls]\n" + "".join(lines))
    Path(path).write_text("\n".join(entries), encoding="utf-8")


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
        try:
            ray.init(address=None if local else "auto", namespace=NAMESPACE, log_to_driver=False, logging_level="error")
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
    return {parts.start: address for parts, address in groups_of(_addresses(target)).items()}


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


def _addresses(target: str | Path | Sequence[str]) -> Mapping[int, Addresses]:
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
    tell(f"waiting up to {within_s:g} s for the host names {listed(missing)}")
    while missing:
        left = until - clock()
        if left <= 0:
            raise UnavailableError(listed(missing), f"the host name has no address after {within_s:g} s")
        sleep(min(RETRY_S, left))
        missing = _without(missing, known)


def _without(hosts: Sequence[str], known: Callable[[str], bool]) -> list[str]:
    return [host for host in hosts if not known(host)]


def listed(names: Sequence[str]) -> str:
    """The first of ``names``, and how many more there are."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
