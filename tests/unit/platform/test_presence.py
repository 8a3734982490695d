"""Log messages about a peer that comes and goes."""

from __future__ import annotations

from atta.daemon.peers.watching import Presence, Return


def test_a_peer_that_goes_and_comes_back_is_spoken_of_twice() -> None:
    presence = Presence()
    assert presence.met(1.0, "aa") is None
    assert [presence.lost(10.0), presence.lost(11.0), presence.lost(12.0)] == [True, False, False]
    assert presence.met(14.0, "aa") == Return(4.0, restarted=False)
    assert presence.met(15.0, "aa") is None
    assert presence.lost(20.0)
    assert presence.met(29.0, "bb") == Return(9.0, restarted=True)


def test_a_restart_between_two_requests_is_noticed() -> None:
    presence = Presence()
    presence.met(1.0, "aa")
    assert presence.met(2.0, "bb") == Return(0.0, restarted=True)
    assert presence.met(3.0, "bb") is None


def test_a_peer_that_was_away_from_the_beginning_has_not_been_restarted() -> None:
    presence = Presence()
    assert presence.lost(0.0)
    assert presence.met(5.0, "aa") == Return(5.0, restarted=False)
