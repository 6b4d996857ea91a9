"""Images decoded one by one in worker processes: `FileSplit`, for image folders and for parquet with large images.

Workers send uint8 pixels; normalisation happens on the device. They work whether processes are forked or spawned.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from verydeep.data.image_list import ImageList
from verydeep.data.seed import AUGMENTATION, mix
from verydeep.data.split import Split
from verydeep.data.transform import ImageTransform, Normalise, eval_transform
from verydeep.errors import RunError

Key = tuple[int | None, np.ndarray]  # epoch, rows


@final
@dataclass(eq=False, repr=False)
class FileSplit(Split):
    """Encoded images; each is read, transformed and stacked by a worker process.

    The workers outlive an epoch. A second iterator made while one is in use gets workers of its own.

    Args:    images: read by row
             labels: int64 (N,)
             mean, std: of each channel, of pixels in 0..1
             image_size: side of the batches' images, pixels
             seed: of the augmentation
             augment: the random transform; None: the test transform in every epoch
             workers: processes; 0: decode in this one
             resize: of the test transform, pixels; default: `default_resize`
    """

    images: ImageList
    labels: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]
    image_size: int
    seed: int = 0
    augment: ImageTransform | None = None
    workers: int = 0
    resize: int | None = None
    _idle: tuple[DataLoader, "_Keys"] | None = field(init=False, default=None)

    def batches(
        self, index_batches: Iterable[Tensor], *, epoch: int | None, device: torch.device | str
    ) -> Iterator[tuple[Tensor, Tensor]]:
        device = torch.device(device)
        normalise = Normalise(self.mean, self.std, image_size=self.image_size, device=device)
        loader, keys = self._loader(pin_memory=device.type == "cuda")
        self._idle = None
        keys.next_epoch = ((epoch, index.cpu().numpy()) for index in index_batches)
        try:
            for batch in loader:
                if isinstance(batch, RunError):
                    raise batch
                pixels, rows = batch
                labels = self.labels[torch.from_numpy(rows)]
                if device.type == "cuda":
                    labels = labels.pin_memory()  # or the copy would wait for the device
                yield normalise(pixels.to(device, non_blocking=True)), labels.to(device, non_blocking=True)
        finally:
            self._idle = loader, keys

    def with_labels(self, labels: Tensor) -> "FileSplit":
        return replace(self, labels=labels)

    def with_seed(self, seed: int) -> "FileSplit":
        return replace(self, seed=seed)

    def _loader(self, *, pin_memory: bool) -> tuple[DataLoader, "_Keys"]:
        if self._idle is not None and self._idle[0].pin_memory == pin_memory:
            return self._idle
        keys = _Keys()
        loader = DataLoader(
            _BatchReader(self.images, self.image_size, self.seed, self.augment, self.resize),
            batch_size=None,  # a key is a whole batch
            sampler=keys,
            collate_fn=_unchanged,
            num_workers=self.workers,
            persistent_workers=self.workers > 0,
            pin_memory=pin_memory,
            generator=torch.Generator(),  # or it would draw from the global one
        )
        return loader, keys

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_idle": None}


class _Keys:
    """The keys of the batches to come; exchanged between epochs, so that one loader and its workers serve them all."""

    next_epoch: Iterable[Key] = ()

    def __iter__(self) -> Iterator[Key]:
        return iter(self.next_epoch)


@dataclass
class _BatchReader(Dataset):
    """(epoch, rows) -> pixels, uint8 (B, H, W, 3), and the rows. Runs in the workers.

    An unreadable image comes back as a value: raised in a worker, it would arrive wrapped in a traceback's text.
    """

    images: ImageList
    image_size: int
    seed: int
    augment: ImageTransform | None
    resize: int | None

    def __getitem__(self, key: Key) -> tuple[Tensor, np.ndarray] | RunError:
        epoch, rows = key
        pixels = np.empty((len(rows), self.image_size, self.image_size, 3), dtype=np.uint8)
        try:
            for place, row in enumerate(rows.tolist()):
                pixels[place] = np.asarray(self._transformed(row, epoch))
        except RunError as error:
            return error
        return torch.from_numpy(pixels), rows

    def _transformed(self, row: int, epoch: int | None) -> Image.Image:
        image = self.images.read(row)
        if self.augment is None or epoch is None:
            return eval_transform(self.image_size, self.resize)(image)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(mix(AUGMENTATION, self.seed, epoch, row))
            return self.augment(image)


def _unchanged(batch: Any) -> Any:
    return batch
