"""Which daemon a request means, and which one may answer it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta.errors import ConfigError, RestartedError, WrongDatasetError
from atta.wire.identity import Bound, Identity, check, new_incarnation

ME = Identity(1, "d1", "aa")
words = st.text(st.characters(categories=("Ll", "Nd")), max_size=5)


@given(st.none() | st.integers(0, 10**6), words, words)
def test_a_name_is_understood_as_it_was_meant(part: int | None, dataset_id: str, incarnation: str) -> None:
    meant = Identity(part, dataset_id, incarnation)
    assert Identity.parse(meant.named(Bound.PROCESS)) == meant
    assert Identity.parse(meant.named(Bound.DATA)) == Identity(part, dataset_id)


@given(
    st.sampled_from(Bound),
    st.sampled_from([None, 0, 1]),
    st.sampled_from(["", "d1", "d2"]),
    st.sampled_from(["", "aa", "bb"]),
)
def test_who_is_refused(bound: Bound, part: int | None, dataset_id: str, incarnation: str) -> None:
    """Against the rules of the documentation."""
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


def test_a_refusal_names_both() -> None:
    with pytest.raises(
        WrongDatasetError, match="a:1: serves partition 1 of dataset d1, incarnation aa, not partition 0 of dataset d2"
    ):
        check(ME, Identity(0, "d2"), Bound.DATA, "a:1")
    with pytest.raises(WrongDatasetError, match="does not say whom it means"):
        check(ME, Identity(), Bound.DATA, "a:1")
    with pytest.raises(RestartedError, match="incarnation aa of the daemon of partition 1, not bb"):
        check(ME, Identity(1, "d1", "bb"), Bound.PROCESS, "a:1")


@pytest.mark.parametrize("text", ["", "1", "1/d", "1/d/i/x", "one/d/i", "-1/d/i", "1.0/d/i", "²/d/i", "9999999999/d/i"])
def test_malformed_names(text: str) -> None:
    with pytest.raises(ConfigError, match="PART/DATASET/INCARNATION"):
        Identity.parse(text)


def test_incarnations_differ() -> None:
    assert len({new_incarnation() for _ in range(100)}) == 100
