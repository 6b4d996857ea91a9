"""Batches of 128 CIFAR-sized images on one core: resident preparation against torchvision's per-image pipeline.

Both make the same thing: pad 4, random crop, mirror half, normalise. Images are random. The sides alternate, and the
medians are compared; the goals are a ratio of at least 4, and under 3 % of a step of resnet20_cifar.

    python benchmarks/batch.py
"""

import statistics
from collections.abc import Iterator
from functools import partial

import torch
from PIL import Image
from timing import alternate, compare, our_step, timed, write
from torch import Tensor
from torchvision import transforms

from verydeep.data import ResidentSplit, epoch_order
from verydeep.models.catalogue import create_model

NUM_IMAGES = 50_000
BATCH_SIZE = 128
ROUNDS = 60
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def per_image_batches(images: Tensor, indices: list[Tensor]) -> Iterator[Tensor]:
    """Batches by torchvision's transforms on each image, as `torchvision.datasets.CIFAR10` gives it, and a stack."""
    transform = transforms.Compose(
        [
            transforms.RandomCrop(32, padding=4),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )
    array = images.numpy()
    for index in indices:
        yield torch.stack([transform(Image.fromarray(array[row])) for row in index.tolist()])


def measure() -> dict[str, object]:
    """Median seconds a batch of each side, their ratio, and of the draws of a whole epoch and of a training step."""
    pixels = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (NUM_IMAGES, 32, 32, 3), dtype=torch.uint8, generator=pixels)
    indices = list(epoch_order(NUM_IMAGES, seed=0, epoch=0).split(BATCH_SIZE))[: ROUNDS + 1]
    split = ResidentSplit(images, torch.zeros(NUM_IMAGES, dtype=torch.int64), MEAN, STD, crop_padding=4, flip=True)
    batches = {
        "resident": split.batches(indices, epoch=0, device="cpu"),
        "per_image": per_image_batches(images, indices),
    }
    sides = {name: partial(next, stream) for name, stream in batches.items()}
    measured = compare(alternate(sides, rounds=ROUNDS, warmup=1), ours="resident")
    # drawn once an epoch, with its first batch, which is not timed
    draws = statistics.median(timed(partial(split.draws, 1)) for _ in range(9))
    images, labels = next(split.batches(indices[:1], epoch=0, device="cpu"))
    step = our_step(create_model("resnet20_cifar"), images, labels)
    step_seconds = statistics.median(timed(step) for _ in range(7))
    return {
        "batch_size": BATCH_SIZE,
        **measured,
        "epoch_draws_seconds": draws,
        "resnet20_step_seconds": step_seconds,
        "percent_of_step": 100 * measured["median_seconds"]["resident"] / step_seconds,
    }


def main() -> None:
    torch.set_num_threads(1)
    write("batch.json", command="python benchmarks/batch.py", results=measure())


if __name__ == "__main__":
    main()
