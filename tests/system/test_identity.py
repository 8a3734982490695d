"""If the wrong daemon answers at an address, it refuses every request."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import atta
from atta.client.control import Connection
from atta.client.every import ask_all
from atta.client.watch import Watch
from atta.errors import RestartedError, WrongDatasetError
from atta.kvstore.spec import MutableSpec
from atta.protos.v1 import control_pb2
from atta.wire import rpc
from atta.wire.identity import Bound, Identity
from tests.addresses import held_addresses
from tests.system.conftest import SmallGraph
from tests.system.running import Running, daemons

PARTS = 3
STRANGERS = {
    "another partition": {"part": 2},
    "another dataset": {"dataset_id": "beef"},
    "another process": {"incarnation": "0123"},
    "nobody": {"part": None, "dataset_id": "", "incarnation": ""},
}
REFUSED = {
    Bound.NOTHING: set(),
    Bound.NAMED: {"another partition", "another dataset"},
    Bound.DATA: {"another partition", "another dataset", "nobody"},
    Bound.PROCESS: set(STRANGERS),
}
"""Wrong identities in a request, by what its method is bound to."""


@pytest.fixture(scope="module")
def one(small_graph: SmallGraph) -> Iterator[tuple[str, Identity, grpc.Channel]]:
    (address,) = held_addresses(1)
    with daemons() as running, grpc.insecure_channel(address, options=rpc.client_options()) as channel:
        running.start(small_graph.dataset(PARTS, "random"), 1, address, {})
        reply = rpc.stub(channel, "ControlService.Describe")(control_pb2.DescribeRequest(), timeout=10)
        yield address, Identity(reply.part, reply.dataset_id, reply.incarnation), channel


def start(running: Running, data: Path, addresses: list[str], **settings: Any) -> None:
    for part, address in enumerate(addresses):
        running.start(data, part, address, dict(enumerate(addresses)), **settings)


def ask(channel: grpc.Channel, name: str, metadata: Any, request: bytes = b"") -> Any:
    method = rpc.METHODS[name]
    make = channel.unary_stream if method.streams else channel.unary_unary
    call = make(method.path, request_serializer=bytes, response_deserializer=bytes)
    answer = call(request, timeout=10, metadata=metadata)
    return list(answer) if method.streams else answer


@pytest.mark.parametrize("stranger", STRANGERS)
@pytest.mark.parametrize("name", rpc.METHODS)
def test_every_method_refuses_what_is_meant_for_another(one: Any, name: str, stranger: str) -> None:
    """The request is not a valid message: the daemon checks whom it means before it reads it."""
    address, identity, channel = one
    bound = rpc.METHODS[name].bound
    meant = dataclasses.replace(identity, **STRANGERS[stranger])
    try:
        ask(channel, name, meant.header(Bound.PROCESS), b"\xff" * 5)
        pytest.fail("it is not a message")
    except grpc.RpcError as failure:
        error = rpc.error_from(address, failure, 5.0)
    if stranger not in REFUSED[bound]:
        assert type(error) is atta.ConfigError, "it is refused because it is not a message"
        return
    restarted = stranger == "another process"
    assert type(error) is (RestartedError if restarted else WrongDatasetError)
    assert str(error).startswith(f"{address}: ")
    if restarted:
        assert "started anew: the daemon of partition 1" in str(error)
        return
    assert identity.incarnation in str(error)
    assert f"partition 1 of dataset {identity.dataset_id}" in str(error)
    if stranger != "nobody":
        assert str(meant)[: len("partition 2 of dataset beef") - 4] in str(error)


def test_only_describe_answers_anybody() -> None:
    """The exemptions, by name: a new method gets onto this list only on purpose."""
    by_bound = {bound: [name for name, m in rpc.METHODS.items() if m.bound is bound] for bound in Bound}
    assert by_bound[Bound.NOTHING] == ["ControlService.Describe"]
    assert by_bound[Bound.NAMED] == [f"ControlService.{n}" for n in ("Stats", "Sessions", "Report", "Trace", "Stop")]
    assert {name.partition(".")[0] for name in by_bound[Bound.PROCESS]} == {"SessionService", "ParameterService"}


@pytest.mark.parametrize("other", ["places", "dataset"])
def test_other_daemons_come_while_a_loader_runs(other: str, small_graph: SmallGraph, running: Running) -> None:
    """The client talks to both daemons all the time. The wrong one never answers its requests."""
    addresses, data = held_addresses(2), small_graph.dataset(2, "random")
    start(running, data, addresses)
    with atta.connect(addresses) as cluster:
        table = cluster.tables.create(MutableSpec("t", 10, row_shape=(2,)))
        loader = atta.NeighborLoader(cluster, [5, 5], "train", batch_size=4, rank=0, world_size=1)
        batches = iter(loader)
        next(batches)
        running.kill_all()
        if other == "places":
            start(running, data, addresses[::-1])
        else:
            start(running, small_graph.dataset(2, "metis"), addresses)
        refused = rf"serves partition {int(other == 'places')} of dataset .* not partition 0 of dataset"
        for use in (
            lambda: list(batches),
            lambda: list(loader),
            cluster.stats,
            cluster.trace,
            lambda: table.pull(np.arange(3)),
            lambda: table.push(np.arange(3), np.ones((3, 2))).wait(),
            cluster.tables.specs,
        ):
            with pytest.raises(WrongDatasetError, match=f"{addresses[0]}: {refused} {cluster.dataset_id}"):
                use()
    if other == "places":
        with pytest.raises(WrongDatasetError, match="serves partition 1"):
            atta.connect(addresses)


def test_two_peers_change_places_between_two_epochs(small_graph: SmallGraph, running: Running) -> None:
    """The client's own daemon stays. That daemon's connections to its peers worked before."""
    addresses, data = held_addresses(PARTS), small_graph.dataset(PARTS, "random")
    start(running, data, addresses, cache_bytes=0)
    with atta.connect(addresses) as cluster:
        loader = atta.NeighborLoader(cluster, [5, 5], "train", batch_size=16, rank=0, world_size=1)
        assert len(list(loader)) == len(loader)
        for address in addresses[1:]:
            running.kill(address)
        running.start(data, 1, addresses[2], {})
        running.start(data, 2, addresses[1], {})
        with pytest.raises(
            WrongDatasetError, match=r"serves partition (1|2) of dataset \w+, incarnation \w+, not partition (2|1)"
        ):
            list(loader)
        for address in addresses[1:]:
            running.kill(address)
        running.start(data, 1, addresses[1], {})
        running.start(data, 2, addresses[2], {})
        assert len(list(loader)) == len(loader), "once all is well again, so are batches"


def test_a_restart_ends_sessions_and_tables_and_nothing_else(small_graph: SmallGraph, running: Running) -> None:
    addresses, data = held_addresses(2), small_graph.dataset(2, "random")
    start(running, data, addresses)
    with atta.connect(addresses) as cluster:
        loader = atta.NeighborLoader(cluster, [5, 5], "train", batch_size=8, rank=0, world_size=1)
        before = [batch.n_id() for batch in loader]
        table = cluster.tables.create(MutableSpec("t", 10, row_shape=(2,)))
        batches = iter(atta.NeighborLoader(cluster, [5, 5], batch_size=8, rank=0, world_size=1, reconnect=0))
        next(batches)
        running.kill_all()
        start(running, data, addresses)
        with pytest.raises(RestartedError, match=f"{addresses[0]}: has been started anew"):
            list(batches)
        with pytest.raises(atta.UnknownNameError):
            table.pull(np.arange(3))
        again = [
            batch.n_id() for batch in atta.NeighborLoader(cluster, [5, 5], "train", batch_size=8, rank=0, world_size=1)
        ]
        assert all(np.array_equal(a, b) for a, b in zip(before, again, strict=True))
        assert len(cluster.stats()) == 2


def test_stopping_looks_at_the_partition(small_graph: SmallGraph, running: Running) -> None:
    addresses = held_addresses(2)
    start(running, small_graph.dataset(2, "random"), addresses)
    answers = ask_all(dict(enumerate(addresses[::-1])), Connection.stop, deadline_s=10)
    assert all(isinstance(answer.error, WrongDatasetError) for answer in answers)
    with Watch(addresses) as watch:
        assert not any(daemon.sample.error for daemon in watch.look()), "neither has stopped"
