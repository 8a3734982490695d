"""Machines are lost one after another, each with its disk, while a trainer pushes. The backups have what was acknowledged."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from atta.cli.main import cli
from atta.errors import AttaError
from tests.system.conftest import SmallGraph
from tests.system.test_backup import Pair
from tests.system.test_durable import OPS, SPECS, Oracle
from tests.waiting import eventually

LOSSES = 200

Unknown = tuple[str, np.ndarray, np.ndarray, int | None]
"""A push that has failed: nobody knows whether it was applied."""


class Trainer(threading.Thread):
    """Pushes to all tables, one push to each at a time, until its daemon is lost."""

    def __init__(self, pair: Pair, oracle: Oracle, rng: np.random.Generator, rounds: int) -> None:
        super().__init__()
        self._pair, self._oracle, self._rng, self.rounds = pair, oracle, rng, rounds
        self.unknown: list[Unknown] = []

    def run(self) -> None:
        """Push."""
        with self._pair.connect() as cluster:
            for connection in cluster._connections:
                connection._patience_s = 0
            tables = {spec.name: cluster.tables.create(spec) for spec in SPECS}
            while not self.unknown:
                self.rounds += 1
                self._push(tables)

    def _push(self, tables: dict[str, Any]) -> None:
        under_way = []
        for name, table in tables.items():
            rows = self._rng.permutation(table.rows)[:50]
            values = (10 * self._rng.standard_normal((50, *table.spec.row_shape))).astype(table.spec.dtype)
            step = self.rounds if OPS[name] == "step" else None
            push = name, rows, values, step
            try:
                version = self._version() if name == "written" else None
                under_way.append((push, table.push(rows, values, OPS[name], step=step or 0, version=version)))
            except AttaError:
                self.unknown.append(push)
        for push, ticket in under_way:
            try:
                ticket.wait()
                applied(self._oracle, push, self.rounds)
            except AttaError:
                self.unknown.append(push)

    def _version(self) -> int:
        return self.rounds


def applied(oracle: Oracle, push: Unknown, version: int) -> None:
    """The oracle does the same."""
    name, rows, values, step = push
    oracle.push(name, rows, values, step, version=version if name == "written" else None)


def compare(pair: Pair, oracle: Oracle, unknown: list[Unknown], version: int) -> None:
    """What was acknowledged is there once; a push of which nobody knows is there once or not at all."""
    with pair.connect() as cluster:
        for push in unknown:
            name = push[0]
            every = np.arange(oracle.tables[name].rows)
            found = cluster.tables.create(next(spec for spec in SPECS if spec.name == name)).pull(every).values
            if found.tobytes() != oracle.tables[name].pull(every).values.tobytes():
                applied(oracle, push, version)
        oracle.check(cluster)


@pytest.fixture
def pair(small_graph: SmallGraph, tmp_path: Path) -> Iterator[Pair]:
    found = Pair(small_graph.dataset(1, "random"), tmp_path, "--log-size", "1MiB")
    try:
        yield found
    finally:
        for address in list(found.children):
            found.kill(address)


def is_copied(pair: Pair) -> bool:
    with pair.connect() as cluster:
        stats = cluster._connections[0].stats()
        return stats.get("backup_lag") == 0 and stats.get("backup_away") == 0


def lose(pair: Pair, folders: dict[str, str]) -> None:
    """The primary's machine is gone; its backup takes over, and gets a new machine as its backup."""
    pair.kill(pair.primary)
    shutil.rmtree(pair.folder / folders[pair.primary])
    told = CliRunner().invoke(cli, ["tables", "promote", "--cluster", str(pair.file), "--part", "0"])
    assert told.exception is None, told.output
    pair.kill(pair.backup)
    pair.primary, pair.backup = pair.backup, pair.primary
    replica = ("--durability", "replica", "--backup", pair.backup, *pair.options)
    pair._start(pair.primary, folders[pair.primary], *replica)
    pair._start(pair.backup, folders[pair.backup], "--keep-backup")


def lost_again_and_again(pair: Pair, seed: int, losses: int) -> None:
    rng, oracle, rounds = np.random.default_rng(seed), Oracle(), 0
    folders = {pair.primary: "one", pair.backup: "two"}
    for _ in range(losses):
        assert eventually(lambda: is_copied(pair), 60)
        trainer = Trainer(pair, oracle, rng, rounds)
        trainer.start()
        threading.Event().wait(float(np.random.default_rng(rounds).uniform(0.2, 1.0)))
        lose(pair, folders)
        trainer.join(120)
        assert not trainer.is_alive()
        rounds = trainer.rounds
        compare(pair, oracle, trainer.unknown, rounds)
    assert rounds > losses


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_machines_are_lost_one_after_another(pair: Pair, seed: int) -> None:
    lost_again_and_again(pair, seed, LOSSES)
