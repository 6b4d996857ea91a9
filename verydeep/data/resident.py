"""Small images that live decoded on the device: `ResidentSplit`, batches in a few tensor operations.

Digits, CIFAR and other data of at most 64 pixels a side are resident; no worker process is involved.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from verydeep.data.pixel import PixelTransform
from verydeep.data.seed import AUGMENTATION, generator, mix
from verydeep.data.split import Split
from verydeep.data.transform import Normalise


@final
@dataclass(eq=False, repr=False)
class ResidentSplit(Split):
    """uint8 pixels from which a batch is cropped and flipped by one gather, then normalised.

    Augmentation pads `crop_padding` zeros (raw pixels, before normalisation) on each side, takes a random crop of the
    original size and mirrors half of the images.

    Args:    images: uint8 (N, H, W, C), H = W
             labels: int64 (N,)
             mean, std: of each channel, of pixels in 0..1
             seed: of the augmentation
             crop_padding: pixels; 0: no crops
             flip: whether to mirror
             pixels: a further random transform of each image alone, see `pixel_transform`
    Source:  He et al. 2016, appendix (pad 4, crop, flip, for 32 x 32)
    """

    images: Tensor
    labels: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]
    seed: int = 0
    crop_padding: int = 0
    flip: bool = False
    pixels: PixelTransform | None = None
    _padded: Tensor = field(init=False)
    _placed: tuple[torch.device, Tensor, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        padding, size = self.crop_padding, self.images.shape[1]
        self._padded = F.pad(self.images, (0, 0, *[padding] * 4))
        self._placed = torch.device("cpu"), self._padded, self.labels
        self.images = self._padded[:, padding : padding + size, padding : padding + size]  # a view: kept only once

    def draws(self, epoch: int | None) -> Tensor:
        """The augmentation of each sample in an epoch: rows down, columns right, mirrored (0 or 1).

        Returns: int64 (3, N), on the CPU; the central crop, not mirrored, for epoch None
        """
        size = len(self)
        if epoch is None:
            return torch.tensor([self.crop_padding, self.crop_padding, 0])[:, None].expand(3, size)
        stream = generator(AUGMENTATION, self.seed, epoch)
        corner = torch.randint(0, 2 * self.crop_padding + 1, (2, size), generator=stream)
        mirrored = torch.randint(0, 2, (1, size), generator=stream) * self.flip
        return torch.cat((corner, mirrored))

    def batches(
        self, index_batches: Iterable[Tensor], *, epoch: int | None, device: torch.device | str
    ) -> Iterator[tuple[Tensor, Tensor]]:
        device, size = torch.device(device), self.images.shape[1]
        padded, labels = self._on(device)
        normalise = Normalise(self.mean, self.std, image_size=size, device=device)
        draws = self.draws(epoch).to(device)
        mirrors = epoch is not None and self.flip
        crops = padded.unfold(1, size, 1).unfold(2, size, 1).permute(0, 1, 2, 4, 5, 3)  # (N, 2p+1, 2p+1, H, W, C), view
        for index in index_batches:
            rows = index.to(device, non_blocking=True)
            down, right, mirrored = draws[:, rows]
            pixels = crops[rows, down, right]  # (B, H, W, C)
            pixels = _mirror(pixels, mirrored) if mirrors else pixels
            if epoch is not None and self.pixels is not None:
                pixels = self._transformed(pixels, index, epoch)
            yield normalise(pixels), labels[rows]

    def _transformed(self, pixels: Tensor, index: Tensor, epoch: int) -> Tensor:
        """(B, H, W, C), each image by the draws of its own (seed, epoch, index)."""
        assert self.pixels is not None
        images = []
        with torch.random.fork_rng(devices=[]):
            for image, row in zip(pixels.permute(0, 3, 1, 2), index.tolist(), strict=True):
                torch.default_generator.manual_seed(mix(AUGMENTATION, self.seed, epoch, row))
                images.append(self.pixels(image))
        return torch.stack(images).permute(0, 2, 3, 1)

    def with_labels(self, labels: Tensor) -> "ResidentSplit":
        return replace(self, labels=labels)

    def with_seed(self, seed: int) -> "ResidentSplit":
        return replace(self, seed=seed)

    def _on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        if self._placed[0] != device:  # as asked for: a tensor moved to `cuda` is on `cuda:0`
            self._placed = device, self._padded.to(device), self.labels.to(device)
        return self._placed[1:]


def _mirror(pixels: Tensor, mirrored: Tensor) -> Tensor:
    """(B, H, W, C), those with a 1 flipped left to right. Selecting whole images is faster than torch.where."""
    both = torch.cat((pixels, pixels.flip(2)))  # (2B, H, W, C)
    batch = len(pixels)
    return both.index_select(0, torch.arange(batch, device=pixels.device) + batch * mirrored)
