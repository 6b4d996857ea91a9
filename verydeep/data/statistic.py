"""Channel means and deviations of a training set, over all pixels (not means of the images' own deviations)."""

import math

import numpy as np
import torch
from torch import Tensor

from verydeep.data.image_list import ImageList, in_threads
from verydeep.data.transform import eval_transform

MAX_FILES = 2000  # image files that are read for an estimate

Moments = tuple[int, list[int], list[int]]  # values a channel, their sums, the sums of their squares: exact


def mean_std(images: Tensor | ImageList, *, image_size: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and population deviation of each channel, of pixels in 0..1.

    Of decoded images all pixels count; of an image list at most 2,000 images, evenly spaced, as the test transform
    shows them.

    Args:    images: uint8 (N, H, W, C), or a list; at least one image
             image_size: side of what the test transform shows, pixels
    """
    if isinstance(images, Tensor):
        parts = [_moments(part) for part in images.split(1024)]
    else:
        rows = np.unique(np.linspace(0, len(images) - 1, min(len(images), MAX_FILES)).round().astype(np.int64))
        parts = _file_moments(images.take(rows), image_size)
    count = sum(part[0] for part in parts)
    sums, squares = ([sum(channel) for channel in zip(*(part[i] for part in parts), strict=True)] for i in (1, 2))
    variances = ((count * square - total**2) / count**2 for total, square in zip(sums, squares, strict=True))
    return tuple(total / count / 255 for total in sums), tuple(math.sqrt(variance) / 255 for variance in variances)


def _file_moments(images: ImageList, image_size: int) -> list[Moments]:
    transform = eval_transform(image_size)

    def of_rows(rows: range) -> Moments:
        return _moments(torch.from_numpy(np.stack([np.asarray(transform(images.read(row))) for row in rows])))

    return in_threads(of_rows, len(images), chunk=8)


def _moments(pixels: Tensor) -> Moments:
    """Of uint8 (N, H, W, C). Sums of whole numbers are exact in float64 below 2^53."""
    values = pixels.reshape(len(pixels), -1).double()
    channels = pixels.shape[-1]
    sums, squares = (part.sum(0).view(-1, channels).sum(0).long().tolist() for part in (values, values.square()))
    return pixels[..., 0].numel(), sums, squares
