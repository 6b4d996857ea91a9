"""Distribution shift injected after normalisation: batch norm's help without the stability it was credited with."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from verydeep.data.seed import generator
from verydeep.errors import UsageError
from verydeep.nn.norm import RMSNorm2d

CHANNELS_SECOND: tuple[type[nn.Module], ...] = (nn.modules.batchnorm._NormBase, nn.GroupNorm, RMSNorm2d)
CHANNELS_LAST: tuple[type[nn.Module], ...] = (nn.LayerNorm, nn.RMSNorm)


@final
@dataclass(frozen=True)
class ShiftSpec:
    """The distribution of the injected noise, s y + m with s and m for each image and channel.

    At each forward pass each channel draws mu ~ U(-mean_range, mean_range) and sigma ~ U(1, scale_range); then each
    image m ~ U(mu - mean_jitter, mu + mean_jitter) and s ~ N(sigma, scale_jitter^2).

    Source:  Santurkar et al. 2018, appendix A, Alg. 1
    """

    mean_range: float = 0.5
    scale_range: float = 1.25
    mean_jitter: float = 0.1
    scale_jitter: float = 0.1


@contextmanager
def distribution_shift(model: nn.Module, *, seed: int = 0, spec: ShiftSpec | None = None) -> Iterator[None]:
    """Within it, every norm's output is shifted and scaled anew at each forward pass in training mode.

    The noise comes from a generator of its own, so that dropout and augmentation draw what they would without it. In
    eval mode, and in modules that are no norms, nothing changes. The hooks are gone afterwards.

    Args:    model: its norms are those of torch and of this package
    Raises:  UsageError: if it has none.
    """
    norms = [module for module in model.modules() if isinstance(module, CHANNELS_SECOND + CHANNELS_LAST)]
    if not norms:
        raise UsageError(f"model {type(model).__name__}: has no norm to shift the output of")
    noise = _Noise(spec or ShiftSpec(), generator(seed))
    handles = [norm.register_forward_hook(noise.inject) for norm in norms]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@final
@dataclass(frozen=True)
class _Noise:
    spec: ShiftSpec
    stream: torch.Generator

    def inject(self, norm: nn.Module, inputs: Any, y: Tensor) -> Tensor | None:
        """s y + m after a norm in training mode. Shape: (N, C, ...), or (N, ..., C) after layer norm"""
        if not norm.training:
            return None
        axis = 1 if isinstance(norm, CHANNELS_SECOND) else y.dim() - 1
        shape = [size if i in (0, axis) else 1 for i, size in enumerate(y.shape)]
        mean, scale = (noise.view(shape).to(y) for noise in self._draw(y.shape[0], y.shape[axis]))
        return scale * y + mean

    def _draw(self, num_images: int, num_channels: int) -> tuple[Tensor, Tensor]:
        """m and s, (N, C) each; drawn on the CPU, so that every device sees the same."""
        spec = self.spec
        mean = _uniform(-spec.mean_range, spec.mean_range, (num_channels,), self.stream)
        scale = _uniform(1.0, spec.scale_range, (num_channels,), self.stream)
        shape = (num_images, num_channels)
        mean = mean + _uniform(-spec.mean_jitter, spec.mean_jitter, shape, self.stream)
        scale = scale + spec.scale_jitter * torch.randn(shape, generator=self.stream)
        return mean, scale


def _uniform(low: float, high: float, shape: tuple[int, ...], stream: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=stream) * (high - low) + low
