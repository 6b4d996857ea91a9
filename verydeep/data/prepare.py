"""The steps of `load_data` from a `Source` as found to one whose pixels, hold-out and statistics are decided."""

import dataclasses
import logging
import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torchvision.transforms import v2

from verydeep.data.holdout import class_sizes, hold_out, in_proportion
from verydeep.data.image_list import decode, readable
from verydeep.data.seed import SUBSET, generator
from verydeep.data.source import Labelled, Source
from verydeep.data.statistic import mean_std
from verydeep.errors import UsageError

MAX_RESIDENT_SIDE = 64
MAX_RESIDENT_BYTES = 2 * 2**30

_log = logging.getLogger("verydeep")


def without_unreadable(source: Source) -> Source:
    """The source without image files that do not decode, each named in a warning.

    Raises:  UsageError: if a part has none left
    """
    return source.map(_readable_part)


def _readable_part(part: Labelled) -> Labelled:
    if isinstance(part.images, Tensor):
        return part
    rows = readable(part.images)
    if not len(rows):
        raise UsageError(f"bad_images 'skip': none of the {len(part.labels)} images can be read; at least 1 must be")
    return part.take(torch.from_numpy(rows))


def with_validation(source: Source, count: int, *, seed: int) -> Source:
    """The source with `count` training images held out, in proportion to the classes.

    Raises:  UsageError: if there is a validation set already, or a class would lose its last image
    """
    if source.train is None:
        raise UsageError(f"validation {count}: there is no training set to hold images out of; must be 0")
    if source.validation is not None:
        raise UsageError(f"validation {count}: the data have a validation set of their own; must be 0")
    sizes = class_sizes(source.train.labels, len(source.classes))
    most = int((sizes - (sizes > 0)).sum())
    if count > most:
        raise UsageError(f"validation {count}: must leave 1 training image of each class; at most {most}")
    kept, held = hold_out(source.train.labels, in_proportion(sizes, count), seed=seed)
    return dataclasses.replace(source, train=source.train.take(kept), validation=source.train.take(held))


def with_at_most(source: Source, count: int) -> Source:
    """The source with `count` images of each part that has more, drawn at random, the same ones at every call."""

    def cut(part: Labelled) -> Labelled:
        size = len(part.labels)
        if size <= count:
            return part
        rows = torch.randperm(size, generator=generator(SUBSET, size))[:count]
        return part.take(rows.sort().values)

    return source.map(cut)


def with_pixels(source: Source, image_size: int | None, *, resident: bool | None = None) -> Source:
    """The source with small images decoded and, if a size is given, resized; others stay encoded.

    Args:    resident: whether they are decoded, whatever their size
    Raises:  RunError: if an image that is decoded cannot be read, naming it
    """
    if isinstance(source.parts[0].images, Tensor):
        return source if image_size is None else source.map(lambda part: _resized(part, image_size))
    side = image_size or _native_side(source)
    if side is None or not (_is_small(source, side) if resident is None else resident):
        return source
    decoded = source.map(lambda part: _decoded(part, side, resize=image_size is not None))
    return decoded if all(isinstance(part.images, Tensor) for part in decoded.parts) else source


def _is_small(source: Source, side: int) -> bool:
    bytes_needed = 3 * side**2 * sum(len(part.labels) for part in source.parts)
    return side <= MAX_RESIDENT_SIDE and bytes_needed <= MAX_RESIDENT_BYTES


def _native_side(source: Source) -> int | None:
    """The side of the first image, if it is square and such images may stay at their size."""
    images = source.parts[0].images
    if not source.keep_small or isinstance(images, Tensor):
        return None
    width, height = images.read(0).size
    return width if width == height else None


def _decoded(part: Labelled, side: int, *, resize: bool) -> Labelled:
    if isinstance(part.images, Tensor):
        return part
    pixels = decode(part.images, side, resize=resize)
    return part if pixels is None else Labelled(pixels, part.labels)


def _resized(part: Labelled, side: int) -> Labelled:
    if not isinstance(part.images, Tensor) or part.images.shape[1] == side:
        return part
    count, _, _, channels = part.images.shape
    pixels = torch.empty(count, side, side, channels, dtype=torch.uint8)
    if pixels.numel() > MAX_RESIDENT_BYTES:
        _log.warning("image_size %d: %d images take %.1f GiB of memory", side, count, pixels.numel() / 2**30)
    for target, images in zip(pixels.split(1024), part.images.split(1024), strict=True):
        target.copy_(v2.functional.resize(images.permute(0, 3, 1, 2), [side, side], antialias=True).permute(0, 2, 3, 1))
    return Labelled(pixels, part.labels)


def statistics(
    source: Source, mean: Sequence[float] | None, std: Sequence[float] | None, *, image_size: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each channel: those given, else of the training set, else of the test set, with a warning.

    Raises:  UsageError: if one has not a number for each channel, or a deviation is not above 0
    """
    _check_channels("mean", mean, source.channels, above=-math.inf)
    _check_channels("std", std, source.channels, above=0.0)
    if mean is not None and std is not None:
        return tuple(mean), tuple(std)
    if source.train is None:
        _log.warning("mean, std: not given and no training set: computed from the test images")
    images = source.parts[0].images  # train, if there is one
    found_mean, found_std = mean_std(images, image_size=image_size)
    if std is None and min(found_std) == 0:
        raise UsageError(f"std {found_std}: the images are constant in a channel, so it must be given, above 0")
    return tuple(mean or found_mean), tuple(std or found_std)


def _check_channels(name: str, values: Sequence[float] | None, channels: int, *, above: float) -> None:
    if values is None:
        return
    if len(values) != channels:
        raise UsageError(f"{name} {tuple(values)}: must have {channels} numbers, one a channel; has {len(values)}")
    if not all(above < value < math.inf for value in values):
        rule = f"above {above:g}" if math.isfinite(above) else "finite"
        raise UsageError(f"{name} {tuple(values)}: must be {rule}")
