"""Hold-outs: counts that add up, a class never emptied, parts disjoint and stratified."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verydeep.data.holdout import class_sizes, fifth_of_each, hold_out, in_proportion

sizes_lists = st.lists(st.integers(0, 40), min_size=1, max_size=8)


@given(sizes_lists, st.floats(0, 1))
def test_shares_add_up_and_leave_one_of_each_class(sizes_list: list[int], part: float) -> None:
    sizes = np.array(sizes_list)
    most = np.maximum(sizes - 1, 0)
    total = int(part * most.sum())
    counts = in_proportion(sizes, total)
    assert counts.sum() == total
    assert (counts >= 0).all() and (counts <= most).all()


@given(st.lists(st.integers(20, 40), min_size=1, max_size=8), st.integers(0, 19))
def test_shares_are_within_one_of_proportion(sizes_list: list[int], total: int) -> None:
    sizes = np.array(sizes_list)
    assert (np.abs(in_proportion(sizes, total) - total * sizes / sizes.sum()) < 1).all()


@given(sizes_lists, st.integers(0, 2**32))
def test_hold_out_takes_the_counts_and_parts_are_disjoint(sizes_list: list[int], seed: int) -> None:
    sizes = np.array(sizes_list)
    labels = torch.from_numpy(np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes)))
    counts = fifth_of_each(sizes)
    kept, held = hold_out(labels, counts, seed=seed)
    assert torch.equal(torch.cat((kept, held)).sort().values, torch.arange(len(labels)))
    assert class_sizes(labels[held], len(sizes)).tolist() == counts.tolist()
    assert torch.equal(held, hold_out(labels, counts, seed=seed)[1])


def test_hold_out_depends_on_the_seed() -> None:
    labels, counts = torch.zeros(100, dtype=torch.int64), np.array([50])
    first, second = (hold_out(labels, counts, seed=seed)[1] for seed in (0, 1))
    assert not torch.equal(first, second)


@pytest.mark.parametrize(("size", "held"), [(0, 0), (1, 0), (2, 1), (5, 1), (8, 2), (100, 20), (180, 36)])
def test_a_fifth_of_a_class(size: int, held: int) -> None:
    assert fifth_of_each(np.array([size])).tolist() == [held]
