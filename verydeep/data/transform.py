"""Geometry and normalisation of images, shared by data loading and prediction.

The test transform of an image file is resize and central crop; that of resident data is a plain resize. All resizing
is bilinear and antialiased. Pixels stay uint8 until `Normalise`, which runs on the device.
"""

from collections.abc import Callable, Sequence

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

AUGMENTATIONS = ("scale", "scale+aspect", "none")

ImageTransform = Callable[[Image.Image], Image.Image]


def square(image: Image.Image, side: int) -> Image.Image:
    """The image resized to `side` x `side`, whatever its aspect ratio: the transform of resident data."""
    return v2.functional.resize(image, [side, side])


def eval_transform(image_size: int) -> ImageTransform:
    """Shorter side to round(image_size * 256 / 224), then the central square: the test transform of image files."""
    return v2.Compose([v2.Resize(round(image_size * 256 / 224)), v2.CenterCrop(image_size)])


def train_transform(augmentation: str, image_size: int, *, flip: bool) -> ImageTransform:
    """The random transform of a training image; its draws are from torch's default CPU generator.

    Args:    augmentation: `scale` (shorter side uniform in [256, 480] for 224, in proportion otherwise, then a random
                 crop), `scale+aspect` (8 to 100 % of the area at an aspect ratio of 3/4 to 4/3), `none` (the test
                 transform)
             image_size: side of the result, pixels
             flip: mirror half of the images
    Source:  He et al. 2016, section 5 (`scale`, `scale+aspect`); Szegedy et al. 2015, section 6 (`scale+aspect`)
    """
    if augmentation == "scale":
        shorter = range(round(image_size * 256 / 224), round(image_size * 480 / 224) + 1)
        steps: list[Callable] = [v2.RandomShortestSize(list(shorter)), v2.RandomCrop(image_size)]
    elif augmentation == "scale+aspect":
        steps = [v2.RandomResizedCrop(image_size)]
    else:
        steps = [eval_transform(image_size)]
    return v2.Compose([*steps, v2.RandomHorizontalFlip(0.5)] if flip else steps)


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
