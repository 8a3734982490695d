"""Rolling restarts: the order, refusals, and the whole course with daemons that exist in numbers only."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from atta.cli.cluster.roll import LocalProcess, RunningFleet, _patient, is_gone
from atta.cli.cluster.rolling import Phase, Restart, Roll, Seen, in_order, not_seen, refusal
from atta.cli.main import cli
from atta.errors import AttaError, ConfigError
from atta.wire.parts import Addresses
from tests.waiting import eventually

TWO_BY_TWO: dict[int, Addresses] = {0: ("a:1", "a:2"), 1: ("b:1", "b:2")}


@dataclass
class FakeFleet:
    """Daemons that drain, start and find each other in given times. Time passes when somebody sleeps."""

    seen: dict[str, Seen]
    takes_s: Callable[[], float] = lambda: 1.0
    now: float = 0.0
    log: list[tuple[str, str]] = field(default_factory=list)
    _then: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    _unknown: set[str] = field(default_factory=set)
    supervised: bool = False
    comes_back: bool = True

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        due = [event for event in self._then if event[0] <= self.now]
        self._then = [event for event in self._then if event[0] > self.now]
        for _, event in sorted(due, key=lambda one: one[0]):
            event()

    def look(self) -> list[Seen]:
        return list(self.seen.values())

    def _set(self, address: str, **changes: object) -> None:
        self.seen[address] = replace(self.seen[address], **changes)  # type: ignore[arg-type]

    def stop(self, daemon: Seen) -> None:
        address = daemon.address
        self.log.append(("stop", address))
        ready = {one.part for one in self.seen.values() if one.ready and one.address != address}
        self.log += [("pause", address)] if daemon.part not in ready else []
        self._set(address, draining=True)
        quiet, gone = self.now + self.takes_s(), self.now + 2 * self.takes_s()
        self._then.append((quiet, lambda: self._set(address, incarnation="", draining=False, leaving=True)))
        self._then.append((max(quiet, gone), lambda: self._gone(address)))

    def _gone(self, address: str) -> None:
        self._set(address, leaving=False)
        if self.supervised:
            self._begin(address)

    def start(self, daemon: Seen) -> None:
        assert not self.seen[daemon.address].incarnation or self.supervised
        assert not self.seen[daemon.address].leaving, "the process of before still holds the address"
        self.log.append(("start", daemon.address))
        if not self.supervised and self.comes_back:
            self._begin(daemon.address)

    def _begin(self, address: str) -> None:
        served = self.now + self.takes_s()

        def serve() -> None:
            self._unknown.add(address)
            self._set(address, incarnation=f"{address} after {self.now}", version="2")
            self._then.append((self.now + self.takes_s(), lambda: self._unknown.discard(address)))

        self._then.append((served, serve))

    def unreached(self) -> list[str]:
        return sorted(self._unknown)

    def roll(self, addresses: dict[int, Addresses], **options: object) -> Roll:
        settings: dict[str, object] = {"allow_pause": False, "timeout_s": 30.0, "tell": lambda line: None, **options}
        return Roll(self, addresses, clock=lambda: self.now, sleep=self.sleep, **settings)  # type: ignore[arg-type]


def fleet(addresses: dict[int, Addresses], **options: object) -> FakeFleet:
    places = [(part, address) for part, address in in_order(addresses)]
    return FakeFleet({a: Seen(p, a, incarnation=f"{a} before", version="1") for p, a in places}, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(30))
def test_one_after_another_and_no_part_is_ever_without_a_daemon(seed: int) -> None:
    draw = random.Random(seed)
    found = fleet(TWO_BY_TWO, takes_s=lambda: draw.uniform(0, 5), supervised=seed % 2 == 1)
    rolled = found.roll(TWO_BY_TWO).run()
    assert [one.address for one in rolled] == ["a:2", "a:1", "b:2", "b:1"]
    assert [address for what, address in found.log if what == "stop"] == ["a:2", "a:1", "b:2", "b:1"]
    assert not [entry for entry in found.log if entry[0] == "pause"]
    assert {one.incarnation.split()[1] for one in found.look()} == {"after"}
    assert all((one.version_before, one.version) == ("1", "2") for one in rolled)
    assert all(one.stopping_s > 0 or one.starting_s > 0 or one.joining_s > 0 for one in rolled)


def test_the_only_daemon_of_a_part_is_restarted_only_if_a_pause_is_allowed() -> None:
    alone: dict[int, Addresses] = {0: ("a:1", "a:2"), 1: "b:1"}
    found = fleet(alone)
    with pytest.raises(ConfigError, match="part 1 would be without a daemon while b:1 restarts: no replica"):
        found.roll(alone).run()
    assert not found.log, "something was stopped before the refusal"
    found.roll(alone, allow_pause=True).run()
    assert ("pause", "b:1") in found.log


def test_a_daemon_that_is_down_is_started_and_is_no_replica() -> None:
    found = fleet(TWO_BY_TWO)
    found.seen["a:2"] = Seen(0, "a:2")
    found.roll(TWO_BY_TWO).run()
    assert found.log[0] == ("start", "a:2")
    seen = [Seen(0, "a:1", "x"), Seen(0, "a:2", "y", draining=True), Seen(0, "a:3")]
    assert "none of its replicas is ready (a:2, a:3)" in refusal(seen, 0, "a:1")
    assert refusal(seen, 0, "a:3") == "", "a daemon that is down may always be started"
    assert refusal([*seen, Seen(0, "a:4", "z")], 0, "a:1") == ""
    seen = [Seen(0, "a:1", "x"), Seen(0, "a:2"), Seen(1, "b:1")]
    assert not_seen(seen, ["a:2", "b:1"]) == ["a:2"]


def test_who_does_not_come_back_ends_it_and_an_interrupt_waits() -> None:
    found = fleet(TWO_BY_TWO, comes_back=False)
    with pytest.raises(AttaError, match=r"part 0 at a:2: still starting after 30 s .*the other 3 daemons"):
        found.roll(TWO_BY_TWO).run()
    assert [one.address for one in found.look() if one.ready] == ["a:1", "b:2", "b:1"]
    found = fleet(TWO_BY_TWO)
    rolling = found.roll(TWO_BY_TWO)
    with pytest.raises(KeyboardInterrupt):
        rolling.run(lambda: any(what == "stop" for what, _ in found.log))
    assert [one.address for one in rolling.rolled] == ["a:2"]
    assert all(one.ready for one in found.look())


def test_the_first_ctrl_c_is_noted_and_the_second_interrupts() -> None:
    told: list[str] = []
    before = signal.getsignal(signal.SIGINT)
    with _patient(told.append) as interrupted:
        assert not interrupted()
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupted()
        assert len(told) == 1
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("seed", range(50))
def test_a_restart_never_takes_the_old_process_for_the_new_one(seed: int) -> None:
    """Against a brute-force reading of the whole history."""
    draw, restart, history = random.Random(seed), Restart("old"), list[Seen]()
    for _ in range(40):
        incarnation = draw.choice(["old", "old", "", "new"])
        history.append(
            Seen(0, "a:1", incarnation, draining=draw.random() < 0.3, leaving=not incarnation and draw.random() < 0.5)
        )
        restart.look(history[-1])
        assert (restart.phase is Phase.JOINING) == bool(restart.after), f"{restart.phase} with {restart.after!r}"
        assert restart.after != "old", "the process of before counts as its successor"
        served = any(one.incarnation == "new" and not one.draining for one in history)
        gone = any(not one.incarnation and not one.leaving for one in history)
        assert (restart.phase is Phase.JOINING) == served
        assert (restart.phase is Phase.STARTING) == (gone and not served)
    restart.joined(["b:1"])
    assert restart.phase is not Phase.DONE


def test_a_process_is_started_again_as_it_ran(tmp_path: Path) -> None:
    """The same words, folder, environment and streams; it ends when the standard input of before does."""
    out = tmp_path / "out"
    code = "import os, sys; print(os.environ['WHO'], os.getcwd(), sys.argv[1], flush=True); sys.stdin.read()"
    with out.open("ab") as stream:
        child = subprocess.Popen(
            [sys.executable, "-c", code, "a word", "serve"],
            stdin=subprocess.PIPE,
            stdout=stream,
            cwd=tmp_path,
            env={**os.environ, "WHO": "me"},
        )
    assert eventually(lambda: len(out.read_text().splitlines()) == 1)
    process = LocalProcess(Seen(0, "a:1", "x", pid=child.pid))
    child.kill()
    assert eventually(lambda: is_gone(child.pid))
    process.start()
    assert eventually(lambda: len(out.read_text().splitlines()) == 2)
    one, two = out.read_text().splitlines()
    assert one == two == f"me {tmp_path} a word"
    child.stdin.close()
    child.wait()
    with pytest.raises(ConfigError, match="is not atta serve"):
        LocalProcess(Seen(0, "a:1", "x", pid=os.getpid()))
    with pytest.raises(ConfigError, match="does not run on this machine"):
        LocalProcess(Seen(0, "a:1", "x"))


def test_mistakes_are_refused_before_anything_stops() -> None:
    with pytest.raises(ConfigError, match=r"give \{part\}, \{address\}, \{host\}"):
        RunningFleet({0: "a:1"}, None, command="start {number}", local=False)
    result = CliRunner().invoke(cli, ["roll", "a:1", "--command", "x", "--local"])
    assert isinstance(result.exception, ConfigError)
