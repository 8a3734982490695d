"""What Atta decides on Ray, without Ray: addresses, restarts, places."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta.errors import AttaError, ConfigError, DataError, NonFiniteError, UnavailableError
from atta.partition.graph.needs import BARE_BYTES, Needs
from atta.samplers.seed_plan import home_of
from atta.train.launching.failure import Attempts
from atta.train.launching.on_ray import keepers
from atta.train.launching.on_ray.placement import (
    SILENT_S,
    Care,
    NextStep,
    Registry,
    bundles,
    check_name,
    home_nodes,
    ranks_on,
)
from atta.wire.clusterfile import is_named, resolve_target


def test_a_silent_daemon_has_no_address_until_it_is_announced_elsewhere() -> None:
    registry = Registry(2, {"ca": "x"})
    assert registry.announce(1, "b:1", "n1", 0.0) == []
    assert registry.announce(0, "a:1", "n0", SILENT_S - 1) == ["a:1", "b:1"]
    assert registry.known(SILENT_S - 1) == {"addresses": ["a:1", "b:1"], "nodes": ["n0", "n1"], "tls": {"ca": "x"}}
    assert registry.known(SILENT_S)["addresses"] == []
    assert registry.announce(1, "c:7", "m", SILENT_S) == ["a:1", "c:7"]
    for part, address in ((2, "a:1"), (-1, "a:1"), (0, "nowhere")):
        with pytest.raises(ConfigError):
            registry.announce(part, address, "n")


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), st.floats(0, 20)), max_size=30))
def test_a_registry_agrees_with_the_latest_announcements(events: list[tuple[int, int, float]]) -> None:
    """An address belongs to the daemon that announced it last."""
    registry, latest, now = Registry(3, {}), dict[int, tuple[str, float]](), 0.0
    for part, number, waited in events:
        now += waited
        address = f"h:{number}"
        latest = {p: known for p, known in latest.items() if known[0] != address or p == part}
        latest[part] = (address, now)
        fresh = [latest[p][0] for p in range(3) if p in latest and now - latest[p][1] < SILENT_S]
        assert registry.announce(part, address, "n", now) == (fresh if len(fresh) == 3 else [])


def test_a_daemon_starts_when_all_addresses_are_known_and_again_after_each_end() -> None:
    care = Care(0)
    assert care.decide(0.0) is NextStep.WAIT
    care.told(("a:1", "b:1"))
    assert care.decide(0.0) is NextStep.START
    assert care.started(0.0) == ("a:1", "b:1")
    assert care.decide(5.0) is NextStep.WAIT
    now = 5.0
    for wait in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0):  # it ends at once, again and again: there is no limit
        care.ended(now)
        assert care.decide(now + wait - 0.01) is NextStep.WAIT
        assert care.decide(now + wait) is NextStep.START
        care.started(now + wait)
        now += wait
    assert care.failures == 8
    care.ended(now + 60.0)  # it had run well
    assert care.failures == 0
    assert care.decide(now + 61.0) is NextStep.START


def test_a_daemon_restarts_when_a_peer_has_moved_but_not_for_its_own_address() -> None:
    care = Care(1)
    care.told(("a:1", "b:1"))
    care.started(0.0)
    care.told(())  # unknown for a while: what was known holds
    assert care.decide(1.0) is NextStep.WAIT
    care.told(("a:1", "b:2"))
    assert care.decide(1.0) is NextStep.WAIT
    care.told(("c:1", "b:2"))
    assert care.decide(1.0) is NextStep.STOP
    assert care.decide(1.0) is NextStep.WAIT  # once
    care.ended(2.0)
    assert (care.failures, care.decide(2.0)) == (0, NextStep.START)
    assert care.started(2.0) == ("c:1", "b:2")


def test_training_goes_on_after_losses_and_not_after_mistakes() -> None:
    attempts = Attempts(2)
    assert [attempts.again(AttaError("lost")) for _ in range(3)] == [True, True, False]
    assert attempts.restarts == 2
    for mistake in (ConfigError("no"), DataError("x", "no"), NonFiniteError(0, 1, 2, "rows")):
        assert not Attempts(9).again(mistake)
    with pytest.raises(ConfigError):
        Attempts(-1)
    for first in ("a", ""):  # only a checkpoint of this run is resumed
        fresh = Attempts(1)
        assert [fresh.resumes(found) for found in (first, first, "b")] == [False, False, True]


def test_daemons_ask_for_what_the_manifest_says_and_names_are_checked() -> None:
    assert bundles([Needs(100, 10, 5), Needs(200, 10, 50)], threads=2, cache=20, buffer=8) == [
        {"CPU": 2.0, "memory": BARE_BYTES + 127.0},
        {"CPU": 2.0, "memory": BARE_BYTES + 242.0},
    ]
    with pytest.raises(ConfigError, match="threads"):
        bundles([], 0, 0, 0)
    assert check_name("products-2.x_1") == "products-2.x_1"
    for name in ("", "-x", "a/b", "a b", "a" * 101):
        with pytest.raises(ConfigError, match="name"):
            check_name(name)


def test_ranks_count_those_of_their_own_node() -> None:
    found = ranks_on(["x", "y", "x", "x"])
    assert found == [(0, 4, 0, 3), (1, 4, 0, 1), (2, 4, 1, 3), (3, 4, 2, 3)]
    assert found[2].environment() == {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "3"}
    nodes = ["x", "y", "x", "z"]
    for trainers in (1, 2, 3, 4, 6, 8):  # beside their home daemons
        assert home_nodes(trainers, nodes) == [nodes[home_of(rank, trainers, 4)] for rank in range(trainers)]


def test_a_named_target_without_ray_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_named("ray:x")
    assert not is_named("x:1")
    monkeypatch.setitem(sys.modules, "ray", None)  # Python does this for a missing package
    with pytest.raises(ConfigError, match=r"atta\[ray\]"):
        resolve_target("ray:products")
    with pytest.raises(ConfigError, match="name a cluster"):
        resolve_target("ray:")

    class Ray:
        def is_initialized(self) -> bool:
            return False

        def init(self, **given: object) -> None:
            raise ConnectionError("Could not find any running Ray instance.\nPlease")

    monkeypatch.setattr("atta.wire.clusterfile.load", lambda *_: Ray())
    with pytest.raises(UnavailableError, match="no cluster to connect to: Could not find"):
        resolve_target("ray:products")


def test_a_tethered_program_ends_with_its_parent() -> None:
    program = (
        "import subprocess, sys, os, signal; from atta.observe.machine.ending import tethered;"
        "subprocess.Popen(tethered(('-c', 'import time; print(1, flush=True); time.sleep(60)')));"
        "sys.stdin.read(1); os.kill(os.getpid(), signal.SIGKILL)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout.readline() == b"1\n"
        parent.communicate(b"x", timeout=30)  # returns when nobody holds the pipe any more
        assert parent.returncode == -9


def test_the_front_of_ray_does_not_import_ray() -> None:
    program = (
        "import sys, atta; ray = atta.ray; from atta.ray import serve;"
        "assert ray.serve is serve and sys.modules['atta.ray'] is ray; print('ray' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True).stdout == b"False\n"


def test_a_keeper_that_has_stopped_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(keepers, "LOOK_S", 60.0)  # nothing is started meanwhile
    for name, found in (("_host", "127.0.0.1"), ("_node", "n0")):
        monkeypatch.setattr(keepers, name, lambda found=found: found)
    keeper = keepers.DaemonKeeper(0, [], "small")
    [folder] = tmp_path.iterdir()
    (folder / "cluster.toml").touch()
    keeper.stop()
    assert [*tmp_path.iterdir()] == []
    assert keeper.state()["words"] == ""
