"""Votes about who takes over: one for each epoch of a store, also if the voter is started again."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta.errors import DataError
from atta.kvstore.durable import backup, logfile
from atta.kvstore.durable.backup import Ballot, VoteBook, is_majority

STORES = [bytes([n]) * 16 for n in range(3)]
ballots = st.builds(Ballot, st.sampled_from(STORES), st.integers(0, 4), st.sampled_from(["a:1", "b:1", "c:1"]))


@given(asked=st.lists(st.tuples(ballots, st.booleans()), max_size=30))
def test_one_candidate_has_a_vote_in_an_epoch(asked: list[tuple[Ballot, bool]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "deep" / "part-0000.votes"
        book = VoteBook(path)
        given_to: dict[tuple[bytes, int], str] = {}
        for ballot, restarts in asked:
            if restarts:
                book = VoteBook(path)
            latest = max((epoch for store, epoch in given_to if store == ballot.store), default=-1)
            refused = book.give(ballot)
            holder = given_to.get((ballot.store, ballot.epoch))
            assert (refused == "") == (ballot.epoch > latest or (holder == ballot.candidate and ballot.epoch == latest))
            if not refused:
                given_to[ballot.store, ballot.epoch] = ballot.candidate


@given(daemons=st.integers(1, 9), votes=st.integers(0, 9))
def test_two_majorities_share_a_daemon(daemons: int, votes: int) -> None:
    if votes <= daemons and is_majority(votes, daemons):
        assert daemons >= 3
        assert not is_majority(daemons - votes, daemons)


def test_a_vote_that_cannot_be_written_is_not_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book, ballot = VoteBook(tmp_path / "votes"), Ballot(STORES[0], 1, "a:1")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(logfile, "write_sealed", full)
        with pytest.raises(DataError, match="no space left"):
            book.give(ballot)
    assert book.give(Ballot(STORES[0], 1, "b:1")) == ""
    assert VoteBook(tmp_path / "votes").give(ballot) == "voted for b:1 already"
    content = (tmp_path / "votes").read_text()
    (tmp_path / "votes").write_text(content.replace("b:1", "a:1"))
    with pytest.raises(DataError, match="altered"):
        VoteBook(tmp_path / "votes").give(ballot)


def test_votes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup, "MOST_STORES", 2)
    book = VoteBook(tmp_path / "votes")
    assert [book.give(Ballot(store, 1, "a:1")) for store in STORES] == ["", "", "has votes for 2 stores of tables"]
    assert book.give(Ballot(STORES[0], 2, "b:1")) == ""
