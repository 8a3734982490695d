"""What daemons must have in common besides their data, so that any of them may continue another's work. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from atta.errors import SamplingContractError

__all__ = ["Contract", "check_contract"]


@dataclass(frozen=True, slots=True)
class Contract:
    """Digests of what a daemon draws from the built-in graph, and of its operators (``atta.samplers.local.contract``)."""

    draws: str = ""
    operators: str = ""


def check_contract(found: Contract, address: str, meant: Contract, other: str) -> None:
    """Refuse the daemon at ``address`` if it may answer differently from ``other``, whose contract is ``meant``.

    Raises:
        SamplingContractError: names both and what differs.
    """
    for what, one, two in (
        ("sampling contract", found.draws, meant.draws),
        ("operators", found.operators, meant.operators),
    ):
        if one != two:
            raise SamplingContractError(
                address,
                f"would draw other batches than {other}: its {what} {_have(what)} the digest {one}, there {two}; run the "
                "same release with the same operators",
            )


def _have(what: str) -> str:
    return "have" if what.endswith("s") else "has"
