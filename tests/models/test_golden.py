"""Losses of 20 steps, written down: a refactor that changes a network, its initialisation or its gradients is seen."""

import pytest
import torch
from torch import nn

from verydeep import ResNet, ResNetSpec

NETWORKS = {
    "original": dict(stage_units=(2, 2), option="A"),
    "full_preact_bottleneck": dict(stage_units=(1, 2), unit="bottleneck", order="full_preact", option="B"),
    "fixup": dict(stage_units=(2, 2), scale="fixup", norm="none", order="original"),
    "exclusive_gate": dict(stage_units=(1, 1), shortcut="exclusive_gate", gate_bias=-1.0, norm="group"),
}
# fmt: off
GOLDEN = {
    "original": [
        2.619335, 2.368915, 2.135335, 1.995385, 1.908680, 1.820481, 1.696099, 1.542819, 1.381367, 1.189241,
        1.009269, 0.835175, 0.671100, 0.530911, 0.412698, 0.312349, 0.238104, 0.177913, 0.131838, 0.094051,
    ],
    "full_preact_bottleneck": [
        2.282397, 2.238712, 2.175729, 2.106592, 2.035865, 1.961286, 1.879275, 1.792348, 1.688026, 1.566425,
        1.431352, 1.290117, 1.142231, 0.988271, 0.830492, 0.679281, 0.539477, 0.422011, 0.331215, 0.258377,
    ],
    "fixup": [
        2.302585, 2.299319, 2.293444, 2.285657, 2.276534, 2.266616, 2.256713, 2.248277, 2.243256, 2.242425,
        2.242859, 2.239551, 2.231417, 2.221683, 2.213475, 2.208198, 2.201801, 2.191988, 2.177047, 2.157215,
    ],
    "exclusive_gate": [
        2.326361, 2.320154, 2.309283, 2.295477, 2.280509, 2.265818, 2.251999, 2.239860, 2.229466, 2.220554,
        2.212836, 2.205305, 2.197139, 2.187788, 2.176886, 2.164761, 2.150396, 2.132734, 2.111597, 2.087283,
    ],
}
# fmt: on


def losses(name: str) -> list[float]:
    """One batch of noise, SGD with momentum; in float64, so that neither threads nor kernels show in 4 digits."""
    torch.manual_seed(0)
    model = ResNet(ResNetSpec(width=4, **NETWORKS[name])).double()
    images, labels = torch.randn(16, 3, 8, 8).double(), torch.arange(16) % 10
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=1e-4)
    result = []
    for _ in range(20):
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        result.append(loss.item())
    return result


@pytest.mark.parametrize("name", NETWORKS)
def test_losses_of_20_steps(name):
    assert losses(name) == pytest.approx(GOLDEN[name], rel=1e-4)
