"""Training images of ImageNet's sizes on one core: files to pixels at 224, by several decoders and transforms.

All sides make the same crops of the same images from the same draws. `whole` resizes the whole image before it is
cropped (torchvision's transforms on Pillow's image); `ours` computes the crop alone; `draft` lets Pillow decode JPEG at
a half, a quarter or an eighth where the shorter side stays at least 480, the longest drawn; `torchvision` decodes and
transforms tensors. `decode` is decoding alone. The sides alternate; medians are compared.

    python benchmarks/decode.py [FOLDER]     with images in FOLDER/<class>/
"""

import statistics
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch
import torchvision
from PIL import Image
from timing import alternate, compare, write
from torch import Tensor
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2

from verydeep.data import read_image
from verydeep.data.image import to_rgb
from verydeep.data.transform import train_transform
from verydeep.errors import RunError

ROUNDS = 15
SAMPLE = Path(__file__).parents[2] / "shared" / "data" / "imagenet-sample" / "val"
SIDE, LEAST, MOST = 224, 256, 480

Reader = Callable[[Path], Any]
Transform = Callable[[Any], Any]


def draft_image(path: Path) -> Image.Image:
    """Pillow's image, decoded at the smallest scale that keeps the shorter side at MOST pixels or above."""
    with Image.open(path) as image:
        image.draft("RGB", (MOST, MOST))
        return to_rgb(image)


def tensor_image(path: Path) -> Tensor:
    """torchvision's, uint8 (3, H, W)."""
    return decode_image(str(path), mode=ImageReadMode.RGB, apply_exif_orientation=True)


def decode_all(paths: list[Path], read: Reader) -> None:
    for path in paths:
        read(path)


def prepare_all(paths: list[Path], read: Reader, transform: Transform) -> None:
    """Each image decoded, transformed with its own draws, as an array of pixels, (H, W, 3)."""
    for seed, path in enumerate(paths):
        torch.manual_seed(seed)
        image = transform(read(path))
        image.permute(1, 2, 0).contiguous() if isinstance(image, Tensor) else np.asarray(image)


def readable(paths: list[Path]) -> list[Path]:
    """Those that Pillow and torchvision decode."""
    kept = []
    for path in paths:
        try:
            read_image(path)
            tensor_image(path)
        except (RunError, RuntimeError):
            continue
        kept.append(path)
    return kept


def kinds(paths: list[Path]) -> dict[str, int]:
    """How many images there are of each format and mode."""
    counts: Counter[str] = Counter()
    for path in paths:
        with Image.open(path) as image:
            counts[f"{image.format} {image.mode}"] += 1
            counts[f"shorter side at least {2 * MOST}"] += min(image.size) >= 2 * MOST
    return dict(counts)


def measure(paths: list[Path]) -> dict[str, object]:
    """Images a second of each side and how many times longer it takes than ours, for decoding and each augmentation."""
    whole = v2.Compose(
        [v2.RandomShortestSize(list(range(LEAST, MOST + 1))), v2.RandomCrop(SIDE), v2.RandomHorizontalFlip()]
    )
    scale, aspect = (train_transform(name, SIDE, flip=True) for name in ("scale", "scale+aspect"))
    sides: dict[str, Callable[[], None]] = {
        "decode ours": partial(decode_all, paths, read_image),
        "decode draft": partial(decode_all, paths, draft_image),
        "decode torchvision": partial(decode_all, paths, tensor_image),
        "scale ours": partial(prepare_all, paths, read_image, scale),
        "scale whole": partial(prepare_all, paths, read_image, whole),
        "scale draft": partial(prepare_all, paths, draft_image, scale),
        "scale torchvision": partial(prepare_all, paths, tensor_image, whole),
        "scale+aspect ours": partial(prepare_all, paths, read_image, aspect),
        "scale+aspect torchvision": partial(prepare_all, paths, tensor_image, aspect),
    }
    seconds = alternate(sides, rounds=ROUNDS, warmup=1)
    results: dict[str, Any] = {"images": len(paths), "kinds": kinds(paths), "image_size": SIDE}
    for task in ("decode", "scale", "scale+aspect"):
        own = {name.split()[1]: values for name, values in seconds.items() if name.split()[0] == task}
        measured = compare(own, ours="ours")
        per_second = {side: len(paths) / median for side, median in measured["median_seconds"].items()}
        results[task] = {"images_per_second": per_second, **measured}
        if task == "decode":
            continue
        pairs = zip(seconds["decode ours"], own["ours"], strict=True)
        results[task]["percent_decoding"] = statistics.median(100 * decoding / all_ for decoding, all_ in pairs)
    return results | {"pillow": PIL.__version__, "torchvision": torchvision.__version__}


def main() -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "The image decoding", DeprecationWarning)  # of torchvision 0.29
    folder = Path(sys.argv[1]) if sys.argv[1:] else SAMPLE
    paths = readable(sorted(folder.glob("*/*")))
    write(
        "decode.json", command=f"python benchmarks/decode.py {' '.join(sys.argv[1:])}".strip(), results=measure(paths)
    )


if __name__ == "__main__":
    main()
