"""Geometry and normalisation of images, shared by data loading and prediction.

The test transform of an image file is resize and central crop; that of resident data is a plain resize. All resizing
is bilinear and antialiased. Pixels stay uint8 until `Normalise`, which runs on the device.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import final

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

from verydeep.data.color import PcaJitter
from verydeep.data.pixel import PixelTransform, on_image

AUGMENTATIONS = ("scale", "scale+aspect", "none")

ImageTransform = Callable[[Image.Image], Image.Image]


def square(image: Image.Image, side: int) -> Image.Image:
    """The image resized to `side` x `side`, whatever its aspect ratio: the transform of resident data."""
    return v2.functional.resize(image, [side, side])


def default_resize(image_size: int) -> int:
    """The shorter side from which the centre is cropped, when no other is asked for: 256 for 224, in proportion."""
    return round(image_size * 256 / 224)


def eval_transform(image_size: int, resize: int | None = None) -> ImageTransform:
    """Shorter side to `resize`, then the central square: the test transform of image files.

    Args:    image_size: side of the result, pixels
             resize: at least image_size, pixels; default: `default_resize`
    Source:  He et al. 2016, Table 5: 224 of 256, and 320 of 320
    """
    return v2.Compose([v2.Resize(resize or default_resize(image_size)), v2.CenterCrop(image_size)])


@final
class ScaleCrop:
    """A random square of the image scaled so that its shorter side has a random length; draws as `train_transform`.

    Only the square is computed, not the scaled image around it: under two thirds of the time, decoding included
    (`benchmarks/decode.py`).

    Args:    image_size: side of the square, pixels
             shorter: the lengths, each as likely; at least image_size, pixels
    """

    def __init__(self, image_size: int, shorter: range) -> None:
        self.image_size, self.shorter = image_size, shorter

    def __call__(self, image: Image.Image) -> Image.Image:
        side, least = self.image_size, min(image.size)
        shorter = self.shorter[_below(len(self.shorter))]
        width, height = (shorter * length // least for length in image.size)  # of the scaled image
        top, left = _below(height - side + 1), _below(width - side + 1)
        across, down = image.width / width, image.height / height  # pixels of the image a pixel of the scaled one
        right, bottom = min((left + side) * across, image.width), min((top + side) * down, image.height)
        box = (left * across, top * down, right, bottom)
        return image.resize((side, side), Image.Resampling.BILINEAR, box=box)


def _below(count: int) -> int:
    """A random number of 0..count-1."""
    return int(torch.randint(count, ()))


def train_transform(
    augmentation: str,
    image_size: int,
    *,
    flip: bool,
    color_jitter: str = "none",
    pixels: PixelTransform | None = None,
) -> ImageTransform:
    """The random transform of a training image; its draws are from torch's default CPU generator.

    Args:    augmentation: `scale` (shorter side uniform in [256, 480] for 224, in proportion otherwise, then a random
                 crop), `scale+aspect` (8 to 100 % of the area at an aspect ratio of 3/4 to 4/3), `none` (the test
                 transform)
             image_size: side of the result, pixels
             flip: mirror half of the images
             color_jitter: `pca` (see `PcaJitter`), `none`
             pixels: see `pixel_transform`
    Source:  He et al. 2016, section 5 (`scale`, `scale+aspect`); Szegedy et al. 2015, section 6 (`scale+aspect`)
    """
    if augmentation == "scale":
        shorter = range(default_resize(image_size), round(image_size * 480 / 224) + 1)
        steps: list[Callable] = [ScaleCrop(image_size, shorter)]
    elif augmentation == "scale+aspect":
        steps = [v2.RandomResizedCrop(image_size)]
    else:
        steps = [eval_transform(image_size)]
    if flip:
        steps.append(v2.RandomHorizontalFlip(0.5))
    if color_jitter == "pca":  # last, so that crop and flip are those drawn without it
        steps.append(PcaJitter())
    if pixels is not None:
        steps.append(partial(on_image, pixels))
    return v2.Compose(steps)


class Normalise:
    """Pixels to network input, (x / 255 - mean) / std for each channel, in two passes over the batch.

    Multiplication and addition are rounded apart, so that a value depends on its pixel alone, never on the batch.

    Args:    mean, std: of each channel, of pixels in 0..1
             image_size: side of the images, pixels
             device: where the images will be
    Shape:   (N, H, W, C) uint8 -> (N, C, H, W) float32 in channels_last
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], *, image_size: int, device: torch.device) -> None:
        mean64, std64 = (torch.tensor(values, dtype=torch.float64) for values in (mean, std))
        # One whole image long, (H * W * C,): broadcasting over three channels alone would not be vectorised.
        rows = (values.float().repeat(image_size**2).to(device) for values in (1 / (255 * std64), -mean64 / std64))
        self.scale, self.shift = rows

    def __call__(self, pixels: Tensor) -> Tensor:
        flat = pixels.reshape(len(pixels), -1).float()  # (N, H * W * C)
        return flat.mul_(self.scale).add_(self.shift).view(pixels.shape).permute(0, 3, 1, 2)
