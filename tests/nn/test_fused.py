"""The fused operations against PyTorch's own, against `tests/reference.py`, and where they must step aside."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests import reference
from tests.nn.comparison import randomise
from verydeep.nn import fused
from verydeep.nn.norm_act import NormAct

SHAPES = [(3, 5, 3, 7), (2, 1, 4, 4), (1, 24, 5, 5), (6, 7, 1, 1), (4, 64, 9, 9), (2, 1030, 2, 3), (70, 3, 33, 1)]
TIGHT = dict(rtol=1e-11, atol=1e-11)


def maps(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Normal numbers of mean 2, channels_last."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 2
    return x.to(dtype).contiguous(memory_format=torch.channels_last)


def norm_of(channels: int, *, dtype: torch.dtype = torch.float64, **options) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels, **options)
    randomise(norm)
    return norm.to(dtype)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The fused operations that run in a test, by name."""
    seen: list[str] = []
    for name in ("norm_act", "norm_act_conv"):
        operation = getattr(fused, name)

        def spy(*args, name=name, operation=operation, **options):
            seen.append(name)
            return operation(*args, **options)

        monkeypatch.setattr(fused, name, spy)
    return seen


def results(module: nn.Module, x: Tensor, *, plain: bool) -> dict[str, Tensor]:
    """Output, gradients and buffers of a copy of the module, fused or by PyTorch's operations."""
    module, x = copy.deepcopy(module), x.clone(memory_format=torch.preserve_format).requires_grad_()
    if plain:
        with fused.plain_operations():
            output = module(x)
    else:
        output = module(x)
    if output.requires_grad:
        weights = maps(*output.shape, seed=7) if output.dim() == 4 else torch.linspace(1, 2, output.numel())
        (output * weights.to(output.dtype).view(output.shape)).sum().backward()
    found = {"output": output.detach(), "input gradient": x.grad}
    found |= {f"gradient of {name}": p.grad for name, p in module.named_parameters()}
    found |= dict(module.named_buffers())
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def assert_same(ours: dict[str, Tensor], theirs: dict[str, Tensor], **tolerance: float) -> None:
    assert list(ours) == list(theirs)
    for name, expected in theirs.items():
        scale = max(1.0, expected.abs().max().item())
        torch.testing.assert_close(ours[name] / scale, expected / scale, msg=lambda m, n=name: f"{n}: {m}", **tolerance)


NORM_OPTIONS = {
    "default": {},
    "average of all batches": dict(momentum=None),
    "not affine": dict(affine=False),
    "not tracked": dict(track_running_stats=False),
    "eps": dict(eps=0.3, momentum=0.7),
}


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("options", NORM_OPTIONS.values(), ids=NORM_OPTIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_norm_and_relu_equal_pytorchs(shape, options, training, calls):
    pair = NormAct(norm_of(shape[1], **options)).train(training)
    x = maps(*shape)
    theirs = results(pair, x, plain=True)
    assert calls == []
    assert_same(results(pair, x, plain=False), theirs, **TIGHT)
    assert calls == ["norm_act"]


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_addition_joins_norm_and_relu(shape, relu):
    x, residual = maps(*shape), maps(*shape, seed=1) - 2
    norm = norm_of(shape[1])

    class Plain(nn.Module):
        def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
            super().__init__()
            self.norm, self.function = copy.deepcopy(norm), function
            self.residual = nn.Parameter(residual.clone(memory_format=torch.preserve_format))

        def forward(self, x: Tensor) -> Tensor:
            return self.function(self, x)

    def formula(self: Plain, x: Tensor) -> Tensor:
        y = reference.batch_norm(x, self.norm.weight, self.norm.bias) + self.residual
        return y * (y > 0) if relu else y

    def operation(self: Plain, x: Tensor) -> Tensor:
        return fused.norm_act(self.norm, x, relu=relu, residual=self.residual)

    ours, theirs = (results(Plain(function), x, plain=False) for function in (operation, formula))
    mean, variance = reference.running_statistics(x, norm.running_mean, norm.running_var, 0.1)
    theirs |= {"norm.running_mean": mean, "norm.running_var": variance}
    theirs["norm.num_batches_tracked"] = norm.num_batches_tracked + 1
    assert_same(ours, theirs, **TIGHT)


CONVS = {
    "1x1": dict(kernel_size=1),
    "1x1 to few": dict(out_channels=3, kernel_size=1, bias=False),
    "3x3": dict(kernel_size=3, padding=1, bias=False),
    "1x1 with stride": dict(kernel_size=1, stride=2, bias=False),
    "3x3 with stride": dict(kernel_size=3, stride=2, padding=1),
    "grouped": dict(kernel_size=3, padding=1, groups=4),
    "dilated": dict(kernel_size=3, padding=2, dilation=2),
}


class NormActConv(nn.Module):
    """x + conv(relu(norm(x))), or without x where the shapes differ."""

    def __init__(self, channels: int, options: dict) -> None:
        super().__init__()
        self.norm, self.conv = (
            norm_of(channels),
            nn.Conv2d(**(dict(in_channels=channels, out_channels=channels) | options)).double(),
        )

    def forward(self, x: Tensor) -> Tensor:
        if fused.suits(x):
            y, x = fused.norm_act_conv(self.norm, x, self.conv)
        else:
            y = self.conv(F.relu(self.norm(x)))
        return y + x.sin() if y.shape == x.shape else y


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("options", CONVS.values(), ids=CONVS)
def test_norm_relu_and_convolution_equal_pytorchs(options, training, calls):
    module, x = NormActConv(8, options).train(training), maps(3, 8, 5, 7)
    theirs = results(module, x, plain=True)
    assert calls == []
    assert_same(results(module, x, plain=False), theirs, **TIGHT)
    assert calls == ["norm_act_conv"]


def test_a_residual_joins_the_convolution():
    norm, conv, x, residual = norm_of(8), nn.Conv2d(8, 4, 1).double(), maps(3, 8, 5, 7), maps(3, 4, 5, 7, seed=1)
    residual.requires_grad_()
    output, same = fused.norm_act_conv(norm, x, conv, residual=residual)
    torch.testing.assert_close(output, conv(F.relu(norm(x))) + residual, **TIGHT)
    assert torch.equal(same, x)
    (gradient,) = torch.autograd.grad(output.square().sum(), residual)
    torch.testing.assert_close(gradient, 2 * output, **TIGHT)


@pytest.mark.parametrize("shape", [(3, 1, 5, 7), (1, 8, 1, 1)], ids=str)
def test_a_residual_that_broadcasts_is_added_as_pytorch_does(shape):
    norm, conv, x, residual = norm_of(8), nn.Conv2d(8, 8, 1).double(), maps(3, 8, 5, 7), maps(*shape).requires_grad_()
    y = norm(x)
    for output, expected in (
        (fused.norm_act(norm, x, residual=residual), F.relu(y + residual)),
        (fused.norm_act_conv(norm, x, conv, residual=residual)[0], conv(F.relu(y)) + residual),
    ):
        torch.testing.assert_close(output, expected, **TIGHT)
        gradients = [torch.autograd.grad(each.square().sum(), residual)[0] for each in (output, expected)]
        torch.testing.assert_close(*gradients, **TIGHT)


@pytest.mark.parametrize(
    "frozen", [frozenset({"x"}), frozenset({"norm"}), frozenset({"conv"}), frozenset(["x", "norm"])]
)
def test_only_gradients_that_are_wanted_are_given(frozen):
    module, x = NormActConv(8, CONVS["1x1"]), maps(2, 8, 3, 3).requires_grad_("x" not in frozen)
    module.norm.requires_grad_("norm" not in frozen)
    module.conv.requires_grad_("conv" not in frozen)
    wanted = [tensor for tensor in (x, *module.parameters()) if tensor.requires_grad]
    ours = torch.autograd.grad(module(x).square().sum(), wanted)
    with fused.plain_operations():
        theirs = torch.autograd.grad(module(x).square().sum(), wanted)
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our, their, **TIGHT)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("check", [torch.autograd.gradcheck, torch.autograd.gradgradcheck])
def test_gradients_of_norm_act_are_derivatives(check, relu, training):
    norm = norm_of(3, momentum=0.0).train(training)
    x, residual = (maps(2, 3, 2, 3, seed=seed).requires_grad_() for seed in (3, 4))

    def function(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
        return fused._NormAct.apply(x, weight, bias, residual, norm, relu)

    weights = norm.weight.detach().requires_grad_(), norm.bias.detach().requires_grad_()
    assert check(function, (x, *weights, residual - 1))
    assert check(lambda x, w, b: function(x, w, b, None), (x, *weights))


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("check", [torch.autograd.gradcheck, torch.autograd.gradgradcheck])
def test_gradients_of_norm_act_conv_are_derivatives(check, training):
    module = NormActConv(4, CONVS["1x1 with stride"] | dict(bias=True)).train(training)
    norm, conv = module.norm, module.conv
    norm.momentum = 0.0
    x, residual = maps(2, 4, 3, 3, seed=3).requires_grad_(), None
    parameters = [p.detach().requires_grad_() for p in (norm.weight, norm.bias, conv.weight, conv.bias)]

    def function(*inputs: Tensor) -> tuple[Tensor, Tensor]:
        return fused._NormActConv.apply(*inputs, norm, conv, True, False)

    assert check(function, (x, *parameters, residual))


def test_a_large_mean_costs_no_digits_in_float32():
    """Mean 1e4, deviation 1: E x^2 - (E x)^2 in float32 would lose all of the variance (1e8 has steps of 8)."""
    x = (1e4 + maps(16, 4, 8, 8)).float().requires_grad_()
    norm = norm_of(4, dtype=torch.float32)
    output = fused.norm_act(norm, x, relu=False)
    gradient = maps(16, 4, 8, 8, seed=1)
    output.backward(gradient.float())
    exact_x = x.detach().double().requires_grad_()
    exact = reference.batch_norm(exact_x, norm.weight.detach().double(), norm.bias.detach().double())
    exact.backward(gradient)
    # x itself is exact in both; what is left are a few roundings of numbers of size 1
    torch.testing.assert_close(output.double(), exact, atol=3e-6, rtol=0)
    torch.testing.assert_close(x.grad.double(), exact_x.grad, atol=1e-5, rtol=1e-5)


def test_float32_agrees_with_float64_to_its_own_precision():
    """1e-5: sums of 25 000 numbers, kept in float64 beyond 64 of them."""
    x, norm = maps(16, 24, 40, 40, dtype=torch.float32), norm_of(24, dtype=torch.float32)
    ours, exact = results(NormAct(norm), x, plain=False), results(NormAct(norm).double(), x.double(), plain=True)
    far = (exact["output"] > 1e-4) | (exact["output"] < -1e-4)  # where rounding cannot turn the ReLU's sign
    for name in ("output", "norm.running_mean", "norm.running_var"):
        torch.testing.assert_close(ours[name].double(), exact[name], atol=1e-5, rtol=1e-5)
    for name in ("gradient of norm.weight", "gradient of norm.bias"):
        torch.testing.assert_close(ours[name].double(), exact[name], atol=1e-2, rtol=1e-4)
    close = ((ours["input gradient"] - exact["input gradient"]).abs() < 1e-4) | ~far
    assert close.all()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_same_bits_in_each_run_and_same_numbers_on_any_threads(threads):
    pair, x = NormAct(norm_of(16, dtype=torch.float32)), maps(8, 16, 13, 11, dtype=torch.float32)
    one = results(pair, x, plain=False)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        first, second = (results(pair, x, plain=False) for _ in range(2))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert_same(first, one, rtol=1e-5, atol=1e-5)


def test_nan_is_passed_on_and_stays_in_its_channel():
    x = maps(2, 4, 3, 3, dtype=torch.float32)
    x[0, 1, 2, 2] = torch.nan
    output = NormAct(nn.BatchNorm2d(4))(x)
    assert output[:, 1].isnan().all() and output[:, [0, 2, 3]].isfinite().all()


def test_one_value_a_channel_is_refused_as_by_pytorch():
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
        fused.norm_act(nn.BatchNorm2d(4), maps(1, 4, 1, 1, dtype=torch.float32))


def test_an_input_changed_before_the_backward_pass_is_refused():
    x = maps(2, 4, 3, 3)
    output = fused.norm_act(norm_of(4), x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()
