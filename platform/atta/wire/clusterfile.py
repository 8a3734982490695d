"""``cluster.toml``: which daemon serves which partition. Daemons read it to find their peers, clients to find daemons.

[[daemon]]
part = 0
address = "10.0.0.1:7070"

[[daemon]]
part = 1
address = "10.0.0.2:7070"
"""

from __future__ import annotations

import ipaddress
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atta.errors import ConfigError, DataError, UnknownNameError

__all__ = ["check_address", "read_cluster", "write_cluster"]


def read_cluster(path: str | Path) -> dict[int, str]:
    """Addresses by partition.

    Raises:
        DataError: the file is missing or is not TOML.
        ConfigError: a key is unknown, missing or of the wrong type, or a partition is named twice.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        content = tomllib.loads(text)
    except OSError as error:
        raise DataError(path, f"cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(path, f"is not a TOML file: {error}") from error
    return _parse(path, content)


def _parse(path: str | Path, content: Mapping[str, Any]) -> dict[int, str]:
    for key in content:
        if key != "daemon":
            raise UnknownNameError.of(f"key in {path}:", key, ["daemon"])
    entries = content.get("daemon", [])
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"{path}: names no [[daemon]]")
    found: dict[int, str] = {}
    for entry in entries:
        if not isinstance(entry, dict):
            raise ConfigError(f"{path}: names no [[daemon]]")
        for key in entry:
            if key not in ("part", "address"):
                raise UnknownNameError.of(f"key in {path} [[daemon]]:", key, ["part", "address"])
        part, address = entry.get("part"), entry.get("address")
        if not isinstance(part, int) or isinstance(part, bool) or part < 0 or not isinstance(address, str):
            raise ConfigError(f'{path}: every [[daemon]] needs part = N and address = "host:port"')
        if part in found:
            raise ConfigError(f"{path}: partition {part} is named twice")
        found[part] = check_address(address)
    if sorted(found) != list(range(len(found))):
        raise ConfigError(f"{path}: partitions {sorted(found)} are named; they must run from 0 without gaps")
    return found


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


def _bracketed(host: str, rest: str) -> str:
    return f"; an IPv6 address stands in brackets: [{host}]{rest}" if _is_ipv6(host) else ""


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def write_cluster(path: str | Path, addresses: Sequence[str]) -> None:
    """Write a cluster file. ``addresses``: of the daemons, in the order of their partitions."""
    entries = [f'[[daemon]]\npart = {part}\naddress = "{address}"\n' for part, address in enumerate(addresses)]
    Path(path).write_text("\n".join(entries), encoding="utf-8")
