"""Frozen parts: nothing of them changes, in the fused operations too, and the rest trains as if they were constants."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.nn.comparison import random_images
from verydeep import create_model
from verydeep.errors import UsageError
from verydeep.memory.segment import checkpoint_units
from verydeep.nn.freeze import freeze
from verydeep.nn.fused import plain_operations
from verydeep.nn.norm import convert_batch_norm

PARTS = ("stem", "stages.0", "stages.1.0.branch")


def make(name: str = "preact_resnet20_cifar", **options) -> nn.Module:
    torch.manual_seed(0)
    model = create_model(name, in_channels=1, **options).double()
    for norm in (module for module in model.modules() if isinstance(module, nn.BatchNorm2d)):
        norm.running_mean.normal_(std=0.3)
        norm.running_var.uniform_(0.5, 1.5)
        nn.init.uniform_(norm.weight, -1.5, 1.5)
    return model


def inside(name: str, parts=PARTS) -> bool:
    return any(name == part or name.startswith(f"{part}.") for part in parts)


def ten_steps(model: nn.Module) -> None:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05, weight_decay=0.1)
    for step in range(10):
        model.train()
        model.stages[0].train()  # of a part alone, too
        loss = F.cross_entropy(model(random_images(4, 1, 8, 8, seed=step)), torch.arange(4))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("order", ["original", "full_preact"])
@pytest.mark.parametrize("fused", [True, False])
def test_ten_steps_leave_frozen_parts_bitwise_and_move_the_rest(order, fused):
    model = make(order=order, stochastic_depth=0.5)
    freeze(model, PARTS)
    before = copy.deepcopy(model.state_dict())
    if fused:
        ten_steps(model)
    else:
        with plain_operations():
            ten_steps(model)
    after = model.state_dict()
    assert {inside(name) for name in before} == {True, False}
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]) == inside(name), name
    for name, module in model.named_modules():
        assert module.training != inside(name), name
    assert [p.requires_grad for name, p in model.named_parameters()] == [
        not inside(name) for name, p in model.named_parameters()
    ]


@pytest.mark.parametrize("order", ["original", "full_preact", "bn_after_addition"])
@pytest.mark.parametrize("kind", ["basic", "bottleneck"])
def test_the_fused_operations_give_the_gradients_of_norms_in_eval_mode(order, kind):
    gradients = []
    for mode in ("fused", "plain"):
        model = make("resnet20_cifar" if kind == "basic" else "resnet29_cifar", order=order, unit=kind, option="B")
        freeze(model, PARTS)
        model.train()
        images = random_images(4, 1, 8, 8).requires_grad_()
        if mode == "fused":
            F.cross_entropy(model(images), torch.arange(4)).backward()
        else:
            with plain_operations():
                F.cross_entropy(model(images), torch.arange(4)).backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()} | {"images": images.grad})
    fused, plain = gradients
    for name, gradient in plain.items():
        assert (gradient is None) == (fused[name] is None) == (name != "images" and inside(name)), name
        if gradient is not None:
            torch.testing.assert_close(fused[name], gradient, rtol=0, atol=1e-11 * gradient.abs().max().item())


def test_copies_pickles_and_recomputed_segments_stay_frozen():
    model = make()
    freeze(model, ["stages.0"])
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), model):
        checkpoint_units(other)
        before = copy.deepcopy(other.state_dict())
        ten_steps(other)
        norm = other.stages[0][1].preact.norm
        assert not norm.training and torch.equal(before["stages.0.1.preact.norm.running_mean"], norm.running_mean)
        assert not torch.equal(
            before["stages.1.0.branch.conv1.weight"], other.state_dict()["stages.1.0.branch.conv1.weight"]
        )


def test_group_statistics_and_dropout_of_frozen_parts_rest():
    model = make(shortcut="dropout")
    convert_batch_norm(model, group_size=2)
    freeze(model, ["stem", "stages"])
    model.train()
    images = random_images(4, 1, 8, 8)
    features = []
    model.head.register_forward_pre_hook(lambda _, arguments: features.append(arguments[0]))
    model(images)
    model.eval()(images)
    assert torch.equal(*features) and not model.head.training


def test_what_cannot_be_frozen_is_refused_and_nothing_changes():
    model = make()
    with pytest.raises(UsageError, match=r"freeze 'stages\.3': no module of ResNet; nearest: stages\.2"):
        freeze(model, ["stem", "stages.3"])
    with pytest.raises(UsageError, match="freeze '': no module"):
        freeze(model, [""])
    with pytest.raises(UsageError, match="freeze stem,stages,head: leaves no parameter to train"):
        freeze(model, ["stem", "stages", "head"])
    model.eval().train()
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())
