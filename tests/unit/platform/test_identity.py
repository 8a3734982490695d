"""Which daemon a request means, whether releases work together, and daemons that would draw differently."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta.client.control import Call, Connection, uninterrupted
from atta.client.every import check_together
from atta.daemon.peers.connection import Alike, PeerConnection, PeerSettings
from atta.errors import (
    ConfigError,
    DrainingError,
    ProtocolError,
    RestartedError,
    SamplingContractError,
    UnavailableError,
    WrongDatasetError,
)
from atta.partition.schema import Schema
from atta.samplers.local import contract as golden
from atta.samplers.methods import Method
from atta.wire import rpc
from atta.wire.identity import Bound, Identity, Release, check, check_contract, check_release, new_incarnation
from tests.unit.platform.answers import described
from tests.unit.platform.table_owner import Refused

ME = Identity(1, "d1", "aa")
words = st.text(st.characters(categories=("Ll", "Nd")), max_size=5)


@given(st.none() | st.integers(0, 10**6), words, words)
def test_a_name_is_understood_as_it_was_meant(part: int | None, dataset_id: str, incarnation: str) -> None:
    meant = Identity(part, dataset_id, incarnation)
    assert Identity.parse(meant.named(Bound.PROCESS)) == meant
    assert Identity.parse(meant.named(Bound.DATA)) == Identity(part, dataset_id)
    assert new_incarnation() != new_incarnation()


@pytest.mark.parametrize("bound", Bound)
@pytest.mark.parametrize("part", [None, 0, 1])
@pytest.mark.parametrize("dataset_id", ["", "d1", "d2"])
@pytest.mark.parametrize("incarnation", ["", "aa", "bb"])
def test_who_is_refused(bound: Bound, part: int | None, dataset_id: str, incarnation: str) -> None:
    outcome: type[Exception] | None = None
    try:
        check(ME, Identity(part, dataset_id, incarnation), bound, "here:1")
    except (WrongDatasetError, RestartedError) as error:
        outcome = type(error)
    elsewhere = part == 0 or dataset_id == "d2"
    expected = {
        Bound.NOTHING: None,
        Bound.NAMED: WrongDatasetError if elsewhere else None,
        Bound.DATA: None if (part, dataset_id) == (1, "d1") else WrongDatasetError,
        Bound.PROCESS: WrongDatasetError
        if (part, dataset_id) != (1, "d1")
        else (None if incarnation == "aa" else RestartedError),
    }
    assert outcome is expected[bound]


@pytest.mark.parametrize("text", ["", "1", "1/d", "1/d/i/x", "one/d/i", "-1/d/i", "1.0/d/i", "²/d/i", "9999999999/d/i"])
def test_malformed_names(text: str) -> None:
    with pytest.raises(ConfigError, match="PART/DATASET/INCARNATION"):
        Identity.parse(text)


NUMBERS = st.integers(1, 9)


@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS)
def test_two_releases_work_together_if_they_share_a_protocol(a: int, b: int, c: int, d: int) -> None:
    found, own = Release("9.0", a, b), Release("1.0", min(c, d), max(c, d))
    shared = {*range(a, b + 1)} & {*range(own.oldest, own.newest + 1)}
    if shared:
        check_release(found, "x:1", own)
    else:
        with pytest.raises(ProtocolError, match=r"Atta 9\.0.*Atta 1\.0"):
            check_release(found, "x:1", own)


def meet(*addresses: str, **settings: Any) -> str:
    """The address of the replica that a peer's link settles on."""

    async def run() -> str:
        link = PeerConnection(addresses, Identity(1, "d"), PeerSettings(20.0, connect_s=5.0, **settings))
        try:
            await link.ready()
            return link.address
        finally:
            await link.close()

    return asyncio.run(run())


def ask(address: str) -> Release:
    connection = Connection(address, 5.0, part=1)
    try:
        return connection.describe().release
    finally:
        connection.close()


@pytest.mark.parametrize("call", [meet, ask])
def test_clients_and_peers_refuse_what_they_cannot_speak_with(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Schema, "from_json", classmethod(lambda cls, document: None))
    cases: list[tuple[dict[str, Any], bool]] = [
        ({"version": "0.0.9", "oldest_protocol": 0, "newest_protocol": 0}, False),
        ({"version": "0.2", "oldest_protocol": 2, "newest_protocol": 3}, True),
        ({"version": "7.0", "oldest_protocol": 8, "newest_protocol": 9}, False),
    ]
    for about, accepted in cases:
        wrong = pytest.raises(ProtocolError, match=r"speaks protocols? .*\(Atta [07]\.0.*\), this process protocol 2")
        with described(schema='{"num_parts": 1}', **about) as address, nullcontext() if accepted else wrong:
            found = call(address)
        if accepted and call is ask:
            assert (found.version, found.oldest, found.newest) == tuple(about.values())


class Answering:
    """A call whose answer comes when it is cancelled, and that Ctrl-C must not leave in the middle."""

    def __init__(self) -> None:
        self.ended, self.whole = threading.Event(), 0

    def cancel(self) -> None:
        self.ended.set()

    def result(self, timeout: float | None = None) -> str:
        signal.raise_signal(signal.SIGINT)
        assert self.ended.wait(10)
        self.whole += 1
        return "an answer"


@pytest.mark.skipif(signal.getsignal(signal.SIGINT) is signal.SIG_IGN, reason="this process ignores Ctrl-C")
def test_ctrl_c_cancels_the_call_that_the_main_thread_waits_for_and_is_raised_when_it_has_ended() -> None:
    answering = Answering()
    call = Call(lambda: answering)
    with pytest.raises(KeyboardInterrupt):
        call.result()
    assert answering.whole == 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    steps = []

    def twice() -> None:
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            steps.append("held back")
            signal.raise_signal(signal.SIGINT)
            steps.append("the second one comes at once")

    with pytest.raises(KeyboardInterrupt):
        twice()
    assert steps == ["held back"]


def test_a_daemon_that_stops_is_told_apart_from_one_that_is_away() -> None:
    failure = Refused(DrainingError("x:1"))
    assert failure.code() is grpc.StatusCode.UNAVAILABLE
    found = rpc.error_from("x:1", failure, 2.5)
    assert isinstance(found, DrainingError)
    assert isinstance(found, UnavailableError)
    assert str(found) == "x:1: is stopping, and takes no new sessions or changes of tables"


MINE = {"draws of labor": "1234", "operator ring": "abcd"}


def test_another_process_has_the_same_contract() -> None:
    """Digests depend on neither hash seeds nor addresses in memory."""
    code = "from atta.samplers.local.contract import *; import json; print(json.dumps(sampling_contract()))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(found) == golden.sampling_contract()


def test_a_build_that_draws_differently_has_another_contract_in_what_it_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    before = golden.sampling_contract.__wrapped__()
    real = golden.LocalSampler.sample

    def other(self: Any, seeds: Any, hops: Any, **options: Any) -> Any:
        return real(self, seeds, hops, **{**options, "seed": options["seed"] + (self.method is Method.LABOR)})

    monkeypatch.setattr(golden.LocalSampler, "sample", other)
    found = golden.sampling_contract.__wrapped__()
    assert {name for name, digest in found.items() if digest != before[name]} == {"draws of labor"}


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
        (
            {**MINE, "draws of labor": "9999"},
            "a:1: would draw other batches than b:2 (draws of labor: 9999, there 1234): run",
        ),
        ({**MINE, "operator ring": "eeee"}, "than b:2 (operator ring: eeee, there abcd): run the same release"),
        ({**MINE, "operator own": "own 2.0"}, "(operator own: own 2.0, there missing)"),
        ({}, "(draws of labor: missing, there 1234; operator ring: missing, there abcd)"),
        (
            {**MINE, **dict.fromkeys("abcde", "1")},
            "(a: 1, there missing; b: 1, there missing; c: 1, there missing; and 2 more)",
        ),
    ],
)
def test_all_that_differs_is_named_with_both_values(found: dict[str, str], words: str) -> None:
    check_contract(MINE, "a:1", MINE, "b:2")
    with pytest.raises(SamplingContractError, match=re.escape(words)):
        check_contract(found, "a:1", MINE, "b:2")


def test_a_peer_that_draws_differently_is_refused_and_a_replica_is_taken() -> None:
    alike = Alike(MINE, "me:1")
    with described(contract={**MINE, "draws of labor": "9999"}) as one, described(contract=MINE) as two:
        with pytest.raises(SamplingContractError, match=f"{one}: would draw other batches than me:1"):
            meet(one, alike=alike)
        assert meet(one, two, alike=alike) == two


def test_status_tells_replicas_that_draw_differently() -> None:
    def answer(part: int, address: str, contract: dict[str, str]) -> Any:
        value = {"dataset_id": "d", "num_parts": 2, "parts": range(part, part + 1), "broken": False}
        value["contract"] = contract
        return SimpleNamespace(part=part, address=address, value=SimpleNamespace(**value), error=None)

    other = {**MINE, "draws of labor": "9999"}
    found = check_together([answer(0, "a:1", MINE), answer(0, "b:1", other), answer(1, "c:1", MINE)])
    assert [one.error is not None for one in found] == [False, True, False]
    assert isinstance(found[1].error, SamplingContractError)
    assert "a:1" in str(found[1].error)
