"""The gap against its closed form for one norm, and by batch size and momentum; statistics taken anew."""

import math

import pytest
import torch
from torch import nn

from tests.analysis.conftest import network
from verydeep import UsageError
from verydeep.analysis.batch_norm import batch_norms, recalibrated
from verydeep.analysis.norm_gap import norm_gaps


def normal_data(num_images=4000, channels=40):
    stream = torch.Generator().manual_seed(0)
    return 3 + 2 * torch.randn(num_images, channels, generator=stream), torch.zeros(num_images, dtype=torch.int64)


@pytest.mark.parametrize("batch_size", [8, 64])
@pytest.mark.parametrize("momentum", [0.1, 0.5])
def test_gap_of_one_norm_has_its_closed_form(batch_size, momentum):
    norm = nn.BatchNorm1d(40)
    gap = norm_gaps(norm, normal_data(), batch_sizes=[batch_size], momenta=[momentum], num_steps=100, num_batches=60)[0]
    expected = math.sqrt((1 + momentum / (2 - momentum)) / batch_size)
    # 2400 values, those of a channel correlated through the running mean: a few percent; sigma too is an estimate
    assert gap.mean_gap == pytest.approx(expected, rel=0.1)
    assert (gap.batch_size, gap.momentum) == (batch_size, momentum)


def test_output_gap_equals_the_two_modes_outputs():
    norm, data = nn.BatchNorm1d(5), normal_data(16, 5)
    gap = norm_gaps(norm, data, batch_sizes=[16], momenta=[1.0], num_steps=1, num_batches=1)[0]
    # the whole data each time, momentum 1: running statistics are the batch's, but for the unbiased variance
    assert gap.mean_gap == pytest.approx(0, abs=1e-6)
    assert gap.variance_gap == pytest.approx(1 / 16, rel=1e-3)
    assert gap.output_gap == pytest.approx(math.sqrt(16 / 15) - 1, rel=1e-3)


def test_batches_that_are_measured_do_not_enter_the_running_statistics():
    """With momentum 1 the statistics are those of the batch before: the two modes differ by two batches' noise."""
    norm, data = nn.BatchNorm1d(40), normal_data(400)
    gap = norm_gaps(norm, data, batch_sizes=[4], momenta=[1.0], num_steps=1, num_batches=20)[0]
    assert gap.output_gap > 0.4  # 0.13 = 1 - sqrt(3/4) if each batch had entered first


def test_gaps_grow_as_batches_shrink(batch):
    images, labels = torch.randn(64, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.zeros(64).long()
    gaps = norm_gaps(network(), (images, labels), batch_sizes=[2, 8, 32], momenta=[0.1], num_steps=40)
    for name in ("mean_gap", "variance_gap", "output_gap"):
        values = [getattr(gap, name) for gap in gaps]
        assert values == sorted(values, reverse=True), name
        assert values[0] > 1.5 * values[-1]


def test_every_pair_is_measured_and_repeatable(batch):
    options = dict(batch_sizes=[2, 4], momenta=[0.1, 0.5], num_steps=3, num_batches=2)
    gaps = norm_gaps(network(), batch, **options)
    assert [(gap.batch_size, gap.momentum) for gap in gaps] == [(2, 0.1), (2, 0.5), (4, 0.1), (4, 0.5)]
    assert gaps == norm_gaps(network(), batch, **options)


def test_what_cannot_be_measured_is_refused(batch):
    with pytest.raises(UsageError, match="has no batch norm with running statistics"):
        norm_gaps(network(norm="group"), batch)
    for size, nearest in ((1, 2), (13, 12)):
        with pytest.raises(UsageError, match=f"batch_size {size}: must be from 2 to 12, the images; nearest {nearest}"):
            norm_gaps(network(), batch, batch_sizes=[size])


def test_recalibrated_statistics_are_the_mean_of_the_batches():
    norm = nn.BatchNorm1d(40, momentum=0.1)
    images, _ = normal_data(30)
    with recalibrated(norm, images.split(10)):
        assert not norm.training
        torch.testing.assert_close(norm.running_mean, images.mean(0))
        torch.testing.assert_close(norm.running_var, torch.stack([x.var(0) for x in images.split(10)]).mean(0))
        assert norm.momentum == 0.1
    assert torch.equal(norm.running_mean, torch.zeros(40))


def test_norms_without_running_statistics_are_not_counted():
    model = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2, track_running_stats=False), nn.GroupNorm(1, 2))
    assert list(batch_norms(model)) == ["0"]
