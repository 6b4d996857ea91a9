"""Hessian-vector products: symmetric, equal to the Hessian's where that can be formed, and without a trace."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from verydeep.analysis.hessian import hessian_vector_product
from verydeep.errors import UsageError
from verydeep.models.catalogue import create_model


def directions(model: nn.Module, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in model.parameters()]


def dot(a, b) -> float:
    return sum((x * y).sum() for x, y in zip(a, b, strict=True)).item()


@pytest.fixture
def network():
    torch.manual_seed(0)
    return create_model("preact_resnet8_cifar", width=4).double().train()


@pytest.fixture
def batch():
    torch.manual_seed(1)
    return torch.randn(6, 3, 8, 8, dtype=torch.float64), torch.randint(0, 10, (6,))


def test_it_is_symmetric(network, batch):
    u, v = directions(network, 2), directions(network, 3)
    left = dot(v, hessian_vector_product(network, *batch, u))
    right = dot(u, hessian_vector_product(network, *batch, v))
    assert left == pytest.approx(right, rel=1e-4) and abs(left) > 1e-6


def test_it_is_the_hessian_times_the_vector():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    images, labels = torch.randn(5, 3, dtype=torch.float64), torch.tensor([0, 1, 1, 0, 1])
    shapes = [p.shape for p in model.parameters()]

    def loss(flat: torch.Tensor) -> torch.Tensor:
        parts = [part.view(shape) for part, shape in zip(flat.split([s.numel() for s in shapes]), shapes, strict=True)]
        hidden = torch.tanh(F.linear(images, parts[0], parts[1]))
        return F.cross_entropy(F.linear(hidden, parts[2], parts[3]), labels)

    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    v = directions(model, 4)
    whole = torch.autograd.functional.hessian(loss, flat) @ torch.cat([part.flatten() for part in v])
    product = torch.cat([part.flatten() for part in hessian_vector_product(model, images, labels, v)])
    torch.testing.assert_close(product, whole)


def test_buffers_gradients_and_parameters_stay(network, batch):
    before = copy.deepcopy(network.state_dict())
    hessian_vector_product(network, *batch, directions(network, 5))
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())


def test_other_shapes_are_refused(network, batch):
    with pytest.raises(UsageError, match="must have the shapes of the"):
        hessian_vector_product(network, *batch, directions(network, 6)[:-1])
