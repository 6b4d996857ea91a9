"""A step that recomputes against the plain one, bit for bit: outputs, gradients, buffers, random state."""

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from tests.memory.networks import NETWORKS, SHAPE, assert_same, drawn, images, step
from verydeep.errors import UsageError
from verydeep.memory.plan import DoesNotFit, apply_plan, plan_memory
from verydeep.memory.segment import SegmentedSequential, add_segment, checkpoint_units, remove_checkpoints
from verydeep.nn.unit import ResidualUnit


def smallest_plan(model: nn.Module) -> None:
    with pytest.raises(DoesNotFit) as refused:
        plan_memory(model, SHAPE, 1)
    apply_plan(model, plan_memory(model, SHAPE, refused.value.smallest_budget))


def middling_plan(model: nn.Module) -> None:
    with pytest.raises(DoesNotFit) as refused:
        plan_memory(model, SHAPE, 1)
    whole = plan_memory(model, SHAPE, "1TB").peak_bytes
    apply_plan(model, plan_memory(model, SHAPE, (whole + refused.value.smallest_budget) // 2))


def all_at_once(model: nn.Module) -> None:
    """Every nn.Sequential of units is one segment."""
    checkpoint_units(model)
    for module in list(model.modules()):
        if type(module) is nn.Sequential and any(isinstance(child, ResidualUnit) for child in module):
            remove_checkpoints(module)
            add_segment(module, 0, len(module))


WAYS: dict[str, Callable[[nn.Module], object]] = {
    "smallest": smallest_plan,
    "middling": middling_plan,
    "all at once": all_at_once,
    "each unit": checkpoint_units,
    "the whole model": lambda model: checkpoint_units(model, type(model)),
}


def recomputes(model: nn.Module) -> bool:
    """Whether any convolution or linear layer runs more than once in a step."""
    runs: list[int] = []
    layers = [module for module in model.modules() if isinstance(module, (nn.Conv2d, nn.Linear))]
    own = [vars(layer).get("forward") for layer in layers]

    def counting(index: int, forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def run(x: Tensor) -> Tensor:
            runs.append(index)
            return forward(x)

        return run

    for i, layer in enumerate(layers):
        layer.forward = counting(i, layer.forward)
    step(model)
    for layer, forward in zip(layers, own, strict=True):
        assert forward is None
        del layer.forward
    model.zero_grad()
    return len(runs) > len(set(runs))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_step_is_the_plain_one(name: str, way: str):
    model = drawn(name)
    plain = step(copy.deepcopy(model))
    names, keys = [name for name, _ in model.named_modules()], list(model.state_dict())
    WAYS[way](model)
    assert [name for name, _ in model.named_modules()] == names and list(model.state_dict()) == keys
    assert recomputes(copy.deepcopy(model))
    assert_same(step(model), plain)


def test_the_comparison_would_see_a_second_update(monkeypatch):
    monkeypatch.setattr("verydeep.memory.segment.Replay.__enter__", lambda self: None)
    monkeypatch.setattr("verydeep.memory.segment.Replay.__exit__", lambda self, *_: None)
    model = drawn("full_preact")
    plain = step(copy.deepcopy(model))
    checkpoint_units(model)
    with pytest.raises(AssertionError, match="buffer"):
        assert_same(step(model), plain)


def test_nothing_recomputed_is_the_module_as_it_was():
    model = drawn("full_preact")
    apply_plan(model, plan_memory(model, SHAPE, "1TB"))
    assert {type(module) for module in model.stages} == {nn.Sequential} and not recomputes(model)


def test_many_steps_of_accumulation_between_updates():
    model = drawn("ghost")
    twin = copy.deepcopy(model)
    smallest_plan(model)
    for x in (images(), images().flip(0), images()[:5]):
        ours, plain = step(model, x), step(twin, x)
    assert_same(ours, plain)


def test_two_passes_before_one_backward():
    """Statistics move between a pass and its recomputation; norms in evaluation read them."""
    model = drawn("full_preact")
    next(iter(model.units())).branch.eval()
    twin = copy.deepcopy(model)
    checkpoint_units(model)
    for net in (model, twin):
        losses = [net(images()).square().sum(), net(images() + 1).square().sum()]
        with torch.no_grad():
            for norm in net.modules():
                if isinstance(norm, nn.BatchNorm2d):
                    norm.running_mean = norm.running_mean + 1  # a buffer that is replaced, not written into
        sum(losses).backward()
    for (name, ours), plain in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours.grad, plain.grad), name
    for (name, ours), plain in zip(model.named_buffers(), twin.buffers(), strict=True):
        assert torch.equal(ours, plain), name


def test_segments_whose_input_needs_no_gradient_give_every_parameter_its():
    torch.manual_seed(0)
    model = nn.Sequential(*(ResidualUnit(nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1))) for _ in range(4)))
    twin = copy.deepcopy(model)
    add_segment(model, 0, 4)
    x = images()
    assert not x.requires_grad
    for net in (model, twin):
        net(x).square().sum().backward()
    for ours, plain in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours.grad, plain.grad) and plain.grad.any()


def test_a_gradient_may_be_asked_for_twice():
    model = drawn("dropout")
    twin = copy.deepcopy(model)
    checkpoint_units(model)
    found = []
    for net in (model, twin):
        torch.manual_seed(3)
        loss = net(images()).square().sum()
        first = torch.autograd.grad(loss, list(net.parameters()), retain_graph=True)
        second = torch.autograd.grad(loss, list(net.parameters()))
        found.append([*first, *second, *(buffer.clone() for buffer in net.buffers())])
    assert all(torch.equal(ours, plain) for ours, plain in zip(*found, strict=True))


def test_gradients_have_gradients():
    model = drawn("full_preact").double()
    twin = copy.deepcopy(model)
    checkpoint_units(model)
    found = []
    for net in (model, twin):
        x = images().double().requires_grad_()
        (gradient,) = torch.autograd.grad(net(x).square().sum(), x, create_graph=True)
        gradient.square().sum().backward()
        found.append([x.grad, *(p.grad for p in net.parameters() if p.grad is not None)])
    for ours, plain in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("way", ["middling", "each unit"])
@pytest.mark.parametrize("again", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)), copy.copy])
def test_copies_and_pickles_recompute_too(again, way: str):
    model = drawn("full_preact")
    plain = step(copy.deepcopy(model))
    WAYS[way](model)
    other = again(model)
    assert recomputes(copy.deepcopy(other))
    assert_same(step(other), plain)


def test_a_copy_runs_its_own_modules():
    model = drawn("alone")
    checkpoint_units(model)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert not other(images()).any() and model(images()).any()


@pytest.mark.parametrize("way", ["middling", "each unit"])
def test_taken_back(way: str):
    model = drawn("full_preact")
    classes = [type(module) for module in model.modules()]
    attributes = [set(vars(module)) for module in model.modules()]
    WAYS[way](model)
    assert [type(module) for module in model.modules()] != classes
    remove_checkpoints(model)
    assert [type(module) for module in model.modules()] == classes
    assert [set(vars(module)) for module in model.modules()] == attributes


def test_without_gradients_and_in_evaluation():
    model = drawn("full_preact").eval()
    checkpoint_units(model)
    with torch.no_grad():
        quiet = model(images())
    loud = model(images())
    assert torch.equal(quiet, loud) and not quiet.requires_grad
    loud.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_transforms_modes_and_tracing_see_the_plain_call():
    model = drawn("group")
    twin = copy.deepcopy(model)
    checkpoint_units(model)
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(values, net):
        return torch.func.functional_call(net, values, (images(),)).square().sum()

    ours, plain = (torch.func.grad(loss)(parameters, net) for net in (model, twin))
    assert all(torch.equal(ours[name], plain[name]) for name in plain)
    counts = []
    for net in (model, twin):
        with FlopCounterMode(display=False) as counter:
            net(images()).sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0
    traced = torch.fx.symbolic_trace(model, concrete_args=None)
    assert torch.equal(traced(images()), twin(images()))


def test_bf16():
    model = drawn("full_preact")
    twin = copy.deepcopy(model)
    smallest_plan(model)
    with torch.autocast("cpu", torch.bfloat16):
        ours_output = model(images())
        plain_output = twin(images())
    assert ours_output.dtype == torch.bfloat16
    ours_output.float().square().sum().backward()
    plain_output.float().square().sum().backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


class Other(nn.Module):
    """Not made of residual units; takes and returns more than a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(3), nn.Linear(3, 3)

    def forward(self, x: Tensor, *, scale: float) -> dict[str, Tensor]:
        return {"y": torch.relu(self.linear(self.norm(x))) * scale, "x": x}


@pytest.mark.parametrize("units", [Other, (Other, nn.Bilinear), "1", ["0", "1"]])
def test_any_module_can_be_checkpointed(units):
    torch.manual_seed(0)
    model = nn.ModuleList([Other(), Other()])
    twin = copy.deepcopy(model)
    names = checkpoint_units(model, units)
    assert names == (["1"] if units == "1" else ["0", "1"])
    x = torch.randn(5, 3)
    for net in (model, twin):
        output = net[1](net[0](x, scale=0.5)["y"], scale=2.0)
        (output["y"] + output["x"]).square().sum().backward()
    for ours, plain in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours.grad, plain.grad)
    for ours, plain in zip(model.buffers(), twin.buffers(), strict=True):
        assert torch.equal(ours, plain)


def test_what_cannot_be_checkpointed_is_named():
    with pytest.raises(UsageError, match=r"units 'stages.0.9': no module of ResNet; nearest: stages\.0"):
        checkpoint_units(drawn("full_preact"), "stages.0.9")
    with pytest.raises(UsageError, match="Linear has none; its modules are Linear"):
        checkpoint_units(nn.Linear(2, 2))


def test_slices_of_a_segmented_sequential_keep_everything():
    model = nn.Sequential(nn.ReLU(), nn.ReLU(), nn.ReLU())
    add_segment(model, 1, 3)
    assert isinstance(model, SegmentedSequential) and model[:2].segments == ()
