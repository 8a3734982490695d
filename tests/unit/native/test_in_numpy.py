"""Methods written in numpy draw the same edges as native methods with the same rule, wherever they run."""

from __future__ import annotations

import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from atta.errors import ConfigError
from atta.samplers import LocalGraph, LocalSampler, kernels
from atta.samplers.local import growth
from atta.samplers.methods import BY_NUMBER, Method
from atta.samplers.methods.base import Hop, InNumpy, NeighborMethod, Picks

ROOT = Path(__file__).parents[3]
VERTICES, EDGES = 200, 3000


def with_replacement(hop: Hop) -> Picks:
    counts = np.where(hop.degree > 0, hop.fan_out, 0)
    drawn = [hop.first + kernels.scaled(hop.bits(i), hop.degree) for i in range(hop.fan_out)]
    return Picks(counts, np.stack(drawn, axis=1)[hop.degree > 0].reshape(-1))


def without_replacement(hop: Hop) -> Picks:
    """Floyd's algorithm, a row and a draw at a time."""
    counts = np.minimum(hop.degree, hop.fan_out)
    fewer = np.maximum(hop.degree - hop.fan_out, 0)
    drawn = np.stack([kernels.scaled(hop.bits(i), fewer + i + 1) for i in range(hop.fan_out)], axis=1)
    positions: list[int] = []
    for row, (first, degree) in enumerate(zip(hop.first, hop.degree, strict=True)):
        picks = list(range(degree)) if degree <= hop.fan_out else []
        for i in range(len(picks), min(degree, hop.fan_out)):
            picks.append(degree - hop.fan_out + i if drawn[row, i] in picks else int(drawn[row, i]))
        positions += [int(first) + pick for pick in picks]
    return Picks(counts, np.array(positions, dtype=np.int64))


def random_graph(seed: int = 0) -> LocalGraph:
    rng = np.random.default_rng(seed)
    keys = rng.permutation(10 * VERTICES)[:VERTICES]
    src, dst = rng.integers(0, VERTICES, EDGES), (VERTICES * rng.random(EDGES) ** 3).astype(int)
    return LocalGraph.from_edges(src, dst, VERTICES, keys=keys)


def drawn_by(method: InNumpy | None, of: LocalGraph, rows: np.ndarray, **options: object) -> tuple[np.ndarray, ...]:
    found = kernels.sample_neighbors(
        of.indptr, of.indices, of.edge_ids, of.keys, rows, fan_out=4, replace=True, stream_key=99, method=method, **options
    )  # fmt: skip
    return tuple(part for part in found if part is not None)


@pytest.mark.parametrize("trees", [False, True])
@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize("renewed", [0, 3 << 30])
def test_rows_get_what_the_native_method_draws(trees: bool, positions: bool, renewed: int) -> None:
    of = random_graph()
    rows = np.random.default_rng(1).integers(0, VERTICES, 77)
    options: dict[str, object] = {"trees": np.arange(77, dtype=np.int32) % 5} if trees else {}
    options["renewed"] = renewed
    if positions:
        of = LocalGraph(of.indptr, of.indices, of.keys)
        options["positions"] = True
    mine = drawn_by(InNumpy(with_replacement, of.indptr, of.indices, may_replace=True), of, rows, **options)
    native = drawn_by(None, of, rows, **options)
    assert len(mine) == len(native) == 3
    for a, b in zip(mine, native, strict=True):
        assert a.dtype == b.dtype
        assert (a == b).all()


@pytest.mark.parametrize("fan_out", [*range(1, 18), 40, 70])
def test_no_edge_is_drawn_twice_by_a_rule_in_registers_or_a_row_at_a_time(fan_out: int) -> None:
    of, rows = random_graph(fan_out), np.arange(VERTICES)
    method = InNumpy(without_replacement, of.indptr, of.indices, may_replace=False)
    mine, native = (
        kernels.sample_neighbors(
            of.indptr,
            of.indices,
            of.edge_ids,
            of.keys,
            rows,
            fan_out=fan_out,
            replace=False,
            stream_key=fan_out,
            method=m,
        )
        for m in (method, None)
    )
    for a, b in zip(mine, native, strict=True):
        assert (a == b).all()


def digest_of_kernels() -> str:
    """Of draws of several fan-outs and methods, and of gathered rows."""
    of, found = random_graph(3), sha256()
    for fan_out, method in [(3, "uniform"), (8, "uniform"), (15, "uniform"), (33, "uniform"), (5, "labor")]:
        batch = LocalSampler(of, method=method).sample(np.arange(50), [fan_out, 2], seed=fan_out)
        for name in ("n_id", "row", "col", "e_id"):
            found.update(getattr(batch, name).tobytes())
    rows = np.random.default_rng(5).integers(0, 500, 40_000)
    for width in (7, 16, 100):
        table = np.arange(500 * width, dtype=np.float32).reshape(500, width)
        out = np.empty((len(rows), width), np.float32)
        kernels.gather_rows(table, rows, out)
        found.update(out.tobytes())
    return found.hexdigest()


@pytest.mark.parametrize("processor", ["intel,avx2", "amd,plain"])
def test_results_do_not_depend_on_the_processor(processor: str) -> None:
    command = [sys.executable, "-c", f"from {__name__} import digest_of_kernels as of; print(of())"]
    environment = {**os.environ, "ATTA_PROCESSOR": processor}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == digest_of_kernels()


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("frontier", ["new", "all"])
def test_batches_are_those_of_the_native_method(disjoint: bool, frontier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of = random_graph()
    seeds = np.random.default_rng(2).integers(0, VERTICES, 30)

    def batch() -> object:
        return LocalSampler(of).sample(seeds, [4, 3], replace=True, disjoint=disjoint, frontier=frontier, seed=7)

    native = batch()
    monkeypatch.setattr(Method.UNIFORM, "rules", NeighborMethod(number=0, draw=with_replacement))
    mine = batch()
    monkeypatch.setattr(growth, "_BLOCK_ROWS", 1)
    monkeypatch.setattr(growth, "_ROOM", 1)  # little room, so that a hop takes several calls
    for other in (mine, batch()):
        for name in ("n_id", "row", "col", "e_id"):
            assert (getattr(other, name) == getattr(native, name)).all()
        assert other.num_sampled_nodes == native.num_sampled_nodes  # type: ignore[attr-defined]


def too_many(hop: Hop) -> Picks:
    return Picks(hop.degree + 1, np.zeros(int(hop.degree.sum()) + len(hop.degree), dtype=np.int64))


def not_its_own(hop: Hop) -> Picks:
    return Picks(np.ones_like(hop.degree), hop.first + hop.degree)


def too_few(hop: Hop) -> Picks:
    return Picks(hop.degree, np.empty(0, dtype=np.int64))


@pytest.mark.parametrize(("draw", "words"), [(too_many, "have"), (not_its_own, "have"), (too_few, "counts")])
def test_wrong_picks_are_refused(draw: object, words: str) -> None:
    of = random_graph()
    method = InNumpy(draw, of.indptr, of.indices, may_replace=True)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=words):
        drawn_by(method, of, np.arange(9))


def test_questions_out_of_range_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    of = random_graph()
    monkeypatch.setattr(Method.UNIFORM, "rules", NeighborMethod(number=0, draw=with_replacement, may_replace=False))
    with pytest.raises(ConfigError, match="no edge twice"):
        LocalSampler(of).sample([0], [2], replace=True)
    with pytest.raises(ValueError, match="outside"):
        drawn_by(InNumpy(with_replacement, of.indptr, of.indices, may_replace=True), of, np.array([VERTICES]))
    assert sorted(BY_NUMBER.values(), key=lambda m: m.value) == sorted(Method, key=lambda m: m.value)
