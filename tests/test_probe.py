"""The probe reads what passes, changes nothing, and names the first site that is not finite."""

import pytest
import torch
from torch import nn

from verydeep.models.catalogue import create_model
from verydeep.probe import Probe, first_nonfinite


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(4, 3, 8, 8, generator=generator), torch.tensor([0, 1, 2, 3])


def test_records_are_outputs_in_order_then_gradients():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    x = torch.randn(5, 3)
    with Probe(model, lambda tensor: tensor.square().mean()) as probe:
        y = model(x)
        y.sum().backward()
    places = [(record.site, record.phase) for record in probe.records]
    assert places[:4] == [("0", "output"), ("1", "output"), ("2", "output"), ("", "output")]
    assert {site for site, phase in places[4:6]} == {"2", ""}  # the model's output is that of its last module
    assert places[6:] == [("1", "gradient"), ("0", "gradient")]
    values = {(record.site, record.phase): record.value for record in probe.records}
    torch.testing.assert_close(values["0", "output"], model[0](x).square().mean().detach())
    assert values["2", "gradient"] == 1


def test_hooks_are_gone_also_after_an_error():
    model = nn.Sequential(nn.Linear(3, 4))
    with pytest.raises(RuntimeError), Probe(model, torch.Tensor.mean):
        model(torch.randn(2, 5))
    assert not any(module._forward_hooks for module in model.modules())


def test_all_finite_is_none_and_gradients_are_cleared():
    model = create_model("resnet8_cifar")
    assert first_nonfinite(model, *batch()) is None
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_input():
    images, labels = batch()
    images[1, 0, 0, 0] = float("inf")
    assert first_nonfinite(create_model("resnet8_cifar"), images, labels) == "input"


def test_a_parameter():
    model = create_model("resnet8_cifar")
    with torch.no_grad():
        model.stages[1][0].branch.conv2.weight[0, 0, 0, 0] = float("nan")
    assert first_nonfinite(model, *batch()) == "parameter stages.1.0.branch.conv2.weight"


def test_an_output_is_named_before_the_modules_that_hold_it():
    class Infinite(nn.Module):
        def forward(self, x):
            return x / 0.0

    model = create_model("resnet8_cifar")
    model.stages[1][0].branch.conv2 = Infinite()
    assert first_nonfinite(model, *batch()) == "output of stages.1.0.branch.conv2"


def test_the_loss():
    class Far(nn.Module):
        """Finite logits whose cross-entropy is not."""

        def forward(self, images):
            return images.flatten(1)[:, :10] * 0 + torch.arange(10.0) * 3e37

    assert first_nonfinite(Far(), batch()[0].requires_grad_(), batch()[1]) == "loss"


def test_a_gradient():
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(192, 10), nn.Identity()
            nn.init.zeros_(self.first.weight)
            nn.init.zeros_(self.first.bias)

        def forward(self, images):
            return self.last(self.first(images.flatten(1)).abs().sqrt())

    assert first_nonfinite(Root(), *batch()) == "gradient of first"
