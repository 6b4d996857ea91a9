"""`load_data`: a data set by name, at its size, with statistics and splits decided.

The names and their loaders are the two tables here; training, evaluation and prediction call `load_data`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from torch import Tensor

from verydeep.data.cifar import load_cifar10, load_cifar100
from verydeep.data.color import COLOR_JITTERS
from verydeep.data.csv import load_csv
from verydeep.data.data import Data
from verydeep.data.digits import load_digits
from verydeep.data.files import FileSplit
from verydeep.data.folder import load_folder
from verydeep.data.image_list import default_workers
from verydeep.data.pixel import PixelTransform, pixel_transform
from verydeep.data.prepare import statistics, with_at_most, with_pixels, with_validation, without_unreadable
from verydeep.data.resident import ResidentSplit
from verydeep.data.source import Labelled, Source
from verydeep.data.split import Split
from verydeep.data.transform import AUGMENTATIONS, ImageTransform, train_transform
from verydeep.errors import UsageError, nearest, resolve_name

FILE_SIZE = 224  # of image files when no size is asked for
MOST_PIXELS = 65_535  # a side, as of JPEG


def _load_parquet(location: str, root: Path) -> Source:
    from verydeep.data.parquet import load_parquet  # pyarrow is imported only where it is used

    return load_parquet(location, root)


def _load_hub(location: str, root: Path) -> Source:
    from verydeep.data.hub import load_hub  # datasets is imported only where it is used

    return load_hub(location, root)


NAMED: dict[str, Callable[[Path], Source]] = {
    "digits": load_digits,
    "cifar10": load_cifar10,
    "cifar100": load_cifar100,
}

# PREFIX:LOCATION
LOCATED: dict[str, Callable[[str, Path], Source]] = {
    "folder": load_folder,
    "parquet": _load_parquet,
    "csv": load_csv,
    "hub": _load_hub,
}
LOCATIONS = {"folder": "DIR", "parquet": "DIR", "csv": "FILE", "hub": "NAME"}


def load_data(
    name: str,
    *,
    image_size: int | None = None,
    resize: int | None = None,
    max_images: int | None = None,
    validation: int = 0,
    seed: int = 0,
    crop_padding: int | None = None,
    flip: bool | None = None,
    augmentation: str = "scale+aspect",
    color_jitter: str = "none",
    rand_augment: int = 0,
    random_erasing: float = 0.0,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    bad_images: str = "error",
    workers: int | None = None,
    root: str | Path = "data",
    train_needed: bool = True,
    channels: int | None = None,
    resident: bool | None = None,
) -> Data:
    """A data set by name.

    Digits and CIFAR are resident (`ResidentSplit`), and so are parquet files of square images of one size, and image
    folders or parquet files with a given `image_size`, if sides are at most 64 pixels and all pixels take at most
    2 GiB and no `resize` or `color_jitter` is asked for. Otherwise images are decoded by workers (`FileSplit`).

    Args:    name: `digits`, `cifar10`, `cifar100`, `folder:DIR`, `parquet:DIR`, `csv:FILE` or `hub:NAME`
             image_size: side to which images are brought, pixels; default: the resident images' own, 224 for files
             resize: shorter side of a test image file before the central crop, pixels, at least image_size; default:
                 round(image_size * 256 / 224)
             max_images: of each split, so many at most, drawn at random once for all seeds
             validation: training images held out, in proportion to the classes and fixed by the seed
             seed: of hold-out and augmentation
             crop_padding: pixels padded before the random crop of resident images; default: image_size // 8
             flip: random mirroring; default: all but digits
             augmentation: of files: `scale`, `scale+aspect`, `none`; with `none`, resident images are neither cropped
                 nor mirrored unless `crop_padding` or `flip` say so
             color_jitter: of training files: `pca` (see `PcaJitter`), `none`
             rand_augment, random_erasing: of any training images, see `pixel_transform`; images in memory are then
                 augmented one by one
             mean, std: of each channel, of pixels in 0..1; default: of the training set (see `mean_std`), without
                 the validation images
             bad_images: an unreadable image file: `error` (raised when met, naming it) or `skip` (every file is
                 decoded at load, the unreadable ones are left out, each named in a warning)
             workers: processes that decode files; default: one a core
             root: folder of data sets by name; not used by digits and `folder:DIR`
             train_needed: False to evaluate: there may be no training set, and it is loaded only if `mean` or `std`
                 must be computed; if they must and there is none, they are of the test set, with a warning
             channels: those that a network takes; data with others are refused
             resident: whether images become resident, whatever their size; default: by size, as said above
    Raises:  UsageError: if an argument breaks a rule or the data are not as described
             RunError: if a file is damaged
    """
    augmentation = resolve_name("augmentation", augmentation, AUGMENTATIONS)
    color_jitter = resolve_name("color_jitter", color_jitter, COLOR_JITTERS)
    bad_images = resolve_name("bad_images", bad_images, ("error", "skip"))
    _check_least(
        image_size=image_size,
        max_images=max_images,
        validation=validation,
        crop_padding=crop_padding,
        workers=workers,
        rand_augment=rand_augment,
    )
    if not 0 <= random_erasing < 1:
        raise UsageError(f"random_erasing {random_erasing}: must be at least 0 and below 1")
    source = _find(name, Path(root))
    if channels is not None and channels != source.channels:
        raise UsageError(f"data {name!r}: images of {source.channels} channels; the network takes {channels}")
    if source.train is None and train_needed:
        raise UsageError(f"data {name!r}: no training set in it; training needs one, evaluation does without")
    if source.test is not None and not train_needed and not validation and mean is not None and std is not None:
        source = replace(source, train=None)
    if bad_images == "skip":
        source = without_unreadable(source)
    if max_images is not None:
        source = with_at_most(source, max_images)
    if validation:
        source = with_validation(source, validation, seed=seed)
    if resident is None and image_size is not None and (resize is not None or color_jitter != "none"):
        resident = False
    source = with_pixels(source, image_size, resident=resident)
    side = _resident_side(source) or image_size or FILE_SIZE
    _check_file_options(source, name, side, resize=resize, color_jitter=color_jitter)
    mean, std = statistics(source, mean, std, image_size=side)
    workers = default_workers() if workers is None else workers
    pixels = pixel_transform(rand_augment=rand_augment, random_erasing=random_erasing, mean=mean)
    plain = _SplitMaker(mean, std, side, resize=resize, seed=seed, workers=workers)
    augmenting = plain.augmenting(
        source,
        crop_padding=crop_padding,
        flip=flip,
        augmentation=augmentation,
        color_jitter=color_jitter,
        pixels=pixels,
    )
    return Data(
        name=name,
        classes=source.classes,
        image_size=side,
        channels=source.channels,
        mean=mean,
        std=std,
        train=augmenting(source.train),
        validation=plain(source.validation),
        test=plain(source.test),
    )


def _check_least(**values: int | None) -> None:
    for name, value in values.items():
        least = 1 if name in ("image_size", "max_images") else 0
        if value is not None and value < least:
            raise UsageError(f"{name} {value}: must be at least {least}")
    side = values.get("image_size")
    if side is not None and side > MOST_PIXELS:
        raise UsageError(f"image_size {side}: must be at most {MOST_PIXELS}")


def _check_file_options(source: Source, name: str, side: int, *, resize: int | None, color_jitter: str) -> None:
    resident = _resident_side(source) is not None
    if resident and resize is not None:
        raise UsageError(f"resize {resize}: data {name!r} are resized whole to {side}, not cropped; must be left out")
    if resident and color_jitter != "none":
        raise UsageError(
            f"color_jitter {color_jitter!r}: data {name!r} are small images in memory, not files; must be none"
        )
    if resize is not None and resize < side:
        raise UsageError(f"resize {resize}: must be at least image_size; nearest {side}")


def _find(name: str, root: Path) -> Source:
    prefix, colon, location = name.partition(":")
    if location and prefix in LOCATED:
        return LOCATED[prefix](location, root)
    if not colon and name in NAMED:
        return NAMED[name](root)
    forms = [*NAMED, *(f"{known}:{place}" for known, place in LOCATIONS.items())]
    alike = [f"folder:{name}"] if Path(name).is_dir() else nearest(name, forms)
    raise UsageError(f"data {name!r}: unknown; nearest: {', '.join(alike)}")


def _resident_side(source: Source) -> int | None:
    images = source.parts[0].images
    return images.shape[1] if isinstance(images, Tensor) else None


@final
@dataclass(frozen=True)
class _SplitMaker:
    """What the splits of one `Data` have in common; called with the images of each."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    side: int
    resize: int | None
    seed: int
    workers: int
    crop_padding: int = 0
    flip: bool = False
    augment: ImageTransform | None = None
    pixels: PixelTransform | None = None

    def __call__(self, part: Labelled | None) -> Split | None:
        if part is None:
            return None
        images, labels, mean, std, seed = part.images, part.labels, self.mean, self.std, self.seed
        if isinstance(images, Tensor):
            crop_padding, flip, pixels = self.crop_padding, self.flip, self.pixels
            return ResidentSplit(
                images, labels, mean, std, seed=seed, crop_padding=crop_padding, flip=flip, pixels=pixels
            )
        augment, workers, resize = self.augment, self.workers, self.resize
        return FileSplit(
            images, labels, mean, std, self.side, seed=seed, augment=augment, workers=workers, resize=resize
        )

    def augmenting(
        self,
        source: Source,
        *,
        crop_padding: int | None,
        flip: bool | None,
        augmentation: str,
        color_jitter: str,
        pixels: PixelTransform | None,
    ) -> "_SplitMaker":
        """The maker of the training split."""
        if flip is None:
            flip = source.flip and augmentation != "none"
        if _resident_side(source) is None:
            if crop_padding is not None:
                raise UsageError(f"crop_padding {crop_padding}: image files are not padded; use augmentation")
            augment = train_transform(augmentation, self.side, flip=flip, color_jitter=color_jitter, pixels=pixels)
            return replace(self, augment=augment)
        if crop_padding is None:
            crop_padding = 0 if augmentation == "none" else self.side // 8
        if crop_padding >= self.side:
            raise UsageError(f"crop_padding {crop_padding}: must be below the image size; at most {self.side - 1}")
        return replace(self, crop_padding=crop_padding, flip=flip, pixels=pixels)
