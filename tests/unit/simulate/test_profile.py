"""Profiles on disk: reading gives back what was written, and errors name the fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from atta.errors import ConfigError, DataError
from atta.scheduler import SchedulerConfig
from atta.simulate import Profile, Scenario, load_profile, save_profile
from tests.unit.simulate.scenarios import PROFILE


def test_round_trip(tmp_path: Path) -> None:
    save_profile(tmp_path / "p.json", PROFILE)
    assert load_profile(tmp_path / "p.json") == PROFILE


def spoil(tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / "p.json"
    save_profile(path, PROFILE)
    document = json.loads(path.read_text())
    for name, value in changes.items():
        *way, last = name.split("__")
        place = document
        for key in way:
            place = place[int(key) if key.isdigit() else key]
        if value is None:
            del place[last]
        else:
            place[last] = value
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(("changes", "said"), [
    ({"format": "other"}, "is not a profile"),
    ({"version": 2}, "version 2, this release reads version 3"),
    ({"version": None}, "version None"),
    ({"loop__task": 1.0}, "did you mean 'task_us'"),
    ({"loop__task_us": -1}, "loop.task_us is -1"),
    ({"hops": None}, "'hops' is missing"),
    ({"hop": []}, "did you mean 'hops'"),
    ({"hops__1__home": 1.5}, r"hops\[1\].home is 1.5"),
    ({"hops__1__new": "many"}, r'hops\[1\].new is "many", must be a number'),
    ({"hops__1__new": -1}, r"hops\[1\].new is -1"),
    ({"hops": []}, "must have 4 entries"),
    ({"batch_size": 0}, "batch_size is 0"),
    ({"batch_size": 1.5}, "batch_size is 1.5, must be a whole number"),
    ({"batch_size": True}, "batch_size is true"),
    ({"fan_outs": 15}, "fan_outs is 15, must be a list"),
    ({"fan_outs": [15, 0, 5]}, "fan_outs is 0"),
    ({"local__seed__fixed": 1.0}, "did you mean 'fixed_us'"),
    ({"local__jion": {}}, "did you mean 'join'"),
    ({"local__seed": 3}, "local.seed is 3, must be an object"),
    ({"remote__feature__serve__us_per_unit": -0.5}, "remote.feature.serve.us_per_unit is -0.5"),
    ({"cache_hit": 2}, "cache_hit is 2"),
    ({"crowding": 0.5}, "crowding is 0.5, must be at least 1"),
    ({"wake_us": -1}, "wake_us is -1"),
])  # fmt: skip
def test_what_is_wrong_is_named(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    path = spoil(tmp_path, **changes)
    with pytest.raises(DataError, match=said) as caught:
        load_profile(path)
    assert caught.value.path == str(path)


def test_no_file_and_no_json(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot read"):
        load_profile(tmp_path / "absent.json")
    (tmp_path / "p.json").write_text("{")
    with pytest.raises(DataError, match="not JSON"):
        load_profile(tmp_path / "p.json")
    (tmp_path / "p.json").write_text("[]")
    with pytest.raises(DataError, match="not a profile"):
        load_profile(tmp_path / "p.json")


@pytest.mark.parametrize("options", [
    {"machines": 0}, {"cores": 0}, {"batches": 0}, {"link": 0.0}, {"rtt_s": -1.0}, {"cache_hit": 1.5},
    {"fan_outs": (0,)}, {"train_s": float("inf")}, {"neighbours": 0}, {"peers": 0},
])  # fmt: skip
def test_scenarios_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Scenario(PROFILE, scheduler=SchedulerConfig(), **options)


def test_profiles_that_make_no_sense() -> None:
    with pytest.raises(ConfigError, match="batch_bytes is nan"):
        Profile(1, (), PROFILE.hops[:1], {}, batch_bytes=float("nan"))
