"""Batch norm, ReLU, addition and 1x1 convolution of tensors in single passes over memory; `fused.py` calls these.

The same number of threads gives the same bits. On the meta device results are declared and nothing runs.
"""

import ctypes
import functools
import struct

import torch
from numba.core.errors import NumbaError
from torch import Tensor

from verydeep.nn.compiled import kernels, openmp
from verydeep.nn.product import HAS_LANES, LANES
from verydeep.nn.sweep import FROM_INPUT, FROM_OUTPUT, NONE

try:
    kernels(torch.float32)  # here, not in the midst of a step
except NumbaError as error:
    raise ImportError("numba cannot compile the kernels") from error


def _launch(name: str, x: Tensor, *arguments: int, parallel: bool = True) -> None:
    """Run a kernel over the rows of x, with PyTorch's threads; what needs no computing (meta) does not run."""
    if x.is_meta:
        return
    threads, channels = torch.get_num_threads(), x.shape[1]
    kernel = kernels(x.dtype)[name]
    packed = (ctypes.c_int64 * (3 + len(arguments)))(threads, x.numel() // channels, channels, *arguments)
    if threads == 1 or not parallel:
        kernel(packed)
    else:
        openmp.GOMP_parallel(kernel, packed, threads, 0)


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


@functools.lru_cache(maxsize=64)
def _bits(value: float) -> int:
    """A float64 as the integer of equal bits."""
    return struct.unpack("q", struct.pack("d", value))[0]


def _sums(x: Tensor) -> Tensor:
    return torch.empty(torch.get_num_threads(), 2, x.shape[1], dtype=torch.float64, device=x.device)


def statistics(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    *,
    training: bool,
    momentum: float,
    eps: float,
) -> Tensor:
    """What batch norm makes of each channel; running statistics take their step in place.

    Returns: (5, C): mean, scale, shift (y = (x - mean) scale + shift), 1/deviation, and what the mean lost in rounding
    """
    result = x.new_empty(5, x.shape[1])
    if x.is_meta:
        return result
    sums = _sums(x)
    if training:
        _launch("moments", x, x.data_ptr(), sums.data_ptr())
    tensors = (sums, weight, bias, running_mean, running_var, result)
    _launch("statistics", x, *map(_address, tensors), training, _bits(eps), _bits(momentum), parallel=False)
    return result


def normalise(x: Tensor, statistics: Tensor, *, relu: bool, residual: Tensor | None = None) -> Tensor:
    """relu((x - mean) scale + shift + residual)."""
    y = torch.empty_like(x)
    _launch("normalise", x, *map(_address, (x, residual, y, statistics)), relu)
    return y


def backward(
    x: Tensor,
    gradient: Tensor,
    statistics: Tensor,
    *,
    relu: bool,
    training: bool,
    output: Tensor | None = None,
    added: Tensor | None = None,
    keep_masked: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients through the ReLU and batch norm.

    Args:    output: what the ReLU gave, needed where a residual was added; else it is computed again
             added: a gradient that x has from elsewhere
             keep_masked: whether the residual's gradient is wanted
    Returns: gradients of x, weight, bias, and of the residual
    """
    mask = NONE if not relu else FROM_INPUT if output is None else FROM_OUTPUT
    sums, corrections, result = _sums(x), x.new_empty(4, x.shape[1]), torch.empty_like(x)
    masked = torch.empty_like(x) if keep_masked and relu else None
    common = (*map(_address, (x, gradient, output, statistics)), mask)
    _launch("gradient_sums", x, *common, sums.data_ptr())
    _launch("gradients", x, *map(_address, (sums, statistics)), training, corrections.data_ptr(), parallel=False)
    _launch("input_gradient", x, *common, *map(_address, (corrections, added, result, masked)))
    return result, corrections[0], corrections[1], gradient if keep_masked and not relu else masked


def can_multiply(x: Tensor, columns: int) -> bool:
    """Whether norm, ReLU and a 1x1 convolution to so many channels are one pass, faster than apart."""
    channels = x.shape[1]
    whole = channels % LANES == 0 and columns % LANES == 0
    return x.dtype == torch.float32 and whole and channels * columns <= 2**14 and HAS_LANES


def normalise_multiply(
    x: Tensor, statistics: Tensor, weight: Tensor, *, relu: bool, residual: Tensor | None = None
) -> Tensor:
    """The 1x1 convolution with `weight` (C_out, C, 1, 1) of relu(norm(x)), plus the residual."""
    columns = len(weight)
    z = torch.empty(len(x), columns, *x.shape[2:], device=x.device, memory_format=torch.channels_last)
    matrix = weight.reshape(columns, -1).t().contiguous()
    _launch("normalise_multiply", x, *map(_address, (x, residual, z, statistics)), relu, matrix.data_ptr(), columns)
    return z


def multiply_backward(
    x: Tensor,
    gradient: Tensor,
    statistics: Tensor,
    weight: Tensor,
    *,
    relu: bool,
    training: bool,
    added: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, the norm's weight and bias, and the convolution's weight, through `normalise_multiply`."""
    channels, columns = x.shape[1], len(weight)
    mask = FROM_INPUT if relu else NONE
    sums, corrections, gy = _sums(x), x.new_empty(4, channels), torch.empty_like(x)
    shape = (channels, columns) if channels < columns else (columns, channels)
    products = torch.empty(len(sums), *shape, dtype=torch.float64, device=x.device)
    matrix = weight.reshape(columns, channels).contiguous()
    common = map(_address, (x, gradient, gy, statistics))
    _launch("multiply_backward", x, *common, mask, matrix.data_ptr(), columns, *map(_address, (sums, products)))
    _launch("gradients", x, *map(_address, (sums, statistics)), training, corrections.data_ptr(), parallel=False)
    passed = map(_address, (x, gy, None, statistics))
    _launch("input_gradient", x, *passed, mask, *map(_address, (corrections, added, gy, None)))
    product = products.sum(0).to(x.dtype)
    product = product.t() if channels < columns else product
    return gy, corrections[0], corrections[1], product.reshape(weight.shape)
