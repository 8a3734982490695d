"""The paper's equations against numbers worked out by hand, and its inequalities."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta.errors import ConfigError
from atta.train.planning.paper import (
    PaperCluster,
    fitted_alpha,
    growth,
    growth_as_printed,
    preload_seconds,
    preloading_pays,
    previous_seconds,
    sampled_growth,
    sampling_is_smaller,
    speed_gap,
    within_servers,
)

# 1,000 vertices with 10 in-edges each on 2 servers of 2 devices.
SMALL = PaperCluster(1000, 10_000, servers=2, devices=2, compute=500, internal=1000, external=100)


def test_equation_3_by_hand() -> None:
    # 1000 / (4 * 500) = 0.5; 10000 / 4 * ((1/4) / 1000 + (1/2) / 100) = 2500 * 0.00525
    assert previous_seconds(SMALL) == pytest.approx(0.5 + 13.125)


def test_equations_4_and_8_by_hand() -> None:
    # 4 * (0.5 + 2500 * (1/2) / 1000)
    assert preload_seconds(SMALL, 4) == pytest.approx(4 * (0.5 + 1.25))
    assert sampled_growth(15, 0.5, 1) == pytest.approx(15**0.5)
    assert sampled_growth(4, 0.5, 2) == pytest.approx(4)


def test_growth_takes_the_exponent_and_the_printed_form_the_product() -> None:
    alpha = 0.30102999566398120  # 10 ** alpha == 2
    assert growth(10, alpha, 3) == pytest.approx(8)
    assert growth_as_printed(10, alpha, 3) == pytest.approx(6)


def test_the_example_of_equation_7() -> None:
    """D^alpha = 2, D = 10, L = 3: "at least half" of the link's speed, by the printed product; 0.7 by the exponent."""
    half = PaperCluster(1000, 10_000, servers=8, devices=8, compute=50, internal=1e9, external=100)
    assert speed_gap(half, 6) == pytest.approx(0)
    assert speed_gap(half, 8) == pytest.approx(0.5 - 0.7)
    assert preloading_pays(half, 5.9)
    assert not preloading_pays(half, 6.1)


@given(compute=st.floats(1, 1e6), external=st.floats(1, 1e6), grown=st.floats(1.01, 50), degree=st.floats(2, 100))
def test_inequality_7_is_equation_3_minus_4_in_its_limits(
    compute: float, external: float, grown: float, degree: float
) -> None:
    cluster = PaperCluster(1000, 1000 * degree, 10**6, 8, compute, 1e15, external)
    gap = speed_gap(cluster, grown)
    if abs(gap) > 1e-3 * compute / external:
        assert (preload_seconds(cluster, grown) < previous_seconds(cluster)) == (gap > 0)


def test_inequalities_5_and_9() -> None:
    assert within_servers(SMALL, 4)
    assert not within_servers(SMALL, 1)
    assert not within_servers(SMALL, 4.1)
    assert sampling_is_smaller(SMALL, 1.5, 4)
    assert not sampling_is_smaller(SMALL, 1.0, 4)  # nothing is sampled
    assert not sampling_is_smaller(SMALL, 4.0, 3.9)
    assert not sampling_is_smaller(SMALL, 2.0, 5.0)  # larger than the graph


@given(fanout=st.integers(2, 50), alpha=st.floats(0.05, 0.95), max_hop=st.integers(1, 3), layers=st.integers(4, 10))
def test_sampling_costs_less_than_preloading(fanout: int, alpha: float, max_hop: int, layers: int) -> None:
    sampled, grown = sampled_growth(fanout, alpha, max_hop), growth(fanout + 1, alpha, layers)
    assert preload_seconds(SMALL, sampled) < preload_seconds(SMALL, grown)


def test_the_share_of_the_link_grows_with_servers() -> None:
    shares = []
    for servers in (1, 2, 4, 8, 16):
        cluster = PaperCluster(1000, 10_000, servers, 2, compute=500, internal=1e6, external=100)
        alone = PaperCluster(1000, 10_000, servers, 2, compute=500, internal=1e6, external=1e18)
        shares.append(1 - previous_seconds(alone) / previous_seconds(cluster))
    assert shares == sorted(shares)
    assert shares[0] == pytest.approx(0, abs=1e-6)


@given(alpha=st.floats(0.05, 0.9), degree=st.floats(2, 50), hops=st.integers(1, 5))
def test_alpha_is_found_again(alpha: float, degree: float, hops: int) -> None:
    closure = [growth(degree, alpha, h) for h in range(hops + 1)]
    assert fitted_alpha(closure, 1e12, degree) == pytest.approx(alpha)


def test_alpha_looks_at_no_hop_that_ran_out_of_vertices() -> None:
    assert fitted_alpha([10, 20, 100, 100], 100, 10) == pytest.approx(0.30103, abs=1e-5)
    assert fitted_alpha([10], 100, 10) is None
    assert fitted_alpha([10, 10], 10, 1) is None


def test_nothing_may_be_zero() -> None:
    with pytest.raises(ConfigError, match="positive"):
        PaperCluster(1000, 10_000, 2, 2, compute=0, internal=1, external=1)
