"""CIFAR-10 and CIFAR-100 in torchvision's layout on disk, downloaded when absent and possible.

torchvision compares each file's MD5 with the published one before unpickling it, so nothing else is ever executed.
"""

import logging
from contextlib import suppress
from pathlib import Path

import torch
from torchvision import datasets

from verydeep.data.source import Labelled, Source, labels_of
from verydeep.errors import UsageError

_log = logging.getLogger("verydeep")


def load_cifar10(root: Path) -> Source:
    """CIFAR-10: 50,000 + 10,000 images of 32 x 32. Source: Krizhevsky 2009."""
    return _load("cifar10", datasets.CIFAR10, root)


def load_cifar100(root: Path) -> Source:
    """CIFAR-100, fine labels: 50,000 + 10,000 images of 32 x 32. Source: Krizhevsky 2009."""
    return _load("cifar100", datasets.CIFAR100, root)


def _load(name: str, kind: type[datasets.CIFAR10], root: Path) -> Source:
    train = _open(name, kind, root, train=True)
    test = _open(name, kind, root, train=False)
    return Source(tuple(train.classes), _labelled(train), None, _labelled(test))


def _open(name: str, kind: type[datasets.CIFAR10], root: Path, *, train: bool) -> datasets.CIFAR10:
    try:
        return kind(root, train=train)
    except RuntimeError:
        _log.info("%s is not in %s: downloading it from %s", name, root / kind.base_folder, kind.url)
    was_there = root.exists()
    try:
        return kind(root, train=train, download=True)
    except (OSError, RuntimeError) as error:
        if not was_there:
            with suppress(OSError):  # half a download stays
                root.rmdir()
        raise UsageError(
            f"data {name!r}: no complete copy in {root / kind.base_folder}, and the download failed "
            f"({' '.join(str(error).split())}); unpack {kind.filename} in {root}, or use parquet:DIR or folder:DIR"
        ) from error


def _labelled(part: datasets.CIFAR10) -> Labelled:
    return Labelled(torch.from_numpy(part.data).contiguous(), labels_of(part.targets))
