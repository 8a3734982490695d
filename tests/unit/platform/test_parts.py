"""Partitions of a daemon as people write them, and how a cluster file spreads partitions over daemons."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta.errors import ConfigError
from atta.wire.clusterfile import read_cluster
from atta.wire.parts import groups_of, parse_parts, parts_text, spread


@pytest.mark.parametrize(
    ("text", "parts"),
    [("0", range(1)), ("3", range(3, 4)), ("0-2", range(3)), ("0,1,2", range(3)), (" 4 , 5-6", range(4, 7))],
)
def test_ways_to_write_partitions(text: str, parts: range) -> None:
    assert parse_parts(text) == parts


@pytest.mark.parametrize("text", ["", "a", "-1", "1-", "0,", "0-2-3", "1.5", "0;1", "٣"])
def test_what_names_no_partitions(text: str) -> None:
    with pytest.raises(ConfigError, match="names no partitions"):
        parse_parts(text)


@pytest.mark.parametrize("text", ["0,2", "1,0", "0,0", "2-1", "0-1,1-2"])
def test_partitions_of_a_daemon_follow_one_another(text: str) -> None:
    with pytest.raises(ConfigError, match="consecutive partitions in ascending order"):
        parse_parts(text)


def test_a_range_of_absurd_length_is_refused() -> None:
    with pytest.raises(ConfigError, match="too many"):
        parse_parts("0-999999999")


@given(st.integers(0, 50), st.integers(1, 50))
def test_text_and_back(first: int, count: int) -> None:
    parts = range(first, first + count)
    assert parse_parts(parts_text(parts)) == parts


@st.composite
def divisions(draw: st.DrawFn) -> list[range]:
    """The partitions of each daemon of a cluster."""
    found: list[range] = []
    for size in draw(st.lists(st.integers(1, 4), min_size=1, max_size=6)):
        first = found[-1].stop if found else 0
        found.append(range(first, first + size))
    return found


@given(divisions())
def test_partitions_at_one_address_have_one_daemon(division: list[range]) -> None:
    addresses = {part: f"host:{number}" for number, parts in enumerate(division) for part in parts}
    assert groups_of(addresses) == {parts: f"host:{number}" for number, parts in enumerate(division)}
    for served in division:
        assert spread(served, addresses, division[-1].stop) == tuple(division)


@given(divisions(), st.data())
def test_a_daemon_that_is_to_serve_others_than_the_file_says_is_refused(
    division: list[range], data: st.DataObject
) -> None:
    addresses = {part: f"host:{number}" for number, parts in enumerate(division) for part in parts}
    partitions = division[-1].stop
    first = data.draw(st.integers(0, partitions - 1))
    served = range(first, data.draw(st.integers(first + 1, partitions)))
    if served in division:
        assert served in spread(served, addresses, partitions)
        return
    with pytest.raises(ConfigError, match="the cluster file gives one daemon"):
        spread(served, addresses, partitions)


def test_partitions_without_an_address_have_a_daemon_each() -> None:
    assert spread(range(1, 3), {}, 4) == (range(1), range(1, 3), range(3, 4))


@pytest.mark.parametrize(
    ("served", "addresses", "words"),
    [
        (range(3, 5), {}, "partition 4 does not exist: there are 4"),
        (range(2), {0: "a:1", 1: "a:1", 2: "b:1", 3: "c:1", 4: "d:1"}, "names partition 4, the dataset has 4"),
        (range(1), {0: "a:1", 1: "b:1", 2: "a:1", 3: "c:1"}, "a:1 is named for partition 2 too"),
    ],
)
def test_clusters_that_make_no_sense(served: range, addresses: dict[int, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        spread(served, addresses, 4)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("parts = []", "parts = "),
        ("parts = 0", "parts = "),
        ("parts = [true]", "parts = "),
        ("parts = [-1, 0]", "parts = "),
        ("part = 0\nparts = [0]", "parts = "),
        ("parts = [0, 2]", "consecutive partitions"),
        ('parts = [0, 1]\naddress = "b:1"\n[[daemon]]\npart = 1', "named twice"),
        ('part = 0\naddress = "b:1"\n[[daemon]]\npart = 1\naddress = "a:1"\n[[daemon]]\npart = 2', "b:1 is named for"),
    ],
)
def test_mistakes_in_the_partitions_of_a_cluster_file(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "c.toml").write_text(f'[[daemon]]\n{text}\naddress = "b:1"\n')
    with pytest.raises(ConfigError, match=words):
        read_cluster(tmp_path / "c.toml")
