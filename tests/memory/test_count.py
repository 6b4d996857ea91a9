"""Bytes counted on the meta device against what autograd really keeps."""

import pytest
import torch
from torch import nn

from verydeep.memory.count import activation_bytes, largest_batch, parameter_bytes
from verydeep.models.catalogue import create_model
from verydeep.nn import fused


def kept_by_autograd(model: nn.Module, images: torch.Tensor) -> int:
    """Bytes of the distinct storages that a real forward pass saves, parameters and buffers not counted."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor):
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model(images)
    del output
    return sum(tensor.untyped_storage().nbytes() for key, tensor in kept.items() if key not in own)


@pytest.mark.parametrize("name", ["preact_resnet20_cifar", "resnet11_cifar", "plain20_cifar"])
def test_counted_bytes_are_those_that_autograd_keeps(name: str):
    model = create_model(name).train()
    images = torch.randn(4, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    counted = activation_bytes(model, (3, 32, 32), batch_size=4)
    assert counted == pytest.approx(kept_by_autograd(model, images), rel=0.01)


def test_nothing_of_the_model_changes():
    model = create_model("preact_resnet8_cifar").eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    activation_bytes(model, (3, 32, 32), batch_size=2)
    assert not model.training and all(torch.equal(before[name], t) for name, t in model.state_dict().items())


def test_a_thousand_layers_at_the_papers_batch():
    """About 19.6 GB of activations, which is why the authors' code halves the batch; half of it in fused operations."""
    model = create_model("preact_resnet1001_cifar")
    assert activation_bytes(model, (3, 32, 32), batch_size=128) == pytest.approx(9.8e9, rel=0.01)
    with fused.plain_operations():
        assert activation_bytes(model, (3, 32, 32), batch_size=128) == pytest.approx(19.6e9, rel=0.01)


def test_the_largest_batch_fits_and_one_more_does_not():
    model = create_model("preact_resnet20_cifar")
    free = 300_000_000
    batch = largest_batch(model, (3, 32, 32), free_bytes=free)

    def needed(size: int) -> int:
        return parameter_bytes(model) + activation_bytes(model, (3, 32, 32), batch_size=size)

    assert needed(batch) <= free * 1.001 and needed(batch + 2) > free
    assert largest_batch(model, (3, 32, 32), free_bytes=1) == 0


def test_frozen_parameters_have_no_gradient_and_no_momentum():
    model = nn.Linear(10, 10, bias=False)
    assert parameter_bytes(model) == 3 * 400
    assert parameter_bytes(model.requires_grad_(False)) == 400
