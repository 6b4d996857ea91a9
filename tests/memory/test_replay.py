"""A recomputation is seen by nobody: hooks fire once, buffers and hooks are as before, whatever happens in it."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from tests.memory.networks import assert_same, drawn, images, step
from verydeep.memory.segment import checkpoint_units
from verydeep.probe import Probe


def observed(model: nn.Module) -> list[tuple]:
    """What hooks of every kind on every module see in one step, and how often."""
    seen: list[tuple] = []
    handles = []

    def note(kind: str, name: str, *values) -> None:
        tensors = [v for value in values for v in (value if isinstance(value, tuple) else (value,))]
        seen.append((kind, name, *(v.detach().sum().item() for v in tensors if isinstance(v, Tensor))))

    for name, module in model.named_modules():
        handles += [
            module.register_forward_pre_hook(lambda m, x, name=name: note("before", name, x)),
            module.register_forward_hook(lambda m, x, y, name=name: note("after", name, x, y)),
            module.register_forward_hook(lambda m, x, k, y, name=name: note("with", name, y), with_kwargs=True),
        ]
        if not list(module.children()):
            handles.append(module.register_full_backward_hook(lambda m, gx, gy, name=name: note("gradient", name, gy)))
    names = {module: name for name, module in model.named_modules()}
    handles.append(torch_module.register_module_forward_hook(lambda m, x, y: note("everywhere", names[m], y)))
    handles.append(torch_module.register_module_forward_pre_hook(lambda m, x: note("everywhere before", names[m], x)))
    try:
        step(model, images().requires_grad_())
    finally:
        for handle in handles:
            handle.remove()
    return sorted(seen, key=str)


@pytest.mark.parametrize("name", ["full_preact bottleneck", "original", "dropout", "alone"])
def test_hooks_fire_once_with_the_values_of_the_plain_step(name: str):
    model = drawn(name)
    plain = observed(copy.deepcopy(model))
    checkpoint_units(model)
    ours = observed(model)
    assert ours == plain and len({kind for kind, *_ in ours}) == 6
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_the_probe_reads_each_unit_once():
    model = drawn("full_preact")
    records = []
    for net in (copy.deepcopy(model), model):
        if net is model:
            checkpoint_units(model)
        with Probe(net, lambda tensor: tensor.abs().sum()) as probe:
            step(net)
        records.append([(record.site, record.phase, record.value.item()) for record in probe.records])
    assert records[0] == records[1] and len(records[0]) > 40


def noisy(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
    return output + torch.rand_like(output)


def doubled(module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
    return (2 * inputs[0],)


def written(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
    output.mul_(3)


def test_hooks_that_change_values_take_part_again():
    """One returns another output, one another input, one writes into the output; a fourth only looks."""
    model = drawn("full_preact")
    twin = copy.deepcopy(model)
    checkpoint_units(model)
    found, looks = [], []
    for net in (model, twin):
        unit = net.stages[1][1]
        unit.branch.conv1.register_forward_hook(noisy)
        unit.branch.register_forward_pre_hook(doubled)
        unit.register_forward_hook(written)
        unit.branch.conv2.register_forward_hook(lambda m, x, y: looks.append(y.sum().item()))
        found.append(step(net))
    assert_same(*found)
    assert len(looks) == 2 and looks[0] == looks[1]


def test_hooks_taken_away_or_put_on_before_the_backward_pass():
    model = drawn("full_preact")
    twin = copy.deepcopy(model)
    checkpoint_units(model)
    late: list[int] = []
    for net in (model, twin):
        conv = net.stages[1][1].branch.conv1
        handle = conv.register_forward_hook(noisy)
        torch.manual_seed(2)
        loss = net(images()).square().sum()
        handle.remove()
        conv.register_forward_hook(lambda m, x, y: late.append(1))
        loss.backward()
        assert len(conv._forward_hooks) == 1
    assert not late
    for ours, plain in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours.grad, plain.grad)


class Fails(nn.Module):
    """Fails when it runs for the second time, after the norm before it has run again."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.runs = 0

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x).relu()
        self.runs += 1
        if self.runs == 2:
            raise RuntimeError("no more")
        return y.exp()


def test_a_recomputation_that_fails_leaves_buffers_and_hooks():
    module = Fails()
    checkpoint_units(module, Fails)
    seen: list[int] = []
    module.norm.register_forward_hook(lambda m, x, y: seen.append(1))
    loss = module(images()).sum()
    before = {name: (buffer, buffer.clone()) for name, buffer in module.named_buffers()}
    random = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="no more"):
        loss.backward()
    for name, buffer in module.named_buffers():
        assert buffer is before[name][0] and torch.equal(buffer, before[name][1])
    module.norm(images())
    assert seen == [1, 1] and torch.equal(torch.get_rng_state(), random)


class Counts(nn.Module):
    """What it computes depends on its buffer, which each pass moves."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return (x * self.passes.clone()).sin()


def test_a_recomputation_begins_with_the_buffers_of_its_pass():
    module, twin = Counts(), Counts()
    checkpoint_units(module, Counts)
    gradients = []
    for net in (module, twin):
        x = torch.linspace(0, 1, 5, requires_grad=True)
        (net(x) + 10 * net(x)).sum().backward()
        gradients.append(x.grad)
        assert net.passes == 2
    assert torch.equal(*gradients)
