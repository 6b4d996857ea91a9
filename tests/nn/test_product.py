"""A norm, its ReLU and a 1x1 convolution in one pass, against the same in float64 by PyTorch's own operations."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.nn.test_fused import maps, norm_of
from verydeep.nn import fused

kernel = pytest.importorskip("verydeep.nn.kernel")

# channels in and out, images, height: tiles of 16, 32 and 64 columns; rows that do and do not fill the last tile
SHAPES = [(64, 16, 4, 16), (16, 64, 3, 17), (48, 32, 5, 7), (112, 80, 1, 3), (256, 64, 2, 8), (32, 128, 7, 5)]
SHAPES += [(16, 16, 1, 2), (64, 256, 70, 9)]


def both(shape: tuple[int, ...], *, training: bool = True, relu: bool = True) -> tuple[list[Tensor], list[Tensor]]:
    """Results and gradients in float32, fused, and in float64 by formula."""
    torch.manual_seed(0)
    channels, columns, images, height = shape
    norm, conv = norm_of(channels, dtype=torch.float32), nn.Conv2d(channels, columns, 1, bias=False)
    x, residual = (maps(images, c, height, height, seed=c, dtype=torch.float32) for c in (channels, columns))
    gradient = maps(images, columns, height, height, seed=5) - 2

    def results(norm: nn.Module, conv: nn.Module, x: Tensor, residual: Tensor, *, plain: bool) -> list[Tensor]:
        norm.train(training)
        x, residual = x.detach().requires_grad_(), residual.detach().requires_grad_()
        if plain:
            y = norm(x)
            z, same = conv(F.relu(y) if relu else y) + residual, x
        else:
            z, same = fused.norm_act_conv(norm, x, conv, relu=relu, residual=residual)
        ((z * gradient.to(z.dtype)).sum() + same.square().sum()).backward()
        return [z.detach(), x.grad, residual.grad, norm.weight.grad, norm.bias.grad, conv.weight.grad]

    exact = results(
        copy.deepcopy(norm).double(), copy.deepcopy(conv).double(), x.double(), residual.double(), plain=True
    )
    return results(norm, conv, x, residual, plain=False), exact


def assert_close(ours: list[Tensor], exact: list[Tensor]) -> None:
    """1e-5 of each tensor's size: a float32 sum of 1536 products before sums go on in float64."""
    for our, their in zip(ours, exact, strict=True):
        assert (our.double() - their).norm() <= 1e-5 * their.norm()


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Skips where the processor has no registers for it; the kernels that run."""
    if not kernel.HAS_LANES:
        pytest.skip("needs AVX-512")
    ran: list[str] = []
    launch = kernel._launch

    def spy(name, *args, **options):
        ran.append(name)
        launch(name, *args, **options)

    monkeypatch.setattr(kernel, "_launch", spy)
    return ran


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_one_pass_equals_float64(shape, training, relu, tiles):
    assert_close(*both(shape, training=training, relu=relu))
    assert {"normalise_multiply", "multiply_backward"} <= set(tiles)


@pytest.mark.parametrize("shape", [(24, 16, 2, 4), (16, 24, 2, 4), (256, 128, 2, 4)], ids=str)
def test_other_widths_are_convolutions(shape, tiles):
    assert_close(*both(shape))
    assert "normalise_multiply" not in tiles


@pytest.mark.parametrize("frozen", ["x", "norm", "conv"])
def test_what_is_frozen_has_no_gradient_and_the_rest_is_the_same(frozen, tiles):
    norm, conv = norm_of(16, dtype=torch.float32), nn.Conv2d(16, 32, 1, bias=False)
    x, residual = (maps(2, c, 5, 5, dtype=torch.float32).requires_grad_() for c in (16, 32))
    variables = {"x": x, "norm": norm.weight, "bias": norm.bias, "conv": conv.weight, "residual": residual}

    def gradients() -> dict[str, Tensor | None]:
        for variable in variables.values():
            variable.grad = None
        z, _ = fused.norm_act_conv(norm, x, conv, residual=residual)
        z.square().sum().backward()
        return {name: variable.grad for name, variable in variables.items()}

    expected = gradients()
    variables[frozen].requires_grad_(False)
    for name, gradient in gradients().items():
        if name == frozen:
            assert gradient is None
        else:
            torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-4)
    assert "normalise_multiply" in tiles


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_give_the_same_bits_each_time(threads, tiles):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        first, exact = both((64, 16, 5, 13))
        second, _ = both((64, 16, 5, 13))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    assert_close(first, exact)
