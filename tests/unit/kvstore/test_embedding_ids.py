"""Which rows of an embedding a forward pass needs, beside ``numpy.unique``."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

from atta.client.tables.embedding import _distinct


@given(st.lists(st.integers(-3, 40), max_size=30), st.integers(0, 36))
def test_every_id_is_found_once(ids: list[int], rows: int) -> None:
    asked = np.array(ids, dtype=np.int64)
    distinct, inverse, uses = _distinct(asked, rows)
    wanted, times = np.unique(asked, return_counts=True)
    order = np.argsort(distinct, kind="stable")
    np.testing.assert_array_equal(distinct[order], wanted)
    np.testing.assert_array_equal(uses[order], times)
    np.testing.assert_array_equal(distinct if inverse is None else distinct[inverse], asked)


def test_ids_are_marked_if_that_is_less_work_than_to_sort_them() -> None:
    ids = np.array([5, 2, 9])
    assert _distinct(ids, 10)[1] is None
    assert _distinct(ids, 10_000)[1] is not None
    assert _distinct(np.array([5, 2, 5]), 10)[1] is not None
