"""The sampling contract: what is drawn from the built-in graph, and daemons that would draw differently."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from atta.client.every import check_together
from atta.daemon.peers.connection import Alike, PeerConnection, PeerSettings
from atta.errors import SamplingContractError
from atta.samplers.local import contract as golden
from atta.samplers.methods import Method
from atta.wire.identity import Contract, Identity, check_contract
from tests.unit.platform.answers import described

MINE = Contract("1234", "abcd")


def test_another_process_has_the_same_contract() -> None:
    """Digests depend on neither hash seeds nor addresses in memory."""
    code = "from atta.samplers.local.contract import *; print(sampling_contract(), operator_fingerprint())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert found == [golden.sampling_contract(), golden.operator_fingerprint()]


def test_a_build_that_draws_differently_has_another_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    before = golden.sampling_contract.__wrapped__()
    real = golden.LocalSampler.sample

    def other(self: Any, seeds: Any, hops: Any, **options: Any) -> Any:
        return real(self, seeds, hops, **{**options, "seed": options["seed"] + (self.method is Method.LABOR)})

    monkeypatch.setattr(golden.LocalSampler, "sample", other)
    assert golden.sampling_contract.__wrapped__() != before


OPERATOR = '''
    class Ring:
        """Draws rings."""

        size = 3  # vertices

        def draw(self, size):
            """A ring."""
            return {body}
'''


def test_words_about_an_operator_do_not_count() -> None:
    told = OPERATOR.format(body="range(size)")
    bare = "\n".join(line for line in told.splitlines() if '"""' not in line).replace("  # vertices", "")
    assert golden.code_alone(told) == golden.code_alone(bare)
    assert golden.code_alone(told) != golden.code_alone(OPERATOR.format(body="range(1, size)"))


def test_the_golden_graph_tries_all_kinds_of_vertices() -> None:
    graph = golden.golden_graph()
    degrees = np.diff(graph.indptr)
    assert degrees.max() > 8 * golden.HOPS[0]
    assert (degrees <= golden.HOPS[0]).sum() > 0
    pairs = np.stack([np.repeat(np.arange(len(degrees)), degrees), graph.indices])
    assert len(np.unique(pairs, axis=1).T) < golden.EDGES, "parallel edges"


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Contract("9999", "abcd"), "a:1: would draw other batches than b:2: its sampling contract has the digest 9999"),
        (Contract("1234", "eeee"), "a:1: would draw other batches than b:2: its operators have the digest eeee"),
    ],
)
def test_both_are_named(found: Contract, words: str) -> None:
    with pytest.raises(SamplingContractError, match=words):
        check_contract(found, "a:1", MINE, "b:2")


def test_equal_ones_are_accepted_and_none_is_not() -> None:
    check_contract(MINE, "a:1", MINE, "b:2")
    with pytest.raises(SamplingContractError, match="digest"):
        check_contract(Contract(), "a:1", MINE, "b:2")


def meet(addresses: tuple[str, ...]) -> str:
    """The address of the replica that a peer's link settles on."""

    async def run() -> str:
        link = PeerConnection(addresses, Identity(1, "d"), PeerSettings(20.0, connect_s=5.0, alike=Alike(MINE, "me:1")))
        try:
            await link.ready()
            return link.address
        finally:
            await link.close()

    return asyncio.run(run())


def test_a_peer_that_draws_differently_is_refused_and_a_replica_is_taken() -> None:
    mine = {"contract": MINE.draws, "operators": MINE.operators}
    with described(**{**mine, "contract": "9999"}) as one, described(**mine) as two:
        with pytest.raises(SamplingContractError, match=f"{one}: would draw other batches than me:1"):
            meet((one,))
        assert meet((one, two)) == two


def test_status_tells_replicas_that_draw_differently() -> None:
    def answer(part: int, address: str, contract: Contract) -> Any:
        value = SimpleNamespace(
            dataset_id="d", num_parts=2, parts=range(part, part + 1), contract=contract, broken=False
        )
        return SimpleNamespace(part=part, address=address, value=value, error=None)

    other = Contract("9999", "abcd")
    found = check_together([answer(0, "a:1", MINE), answer(0, "b:1", other), answer(1, "c:1", MINE)])
    assert [one.error is not None for one in found] == [False, True, False]
    assert isinstance(found[1].error, SamplingContractError)
    assert "a:1" in str(found[1].error)
