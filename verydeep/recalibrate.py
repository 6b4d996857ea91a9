"""A finished run's batch norms given the statistics of its training images, as a file of weights beside its own.

The running statistics of training are a moving average over augmented images and over weights that still moved.
"""

from pathlib import Path
from typing import Any

from torch import Tensor

from verydeep.analysis.batch_norm import batch_norms, images_of, recalibrate
from verydeep.data import Data, epoch_order
from verydeep.errors import UsageError, resolve_name
from verydeep.saved import SavedRun, load_run
from verydeep.training.evaluate import evaluate
from verydeep.training.rundir import RECALIBRATED_WEIGHTS
from verydeep.weights import save_weights


def recalibrate_run(
    path: str | Path,
    *,
    data: str | None = None,
    num_images: int | None = None,
    batch_size: int | None = None,
    device: str = "auto",
    model: str | None = None,
    weights: str = "last",
) -> dict[str, Any]:
    """Compute a run's batch-norm statistics on its training images, not augmented, and write the weights with them.

    Each running mean and variance becomes the mean over batches of the batches' own, all with the weights as trained.
    They are read again with `weights="recalibrated"`.

    Args:    data: where the training images are, with classes of the same names; default: the run's own
             num_images: training images, drawn at random by the run's seed; default: all
             batch_size: images that a statistic is of; default: as in the run, bn_group_size or batch_size
             weights: last or best, whose statistics are replaced
    Returns: test error_percent and loss before and after; None without test images
    Raises:  UsageError: if the run has recalibrated weights already, or no batch norm that keeps statistics.
    """
    target = Path(path) / RECALIBRATED_WEIGHTS
    if target.exists():
        raise UsageError(f"run {path}: has {RECALIBRATED_WEIGHTS} already; move it away to make others")
    weights = resolve_name("weights", weights, ("last", "best"))
    saved = load_run(path, device=device, model=model, weights=weights)
    if not batch_norms(saved.model):
        raise UsageError(f"run {path}: its network has no batch norm that keeps statistics, so none can be recomputed")
    config = saved.config.resolved()
    # without what was held out of training
    found = saved.load_data(data, max_images=config.max_images, validation=config.validation, seed=config.seed)
    assert found.train is not None
    before = _tested(saved, found)
    order = epoch_order(len(found.train), seed=config.seed, epoch=0)[:num_images]
    size = batch_size or config.bn_group_size or config.batch_size
    assert size is not None
    batches = _whole_batches(order, size)
    recalibrate(saved.model, images_of(found.train, batches, next(saved.model.parameters()).device))
    after = _tested(saved, found)
    save_weights(target, saved.model, saved.card)
    return {
        "run": str(path),
        "out": str(target),
        "model": saved.card.model,
        "num_images": sum(map(len, batches)),
        "batch_size": len(batches[0]),
        "test_error_percent_before": before["error_percent"],
        "test_error_percent": after["error_percent"],
        "test_loss_before": before["loss"],
        "test_loss": after["loss"],
    }


def _tested(saved: SavedRun, data: Data) -> dict[str, Any]:
    if data.test is None:
        return {"error_percent": None, "loss": None}
    return evaluate(saved.model, data.test, precision=saved.config.precision).to_dict()


def _whole_batches(order: Tensor, size: int) -> tuple[Tensor, ...]:
    """Batches of `size`: a smaller one at the end, whose statistics would count as much as the others', is left out.

    Raises:  UsageError: if one would hold a single image, whose deviation is not known.
    """
    if min(size, len(order)) < 2:
        raise UsageError(f"batches of {min(size, len(order))} image: statistics need at least 2")
    return order[: max(len(order) // size * size, min(size, len(order)))].split(size)
