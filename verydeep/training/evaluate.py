"""Loss and error of a model on a split: each image counts once, whatever the batches and processes."""

from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import nn

from verydeep.data import Split
from verydeep.nn.mode import evaluating
from verydeep.training.distributed import World
from verydeep.training.step import autocast, logits_of


@dataclass(frozen=True)
class Evaluation:
    """What a model does on a split.

    Args:    error_percent, top5_error_percent: of images whose label is not the first, not among the first five;
                 top5 is None with fewer than 6 classes
             loss: mean cross-entropy
             num_images: images counted
    """

    error_percent: float
    top5_error_percent: float | None
    loss: float
    num_images: int

    def to_dict(self) -> dict[str, float | int | None]:
        return asdict(self)


@torch.no_grad()
def evaluate(
    model: nn.Module, split: Split, *, world: World | None = None, batch_size: int = 256, precision: str = "fp32"
) -> Evaluation:
    """Evaluate in eval mode, on the model's own device unless a world says where; the mode is put back afterwards."""
    world = world or World(rank=0, size=1, device=next(model.parameters()).device)
    mine = torch.arange(len(split)).tensor_split(world.size)[world.rank]
    # loss, first wrong, first five wrong, images
    sums = torch.zeros(4, dtype=torch.float64, device=world.device)
    num_classes = 0
    with evaluating(model):
        batches = mine.split(batch_size) if len(mine) else []
        for images, labels in split.batches(batches, epoch=None, device=world.device):
            with autocast(world.device, precision):
                logits = logits_of(model(images))
            num_classes = logits.shape[1]
            ranked = logits.topk(min(5, num_classes)).indices == labels[:, None]  # (N, 5)
            loss = F.cross_entropy(logits, labels, reduction="sum")
            sums += torch.stack([loss, (~ranked[:, 0]).sum(), (~ranked.any(1)).sum(), loss.new_tensor(len(labels))])
    loss_sum, wrong, wrong5, num_images = world.sum(sums).tolist()
    return Evaluation(
        error_percent=100 * wrong / num_images,
        top5_error_percent=100 * wrong5 / num_images if num_classes > 5 else None,
        loss=loss_sum / num_images,
        num_images=int(num_images),
    )
