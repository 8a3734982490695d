"""Random histories of tables with several clients, retries and reordering, against dictionaries of numpy arrays.

Clients are forgotten, snapshots are loaded, and copies of pushes from before either event arrive late. A push that was
applied is never applied again, and a push from an unknown client is refused.
"""

from __future__ import annotations

import copy
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from atta.errors import DataError, UnknownClientError
from atta.kvstore.spec import Constant, MutableSpec, OptimiserSpec, Uniform
from atta.kvstore.tables import Tables
from tests.unit.kvstore.table_model import TableModel

SPECS = {
    "plain": MutableSpec("plain", 12, row_shape=(2,), init=Uniform(-1, 1, seed=3), max_rows=30),
    "counts": MutableSpec("counts", 9, "<i4", versioned=True, init=Constant(5), max_rows=30),
    "sgd": MutableSpec("sgd", 12, row_shape=(3,), optimiser=OptimiserSpec.sgd(0.1), versioned=True),
    "adagrad": MutableSpec(
        "adagrad", 12, row_shape=(2,), optimiser=OptimiserSpec.adagrad(0.1, lr_decay=0.1), max_rows=30
    ),
    "adam": MutableSpec("adam", 12, row_shape=(2,), optimiser=OptimiserSpec.adam(0.1), max_rows=30),
}
CLIENTS = ("a", "b", "c")
names = st.sampled_from(list(SPECS))
clients = st.sampled_from(CLIENTS)
seeds = st.integers(0, 2**31)


Request = dict[str, Any]
"""The arguments of a push, as it was sent: its client, as registered then, and its number."""


@dataclass
class Model(TableModel):
    """With the clients that it knows. For each client: the applied numbers, and whether its new pushes are refused."""

    first: int = 0
    step: int = 0
    known: dict[str, set[int]] = field(default_factory=dict)
    over: set[str] = field(default_factory=set)

    def apply(self, request: Request) -> None:
        self.step += request["op"] == "step"
        self.change(request["op"], request["rows"] - self.first, request["values"], request["version"], self.step)


class Machine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.snapshot_path = Path(self.folder.name, "snapshot")
        self.tables = Tables(100_000)
        self.models: dict[str, Model] = {}
        self.sent: dict[str, list[Request]] = {name: [] for name in SPECS}
        self.counts: dict[str, int] = defaultdict(int)  # number of pushes, by client as registered
        self.saved: dict[str, Model] | None = None

    def teardown(self) -> None:
        self.folder.cleanup()

    @rule(name=names, first=st.integers(0, 4))
    def create(self, name: str, first: int) -> None:
        if name in self.models:
            first = self.models[name].first
            assert self.tables.create(SPECS[name], first, 5) is self.tables.get(name)
        else:
            self.tables.create(SPECS[name], first, 5)
            self.models[name] = Model.fresh(SPECS[name], first, 5)
            self.models[name].first = first

    @rule(name=names)
    def delete(self, name: str) -> None:
        assert self.tables.delete(name) == (self.models.pop(name, None) is not None)

    @rule(name=names, more=st.integers(0, 3))
    def grow(self, name: str, more: int) -> None:
        if model := self.models.get(name):
            rows = min(len(model.values) + more, SPECS[name].limit - model.first)
            self.tables.grow(name, rows)
            model.grow(model.first, rows)

    def registered(self, name: str, client: str) -> str:
        """The client's name in the table: its current registration, or a new one."""
        model = self.models[name]
        for who in model.known:
            if who.startswith(client) and who not in model.over:
                return who
        who = f"{client}{len(self.counts)}"
        self.counts[who] = 0
        self.tables.get(name).register(who)
        model.known[who] = set()
        return who

    @rule(name=names, client=clients, seed=seeds, lost=st.booleans(), version=st.none() | st.integers(0, 9))
    def push(self, name: str, client: str, seed: int, lost: bool, version: int | None) -> None:
        """A new push. A lost one has its number but arrives later, if ever."""
        if name not in self.models:
            return
        model, spec, rng = self.models[name], SPECS[name], np.random.default_rng(seed)
        op = str(rng.choice(["write", "add"] if spec.optimiser is None else ["write", "add", "step", "step"]))
        rows = rng.integers(model.first, model.first + len(model.values), rng.integers(0, 9))
        values = (10 * rng.standard_normal((len(rows), *spec.row_shape))).astype(spec.dtype)
        who = self.registered(name, client)
        request = {"rows": rows, "values": values, "op": op, "client": who, "sequence": self.counts[who]}
        request["version"] = version if spec.versioned and op == "write" else None
        self.counts[who] += 1
        self.sent[name].append(request)
        if not lost:
            self.send(name, request)

    @rule(name=names, pick=st.integers(0, 1000))
    def send_again(self, name: str, pick: int) -> None:
        """Any earlier push: a retry, or a lost one. The table may have been deleted or loaded since."""
        if name in self.models and self.sent[name]:
            self.send(name, self.sent[name][pick % len(self.sent[name])])

    @rule(name=names, client=clients)
    def forget(self, name: str, client: str) -> None:
        if name in self.models:
            who = self.registered(name, client)
            assert self.tables.forget(who)
            del self.models[name].known[who]

    def send(self, name: str, request: Request) -> None:
        model, table = self.models[name], self.tables.get(name)
        if not all(row in table.span for row in request["rows"]):
            return
        who, number = request["client"], request["sequence"]
        known = model.known.get(who)
        if known is None or (who in model.over and number not in known):
            with pytest.raises(UnknownClientError):
                table.push(**request)
            return
        assert table.push(**request) == (number not in known)
        if number not in known:
            model.apply(request)
            known.add(number)

    @rule()
    def snapshot(self) -> None:
        self.tables.snapshot(self.snapshot_path, overwrite=True)
        self.saved = copy.deepcopy(self.models)

    @precondition(lambda self: self.saved is not None)
    @rule(crashed=st.booleans())
    def restore(self, crashed: bool) -> None:
        if crashed:
            self.tables = Tables(100_000)
        self.tables.adopt(self.tables.prepare(self.snapshot_path), 0, {})
        self.models = copy.deepcopy(self.saved or {})
        for model in self.models.values():
            model.over = set(model.known)

    @precondition(lambda self: self.saved is not None)
    @rule(pick=seeds)
    def restore_a_damaged_one(self, pick: int) -> None:
        files = sorted(path for path in self.snapshot_path.rglob("*") if path.is_file())
        path = files[pick % len(files)]
        whole = path.read_bytes()
        path.write_bytes(whole[: pick % len(whole)])
        with pytest.raises(DataError, match=path.name):
            self.tables.adopt(self.tables.prepare(self.snapshot_path), 0, {})
        path.write_bytes(whole)

    @invariant()
    def tables_equal_their_models(self) -> None:
        if not hasattr(self, "tables"):
            return
        assert [table.spec.name for table in self.tables.list()] == sorted(self.models)
        assert self.tables.used_bytes == sum(m.spec.nbytes(len(m.values)) for m in self.models.values())
        for name, model in self.models.items():
            table = self.tables.get(name)
            pulled = table.pull(np.arange(model.first, model.first + len(model.values)))
            np.testing.assert_allclose(pulled.values, model.values, rtol=1e-5, atol=1e-5)
            assert table.step == model.step
            assert not model.spec.versioned or np.array_equal(pulled.versions, model.versions)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
