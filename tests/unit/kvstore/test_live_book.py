"""Histories of publish, open, read and close against dicts of arrays; memory by what the book says is needed."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from atta.errors import QuotaExceededError, UnknownNameError
from atta.kvstore.live.book import IDLE_S, MOST_IN_USE, Rows, TableName, VersionBook, source_of

TABLES: list[TableName] = [("node", "x"), ("node", "y"), ("other", "x")]
tables = st.sampled_from(TABLES)


class Versions(RuleBasedStateMachine):
    """A daemon that does what its book says, and what all versions hold as plain arrays."""

    @initialize()
    def begin(self) -> None:
        self.book, self.now = VersionBook(), 0.0
        self.memory: dict[Rows, np.ndarray] = {}
        self.disk = {0: {}}  # version -> table -> source
        self.files = {(*table, 0): np.zeros(3) for table in TABLES}  # what each version has written
        self.truth = {0: {table: np.zeros(3) for table in TABLES}}
        self.sessions: list[tuple[int, dict[TableName, np.ndarray]]] = []
        self.peers: list[int] = []

    def follow(self) -> None:
        needed = self.book.needed(self.now)
        self.memory = {rows: self.files[rows] for rows in needed}

    def can_be_read(self, number: int) -> bool:
        """Whether the book knows a version, and no file that it needs has been pruned."""
        known = self.book.known
        if number not in known or number == max(known) or any(number == n for n, _ in self.sessions):
            return number in known
        return all(source in known for source in known[number].values())

    @rule(table=tables, value=st.floats(-9, 9), dies=st.sampled_from(["no", "prepared", "committed"]))
    def publish(self, table: TableName, value: float, dies: str) -> None:
        number = max(self.disk) + 1
        sources = {**self.disk[max(self.disk)], table: number}
        self.files[*table, number] = np.full(3, value)
        read = {n for n, _ in self.sessions} | {self.book.newest}
        if len(read) >= MOST_IN_USE:
            with pytest.raises(QuotaExceededError):
                self.book.prepare(number, sources)
            return
        before = self.book.newest
        self.book.prepare(number, sources)
        assert self.book.newest == before, "a prepared version is not in force"
        with pytest.raises(UnknownNameError):
            self.book.open(number)
        self.follow()
        assert np.array_equal(self.memory[*table, number], np.full(3, value))
        if dies == "prepared":  # whoever publishes dies: the next version has the same number
            return
        self.disk[number] = sources
        self.truth[number] = {**self.truth[max(self.truth)], table: np.full(3, value)}
        if dies == "no":
            self.book.refresh({n: s for n, s in self.disk.items() if n})
        self.follow()

    @rule()
    def abort(self) -> None:
        self.book.abort(max(self.disk) + 1)
        self.follow()

    @rule()
    def look(self) -> None:
        self.book.refresh({n: s for n, s in self.disk.items() if n})
        assert self.book.newest == max(self.disk)
        self.follow()

    @rule(data=st.data(), newest=st.booleans())
    def open(self, data: st.DataObject, newest: bool) -> None:
        wanted = None if newest else data.draw(st.integers(0, max(self.disk) + 2))
        if wanted is not None and not self.can_be_read(wanted):
            with pytest.raises(UnknownNameError, match="version"):
                self.book.open(wanted)
            return
        read = {n for n, _ in self.sessions} | {self.book.newest}
        if wanted is not None and wanted not in read and len(read) >= MOST_IN_USE:
            with pytest.raises(QuotaExceededError):
                self.book.open(wanted)
            return
        number = self.book.open(wanted)
        assert number == (self.book.newest if wanted is None else wanted)
        self.sessions.append((number, self.truth[number]))
        self.follow()

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        number, _ = self.sessions.pop(data.draw(st.integers(0, len(self.sessions) - 1)))
        self.book.close(number)
        self.follow()

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def peer_pulls(self, data: st.DataObject) -> None:
        """A pull names the newest source of its tables: it has the rows of the session's version."""
        number, truth = self.sessions[data.draw(st.integers(0, len(self.sessions) - 1))]
        names = data.draw(st.sampled_from([("x",), ("y",), ("x", "y")]))
        source = source_of(self.book.sources(number), "node", names)
        assert source <= number
        there = self.book.sources(source) if source else {}
        for name in names:
            rows = ("node", name, there.get(("node", name), 0))
            assert np.array_equal(self.files[rows], truth["node", name])
            self.book.asked([rows], self.now)
        self.follow()

    @rule()
    def prune(self) -> None:
        """Versions that nobody reads go from the disk, but not the newest, nor a source of one that stays."""
        stays = {0, max(self.disk)} | {n for n, _ in self.sessions}
        stays |= {source for n in stays for source in self.disk[n].values()}
        self.disk = {n: s for n, s in self.disk.items() if n in stays}
        self.book.refresh({n: s for n, s in self.disk.items() if n})
        self.follow()

    @rule()
    def time_passes(self) -> None:
        self.now += IDLE_S
        self.follow()

    @invariant()
    def sessions_read_one_version(self) -> None:
        for number, truth in self.sessions:
            sources = self.book.sources(number)
            for table in TABLES:
                source = sources.get(table, 0)
                rows = self.memory[*table, source] if source else self.files[*table, 0]
                assert np.array_equal(rows, truth[table])

    @invariant()
    def memory_is_back(self) -> None:
        assert self.book.readers == Counter(number for number, _ in self.sessions)
        used = [self.book.sources(n) for n in {self.book.newest, *self.book.in_use()}]
        used += [self.book.prepared[1]] if self.book.prepared else []
        most = {(*table, source) for sources in used for table, source in sources.items()}
        asked = {rows for rows, at in self.book._asked.items() if self.now - at < IDLE_S}
        assert self.memory.keys() == most | asked


TestVersions = Versions.TestCase
