"""JoinedConv2d alone: the plain operations' results, and weights laid out anew when they or the images change."""

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from verydeep.nn.prediction import JoinedConv2d


def channels_last(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).contiguous(
        memory_format=torch.channels_last
    )


def plain(conv: nn.Conv2d, x: Tensor, added: Tensor | None, *, relu: bool) -> Tensor:
    y = F.conv2d(x, conv.weight, conv.bias, conv.stride, conv.padding, conv.dilation, conv.groups)
    y = y if added is None else y + added
    return F.relu(y) if relu else y


CONVOLUTIONS = {
    "1x1": lambda: nn.Conv2d(8, 16, 1),
    "3x3": lambda: nn.Conv2d(8, 8, 3, padding=1, bias=False),
    "strided": lambda: nn.Conv2d(8, 16, 3, stride=2, padding=1),
    "dilated": lambda: nn.Conv2d(8, 8, 3, padding=2, dilation=2),
    "grouped": lambda: nn.Conv2d(8, 16, 3, padding=1, groups=4),
    "depthwise": lambda: nn.Conv2d(8, 8, 5, padding=2, groups=8),
    "padded alike": lambda: nn.Conv2d(8, 8, 3, padding="same"),
    "reflecting": lambda: nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect"),
    "oblong": lambda: nn.Conv2d(8, 8, (1, 3), padding=(0, 1), stride=(1, 2)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("added", ["nothing", "kept", "overwritten", "one channel"])
@torch.no_grad()
def test_the_result_is_that_of_plain_operations(name, relu, added):
    conv, x = CONVOLUTIONS[name](), channels_last(3, 8, 9, 9)
    module = JoinedConv2d(conv, relu=relu, overwrites=added == "overwritten")
    size = conv(x).shape
    other = None if added == "nothing" else channels_last(*(size if added != "one channel" else (3, 1, *size[2:])))
    expected = conv(x) if other is None else conv(x) + other
    kept = None if other is None else other.clone()
    torch.testing.assert_close(module(x, other), F.relu(expected) if relu else expected, rtol=1e-5, atol=1e-6)
    if added in ("kept", "one channel"):
        assert torch.equal(other, kept)


@torch.no_grad()
def test_its_weights_are_laid_out_anew_when_they_change():
    conv, x = nn.Conv2d(8, 16, 3, padding=1), channels_last(2, 8, 6, 6)
    module = JoinedConv2d(conv, relu=True, overwrites=False)
    module(x)
    packed = module._packed
    assert packed is not None
    module(channels_last(5, 8, 6, 6))
    assert module._packed is packed
    module.weight.mul_(2)
    torch.testing.assert_close(module(x), plain(conv, x, None, relu=True))
    module.load_state_dict(nn.Conv2d(8, 16, 3).state_dict())
    torch.testing.assert_close(module(x), plain(conv, x, None, relu=True))
    module.weight = nn.Parameter(torch.randn(16, 8, 3, 3))
    torch.testing.assert_close(module(x), plain(module, x, None, relu=True))
    for _ in range(20):  # freed memory is soon another weight's
        module.load_state_dict(nn.Conv2d(8, 16, 3).state_dict(), assign=True)
        torch.testing.assert_close(module(x), plain(module, x, None, relu=True))
    module.bfloat16().float()
    torch.testing.assert_close(module(x), plain(module, x, None, relu=True))
    larger = channels_last(2, 8, 11, 11)
    torch.testing.assert_close(module(larger), plain(module, larger, None, relu=True))


def test_gradients_are_those_of_plain_operations():
    conv, x, added = nn.Conv2d(8, 8, 3, padding=1), channels_last(2, 8, 5, 5), channels_last(2, 8, 5, 5, seed=2)
    module = JoinedConv2d(conv, relu=True, overwrites=True)
    with torch.no_grad():
        module(x, added.clone())
    got = torch.autograd.grad(module(x, added).square().sum(), [module.weight, module.bias])
    expected = torch.autograd.grad(plain(conv, x, added, relu=True).square().sum(), [conv.weight, conv.bias])
    torch.testing.assert_close(got, expected)


@torch.no_grad()
def test_a_copy_has_no_laid_out_weights():
    module, x = JoinedConv2d(nn.Conv2d(8, 16, 1), relu=True, overwrites=False), channels_last(2, 8, 4, 4)
    expected = module(x)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    for twin in (copy.deepcopy(module), torch.load(file, weights_only=False)):
        assert twin._packed is None
        assert torch.equal(twin(x), expected)
    assert module._packed is not None


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@torch.no_grad()
def test_other_precisions_take_plain_operations(dtype):
    conv, x = nn.Conv2d(8, 16, 1).to(dtype), channels_last(2, 8, 4, 4).to(dtype)
    module = JoinedConv2d(conv, relu=True, overwrites=False)
    assert torch.equal(module(x), plain(conv, x, None, relu=True))
    assert module._packed is None


@torch.no_grad()
def test_errors_are_those_of_the_convolution():
    module = JoinedConv2d(nn.Conv2d(8, 16, 1), relu=True, overwrites=False)
    with pytest.raises(RuntimeError, match="to have 8 channels, but got 4"):
        module(channels_last(2, 4, 3, 3))


@torch.inference_mode()
def test_weights_made_in_inference_mode():
    module, x = JoinedConv2d(nn.Conv2d(8, 16, 1), relu=True, overwrites=False), channels_last(2, 8, 4, 4)
    module(x)
    module.weight.mul_(2)
    torch.testing.assert_close(module(x), plain(module, x, None, relu=True))
