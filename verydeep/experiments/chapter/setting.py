"""What the chapter's trained experiments have in common: data and budget by scale, orderings in words."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from verydeep.data import Data
from verydeep.experiments.data import small_data
from verydeep.experiments.experiment import Measurement, Setting, Verdict
from verydeep.models.catalogue import create_model
from verydeep.report.section import FAILS, HOLDS


def base(setting: Setting, *, steps: int, **small: Any) -> dict[str, Any]:
    """Fields of RunConfig for a trial: few steps at `small`; at `paper` He et al.'s protocol.

    Args:    steps: of the small run
             small: further fields of the small run
    """
    data = {"data": setting.data, "image_size": setting.image_size, "max_images": setting.max_images}
    if setting.scale == "paper":
        return data | {"protocol": "he2016_cifar"}
    return data | {"steps": steps, "log_steps": max(1, steps // 20)} | small


def data_of(fields: Mapping[str, Any]) -> Data:
    """The data set of a trial's fields."""
    return small_data(fields["data"], fields["image_size"], fields["max_images"])


def drawn_network(name: str, seed: int, data: Data, **options: Any) -> nn.Module:
    """The network by name for these data, its weights drawn from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return create_model(name, num_classes=len(data.classes), in_channels=data.channels, **options)


def ordering(
    holds: bool, measurements: Mapping[str, Sequence[Measurement]], key: str, *, quantity: str, of: str, detail: str
) -> Verdict:
    """A verdict on an ordering.

    Args:    measurements: by trial
             key: the number compared
             of: the trial whose numbers, one a seed, stand for the claim
    """
    values = [m[key] for m in measurements[of]]
    numbers = [value for value in values if value is not None]
    interval = (min(numbers), max(numbers)) if numbers else None
    return Verdict(HOLDS if holds else FAILS, values, f"{quantity} of {of}", detail, interval)
