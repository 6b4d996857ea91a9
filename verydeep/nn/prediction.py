"""What a folded network is made of: a norm that is left as a scale and a shift, and a convolution with what follows it.

Both are ordinary modules, traced, exported and differentiated in plain operations; without gradients, on the CPU, they
take fewer passes over memory.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from verydeep.nn import fused


class ScaleShift(nn.Module):
    """y = a_c x + b_c, or relu of it: a batch norm at prediction that no convolution takes over.

    Args:    scale, shift: a and b, (C,)
             relu: whether max(0, .) follows
    Shape:   (N, C, ...) -> (N, C, ...)
    """

    constants: Tensor

    def __init__(self, scale: Tensor, shift: Tensor, *, relu: bool) -> None:
        super().__init__()
        zero = torch.zeros_like(scale)
        self.register_buffer("constants", torch.stack([zero, scale, shift, zero, zero]))
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        return fused.scale_shift(x, self.constants, relu=self.relu)

    def extra_repr(self) -> str:
        return f"{self.constants.shape[1]}, relu={self.relu}"


_ADD: tuple[Any, ...] = ("add", 1.0, None, [], None)


class JoinedConv2d(nn.Conv2d):
    """relu(conv(x) + added), each of the two where it is; convolution and sum are one operation of oneDNN.

    Its weights are laid out once for the images' size, a second copy of them, and again when they or the size change.
    (Writing into `weight.data` in place goes unseen.)

    Args:    conv: whose weights it shares
             relu: whether max(0, .) follows
             overwrites: whether the result may take the memory of `added`, which nobody reads afterwards
    Shape:   x: (N, C_in, H, W), added: that of the result, or what broadcasts with it
    """

    def __init__(self, conv: nn.Conv2d, *, relu: bool, overwrites: bool) -> None:
        super().__init__(
            conv.in_channels,
            conv.out_channels,
            conv.kernel_size,  # type: ignore[arg-type]
            conv.stride,  # type: ignore[arg-type]
            conv.padding,  # type: ignore[arg-type]
            conv.dilation,  # type: ignore[arg-type]
            conv.groups,
            bias=False,
            padding_mode=conv.padding_mode,
            device="meta",
        )
        self.weight, self.bias = conv.weight, conv.bias
        self.relu = relu
        self.overwrites = overwrites
        self._packed: tuple[Tensor, int, torch.Size, Tensor] | None = None

    def forward(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        weight, bias = self.weight, self.bias
        if self._joins(x, weight, bias) and (added is None or self._adds(added, x)):
            return self._joined(x, weight, bias, added)
        y = super().forward(x)
        if added is not None:
            y = y + added
        return F.relu_(y) if self.relu else y

    def _joins(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
        """Whether oneDNN takes it, and nothing could tell the difference but a clock."""
        return (
            not torch.is_grad_enabled()
            and fused.suits(x)
            and x.is_cpu
            and x.dtype == torch.float32
            and not (x.is_contiguous() and weight.is_contiguous())  # else the result would not be channels_last
            and fused.takes(self, x, channels=x.shape[1])
            and not weight.is_inference()
            and (bias is None or fused.plain_tensor(bias, x))
            and torch._C._get_mkldnn_enabled()
            and torch._C._has_mkldnn
        )

    def _adds(self, added: Tensor, x: Tensor) -> bool:
        """Whether it has the result's shape, and nothing watches it."""
        assert not isinstance(self.padding, str)
        sides = zip(x.shape[2:], self.padding, self.dilation, self.kernel_size, self.stride, strict=True)
        sizes = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, p, d, k, s in sides]
        return added.shape == (len(x), self.out_channels, *sizes) and added.dtype == x.dtype and fused.suits(added)

    def _joined(self, x: Tensor, weight: Tensor, bias: Tensor | None, added: Tensor | None) -> Tensor:
        packed = self._packed_weight(x, weight)
        geometry = (self.padding, self.stride, self.dilation, self.groups)
        if added is None:
            y = torch.ops.mkldnn._convolution_pointwise(x, packed, bias, *geometry, "none", [], "")
        elif self.overwrites:
            y = torch.ops.mkldnn._convolution_pointwise_.binary(added, x, packed, bias, *geometry, *_ADD)
        else:
            y = torch.ops.mkldnn._convolution_pointwise.binary(x, added, packed, bias, *geometry, *_ADD)
        return F.relu_(y) if self.relu else y  # oneDNN's own makes 0 of NaN

    def _packed_weight(self, x: Tensor, weight: Tensor) -> Tensor:
        """The weights as oneDNN wants them for images of this size; batches of any size share them."""
        version, size = weight._version, x.shape[1:]
        if self._packed is not None:
            source, source_version, source_size, packed = self._packed
            if (source.data_ptr(), source_version, source_size) == (weight.data_ptr(), version, size):
                return packed
        packed = torch.ops.mkldnn._reorder_convolution_weight(
            weight, self.padding, self.stride, self.dilation, self.groups, x.shape
        )
        # the source is kept, so that no later weight can lie at its address
        self._packed = (weight.detach(), version, size, packed)
        return packed

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_packed": None}  # oneDNN's layout can be neither copied nor saved

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, relu={self.relu}"
