"""mixup and cutmix: each batch blended with itself moved on by one image. `Run` applies them before a step."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torchvision.transforms import v2

from verydeep.config import RunConfig
from verydeep.data.seed import MIXUP, mix
from verydeep.errors import UsageError

LEAST_ALPHA = 1e-3


@final
@dataclass(frozen=True)
class Mixup:
    """x = l x_i + (1 - l) x_(i-1), and the labels likewise; or a rectangle of x_(i-1), 1 - l of the area.

    l is drawn from Beta(alpha, alpha), once for a micro-batch; where both kinds are there, one of them each time. The
    draws are functions of (seed, step, micro-batch); with several processes each blends within its own images.

    Args:    kinds: torchvision's MixUp, CutMix or both
             seed: of the run
    Source:  Zhang et al. 2018, Eq. 1 (mixup); Yun et al. 2019, Eq. 1 and 2 (cutmix)
    """

    kinds: tuple[v2.MixUp | v2.CutMix, ...]
    seed: int

    def __call__(self, batches: Iterable[tuple[Tensor, Tensor]], *, step: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The micro-batches of a step, their labels (N,) as shares of the classes, (N, num_classes)."""
        for place, (images, labels) in enumerate(batches):
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(mix(MIXUP, self.seed, step, place))
                kind = self.kinds[int(torch.randint(len(self.kinds), ()))]
                blended, shares = kind(images, labels)
            yield blended.contiguous(memory_format=torch.channels_last), shares


def make_mixup(config: RunConfig, num_classes: int) -> Mixup | None:
    """What a config asks for; None if nothing is blended.

    Raises:  UsageError: if an alpha is so small that Beta(alpha, alpha) has no draws in 32 bits.
    """
    for name in ("mixup", "cutmix"):
        if 0 < (getattr(config, name) or 0) < LEAST_ALPHA:
            raise UsageError(f"{name} {getattr(config, name)}: must be 0, or at least {LEAST_ALPHA}")
    alphas = ((v2.MixUp, config.mixup), (v2.CutMix, config.cutmix))
    kinds = tuple(kind(alpha=alpha, num_classes=num_classes) for kind, alpha in alphas if alpha)
    return Mixup(kinds, config.seed) if kinds else None
