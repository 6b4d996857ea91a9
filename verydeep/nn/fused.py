"""Batch norm with the ReLU and the addition beside it as one operation, and with the convolution that follows.

`NormAct` and `ResidualUnit` call these where `suits` and `plain_conv` allow, which is wherever nothing could tell the
difference but a clock: on the CPU, channels_last, with no hook, mode, transform or tracer to notice. The passes over
memory are in `kernel.py`. Between forward and backward only inputs are kept; outputs of the ReLU are computed again.
"""

import functools
import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules.module import _has_any_global_hook as has_any_global_hook

_plain = False  # within `plain_operations`, and in processes that were forked


@contextmanager
def plain_operations() -> Iterator[None]:
    """Within it, networks use PyTorch's own operations alone, whose results are the same up to rounding."""
    global _plain
    before, _plain = _plain, True
    try:
        yield
    finally:
        _plain = before


def _after_fork() -> None:
    """A forked process has none of the threads that the kernels' OpenMP pool counts on."""
    global _plain
    _plain = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@functools.cache
def kernels() -> Any:
    """The compiled kernels; None where numba or PyTorch's OpenMP library is not there."""
    try:
        return importlib.import_module("verydeep.nn.kernel")
    except (ImportError, OSError):
        return None


def transformed() -> bool:
    """Whether a compiler, tracer, functorch transform, forward differentiation or dispatch mode sees operations."""
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
        or torch._C._len_torch_dispatch_stack() > 0
    )


def suits(x: Tensor) -> bool:
    """Whether the fused operations may take x: what it is, and that nothing watches, transforms or traces.

    On the meta device they are declared, not computed, in any memory format: convolutions forget it there.
    """
    return (
        not transformed()
        and not _plain
        and type(x) is Tensor
        and not has_any_global_hook()
        and torch._C._len_torch_function_stack() == 0
        and not torch.is_autocast_enabled("cpu")
        and x.dim() == 4
        and x.dtype in (torch.float32, torch.float64)
        and x.numel() > 0
        and (x.is_meta or (x.is_cpu and x.is_contiguous(memory_format=torch.channels_last)))
        and kernels() is not None
    )


def unwatched(module: nn.Module) -> bool:
    """Whether calling the module does nothing but its class's forward; hooks of all modules apart, see `suits`."""
    return not (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
    )


def plain_norm(norm: nn.Module, x: Tensor, *, channels: int) -> TypeGuard[nn.BatchNorm2d]:
    """Whether the norm is PyTorch's batch norm for so many channels, unwatched, in x's precision."""
    return (
        type(norm) is nn.BatchNorm2d
        and unwatched(norm)
        and norm.num_features == channels
        and all(
            tensor is None or (plain_tensor(tensor, x) and tensor.is_contiguous())
            for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var)
        )
    )


def plain_conv(conv: nn.Module, x: Tensor, *, channels: int) -> TypeGuard[nn.Conv2d]:
    """Whether the convolution is PyTorch's own for so many channels, unwatched, zero-padded, in x's precision."""
    return type(conv) is nn.Conv2d and unwatched(conv) and takes(conv, x, channels=channels)


def takes(conv: nn.Conv2d, x: Tensor, *, channels: int) -> bool:
    """Whether the convolution is for so many channels, zero-padded, in x's precision."""
    return (
        conv.in_channels == channels
        and conv.padding_mode == "zeros"
        and not isinstance(conv.padding, str)
        and plain_tensor(conv.weight, x)
    )


def plain_tensor(tensor: Tensor, x: Tensor) -> bool:
    """Whether the tensor is no subclass's, and of x's precision and device."""
    return type(tensor) in (Tensor, nn.Parameter) and tensor.dtype == x.dtype and tensor.device == x.device


def norm_act(norm: nn.BatchNorm2d, x: Tensor, *, relu: bool = True, residual: Tensor | None = None) -> Tensor:
    """relu(norm(x) + residual).

    Keeps x, and with a residual the result.

    Shape:   x, residual: (N, C, H, W), channels_last
    Source:  Ioffe and Szegedy 2015, Alg. 1
    """
    if residual is not None and not (residual.shape == x.shape and plain_tensor(residual, x)):
        y = norm_act(norm, x, relu=False) + residual  # an addition that broadcasts
        return F.relu(y) if relu else y
    residual = None if residual is None else _channels_last(residual)
    return _NormAct.apply(_channels_last(x), norm.weight, norm.bias, residual, norm, relu)


def norm_act_conv(
    norm: nn.BatchNorm2d, x: Tensor, conv: nn.Conv2d, *, relu: bool = True, residual: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """conv(relu(norm(x))) + residual, and x itself, for a shortcut whose gradient joins in the same pass.

    Keeps x; what the convolution takes is computed again.

    Shape:   x: (N, C, H, W), channels_last; residual: as the result
    """
    one_pass = _is_matrix_product(conv) and kernels().can_multiply(x, conv.out_channels)
    shape = (len(x), conv.out_channels, *x.shape[2:])
    joins = one_pass and residual is not None and residual.shape == shape and plain_tensor(residual, x)
    added = _channels_last(residual) if joins and residual is not None else None
    z, x = _NormActConv.apply(
        _channels_last(x), norm.weight, norm.bias, conv.weight, conv.bias, added, norm, conv, relu, one_pass
    )
    return z if residual is None or joins else sum_in_place(z, residual), x


def scale_shift(x: Tensor, constants: Tensor, *, relu: bool) -> Tensor:
    """scale_c x + shift_c, or relu of it, in one pass where `suits`; no gradient passes then.

    Args:    constants: (5, C) with rows 0, scale, shift, 0, 0: those of a norm, see `kernel.statistics`
    """
    if suits(x) and not torch.is_grad_enabled() and constants.dtype == x.dtype and not x.is_meta:
        return kernels().normalise(x, constants, relu=relu)
    _, scale, shift, _, _ = constants
    shape = (-1, *[1] * (x.dim() - 2))
    y = torch.addcmul(shift.view(shape), x, scale.view(shape))
    return F.relu_(y) if relu else y


def sum_in_place(z: Tensor, residual: Tensor) -> Tensor:
    """z + residual in z's memory, where it has the shape of the sum: for a z that nobody has seen."""
    return z.add_(residual) if residual.shape == z.shape and residual.dtype == z.dtype else z + residual


def _channels_last(x: Tensor) -> Tensor:
    return x if x.is_meta else x.contiguous(memory_format=torch.channels_last)


def _statistics(norm: nn.BatchNorm2d, x: Tensor) -> tuple[Tensor, bool]:
    """The constants that a norm applies to x, see `kernel.statistics`, and whether they are of this batch."""
    own = norm.training or norm.running_mean is None
    if own and x.numel() == x.shape[1]:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {x.shape}")
    momentum = 0.0 if norm.momentum is None else norm.momentum
    track = norm.training and norm.track_running_stats
    if track and norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
        if norm.momentum is None and not x.is_meta:
            momentum = 1 / norm.num_batches_tracked.item()
    running = (norm.running_mean, norm.running_var) if track or not own else (None, None)
    result = kernels().statistics(x, norm.weight, norm.bias, *running, training=own, momentum=momentum, eps=norm.eps)
    return result, own


def _plain_norm_act(x: Tensor, weight: Tensor | None, bias: Tensor | None, ctx: Any) -> Tensor:
    """The same by PyTorch's own operations, to be differentiated twice."""
    if ctx.own:
        y = F.batch_norm(x, None, None, weight, bias, training=True, eps=ctx.eps)
    else:
        mean, _, _, inverse, lost = (row[:, None, None] for row in ctx.saved_tensors[-1])
        y = ((x - mean) - lost) * inverse
        y = y if weight is None else y * weight[:, None, None]
        y = y if bias is None else y + bias[:, None, None]
    return y


class _NormAct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, residual, norm, relu):
        statistics, ctx.own = _statistics(norm, x)
        y = kernels().normalise(x, statistics, relu=relu, residual=residual)
        ctx.eps, ctx.relu = norm.eps, relu
        ctx.save_for_backward(x, weight, bias, y if relu and residual is not None else None, statistics)
        return y

    @staticmethod
    def backward(ctx, gradient):
        x, weight, bias, y, statistics = ctx.saved_tensors
        need = ctx.needs_input_grad
        if torch.is_grad_enabled():
            output = _plain_norm_act(x, weight, bias, ctx)
            if ctx.relu:
                gradient = gradient * ((output if y is None else y) > 0)
            return *_gradients(output, (x, weight, bias), gradient, need), gradient if need[3] else None, None, None
        gradient = _channels_last(gradient)
        gx, gw, gb, masked = kernels().backward(
            x, gradient, statistics, relu=ctx.relu, training=ctx.own, output=y, keep_masked=need[3]
        )
        return gx, gw if need[1] else None, gb if need[2] else None, masked, None, None


class _NormActConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, conv_weight, conv_bias, residual, norm, conv, relu, one_pass):
        statistics, ctx.own = _statistics(norm, x)
        ctx.geometry = (conv.stride, conv.padding, conv.dilation, conv.groups)
        if one_pass:
            z = kernels().normalise_multiply(x, statistics, conv_weight, relu=relu, residual=residual)
        else:
            y = kernels().normalise(x, statistics, relu=relu)
            z = torch.conv2d(y, conv_weight, conv_bias, *ctx.geometry)
        ctx.eps, ctx.relu, ctx.one_pass = norm.eps, relu, one_pass
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight, bias, conv_weight, conv_bias, statistics)
        return z, x

    @staticmethod
    def backward(ctx, gradient, added):
        x, weight, bias, conv_weight, conv_bias, statistics = ctx.saved_tensors
        need = ctx.needs_input_grad
        if gradient is None:
            return added, *[None] * 9
        if torch.is_grad_enabled():
            y = _plain_norm_act(x, weight, bias, ctx)
            z = torch.conv2d(y.relu() if ctx.relu else y, conv_weight, conv_bias, *ctx.geometry)
            gx, *others = _gradients(z, (x, weight, bias, conv_weight, conv_bias), gradient, need)
            gx = gx if added is None or gx is None else gx + added
            return gx, *others, gradient if need[5] else None, *[None] * 4
        gradient = _channels_last(gradient)
        added = None if added is None else _channels_last(added)
        if ctx.one_pass and all(need[:4]):
            gx, gw, gb, gcw = kernels().multiply_backward(
                x, gradient, statistics, conv_weight, relu=ctx.relu, training=ctx.own, added=added
            )
            return gx, gw, gb, gcw, None, gradient if need[5] else None, *[None] * 4
        y = kernels().normalise(x, statistics, relu=ctx.relu)
        gy, gcw, gcb = _convolution_backward(
            gradient, y, conv_weight, conv_bias, ctx.geometry, need=(any(need[:3]), need[3], need[4])
        )
        gx = gw = gb = None
        if any(need[:3]):
            assert gy is not None
            gy = _channels_last(gy)
            gx, gw, gb, _ = kernels().backward(x, gy, statistics, relu=ctx.relu, training=ctx.own, added=added)
        needed = (g if n else None for g, n in zip((gx, gw, gb), need, strict=False))
        return *needed, gcw, gcb, gradient if need[5] else None, *[None] * 4


def _convolution_backward(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    geometry: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int],
    *,
    need: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of a convolution's input, weight and bias, those that are needed."""
    stride, padding, dilation, groups = geometry
    sizes = None if bias is None else list(bias.shape)
    rest = (stride, padding, dilation, False, [0, 0], groups)
    narrows = weight.shape[2:] == (1, 1) and weight.shape[0] <= 32 and weight.shape[0] < weight.shape[1]
    if not (narrows and stride == (1, 1) and padding == (0, 0) and groups == 1 and bias is None and need[1]):
        return torch.ops.aten.convolution_backward(gradient, x, weight, sizes, *rest, list(need))
    gx = torch.ops.aten.convolution_backward(gradient, x, weight, None, *rest, [need[0], False, False])[0]
    # oneDNN takes up to three times as long for few output channels as for few input channels: the matrix product
    # transposed, as the weight gradient of the convolution from the few channels to the many
    transposed = weight.transpose(0, 1).contiguous()
    gw = torch.ops.aten.convolution_backward(x, gradient, transposed, None, *rest, [False, True, False])[1]
    return gx, gw.transpose(0, 1), None


def _is_matrix_product(conv: nn.Conv2d) -> bool:
    """Whether the convolution multiplies each position's channels by one matrix, and does no more."""
    at_each = conv.kernel_size == (1, 1) and conv.stride == (1, 1) and conv.padding == (0, 0)
    return at_each and conv.groups == 1 and conv.bias is None


def _gradients(output: Tensor, inputs: tuple[Tensor | None, ...], gradient: Tensor, need: tuple[bool, ...]) -> list:
    """Gradients of those inputs that need one, differentiable themselves."""
    wanted = [x for x, needed in zip(inputs, need, strict=False) if x is not None and needed]
    found = iter(torch.autograd.grad(output, wanted, gradient, create_graph=True) if wanted else ())
    return [next(found) if x is not None and needed else None for x, needed in zip(inputs, need, strict=False)]
