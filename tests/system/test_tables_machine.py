"""Random histories of tables on real daemons, with three clients at the same time, against plain arrays.

Snapshots are loaded and found damaged, and messages are sent twice at once. (``unit/kvstore/test_machine.py`` has
clients that are forgotten and copies that arrive late.) The result of concurrent requests depends on their order.
Either the order does not matter (whole numbers are added), or the test accepts every outcome that some order explains:
a snapshot between two pushes of each client. (``test_pulls.py`` has rows that are read while they are written.)
"""

from __future__ import annotations

import copy
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
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

    @property
    def owner(self) -> str:
        return str(self.shard.connection.address)

    @property
    def rows(self) -> np.ndarray:
        return np.frombuffer(self.bulk.payloads[PUSH_ROWS], np.int64)

    def apply(self, model: TableModel) -> None:
        message, spec = self.bulk.message, model.spec
        values = np.frombuffer(self.bulk.payloads[PUSH_VALUES], spec.dtype).reshape(len(self.rows), *spec.row_shape)
        model.change(message.op, self.rows, values, message.version if message.versioned else None, message.step)


class Machine(RuleBasedStateMachine):
    def __init__(self, clusters: list[atta.Cluster], snapshots: Path) -> None:
        super().__init__()
        self.clusters, self.snapshots = clusters, snapshots

    @initialize()
    def start(self) -> None:
        for name in self.clusters[0].tables.specs():
            self.clusters[0].tables.delete(name)
        self.models: dict[str, TableModel] = {}
        self.saved: dict[str, TableModel] | None = None
        self.turn, self.steps = 0, itertools.count(1)
        for name in SPECS:
            self.create(name)

    def each(self, body: Callable[[int], object], *more: Callable[[], object]) -> None:
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
        step = next(self.steps) if op == "step" else 0
        for sent in self.pushed(name, client, rows, values, op=op, version=version, step=step):
            sent.apply(model)

    @rule()
    def save(self) -> None:
        assert self.clusters[0].tables.save("saved") == sorted(self.models)
        self.saved = copy.deepcopy(self.models)

    @precondition(lambda self: self.saved is not None)
    @rule(client=clients)
    def load(self, client: int) -> None:
        self.models = copy.deepcopy(self.saved or {})
        assert self.clusters[client].tables.load("saved") == sorted(self.models)

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

    # -- several at the same time --------------------------------------------------------------------------------------

    @rule(name=names)
    def create(self, name: str) -> None:
        self.each(lambda client: self.clusters[client].tables.create(SPECS[name]))
        self.models.setdefault(name, TableModel.fresh(SPECS[name], 0, SPECS[name].rows))

    @rule(name=names)
    def delete(self, name: str) -> None:
        existed: list[bool] = []
        self.each(lambda client: existed.append(self.clusters[client].tables.delete(name)))
        assert any(existed) == (self.models.pop(name, None) is not None)
        assert sum(existed) <= PARTS  # every owner drops its rows once

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
        messages: list[Sent] = []

        def body(client: int) -> None:
            rng = np.random.default_rng([seed, client])
            try:
                for number in range(3):
                    rows = rng.integers(0, len(before), 8)
                    values = rng.integers(0, 9, (len(rows), *model.spec.row_shape)).astype(model.spec.dtype)
                    messages.extend(self.pushed(name, client, rows, values, op=op, times=1 + number % 2))
            finally:
                done[client] = True

        def read() -> None:
            low = before
            while not all(done):
                values = self.table(0, name).pull(np.arange(len(before))).values
                assert (sign * values >= sign * low).all()  # values never go back
                low = values

        self.each(body, read)
        for sent in messages:
            sent.apply(model)

    @rule(seed=seeds)
    def save_amid_additions(self, seed: int) -> None:
        """A snapshot holds the first pushes of every client to an owner, each as a whole."""
        if "sums" in self.models:
            before = self.models["sums"].values.copy()
            sent = self.additions(seed, lambda: self.clusters[0].tables.save("amid"))
            self.clusters[0].tables.load("amid")
            self.apply_kept(sent, before, first=True)

    @precondition(lambda self: "sums" in self.models and "sums" in (self.saved or ()))
    @rule(seed=seeds)
    def load_amid_additions(self, seed: int) -> None:
        """Loading a snapshot undoes pushes that came before the load, and none that came later."""
        self.models = copy.deepcopy(self.saved or {})
        before = self.models["sums"].values.copy()
        sent = self.additions(seed, lambda: self.clusters[0].tables.load("saved"))
        self.apply_kept(sent, before, first=False)

    # -- how they do it ------------------------------------------------------------------------------------------------

    def table(self, client: int, name: str) -> RemoteTable:
        return self.clusters[client].tables.open(name)

    def pushed(
        self, name: str, client: int, rows: np.ndarray, values: np.ndarray, *, times: int = 1, **options: Any
    ) -> list[Sent]:
        """Push, with every message sent ``times`` times at once. Returns the messages; each was applied once."""
        ticket = self.table(client, name).push(rows, values, **options)
        sent = [Sent(push.shard, push.bulk) for push in ticket._sent]
        answers = [[push.future] for push in ticket._sent]
        for _ in range(times - 1):
            for message, calls in zip(sent, answers, strict=True):
                calls.append(message.shard.connection.begin("TableService.Push", message.bulk))
        ticket.wait()
        assert times == 1 or all(sum(_applied(call) for call in calls) == 1 for calls in answers)
        return sent

    def additions(self, seed: int, amid: Callable[[], object]) -> list[list[tuple[int, Sent]]]:
        """Every client adds its own powers of two while ``amid`` runs. Returns (power, message), by client and owner, in
        order."""
        sent: dict[Any, list[tuple[int, Sent]]] = defaultdict(list)

        def body(client: int) -> None:
            rng = np.random.default_rng([seed, client])
            for number in range(4):
                power = 1 << (4 * client + number)
                chosen = rng.permutation(SPECS["sums"].rows)[:8]
                values = np.full((len(chosen), *SPECS["sums"].row_shape), power, np.float32)
                for message in self.pushed("sums", client, chosen, values, op="add"):
                    sent[message.owner, client].append((power, message))

        self.each(body, amid)
        return list(sent.values())

    def apply_kept(self, sent: list[list[tuple[int, Sent]]], before: np.ndarray, *, first: bool) -> None:
        """The table holds the first or the last messages to each owner, each in all of its rows: the model takes them."""
        more = (self.table(1, "sums").pull(np.arange(len(before))).values - before).astype(np.int64)
        for messages in sent:
            has = [more[message.rows] & power != 0 for power, message in messages]
            assert all(found.all() or not found.any() for found in has)
            kept = [bool(found.all()) for found in has]
            assert kept == sorted(kept, reverse=first)
            for (_, message), held in zip(messages, kept, strict=True):
                if held:
                    message.apply(self.models["sums"])

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
    options = ("--snapshots", str(snapshots))
    with ExitStack() as stack:
        first = stack.enter_context(atta.local(small_graph.dataset(PARTS, "random"), threads=2, options=options))
        others = [stack.enter_context(atta.connect(first.addresses)) for _ in range(CLIENTS - 1)]
        yield [first, *others]


@pytest.mark.parametrize("histories", [2, pytest.param(15, marks=pytest.mark.slow)])
def test_histories_of_several_clients(clusters: list[atta.Cluster], snapshots: Path, histories: int) -> None:
    # No shrinking: a history with threads need not fail twice.
    run_state_machine_as_test(
        lambda: Machine(clusters, snapshots),
        settings=settings(max_examples=histories, stateful_step_count=15, phases=[Phase.generate], database=None),
    )
