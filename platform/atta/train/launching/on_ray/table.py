"""Who serves which partition, and where: what ``ray:NAME`` stands for. Pure.

Nothing here is stored: every keeper announces its daemon again and again, so a table that is lost fills itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from atta.errors import ConfigError
from atta.wire.clusterfile import check_address

SILENT_S = 5.0
"""A daemon that has not been announced for this long has no address: perhaps its machine is lost."""


@dataclass(frozen=True)
class DaemonPlace:
    """Where a daemon is.

    Attributes:
        address: ``host:port`` of the daemon.
        node: Ray's id of the machine.
    """

    address: str
    node: str


@dataclass
class AddressTable:
    """The places of the daemons of ``parts`` partitions, as far as they have been announced lately.

    Times are in seconds, of any clock.
    """

    parts: int
    _places: dict[int, DaemonPlace] = field(default_factory=dict)
    _heard: dict[int, float] = field(default_factory=dict)

    def announce(self, part: int, place: DaemonPlace, now: float) -> None:
        """Note where the daemon of ``part`` is; a later place replaces an earlier one.

        Raises:
            ConfigError: there is no such partition, or the address is none.
        """
        if not 0 <= part < self.parts:
            raise ConfigError(f"partition {part} does not exist: there are {self.parts}")
        check_address(place.address)
        for other in [p for p, known in self._places.items() if p != part and known.address == place.address]:
            del self._places[other], self._heard[other]  # it has moved away, and will say where it is now
        self._places[part], self._heard[part] = place, now
        self.validate()

    def places(self, now: float) -> list[DaemonPlace]:
        """The places of all daemons, by partition; none while one of them is not known."""
        known = [self._places[p] for p in range(self.parts) if now - self._heard.get(p, -math.inf) < SILENT_S]
        return known if len(known) == self.parts else []

    def validate(self) -> None:
        """Raise AssertionError if two daemons have one address, or a partition is none of the dataset."""
        addresses = [place.address for place in self._places.values()]
        assert len({*addresses}) == len(addresses), addresses
        assert self._places.keys() == self._heard.keys() <= {*range(self.parts)}, self._places
