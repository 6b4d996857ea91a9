"""A data set ready for training: `Data`, the splits and what a network must know of them."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from verydeep.data.resident import ResidentSplit
from verydeep.data.split import Split
from verydeep.errors import UsageError, nearest


@dataclass(frozen=True)
class Data:
    """A data set by name.

    Args:    name: as given to `load_data`
             classes: names; labels index into them
             image_size: side of the images that batches hold, pixels
             channels: 1 or 3
             mean, std: of each channel, of pixels in 0..1; batches are (x - mean) / std
             train, validation, test: the splits; None where the data have no such images
    """

    name: str
    classes: tuple[str, ...]
    image_size: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    train: Split | None
    validation: Split | None
    test: Split | None

    @property
    def resident(self) -> bool:
        """Whether images are resident, so that a file to predict is resized plainly; see `eval_image`."""
        return any(isinstance(split, ResidentSplit) for split in (self.train, self.validation, self.test))

    def with_classes(self, classes: Sequence[str]) -> "Data":
        """The same data with labels that index into `classes`, matched by name, for a network trained on those.

        Raises:  UsageError: if a class of the data is not among them, naming it and the nearest
        """
        position = {name: label for label, name in enumerate(classes)}
        for name in self.classes:
            if name not in position:
                alike = ", ".join(repr(known) for known in nearest(name, classes))
                raise UsageError(f"data {self.name!r}: class {name!r}: unknown to the network; nearest: {alike}")
        table = torch.tensor([position[name] for name in self.classes])
        splits = (self.train, self.validation, self.test)
        train, validation, test = (
            None if split is None else split.with_labels(table[split.labels]) for split in splits
        )
        return dataclasses.replace(self, classes=tuple(classes), train=train, validation=validation, test=test)
