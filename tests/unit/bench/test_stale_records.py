"""What the comparison of stale rows computes from its runs."""

from __future__ import annotations

from typing import Any

import pytest

from atta_bench.training.payload import Shape, expected_bytes
from atta_bench.training.stale import differences, ratios, verdicts

# Three layers read 4 features, 8 and 16 hidden columns; 10 vertices in 3 parts, which read 6 rows of each other.
SHAPE = Shape(vertices=10, halo=6, parts=3, widths=(4, 8, 16), epochs=5)


@pytest.mark.parametrize(
    ("settings", "floats"),
    [
        ({"strategy": "exchange"}, 6 * 5 * 2 * 24),
        ({"strategy": "exchange", "rows": "all", "send_features": True}, 20 * 5 * (4 + 2 * 24)),
        ({"strategy": "pipegcn"}, 6 * 5 * 2 * 24),
        # Rows in epochs 1, 2 (the warm-up) and 4, gradients in all five.
        ({"strategy": "sancus", "eps": 1.0, "warmup": 2}, 6 * (3 + 5) * 24),
        # Versions 0, 2 and 4 are read in epochs 1, 3 and 5.
        ({"strategy": "digest", "sync_every": 2}, 6 * 3 * 24),
        ({"strategy": "full"}, 0),
    ],
    ids=lambda value: str(value),
)
def test_payload_formulas(settings: dict[str, Any], floats: int) -> None:
    assert expected_bytes(SHAPE, settings) == 4 * floats


def test_codecs_have_no_formula() -> None:
    assert expected_bytes(SHAPE, {"strategy": "exchange", "codec": "int8"}) is None


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
