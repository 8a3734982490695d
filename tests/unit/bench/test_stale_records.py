"""What the comparison of stale rows computes from its runs."""

from __future__ import annotations

from typing import Any

from atta_bench.train.stale import differences, ratios, verdicts


def cell(variant: str, seed: int, test: float) -> dict[str, Any]:
    return {"graph": "sbm", "layers": 3, "variant": variant, "seed": seed, "test": test}


def test_bounds_compare_the_same_seeds() -> None:
    cells = [cell("exchange", 0, 80.0), cell("exchange", 1, 70.0), cell("exchange", 2, 90.0)]
    cells += [cell("digest-10", 0, 79.0), cell("digest-10", 2, 86.0), cell("digest-10", 7, 10.0)]
    assert differences(cells, "sbm", 3, "digest-10", "exchange") == [-1.0, -4.0]
    (found,) = verdicts(cells)
    assert (found["median"], found["least"], found["holds"]) == (-2.5, -2.5, True)


def test_predictions_are_judged_when_they_have_settled() -> None:
    """Fifteen synchronisations every 10 epochs are over after epoch 150."""
    run = {"errors": [(150, 1, 9.0, 1.0), (160, 1, 1.0, 2.0), (160, 2, 3.0, 4.0), (170, 1, 3.0, 4.0)]}
    assert ratios(run) == {1: (0.5 + 0.75) / 2, 2: 0.75}
