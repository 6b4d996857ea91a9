"""Draws: quantiles, and means over members that are or are not used twice."""

import pytest
import torch

from verydeep.analysis.draw import Draws, means_of


def test_median_and_interval_of_known_values():
    draws = Draws("x", torch.arange(1001, dtype=torch.float64), seed=0, pool=1001, independent=True)
    assert draws.median == 500
    assert draws.interval() == pytest.approx((5, 995))
    assert draws.interval(0.5) == pytest.approx((250, 750))
    assert draws.holds(5.5) and draws.holds(994.5)
    assert not draws.holds(4.5) and not draws.holds(995.5)


def test_enough_members_are_each_used_once():
    members = torch.arange(25.0)
    means, independent = means_of(members, num_draws=5, size=5, generator=torch.Generator())
    assert independent
    assert means.tolist() == [2, 7, 12, 17, 22]


def test_a_small_pool_is_drawn_from_without_repetition():
    generator = torch.Generator().manual_seed(0)
    means, independent = means_of(torch.arange(10.0), num_draws=1000, size=10, generator=generator)
    assert not independent
    assert set(means.tolist()) == {4.5}  # ten of ten: always all of them


def test_the_spread_of_resampled_means_is_that_of_independent_ones():
    generator = torch.Generator().manual_seed(0)
    members = torch.randn(20000, generator=generator, dtype=torch.float64)
    pooled, _ = means_of(members[:400], num_draws=2000, size=10, generator=generator)
    independent, _ = means_of(members, num_draws=2000, size=10, generator=generator)
    # std of a pool of 400 is within 3.5 % (one sigma) of the truth, and 1 - 10/400 is lost by not repeating
    assert pooled.std().item() == pytest.approx(independent.std().item(), rel=0.12)
