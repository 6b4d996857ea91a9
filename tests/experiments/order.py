"""What the engines' tests share: a job with an order of its own, and a training that needs much memory."""

from dataclasses import dataclass
from typing import Any

from verydeep.config import RunConfig
from verydeep.experiments.experiment import Experiment
from verydeep.experiments.job import Job
from verydeep.experiments.training import Training

EXPERIMENT = Experiment("e", "trained", "E", lambda setting: [], lambda results, setting: {})
LARGE = Training("large", RunConfig(model="preact_resnet110_cifar", image_size=32, batch_size=1024))


@dataclass(frozen=True)
class OrderedJob(Job):
    """A job with an order of its own, which a worker need not look up."""

    own: Any = None

    @property
    def order(self) -> Any:
        return self.own
