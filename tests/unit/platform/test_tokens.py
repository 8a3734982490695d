"""Tokens of links against a plain list of what was given out."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from atta.daemon.peers.sockets import MOST_TOKENS, SECRET_BYTES, TOKEN_BYTES, TOKEN_S, Grant, Tokens
from tests.unit.invariants import validate


class TokensMachine(RuleBasedStateMachine):
    """Tokens are given out, used, used again and forgotten, while time goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.now = Tokens(), 0.0
        self.given: list[tuple[bytes, float, Grant]] = []
        self.used: list[bytes] = []

    @rule(count=st.sampled_from([1, 2, MOST_TOKENS - 1, MOST_TOKENS]))
    def give(self, count: int) -> None:
        for peer in range(count):
            grant = Grant(peer, bytes([peer % 256]) * SECRET_BYTES)
            self.given.append((self.tokens.new(self.now, grant), self.now + TOKEN_S, grant))
        self.given = [given for given in self.given if given[1] > self.now][-MOST_TOKENS:]

    @rule(seconds=st.sampled_from([0.0, 0.1, TOKEN_S / 2, TOKEN_S]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(at=st.integers(0, 2 * MOST_TOKENS))
    def take(self, at: int) -> None:
        if self.given:
            token, end, grant = self.given.pop(at % len(self.given))
            assert self.tokens.take(token, self.now) == (grant if end > self.now else None)
            self.used.append(token)

    @rule(token=st.binary(max_size=2 * TOKEN_BYTES))
    def guess(self, token: bytes) -> None:
        assert self.tokens.take(token, self.now) is None

    @rule(at=st.integers(0, 10))
    def take_again(self, at: int) -> None:
        if self.used:
            assert self.tokens.take(self.used[at % len(self.used)], self.now) is None

    @invariant()
    def sound(self) -> None:
        validate(self.tokens)


TestTokens = TokensMachine.TestCase
TestTokens.settings = settings(max_examples=20, stateful_step_count=25)


def test_the_oldest_of_as_many_tokens_as_there_may_be_is_good() -> None:
    tokens = Tokens()
    grant = Grant(3)
    given = [tokens.new(0.0, grant) for _ in range(MOST_TOKENS)]
    assert tokens.take(given[0], 1.0) == grant
    more = [tokens.new(1.0, grant), tokens.new(1.0, grant)]
    assert tokens.take(given[1], 1.0) is None  # the oldest made room
    assert all(tokens.take(token, 1.0) == grant for token in (*more, *given[2:]))


def test_a_secret_is_not_printed() -> None:
    assert "77" not in repr(Grant(3, b"7" * SECRET_BYTES))
