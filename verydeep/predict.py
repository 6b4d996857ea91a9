"""Class probabilities for image files, by the network of a run."""

import glob
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from verydeep.data import eval_image
from verydeep.data.folder import EXTENSIONS, image_paths
from verydeep.errors import RunError, UsageError
from verydeep.saved import SavedRun, load_run
from verydeep.training.step import logits_of


@dataclass(frozen=True)
class Prediction:
    """What the network says of one file.

    Args:    path: the image
             classes: (name, probability), likeliest first; None if the image could not be read
             error: why it could not be read; None if it could
    """

    path: str
    classes: list[tuple[str, float]] | None
    error: str | None = None


def predict(
    run: str | Path,
    paths: Iterable[str | Path],
    *,
    top: int = 5,
    batch_size: int = 64,
    device: str = "auto",
    model: str | None = None,
    weights: str = "last",
) -> list[Prediction]:
    """The likeliest classes of each image; a file that cannot be read is named and does not stop the rest.

    Args:    paths: image files; folders, whose images are taken at any depth in the order of their names; patterns
                 with *, ?, [...] and ** (any depth), likewise
             top: classes to give, at most all
             batch_size: images at a time
    Raises:  UsageError: if a path does not exist, a pattern matches nothing or a folder has no image.
    """
    for name, value in (("top", top), ("batch_size", batch_size)):
        if value < 1:
            raise UsageError(f"{name} {value}: must be at least 1")
    saved, files = load_run(run, device=device, model=model, weights=weights), _image_files(paths)
    batches = (files[start : start + batch_size] for start in range(0, len(files), batch_size))
    return [prediction for batch in batches for prediction in _predict_batch(saved, batch, top)]


def _image_files(paths: Iterable[str | Path]) -> list[Path]:
    return [file for path in paths for found in _matches(path) for file in _images_of(found)]


def _matches(path: str | Path) -> list[Path]:
    """The path itself, or what it matches as a pattern where nothing has that name."""
    text = str(path)
    if Path(text).exists():
        return [Path(text)]
    if not glob.has_magic(text):
        raise UsageError(f"image {text!r}: no such file or folder")
    found = sorted(glob.glob(text, recursive=True))
    if not found:
        raise UsageError(f"image {text!r}: matches no file or folder")
    if "**" in text:  # it matches folders and what is in them: each image once
        found = [name for name in found if not Path(name).is_dir()]
    return [Path(name) for name in found]


def _images_of(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(map(Path, image_paths(path)))
    if not found:
        raise UsageError(f"image folder {str(path)!r}: no images in it ({', '.join(EXTENSIONS)})")
    return found


@torch.no_grad()
def _predict_batch(saved: SavedRun, paths: list[Path], top: int) -> list[Prediction]:
    """A prediction for each path, in this order; the network sees those that could be read."""
    read = [_read(saved, path) for path in paths]
    images = [image for image in read if isinstance(image, Tensor)]
    best = iter(_likeliest(saved, torch.stack(images), top) if images else [])
    return [
        Prediction(str(path), next(best)) if isinstance(image, Tensor) else Prediction(str(path), None, str(image))
        for path, image in zip(paths, read, strict=True)
    ]


def _read(saved: SavedRun, path: Path) -> Tensor | RunError:
    """The image as the network takes it, (C, H, W), or why it cannot be read."""
    card = saved.card
    try:
        return eval_image(
            path,
            image_size=card.image_size,
            channels=card.channels,
            mean=card.mean,
            std=card.std,
            resident_style=card.resident,
        )
    except RunError as error:
        return error


def _likeliest(saved: SavedRun, images: Tensor, top: int) -> list[list[tuple[str, float]]]:
    """(name, probability) of each image's likeliest classes; images (N, C, H, W)."""
    classes, device = saved.card.classes, next(saved.model.parameters()).device
    batch = images.to(device).contiguous(memory_format=torch.channels_last)
    best = logits_of(saved.model(batch)).softmax(1).topk(min(top, len(classes)))
    return [
        [(classes[i], probability) for i, probability in zip(places, values, strict=True)]
        for places, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
