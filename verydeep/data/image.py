"""One image file to pixels: every Pillow mode to RGB, EXIF orientation applied, failures named in one line.

The image lists read through `read_image`; prediction turns a file into network input with `eval_image`.
"""

import functools
import io
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import ExifTags, Image, ImageCms, ImageOps
from torch import Tensor

from verydeep.data.transform import Normalise, eval_transform, square
from verydeep.errors import RunError

# What Pillow's decoders raise on files that are damaged or refuse to be opened.
_UNREADABLE = (
    OSError, SyntaxError, ValueError, TypeError, LookupError, EOFError, ArithmeticError, struct.error, zlib.error,
    AttributeError, AssertionError, RuntimeError, MemoryError, Image.DecompressionBombError,
)  # fmt: skip
# Pillow knows more, among them EPS, which it has Ghostscript execute.
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF")


@functools.cache
def _formats() -> tuple[str, ...]:
    """Those of the formats that this Pillow has."""
    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def read_image(source: Path | str | bytes, *, name: str | None = None) -> Image.Image:
    """An image, decoded, upright, in RGB.

    Alpha is dropped, not blended, as torchvision's folder loader does. 16-bit grey (`I;16`, and `I`, clipped) is
    divided by 257. Floating-point grey is taken as 0..1 where all values lie there, else as 0..255, clipped. Of several
    frames the first counts.

    Args:    source: a path, or the bytes of a file
             name: what an error calls the image; default: the path
    Raises:  RunError: if it cannot be read, naming it
    """
    name = name or ("image" if isinstance(source, bytes) else str(source))
    try:
        if not isinstance(source, bytes) and Path(source).is_fifo():
            raise OSError("a pipe, not a file")
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=_formats()) as image:
            return to_rgb(_upright(image))
    except Image.UnidentifiedImageError:
        size = len(source) if isinstance(source, bytes) else Path(source).stat().st_size
        raise RunError(f"{name}: cannot be read: {'no known image format' if size else 'empty file'}") from None
    except _UNREADABLE as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise RunError(f"{name}: cannot be read: {' '.join(str(reason).split())}") from error


def _upright(image: Image.Image) -> Image.Image:
    # Only for the orientations that turn something: `exif_transpose` also rewrites EXIF, and fails where it is odd.
    if image.getexif().get(ExifTags.Base.Orientation) in range(2, 9):
        ImageOps.exif_transpose(image, in_place=True)
    return image


def to_rgb(image: Image.Image) -> Image.Image:
    """A decoded image of any Pillow mode in RGB, 8 bits a channel; see `read_image` for what the modes mean.

    >>> to_rgb(Image.new("I;16", (1, 1), 4660)).getpixel((0, 0))
    (18, 18, 18)
    """
    if image.mode == "I" or image.mode.startswith("I;16"):
        image = _gray(np.clip(np.asarray(image), 0, 65535) / 257)
    elif image.mode == "F":
        values = np.nan_to_num(np.asarray(image), posinf=255.0, neginf=0.0)
        fractions = values.min() >= 0 and values.max() <= 1
        image = _gray(values * 255 if fractions else np.clip(values, 0, 255))
    elif image.mode == "LAB":
        profiles = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
        return ImageCms.buildTransform(*profiles, "LAB", "RGB").apply(image)
    elif image.mode == "La":
        image = image.convert("LA")
    elif image.mode == "RGBa" or (image.mode == "P" and "transparency" in image.info):
        image = image.convert("RGBA")
    return image.convert("RGB")


def _gray(values: np.ndarray) -> Image.Image:
    return Image.fromarray(np.rint(values).astype(np.uint8))


def eval_image(
    path: Path | str,
    *,
    image_size: int,
    channels: int,
    mean: Sequence[float],
    std: Sequence[float],
    resident_style: bool,
) -> Tensor:
    """One image file as the network of a `Data` would see it in its test set.

    Args:    path: the file
             image_size, channels, mean, std: of the data; with channels 1 the image is turned to grey
             resident_style: as resident data (`Data.resident`): a plain resize; else resize and central crop
    Returns: float32 (C, image_size, image_size), on the CPU
    Raises:  RunError: if the file cannot be read, naming it
    """
    image = read_image(path)
    image = square(image, image_size) if resident_style else eval_transform(image_size)(image)
    pixels = np.array(image.convert("L") if channels == 1 else image).reshape(1, image_size, image_size, channels)
    normalise = Normalise(mean, std, image_size=image_size, device=torch.device("cpu"))
    return normalise(torch.from_numpy(pixels))[0]
