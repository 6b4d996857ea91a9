"""Gradients by path length against the enumeration of all paths, in float64."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.analysis.conftest import network
from verydeep import UsageError
from verydeep.analysis import paths
from verydeep.nn.unit import ResidualUnit


class Linear(nn.Module):
    """K units h + W_k h and a head, with the matrices at hand."""

    def __init__(self, num_units: int, width: int = 4, *, scale: float = 0.5) -> None:
        super().__init__()
        stream = torch.Generator().manual_seed(num_units)
        self.units = nn.Sequential(*(ResidualUnit(nn.Linear(width, width, bias=False)) for _ in range(num_units)))
        self.head = nn.Linear(width, 3, bias=False)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(scale * torch.randn(parameter.shape, generator=stream))
        self.double()

    def forward(self, x):
        return self.head(self.units(x))


def enumerated(model, images, labels):
    """The gradient at each image along each path, by products of matrices: dict of path -> (N, D)."""
    x = model.units(images).detach()
    logits = model.head(x).requires_grad_()
    g = torch.autograd.grad(F.cross_entropy(logits, labels, reduction="sum"), logits)[0] @ model.head.weight  # (N, D)
    matrices = [unit.branch.weight for unit in model.units]
    gradients = {}
    for path in itertools.product((False, True), repeat=len(matrices)):
        along = g
        for taken, matrix in zip(reversed(path), reversed(matrices), strict=True):
            along = along @ matrix if taken else along
        gradients[path] = along.detach()
    return gradients


def linear_case(num_units):
    stream = torch.Generator().manual_seed(0)
    images = torch.randn(3, 4, generator=stream, dtype=torch.float64)
    return Linear(num_units), images, torch.tensor([0, 1, 2])


@pytest.mark.parametrize("num_units", [1, 2, 4, 6])
def test_sums_over_paths_equal_the_enumeration(num_units):
    model, images, labels = linear_case(num_units)
    gradients = enumerated(model, images, labels)
    sums = paths.coefficient_gradients(model, images, labels)
    for k in range(num_units + 1):
        expected = sum(along for path, along in gradients.items() if sum(path) == k)
        torch.testing.assert_close(sums[k], expected)
    result = paths.summed_paths(model, images, labels)
    torch.testing.assert_close(result.sizes, sums.norm(dim=2).mean(1))
    assert result.shares.sum().item() == pytest.approx(1)


@pytest.mark.parametrize("num_units", [1, 2, 4, 6])
@pytest.mark.parametrize("batch_size", [1, 7, 256])
def test_single_paths_equal_the_enumeration_where_all_are_taken(num_units, batch_size):
    model, images, labels = linear_case(num_units)
    gradients = enumerated(model, images, labels)
    result = paths.sampled_paths(model, images, labels, num_paths=20, batch_size=batch_size)  # 20 = C(6, 3)
    for k in range(num_units + 1):
        norms = torch.stack([along.norm(dim=1) for path, along in gradients.items() if sum(path) == k])
        assert result.norms[k].item() == pytest.approx(norms.mean().item(), rel=1e-12)
        assert result.sizes[k].item() == pytest.approx(norms.mean(1).sum().item(), rel=1e-12)


def test_sampled_paths_agree_with_all_of_them():
    model, images, labels = linear_case(6)
    every = paths.sampled_paths(model, images, labels, num_paths=20)
    sampled = paths.sampled_paths(model, images, labels, num_paths=12, seed=1)
    torch.testing.assert_close(sampled.norms, every.norms, rtol=0.3, atol=0)
    assert torch.equal(sampled.norms[[0, 1, 5, 6]], every.norms[[0, 1, 5, 6]])  # 1 and 6 paths: not sampled
    assert not torch.equal(sampled.norms, every.norms)


@pytest.mark.parametrize("options", [dict(), dict(order="original", option="B"), dict(unit="bottleneck", option="B")])
def test_coefficients_of_a_network_add_up_to_its_gradient(batch, options):
    model = network(**options).double().eval()
    images, labels = batch[0].double(), batch[1]
    sums = paths.coefficient_gradients(model, images, labels)
    x = images.clone().requires_grad_()
    whole = torch.autograd.grad(F.cross_entropy(model(x), labels, reduction="sum"), x)[0]
    assert len(sums) == 6
    torch.testing.assert_close(sums.sum(0), whole)


def test_coefficients_of_a_network_equal_sums_of_masked_paths(batch):
    """Two ways that share no code but the hooks: all 32 paths of a network with norms, ReLUs and a stride."""
    model = network().double()
    images, labels = batch[0][:2].double(), batch[1][:2]
    sums = paths.coefficient_gradients(model, images, labels)
    model.eval()
    for k in range(6):
        expected = torch.zeros_like(images)
        for path in itertools.combinations(range(5), k):
            handles = [
                part.register_forward_hook(lambda module, inputs, y, on=on: y if on else y.detach())
                for i, unit in enumerate(model.units())
                for part, on in ((unit.branch, i in path), (unit.shortcut, i not in path))
            ]
            x = images.clone().requires_grad_()
            expected += torch.autograd.grad(F.cross_entropy(model(x), labels, reduction="sum"), x)[0]
            for handle in handles:
                handle.remove()
        torch.testing.assert_close(sums[k], expected)


def test_equal_gains_give_the_binomial_distribution():
    """Branches c I: shares are C(K, k) c^k / (1 + c)^K, and both ways agree as nothing cancels."""
    model, images, labels = linear_case(6)
    with torch.no_grad():
        for unit in model.units:
            unit.branch.weight.copy_(0.3 * torch.eye(4))
    expected = torch.tensor([math.comb(6, k) * 0.3**k / 1.3**6 for k in range(7)], dtype=torch.float64)
    torch.testing.assert_close(paths.sampled_paths(model, images, labels, num_paths=2).shares, expected)
    torch.testing.assert_close(paths.summed_paths(model, images, labels).shares, expected)


def test_sums_are_at_most_the_sizes_of_single_paths(batch):
    model = network()
    single = paths.sampled_paths(model, *batch, num_paths=10)  # C(5, 2): all of them
    summed = paths.summed_paths(model, *batch)
    assert (summed.sizes <= single.sizes * (1 + 1e-5)).all()
    assert summed.sizes[0].item() == pytest.approx(single.sizes[0].item(), rel=1e-5)


def test_batches_of_images_do_not_change_the_sums(batch):
    model = network().double()
    images = batch[0].double()
    whole, parts = (paths.summed_paths(model, images, batch[1], batch_size=size) for size in (1000, 13))
    torch.testing.assert_close(whole.sizes, parts.sizes)


def result_of(shares, layers=2):
    sizes = torch.tensor(shares, dtype=torch.float64)
    return paths.PathGradients(sizes, sizes, layers)


def test_central_range_of_known_shares():
    result = result_of([1, 2, 94, 2, 1])
    assert result.central_range(0.95) == (1, 3)
    assert result.central_range(0.9) == (2, 2)
    assert result.layer_range(0.95) == (2, 6)
    assert result.central_range(1.0) == (0, 4)
    assert result_of([5, 0, 0]).central_range() == (0, 0)


@pytest.mark.parametrize(("unit", "layers"), [("one_layer", 1), ("basic", 2), ("bottleneck", 3)])
def test_layers_of_a_branch(batch, unit, layers):
    assert paths.summed_paths(network(unit=unit, option="B"), batch[0][:1], batch[1][:1]).layers_per_branch == layers


def test_plain_units_and_unequal_branches_are_refused(batch):
    with pytest.raises(UsageError, match="has no shortcut"):
        paths.summed_paths(network(shortcut="none", order="original"), *batch)
    model, images, labels = linear_case(2)
    model.units[1].branch = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).double()
    with pytest.raises(UsageError, match=r"unit 'units.1': its branch has 2 weight layers, that of 'units.0' 1"):
        paths.summed_paths(model, images, labels)
