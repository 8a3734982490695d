"""Random histories of tables on real daemons, with three clients at the same time, against plain arrays.

Clients are forgotten, snapshots are loaded and found damaged, and copies of messages arrive late. The result of
concurrent requests depends on their order. Either the order does not matter (whole numbers are added), or the test
accepts every outcome that some order explains: a row as one of the clients has written it, a snapshot between two
pushes of each client.
"""

from __future__ import annotations

import copy
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import atta
from atta.client.tables.cluster import RemoteTable
from atta.kvstore.spec import Constant, MutableSpec, OptimiserSpec, Uniform
from atta.protos.v1 import table_pb2
from atta.wire import rpc
from atta.wire.bulk import PUSH_ROWS, PUSH_VALUES
from tests.system.conftest import SmallGraph
from tests.unit.kvstore.table_model import TableModel
from tests.unit.kvstore.test_rows import together

PARTS, CLIENTS, LIMIT = 2, 3, 20
SPECS = {
    # Rows so wide that threads handle requests for them; the event loop handles small ones.
    "sums": MutableSpec("sums", 12, row_shape=(9000,), max_rows=LIMIT),
    "marks": MutableSpec("marks", 12, "<i8", row_shape=(5000,), init=Constant(-1), versioned=True, max_rows=LIMIT),
    "sgd": MutableSpec("sgd", 12, row_shape=(3,), optimiser=OptimiserSpec.sgd(1.0)),
    "adam": MutableSpec("adam", 12, row_shape=(2,), init=Uniform(-1, 1, seed=3), optimiser=OptimiserSpec.adam(0.1), max_rows=LIMIT),
}  # fmt: skip
names = st.sampled_from(list(SPECS))
clients = st.integers(0, CLIENTS - 1)
seeds = st.integers(0, 2**31)


@dataclass
class Sent:
    """A message to one owner, as it was sent, and what it means."""

    shard: Any
    bulk: rpc.Bulk

    def again(self) -> bool | None:
        """Send it once more.

        Returns whether it was applied; None: refused, because the owner does not know the client.
        """
        try:
            return bool(self.shard.connection.call("TableService.Push", self.bulk).applied)
        except atta.UnknownClientError:
            return None

    @property
    def owner(self) -> tuple[str, int]:
        return self.shard.connection.address, self.bulk.message.client

    @property
    def rows(self) -> np.ndarray:
        return np.frombuffer(self.bulk.payloads[PUSH_ROWS], np.int64)


@dataclass
class Model(TableModel):
    """For every known (owner, client): the push numbers that are settled or were applied.

    ``over``: the (owner, client) pairs that came with a loaded snapshot.
    """

    steps: int = 0
    settled: dict[Any, int] = field(default_factory=dict)
    applied: set[Any] = field(default_factory=set)
    over: set[Any] = field(default_factory=set)

    def receive(self, sent: Sent) -> bool | None:
        """How the owner treats a message. True: applied; False: known, so ignored; None: refused."""
        message = sent.bulk.message
        if sent.owner not in self.settled:
            return None
        if message.sequence < self.settled[sent.owner] or (sent.owner, message.sequence) in self.applied:
            return False
        if sent.owner in self.over:
            return None
        self.settled[sent.owner] = max(self.settled[sent.owner], message.settled)
        self.applied.add((sent.owner, message.sequence))
        self.apply(sent)
        return True

    def receive_new(self, sent: Sent) -> bool | None:
        """As ``receive``, from a client that has registered just now or before."""
        self.settled.setdefault(sent.owner, 0)
        return self.receive(sent)

    def forget(self, owner: Any) -> None:
        """Forget a client."""
        self.settled.pop(owner, None)
        self.over.discard(owner)
        self.applied = {(who, number) for who, number in self.applied if who != owner}

    def apply(self, sent: Sent) -> None:
        """Apply a message to the rows."""
        message, rows = sent.bulk.message, sent.rows
        values = np.frombuffer(sent.bulk.payloads[PUSH_VALUES], self.spec.dtype).reshape(
            len(rows), *self.spec.row_shape
        )
        self.change(message.op, rows, values, message.version if message.versioned else None, message.step)


class Machine(RuleBasedStateMachine):
    def __init__(self, clusters: list[atta.Cluster], snapshots: Path) -> None:
        super().__init__()
        self.clusters, self.snapshots = clusters, snapshots

    @initialize()
    def start(self) -> None:
        for name in self.clusters[0].tables.specs():
            self.clusters[0].tables.delete(name)
        self.models: dict[str, Model] = {}
        self.sent: dict[str, list[Sent]] = defaultdict(list)
        self.saved: dict[str, Model] | None = None
        self.turn, self.tags = 0, itertools.count(100)
        for name in SPECS:
            self.create(name)

    def each(self, body: Callable[[int], object], *more: Callable[[], object]) -> None:
        """Run ``body(client)`` of all clients, and ``more``, at the same time."""
        together(*(lambda c=c: body(c) for c in range(CLIENTS)), *more)  # type: ignore[misc]

    # -- one client after another --------------------------------------------------------------------------------------

    @rule(name=names, client=clients, seed=seeds)
    def push(self, name: str, client: int, seed: int) -> None:
        if name not in self.models:
            return
        model, rng = self.models[name], np.random.default_rng(seed)
        op = str(rng.choice(["write", "add"] if model.spec.optimiser is None else ["write", "step", "step"]))
        rows = rng.integers(0, len(model.values), rng.integers(1, 9))
        values = rng.integers(-9, 10, (len(rows), *model.spec.row_shape)).astype(model.spec.dtype)
        version = int(rng.integers(100)) if model.spec.versioned and op == "write" else None
        if name == "marks":  # every element of a row has the same number, so a row of two halves would show
            op, version = "write", next(self.tags)
            values[:] = version
        model.steps += op == "step"
        step = model.steps if op == "step" else 0
        for sent, _ in self.pushed(name, client, rows, values, op=op, version=version, step=step):
            assert model.receive_new(sent)
            self.sent[name].append(sent)

    @precondition(lambda self: any(self.sent.values()))
    @rule(pick=seeds)
    def send_again(self, pick: int) -> None:
        """Send any earlier message again, also one that a loaded snapshot does not know."""
        everything = [(name, sent) for name, all_of in self.sent.items() for sent in all_of]
        name, sent = everything[pick % len(everything)]
        if sent.rows.max() < len(self.models[name].values):
            assert sent.again() is self.models[name].receive(sent)

    @rule(name=names, client=clients, seed=seeds)
    def forget(self, name: str, client: int, seed: int) -> None:
        """The client does not notice. Its next push is refused, so it registers and sends that as a new push."""
        if name not in self.models:
            return
        model, table = self.models[name], self.table(client, name)
        for shard in table._shards:
            shard.registration.ensure()
            who = shard.registration.client
            shard.connection.call("TableService.Forget", table_pb2.ForgetClientRequest(clients=[who]))
            model.forget((shard.connection.address, who))
        owned = [shard.first_row for shard in table._shards]  # all owners must notice the loss now, none later
        rows = np.append(np.random.default_rng(seed).integers(0, len(model.values), 4), owned)
        tag = next(self.tags)
        values = np.full((len(rows), *model.spec.row_shape), tag, model.spec.dtype)
        ticket = table.push(rows, values, "write", version=tag if model.spec.versioned else None)
        sent = [Sent(push.shard, push.bulk) for push in ticket._sent]
        ticket.wait()
        for anew in sent:
            shard = anew.shard
            assert anew.again() is None
            anew.bulk.message.client = shard.registration.client
            anew.bulk.message.sequence = anew.bulk.message.settled = 0
            assert model.receive_new(anew)
            assert anew.again() is False
            self.sent[name].append(anew)

    @rule()
    def save(self) -> None:
        assert self.clusters[0].tables.save("saved") == sorted(self.models)
        self.saved = copy.deepcopy(self.models)

    @precondition(lambda self: self.saved is not None)
    @rule(client=clients)
    def load(self, client: int) -> None:
        self.back()
        assert self.clusters[client].tables.load("saved") == sorted(self.models)
        self.sent = defaultdict(list, {name: sent for name, sent in self.sent.items() if name in self.models})

    @precondition(lambda self: self.saved)
    @rule(client=clients, pick=seeds)
    def load_a_damaged_one(self, client: int, pick: int) -> None:
        """Any part may be damaged: nothing changes on any daemon, see the invariant."""
        files = sorted(path for path in (self.snapshots / "saved").rglob("tables.log") if path.stat().st_size > 160)
        if not files:
            return  # only the smallest tables were saved
        path = files[pick % len(files)]
        with path.open("r+b") as file:
            file.seek(150)
            (was,) = file.read(1)
            file.seek(150)
            file.write(bytes([was ^ 1 + pick % 255]))
        with pytest.raises(atta.RemoteError, match=path.name):
            self.clusters[client].tables.load("saved")
        with path.open("r+b") as file:
            file.seek(150)
            file.write(bytes([was]))

    def back(self) -> None:
        """The models of the saved tables."""
        self.models = copy.deepcopy(self.saved or {})
        self.end_registrations()

    def end_registrations(self) -> None:
        for model in self.models.values():
            model.over = set(model.settled)

    # -- several at the same time --------------------------------------------------------------------------------------

    @rule(name=names)
    def create(self, name: str) -> None:
        self.each(lambda client: self.clusters[client].tables.create(SPECS[name]))
        self.models.setdefault(name, Model.fresh(SPECS[name], 0, SPECS[name].rows))

    @rule(name=names)
    def delete(self, name: str) -> None:
        existed: list[bool] = []
        self.each(lambda client: existed.append(self.clusters[client].tables.delete(name)))
        assert any(existed) == (self.models.pop(name, None) is not None)
        assert sum(existed) <= PARTS  # every owner drops its rows once
        self.sent.pop(name, None)

    @rule(name=names, seed=seeds)
    def grow(self, name: str, seed: int) -> None:
        if name not in self.models:
            return
        model = self.models[name]
        wanted = np.random.default_rng(seed).integers(len(model.values), model.spec.limit + 1, CLIENTS)

        def body(client: int) -> None:
            # A table does not shrink: another client was quicker and wanted more.
            with suppress(atta.ConfigError) if wanted[client] < wanted.max() else nullcontext():
                self.table(client, name).grow(int(wanted[client]))

        self.each(body)
        model.grow(0, int(wanted.max()))

    @rule(name=st.sampled_from(["sums", "sgd"]), seed=seeds)
    def add(self, name: str, seed: int) -> None:
        """All clients add to the same rows and send half of their messages twice. Nothing is lost or counted twice."""
        if name not in self.models:
            return
        model, op = self.models[name], "add" if name == "sums" else "step"
        sign, before, done = (1 if op == "add" else -1), model.values.copy(), [False] * CLIENTS

        def body(client: int) -> None:
            rng = np.random.default_rng([seed, client])
            try:
                for number in range(3):
                    rows = rng.integers(0, len(before), 8)
                    values = rng.integers(0, 9, (len(rows), *model.spec.row_shape)).astype(model.spec.dtype)
                    for sent, applied in self.pushed(name, client, rows, values, op=op, times=1 + number % 2):
                        assert applied == 1
                        self.sent[name].append(sent)
            finally:
                done[client] = True

        def read() -> None:
            low = before
            while not all(done):
                values = self.table(0, name).pull(np.arange(len(before))).values
                assert (sign * values >= sign * low).all()  # values never go back
                low = values

        known = len(self.sent[name])
        self.each(body, read)
        for sent in self.sent[name][known:]:
            assert model.receive_new(sent)

    @rule(seed=seeds)
    def write(self, seed: int) -> None:
        """All clients write the same rows. A reader sees each row as one client wrote it, never a mix of two."""
        if "marks" not in self.models:
            return
        model, done = self.models["marks"], [False] * CLIENTS
        first_tag = next(self.tags)
        writes: list[tuple[int, int, Sent]] = []  # (client, tag, message), in order for every client

        def body(client: int) -> None:
            rng = np.random.default_rng([seed, client])
            try:
                for _ in range(3):
                    rows = rng.permutation(len(model.values))[:9]
                    tag = next(self.tags)
                    values = np.full((len(rows), *model.spec.row_shape), tag)
                    for sent, applied in self.pushed("marks", client, rows, values, op="write", version=tag, times=2):
                        assert applied == 1
                        writes.append((client, tag, sent))
            finally:
                done[client] = True

        def read() -> None:
            while not all(done):
                self.whole_rows(model.versions, first_tag)

        self.each(body, read)
        versions = self.whole_rows(model.versions, first_tag)
        last: dict[int, dict[int, int]] = defaultdict(dict)
        for client, tag, sent in writes:
            for row in sent.rows:
                last[int(row)][client] = tag
        for row, version in enumerate(versions):
            assert version == (max(last[row].values()) if row in last else model.versions[row])
        for _, _, sent in writes:
            model.receive_new(sent)
            self.sent["marks"].append(sent)
        model.versions[:] = versions
        model.values[:] = versions[:, None]

    @rule(seed=seeds)
    def save_amid_additions(self, seed: int) -> None:
        """A snapshot holds the first pushes of every client to an owner, each as a whole.

        Later ones are then refused.
        """
        if "sums" not in self.models:
            return
        model = self.models["sums"]
        before = model.values.copy()
        sent = self.additions(seed, SPECS["sums"].rows, lambda: self.clusters[0].tables.save("amid"))
        self.clusters[0].tables.load("amid")
        for messages in sent:
            kept = self.bits(messages, before)
            assert kept == sorted(kept, reverse=True)
            for (_, message), has in zip(messages, kept, strict=True):
                assert message.again() is (False if has else None)
                assert not has or model.receive_new(message)
        self.sent = defaultdict(list)
        self.end_registrations()

    @precondition(lambda self: "sums" in self.models and "sums" in (self.saved or ()))
    @rule(seed=seeds)
    def load_amid_additions(self, seed: int) -> None:
        """Loading a snapshot undoes pushes that came before the load, and none that came later."""
        self.back()
        before = self.models["sums"].values.copy()
        sent = self.additions(seed, SPECS["sums"].rows, lambda: self.clusters[0].tables.load("saved"))
        for messages in sent:
            kept = self.bits(messages, before)
            assert kept == sorted(kept)
            for (_, message), has in zip(messages, kept, strict=True):
                if has:
                    self.models["sums"].apply(message)
        self.sent = defaultdict(list)

    # -- how they do it ------------------------------------------------------------------------------------------------

    def table(self, client: int, name: str) -> RemoteTable:
        return self.clusters[client].tables.open(name)

    def pushed(
        self, name: str, client: int, rows: np.ndarray, values: np.ndarray, *, times: int = 1, **options: Any
    ) -> list[tuple[Sent, int]]:
        """Push, with every message sent ``times`` times at once.

        Returns the messages, and how often each was applied.
        """
        ticket = self.table(client, name).push(rows, values, **options)
        sent = [Sent(push.shard, push.bulk) for push in ticket._sent]
        answers = [[push.future] for push in ticket._sent]
        for _ in range(times - 1):
            for message, calls in zip(sent, answers, strict=True):
                calls.append(message.shard.connection.begin("TableService.Push", message.bulk))
        ticket.wait()
        applied = [sum(_applied(call) for call in calls) for calls in answers]
        return list(zip(sent, applied, strict=True))

    def whole_rows(self, before: np.ndarray, lowest: int) -> np.ndarray:
        """The versions of "marks". Checks that every row holds one number throughout, either old or new."""
        found = self.table(0, "marks").pull(np.arange(len(before)), versions=True)
        values, versions = found.values, found.versions
        assert versions is not None
        assert (values == versions[:, None]).all()
        assert ((versions == before) | (versions >= lowest)).all()
        return versions

    def additions(self, seed: int, rows: int, amid: Callable[[], object]) -> list[list[tuple[int, Sent]]]:
        """Every client adds its own powers of two while ``amid`` runs.

        Returns (power, message), by client and owner, in order.
        """
        sent: dict[Any, list[tuple[int, Sent]]] = defaultdict(list)

        def body(client: int) -> None:
            rng = np.random.default_rng([seed, client])
            for number in range(4):
                power = 1 << (4 * client + number)
                chosen = rng.permutation(rows)[:8]
                values = np.full((len(chosen), *SPECS["sums"].row_shape), power, np.float32)
                for message, _ in self.pushed("sums", client, chosen, values, op="add"):
                    sent[message.owner].append((power, message))

        self.each(body, amid)
        return list(sent.values())

    def bits(self, messages: list[tuple[int, Sent]], before: np.ndarray) -> list[bool]:
        """The messages that the table holds. Each must be in all of its rows, or in none."""
        values = self.table(1, "sums").pull(np.arange(len(before))).values
        more = (values - before).astype(np.int64)
        has = [more[message.rows] & power != 0 for power, message in messages]
        assert all(found.all() or not found.any() for found in has)
        return [bool(found.all()) for found in has]

    @invariant()
    def all_clients_see_what_the_model_says(self) -> None:
        self.turn += 1
        client = self.turn % CLIENTS
        assert sorted(self.clusters[client].tables.specs()) == sorted(self.models)
        for name, model in self.models.items():
            table = self.table(client, name)
            assert table.rows == len(model.values)
            found = table.pull(np.arange(table.rows), versions=model.spec.versioned)
            values, versions = found.values, found.versions
            if name == "adam":
                np.testing.assert_allclose(values, model.values, rtol=1e-5, atol=1e-5)
            else:
                np.testing.assert_array_equal(values, model.values)
            if versions is not None:
                assert np.array_equal(versions, model.versions)


def _applied(call: Any) -> bool:
    """Whether a message was applied as first sent. If a load came between, it was refused."""
    try:
        return bool(call.result().applied)
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.UNAUTHENTICATED:
            raise
        return False


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("snapshots")


@pytest.fixture(scope="module")
def clusters(small_graph: SmallGraph, snapshots: Path) -> Iterator[list[atta.Cluster]]:
    """Three clients of the same two daemons."""
    options = ("--snapshots", str(snapshots))
    with ExitStack() as stack:
        first = stack.enter_context(atta.local(small_graph.dataset(PARTS, "random"), threads=2, options=options))
        others = [stack.enter_context(atta.connect(first.addresses)) for _ in range(CLIENTS - 1)]
        yield [first, *others]


@pytest.mark.parametrize("histories", [4, pytest.param(15, marks=pytest.mark.slow)])
def test_histories_of_several_clients(clusters: list[atta.Cluster], snapshots: Path, histories: int) -> None:
    # No shrinking: a history with threads need not fail twice.
    run_state_machine_as_test(
        lambda: Machine(clusters, snapshots),
        settings=settings(max_examples=histories, stateful_step_count=15, phases=[Phase.generate], database=None),
    )
