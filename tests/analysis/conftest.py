"""The small networks that the analyses are tried on."""

import pytest
import torch
from torch import Tensor

from tests.analysis.fingerprint import randomise
from verydeep import ResNet, ResNetSpec


def network(**options) -> ResNet:
    """Five residual units of width 4 in two stages, every parameter and buffer random."""
    values = dict(stage_units=(3, 2), width=4, order="full_preact") | options
    torch.manual_seed(0)
    model = ResNet(ResNetSpec(**values))
    randomise(model)
    return model


@pytest.fixture
def model() -> ResNet:
    return network()


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    """Twelve random images and labels."""
    stream = torch.Generator().manual_seed(1)
    return torch.randn(12, 3, 8, 8, generator=stream), torch.randint(0, 10, (12,), generator=stream)
