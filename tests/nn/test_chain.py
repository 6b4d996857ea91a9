"""Where units take fused steps, and where they step aside: the route taken, and that the result is the plain one."""

import contextlib
import copy
import os
import pickle
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from tests.nn.comparison import randomise
from tests.nn.test_fused import TIGHT, assert_same, calls, maps, results
from verydeep import ResNetSpec, create_model
from verydeep.nn import fused
from verydeep.nn.norm import convert_batch_norm
from verydeep.nn.unit import ORDERS, UNITS, ResidualUnit, make_unit

__all__ = ["calls"]


def make(*, in_channels: int = 8, out_channels: int = 8, stride: int = 1, **options) -> ResidualUnit:
    """A unit in float64 with random weights."""
    spec = ResNetSpec(**({"stage_units": (3,), "order": "full_preact"} | options))
    unit = make_unit(spec.unit_spec(), in_channels, out_channels, stride=stride, num_units=3).double()
    randomise(unit)
    return unit.to(memory_format=torch.channels_last)


# norms with a ReLU and those that end a branch, and which of them a convolution of the unit follows, at equal dimension
OPERATIONS = {
    ("original", "basic"): ["norm_act_conv", "norm_act"],
    ("bn_after_addition", "basic"): ["norm_act_conv", "norm_act"],
    ("relu_before_addition", "basic"): ["norm_act_conv", "norm_act"],
    ("relu_only_preact", "basic"): ["norm_act_conv", "norm_act"],
    ("full_preact", "basic"): ["norm_act_conv", "norm_act_conv"],
    ("original", "bottleneck"): ["norm_act_conv", "norm_act_conv", "norm_act"],
    ("bn_after_addition", "bottleneck"): ["norm_act_conv", "norm_act_conv", "norm_act"],
    ("relu_before_addition", "bottleneck"): ["norm_act_conv", "norm_act_conv", "norm_act"],
    ("relu_only_preact", "bottleneck"): ["norm_act_conv", "norm_act_conv", "norm_act"],
    ("full_preact", "bottleneck"): ["norm_act_conv", "norm_act_conv", "norm_act_conv"],
    ("original", "one_layer"): ["norm_act"],
    ("bn_after_addition", "one_layer"): ["norm_act"],
    ("relu_before_addition", "one_layer"): ["norm_act"],
    ("relu_only_preact", "one_layer"): ["norm_act"],
    ("full_preact", "one_layer"): ["norm_act_conv"],
}


def test_every_order_and_kind_has_its_operations():
    assert set(OPERATIONS) == {(order, kind) for order in ORDERS for kind in UNITS}


@pytest.mark.parametrize(("order", "kind"), OPERATIONS)
def test_each_norm_is_in_one_fused_operation(order, kind, calls):
    unit = make(order=order, unit=kind)
    unit(maps(2, 8, 4, 4))
    assert calls == OPERATIONS[order, kind]


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("dimension", ["same", "A", "B"])
@pytest.mark.parametrize("kind", UNITS)
@pytest.mark.parametrize("order", ORDERS)
def test_fused_units_equal_plain_ones(order, kind, dimension, training, calls):
    changed = {} if dimension == "same" else dict(in_channels=4, stride=2, option=dimension)
    unit = make(order=order, unit=kind, **changed).train(training)
    x = maps(3, 4 if changed else 8, 5, 7)
    theirs = results(unit, x, plain=True)
    assert calls == []
    assert_same(results(unit, x, plain=False), theirs, **TIGHT)
    assert calls


@pytest.mark.parametrize(
    "options",
    [
        dict(shortcut="constant"),
        dict(shortcut="exclusive_gate"),
        dict(shortcut="conv1x1"),
        dict(shortcut="none"),
        dict(scale="rezero"),
        dict(unit="bottleneck", stride_on="3x3", stride=2),
        dict(norm="group"),
    ],
    ids=str,
)
def test_fused_variants_equal_plain_ones(options):
    unit, x = make(**options), maps(3, 8, 5, 7)
    assert_same(results(unit, x, plain=False), results(unit, x, plain=True), **TIGHT)


def test_mixed_frozen_norms_equal_plain_ones(calls):
    """A norm in eval mode inside a network in training keeps its statistics."""
    unit, x = make(unit="bottleneck"), maps(3, 8, 5, 7)
    unit.branch.act1.norm.eval()
    before = unit.branch.act1.norm.running_mean.clone()
    assert_same(results(unit, x, plain=False), results(unit, x, plain=True), **TIGHT)
    unit(x)
    assert torch.equal(unit.branch.act1.norm.running_mean, before)
    assert "norm_act_conv" in calls


@pytest.mark.parametrize("name", ["preact_resnet20_cifar", "resnet20_cifar", "resnet18", "preact_resnet29_cifar"])
def test_networks_are_fused_and_equal_plain_ones(name, calls):
    model = create_model(name, width=8, num_classes=10).double()
    randomise(model, std=0.1)
    images = torch.randn(2, 3, 33, 33, dtype=torch.float64)
    theirs = results(model, images, plain=True)
    assert calls == []
    assert_same(results(model, images, plain=False), theirs, rtol=1e-10, atol=1e-10)
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(calls) == 2 * len(norms) or len(calls) == len(norms)


def test_networks_in_evaluation_without_gradients(calls):
    model = create_model("preact_resnet20_cifar").eval()
    randomise(model, std=0.1)
    images = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        ours = model(images)
        with fused.plain_operations():
            theirs = model(images)
    assert len(calls) == 19
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def kept_bytes(model: nn.Module, images: Tensor) -> int:
    """Bytes of the distinct storages that a forward pass keeps, parameters not counted."""
    kept: dict[int, Tensor] = {}
    own = {tensor.data_ptr() for tensor in model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.setdefault(t.data_ptr(), t), lambda t: t):
        output = model(images)
    del output
    return sum(t.untyped_storage().nbytes() for pointer, t in kept.items() if pointer not in own)


def test_half_the_memory_is_kept():
    model, images = create_model("preact_resnet110_cifar", width=8), torch.randn(2, 3, 32, 32)
    ours = kept_bytes(model, images)
    with fused.plain_operations():
        assert ours < 0.53 * kept_bytes(model, images)


class _Mode(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class _DispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def global_hook() -> Iterator[None]:
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def without_kernels() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "kernels", lambda: None)
        yield


AROUND = {
    "torch-function mode": _Mode,
    "dispatch mode": _DispatchMode,
    "dual level": forward_ad.dual_level,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "hook of all modules": global_hook,
    "no numba": without_kernels,
    "plain_operations": fused.plain_operations,
}


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
def test_steps_aside_within(around, calls):
    unit, x = make(), maps(2, 8, 4, 4)
    with fused.plain_operations():
        expected = unit(x)
    with around():
        output = unit(x)
        assert calls == []
        tolerance = dict(rtol=0.1, atol=0.5) if output.dtype == torch.bfloat16 else TIGHT
    torch.testing.assert_close(output.to(expected.dtype), expected, **tolerance)
    unit(x)
    assert calls


class _Subclass(Tensor):
    pass


INPUTS = {
    "NCHW": lambda x: x.contiguous(memory_format=torch.contiguous_format),
    "subclass": lambda x: x.as_subclass(_Subclass),
    "parameter": lambda x: nn.Parameter(x),
    "empty": lambda x: x[:0],
}


@pytest.mark.parametrize("change", INPUTS.values(), ids=INPUTS)
def test_steps_aside_for_inputs(change, calls):
    """The unit's own steps do; a norm that finds its convolution's output in channels_last may still be fused."""
    unit, x = make().eval(), change(maps(2, 8, 4, 4))
    output = unit(x)
    assert "norm_act_conv" not in calls
    with fused.plain_operations():
        torch.testing.assert_close(output, unit(x), **TIGHT)


def _hooked(place: str, register: str) -> Callable[[ResidualUnit, list], None]:
    def change(unit: ResidualUnit, fired: list) -> None:
        getattr(unit.get_submodule(place), register)(lambda *_: fired.append(place))

    return change


def _converted(unit: ResidualUnit, fired: list) -> None:
    convert_batch_norm(unit, group_size=2)


def _patched(unit: ResidualUnit, fired: list) -> None:
    conv = unit.branch.conv1
    conv.forward = lambda x: nn.Conv2d.forward(conv, x)


def _parametrised(unit: ResidualUnit, fired: list) -> None:
    nn.utils.parametrizations.weight_norm(unit.branch.conv1)


def _reflecting(unit: ResidualUnit, fired: list) -> None:
    unit.branch.conv1 = nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect").double()


PLACES = ["branch", "preact", "preact.norm", "preact.act", "branch.conv1", "branch.act1", "branch.act1.norm"]
PLACES += ["branch.act1.act", "branch.conv2", "shortcut"]
REGISTER = ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"]
REGISTER += ["register_full_backward_pre_hook"]
CHANGES = {f"{register} on {place}": _hooked(place, register) for place in PLACES for register in REGISTER}
CHANGES |= {"converted norm": _converted, "patched forward": _patched, "weight norm": _parametrised}
CHANGES |= {"reflecting convolution": _reflecting}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_steps_aside_for_modules(change, calls):
    """Norms that nothing watches stay fused alone: at most both of the unit's, none with its convolution."""
    unit, x, fired = make(), maps(4, 8, 4, 4).requires_grad_(), []
    change(unit, fired)
    output = unit(x)
    (gradient,) = torch.autograd.grad(output.square().sum(), x)
    assert "norm_act_conv" not in calls
    assert len(fired) <= 1
    with fused.plain_operations():
        plain = unit(x)
        torch.testing.assert_close(output, plain, **TIGHT)
        torch.testing.assert_close(gradient, torch.autograd.grad(plain.square().sum(), x)[0], **TIGHT)


@pytest.mark.parametrize("register", REGISTER)
@pytest.mark.parametrize("place", PLACES)
def test_each_hook_fires_once(place, register):
    unit, fired = make(), []
    _hooked(place, register)(unit, fired)
    unit(maps(2, 8, 4, 4).requires_grad_()).sum().backward()
    assert fired == [place]


def test_steps_aside_in_transforms(calls):
    unit, x = make().eval(), maps(2, 8, 4, 4)
    with fused.plain_operations():
        expected = unit(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about scripts, which PyTorch itself uses
        per_image = torch.func.vmap(lambda image: unit(image[None])[0])(x)
        gradient = torch.func.grad(lambda x: unit(x).square().sum())(x)
        _, tangent = torch.func.jvp(unit, (x,), (torch.ones_like(x),))
    torch.testing.assert_close(per_image, expected, **TIGHT)
    assert calls == []
    torch.testing.assert_close(gradient.sum(), (2 * expected * tangent).sum(), rtol=1e-9, atol=1e-9)


def test_steps_aside_while_traced(calls):
    unit, x = make().eval(), maps(2, 8, 4, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(unit, x, check_trace=False)
    exported = torch.export.export(unit, (x,)).module()
    symbolic = torch.fx.symbolic_trace(unit)
    compiled = torch.compile(unit, backend="eager", fullgraph=True)
    with fused.plain_operations():
        expected = unit(x)
    for copy_ in (traced, exported, symbolic, compiled):
        torch.testing.assert_close(copy_(x), expected, **TIGHT)
    assert calls == []


def test_checkpointing_recomputes_the_fused_unit(calls):
    unit, x = make(), maps(3, 8, 5, 7).requires_grad_()
    expected = torch.autograd.grad(copy.deepcopy(unit)(x).square().sum(), (x,))
    calls.clear()
    output = checkpoint(unit, x, use_reentrant=False)
    found = torch.autograd.grad(output.square().sum(), (x,))
    assert torch.equal(found[0], expected[0])
    assert len(calls) == 4  # two operations, twice


def test_a_gradient_penalty_is_differentiated(calls):
    """create_graph: the fused backward pass is made of operations that have a derivative."""
    unit, x = make(unit="bottleneck"), maps(3, 8, 5, 7).requires_grad_()

    def penalty() -> list[Tensor]:
        (gradient,) = torch.autograd.grad(unit(x).square().sum(), x, create_graph=True)
        return list(torch.autograd.grad(gradient.square().sum(), (x, *unit.parameters())))

    ours = penalty()
    assert "norm_act_conv" in calls
    with fused.plain_operations():
        theirs = penalty()
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our, their, rtol=1e-8, atol=1e-8)


def test_copies_pickles_and_states_are_as_ever():
    unit, x = make(), maps(2, 8, 4, 4)
    expected = copy.deepcopy(unit)(x)
    assert torch.equal(pickle.loads(pickle.dumps(unit))(x), expected)
    other = make(unit="basic")
    other.load_state_dict(unit.state_dict())
    assert torch.equal(other(x), expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_falls_back(calls):
    unit, x = make(), maps(2, 8, 4, 4)
    with fused.plain_operations():
        expected = unit(x)
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        calls.clear()
        os._exit(0 if torch.allclose(unit(x), expected) and calls == [] else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_missing_numba_is_no_error(monkeypatch):
    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(fused.importlib, "import_module", absent)
    fused.kernels.cache_clear()
    try:
        assert fused.kernels() is None
        assert not fused.suits(maps(2, 8, 4, 4))
    finally:
        monkeypatch.undo()
        fused.kernels.cache_clear()
    assert fused.suits(maps(2, 8, 4, 4))
