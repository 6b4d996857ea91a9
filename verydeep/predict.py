"""Class probabilities for image files, by the network of a run."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

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
    device: str = "auto",
    model: str | None = None,
    weights: str = "last",
) -> list[Prediction]:
    """The likeliest classes of each image; a file that cannot be read is named and does not stop the rest.

    Args:    paths: image files, and folders whose images are taken in the order of their names
             top: classes to give, at most all
    Raises:  UsageError: if a path does not exist or a folder has no image.
    """
    if top < 1:
        raise UsageError(f"top {top}: must be at least 1")
    saved = load_run(run, device=device, model=model, weights=weights)
    return [_predict_one(saved, path, top) for path in _image_files(paths)]


def _image_files(paths: Iterable[str | Path]) -> list[Path]:
    files: list[Path] = []
    for path in map(Path, paths):
        if not path.exists():
            raise UsageError(f"image {str(path)!r}: no such file or folder")
        if path.is_dir():
            found = sorted(map(Path, image_paths(path)))
            if not found:
                raise UsageError(f"image folder {str(path)!r}: no images in it ({', '.join(EXTENSIONS)})")
            files += found
        else:
            files.append(path)
    return files


@torch.no_grad()
def _predict_one(saved: SavedRun, path: Path, top: int) -> Prediction:
    card = saved.card
    try:
        image = eval_image(
            path,
            image_size=card.image_size,
            channels=card.channels,
            mean=card.mean,
            std=card.std,
            resident_style=card.resident,
        )
    except RunError as error:
        return Prediction(str(path), None, str(error))
    device = next(saved.model.parameters()).device
    probabilities = logits_of(saved.model(image[None].to(device))).softmax(1)[0]
    best = probabilities.topk(min(top, len(card.classes)))
    names = [card.classes[i] for i in best.indices.tolist()]
    return Prediction(str(path), list(zip(names, best.values.tolist(), strict=True)))
