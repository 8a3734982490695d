"""Tokens of links against a plain list of what was given out."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from atta.daemon.links.tokens import MOST, TOKEN_BYTES, TOKEN_S, Tokens


class TokensMachine(RuleBasedStateMachine):
    """Tokens are given out, used, used again and forgotten, while time goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.now = Tokens(), 0.0
        self.given: list[tuple[bytes, float]] = []
        self.used: list[bytes] = []

    @rule(count=st.sampled_from([1, 2, MOST - 1, MOST]))
    def give(self, count: int) -> None:
        for _ in range(count):
            self.given.append((self.tokens.new(self.now), self.now + TOKEN_S))
        self.given = [(token, end) for token, end in self.given if end > self.now][-MOST:]

    @rule(seconds=st.sampled_from([0.0, 0.1, TOKEN_S / 2, TOKEN_S]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(at=st.integers(0, 2 * MOST))
    def take(self, at: int) -> None:
        if self.given:
            token, end = self.given.pop(at % len(self.given))
            assert self.tokens.take(token, self.now) == (end > self.now)
            self.used.append(token)

    @rule(token=st.binary(max_size=2 * TOKEN_BYTES))
    def guess(self, token: bytes) -> None:
        assert not self.tokens.take(token, self.now)

    @rule(at=st.integers(0, 10))
    def take_again(self, at: int) -> None:
        if self.used:
            assert not self.tokens.take(self.used[at % len(self.used)], self.now)

    @invariant()
    def sound(self) -> None:
        self.tokens.validate()


TestTokens = TokensMachine.TestCase
TestTokens.settings = settings(max_examples=20, stateful_step_count=25)


def test_the_oldest_of_as_many_tokens_as_there_may_be_is_good() -> None:
    tokens = Tokens()
    given = [tokens.new(0.0) for _ in range(MOST)]
    assert tokens.take(given[0], 1.0)
    more = [tokens.new(1.0), tokens.new(1.0)]
    assert not tokens.take(given[1], 1.0)  # the oldest made room
    assert all(tokens.take(token, 1.0) for token in (*more, *given[2:]))
