"""Plans and invariants of chaos. Each checker is shown violations, and must tell them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st

from atta.cli.main import cli
from atta.errors import AttaError, ConfigError, UnknownNameError
from atta_bench.chaos.invariants import ConsumerChecker, ProcessSample, TrainerChecker, life, longest_gap, next_after
from atta_bench.chaos.invariants import leaks as leaks_of
from atta_bench.chaos.plan import WIDTH, ChaosGraph, FaultKind, LoaderKind, kinds_of, loader_kinds, plan_faults
from atta_bench.chaos.worker import EPOCHS, Lines, expected_batches, expected_weights, stepped, weights_digest

PROCESSES = ["daemon-0", "daemon-1", "consumer-0", "trainer-1"]
EXPECTED = [["a0", "a1"], ["b0", "b1"]]


@given(st.integers(0, 1 << 40), st.sets(st.sampled_from(list(FaultKind)), min_size=1), st.floats(0.5, 10))
@example(682444804307, {FaultKind.STOP, FaultKind.CUT}, 5.5)  # a fault less than a millisecond before the end
def test_a_plan_is_a_function_of_its_seed(seed: int, kinds: set[FaultKind], every_s: float) -> None:
    chosen = sorted(kinds, key=lambda kind: kind.value)
    faults = plan_faults(seed, 120.0, chosen, PROCESSES, every_s)
    assert faults == plan_faults(seed, 120.0, chosen, PROCESSES, every_s)
    assert faults
    assert {fault.kind for fault in faults} <= kinds
    for fault in faults:
        assert 0 < fault.at_s < 120
        assert fault.kind in {FaultKind.KILL, FaultKind.STOP} or fault.target.startswith(
            "trainer" if fault.kind is FaultKind.DISK else "daemon"
        )
    for one, two in itertools.pairwise(faults):
        assert one.at_s + one.lasts_s < two.at_s, "two faults at once could leave no replica"


def test_plans_hit_all_but_the_spared_and_refuse_what_makes_no_sense() -> None:
    plans = [plan_faults(seed, 600.0, list(FaultKind), PROCESSES, 4.0) for seed in range(3)]
    assert plans[0] != plans[1] != plans[2]
    assert {fault.target for fault in plans[0]} == {*PROCESSES}
    assert {fault.kind for fault in plans[0]} == {*FaultKind}
    assert kinds_of(["stop", "kill", "stop"]) == [FaultKind.STOP, FaultKind.KILL]
    with pytest.raises(UnknownNameError, match="did you mean 'kill'"):
        kinds_of(["kil"])
    assert isinstance(CliRunner().invoke(cli, ["chaos", "--faults", "fire"]).exception, UnknownNameError)
    with pytest.raises(UnknownNameError, match="did you mean 'link'"):
        loader_kinds(["links"])
    with pytest.raises(ConfigError, match="--faults disk: there is no process that it hits"):
        plan_faults(1, 60.0, [FaultKind.DISK], ["daemon-0"], 4.0)
    plan = plan_faults(2, 600.0, list(FaultKind), PROCESSES, 4.0, spared=["daemon-0", "consumer-0"])
    assert {fault.target for fault in plan if fault.kind is FaultKind.KILL} == {"daemon-1", "trainer-1"}
    assert {fault.target for fault in plan if fault.kind is FaultKind.STOP} == {*PROCESSES}


def lines(laps: int = 2) -> list[dict[str, Any]]:
    places = [(e, b) for e, digests in enumerate(EXPECTED) for b in range(len(digests))]
    return [{"lap": lap, "epoch": e, "batch": b, "digest": EXPECTED[e][b]} for lap in range(laps) for e, b in places]


def found_in(written: list[dict[str, Any]]) -> list[str]:
    checker = ConsumerChecker("consumer-0", EXPECTED)
    return [wrong for line in written for wrong in checker.check(line)]


DAMAGES: dict[str, tuple[range, Callable[[list[dict[str, Any]], int], list[dict[str, Any]]]]] = {
    "comes twice": (range(1, 7), lambda right, at: [*right[: at + 1], *right[at:]]),
    "others are missing": (range(7), lambda right, at: [*right[:at], *right[at + 1 :]]),
    "differs from the one of the local sampler": (
        range(8),
        lambda right, at: [*right[:at], right[at] | {"digest": "of the wrong part"}, *right[at + 1 :]],
    ),
}


@pytest.mark.parametrize("words", DAMAGES)
def test_what_is_wrong_with_batches_is_found(words: str) -> None:
    assert found_in(lines()) == []
    places, damage = DAMAGES[words]
    for at in places:
        (wrong,) = found_in(damage(lines(), at))
        assert words in wrong


WEIGHTS = [f"w{step}" for step in range(1, 31)]


def step_line(step: int, process: int = 1, digest: str = "") -> dict[str, Any]:
    return {"step": step, "digest": digest or WEIGHTS[step - 1], "process": process}


def trainer(*written: dict[str, Any]) -> tuple[TrainerChecker, list[str]]:
    checker = TrainerChecker("trainer-1", WEIGHTS)
    return checker, [wrong for line in written for wrong in checker.check(line)]


UNTIL_7 = [*map(step_line, range(1, 6)), {"saved": 5}, step_line(6), step_line(7)]


def test_a_trainer_may_begin_again_at_its_checkpoint() -> None:
    checker, wrong = trainer(*UNTIL_7, *(step_line(step, process=2) for step in range(6, 10)))
    assert (wrong, checker.steps, checker.repeated) == ([], 11, 2)
    assert trainer(*UNTIL_7, step_line(8, process=2))[1] == []  # saved, and killed before the line about it


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (step_line(8, digest="x"), "differ from those of an undisturbed run"),
        (step_line(9), "step 9 follows 7"),
        (step_line(7), "step 7 follows 7"),
        (step_line(9, process=2), "step 9 follows 7, saved was 5"),
        (step_line(5, process=2), "step 5 follows 7, saved was 5"),
        ({"saved": 6}, "saves step 6, not 7"),
    ],
)
def test_a_trainer_that_goes_wrong_is_found(line: dict[str, Any], words: str) -> None:
    assert words in trainer(*UNTIL_7, line)[1][0]


def samples(
    descriptors: Any = 50, threads: Any = 20, mib: Any = 100, files: Any = 3, seconds: float = 3600.0
) -> list[ProcessSample]:
    """What a process had at 100 moments; each number may be a function of 0 to 1."""

    def at(value: Any, where: float) -> int:
        return int(value(where) if callable(value) else value)

    moments = [number / 99 for number in range(100)]
    return [
        ProcessSample(m * seconds, at(descriptors, m), at(threads, m), at(mib, m) << 20, at(files, m)) for m in moments
    ]


def leak(**numbers: Any) -> str:
    return "".join(leaks_of(life("p", samples(**numbers))))


def test_leaks_are_found_and_a_life_is_told_by_halves_and_quarters() -> None:
    assert leak() == leak(descriptors=lambda m: 50 + 30 * (m > 0.5)) == ""
    assert "descriptors in the first half" in leak(descriptors=lambda m: 50 + 400 * m)
    assert "threads in the first half" in leak(threads=lambda m: 20 + 100 * m)
    assert "3 memory files in the first half of its life, 103" in leak(files=lambda m: 3 + 100 * (m > 0.5))
    assert leak(mib=lambda m: 100 + 40 * min(1, 4 * m)) == "", "it has grown, and grows no more"
    assert "memory grew" in leak(mib=lambda m: 100 + 60 * m)
    assert leak(mib=lambda m: 100 + 60 * m, seconds=60) == "", "a minute says nothing about memory"
    found = life("p", samples(threads=lambda m: 20 + 4 * (m > 0.5), mib=lambda m: 100 + 10 * int(4 * m - 1e-9)))
    assert found == {
        "process": "p", "lived_s": 3600.0, "samples": 100, "descriptors": [50, 50], "threads": [20, 24],
        "memory_files": [3, 3], "resident_mib": [100.0, 110.0, 120.0, 130.0],
    }  # fmt: skip


def test_the_longest_gap() -> None:
    times = [0.0, 1.0, 1.5, 4.0, 4.1]
    assert longest_gap(times, 1.2, 4.1) == 2.5
    assert longest_gap(times, 0.5, 1.4) == 0.5
    assert longest_gap(times, 2.0, 9.0) == pytest.approx(4.9)
    assert longest_gap([], 2.0, 9.0) == 7.0
    assert longest_gap(times, 1.2, 1.6) == 2.5  # until the next batch, though that is later
    assert longest_gap([0.0, 5.0], 1.0, 2.0) == 4.0
    # A process that was killed does not wait while it starts.
    assert longest_gap(times, 0.5, 4.1, [1.7]) == 0.5  # from 1.0 to 1.5
    assert longest_gap(times, 0.5, 4.1, [3.5]) == 2.0  # from 1.5 to 3.5
    assert longest_gap(times, 3.0, 4.1, [1.7]) == pytest.approx(0.1)  # it is starting until 4.0
    assert longest_gap(times, 3.0, 4.1, [0.5]) == 1.0  # it has had batches since
    assert next_after([0.0, 1.0, 4.0], 1.5) == 2.5
    assert next_after([0.0, 1.0], 1.0) == 0.0
    assert next_after([0.0, 1.0], 1.5) is None


def test_a_torn_line_is_dropped(tmp_path: Any) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b'{"lap": 0}\n{"lap"')
    found = Lines(str(file))
    found.write(lap=1)
    assert [line["lap"] for line in found.read()] == [0, 1]


def test_the_oracle_refuses_epochs_without_all_seeds() -> None:
    graph, draw, kind = ChaosGraph.drawn(), random.Random(1), LoaderKind.NEIGHBOURS
    inputs = [*range(len(graph.train))]
    learnt: list[dict[str, Any]] = []
    for epoch in range(EPOCHS):
        draw.shuffle(inputs)
        about = {"loader": kind.value, "epoch": epoch, "digest": "as learnt"}
        learnt += [{**about, "rank": n % 2, "batch_id": n, "inputs": inputs[n * 240 : (n + 1) * 240]} for n in range(4)]
    assert [len(digests) for digests in expected_batches(graph, learnt, kind, 1)] == [2] * EPOCHS
    for wrong in (learnt[:-1], [*learnt, learnt[-1]]):
        with pytest.raises(AttaError, match="neighbours: the seeds of epoch 2 are not those that the loader was given"):
            expected_batches(graph, wrong, kind, 1)
    weights, seeds = np.zeros(WIDTH), np.sort(graph.ids[graph.train]).tolist()
    for line in [line for line in learnt if line["rank"] == 0] * 2:
        where = [graph.ids.tolist().index(seeds[number]) for number in line["inputs"]]
        weights = stepped(weights, graph.x[where])
    assert expected_weights(graph, learnt, 0, 2 * 2 * EPOCHS)[-1] == weights_digest(weights)
    for other in (LoaderKind.DISJOINT, LoaderKind.TEMPORAL):
        found = expected_batches(graph, [{**line, "loader": other.value} for line in learnt], other, 0)
        assert len({digest for epoch in found for digest in epoch} - {"as learnt"}) == 2 * EPOCHS
    learnt = [{**line, "loader": "link"} for line in learnt]
    assert expected_batches(graph, learnt, LoaderKind.LINK, 0) == [["as learnt"] * 2] * EPOCHS
