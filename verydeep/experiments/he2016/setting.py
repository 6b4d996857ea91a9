"""From a network of the paper to the run that trains it in a setting: the paper's protocol, or the small budget."""

from typing import Any

from verydeep.config import RunConfig
from verydeep.experiments.experiment import Setting
from verydeep.experiments.he2016.network import NETWORKS, USUAL_STEPS, Network
from verydeep.experiments.training import Training

# The small scale: width 8 for 16, images of 16x16 for 32x32, batches of 64 for 128, 1,000 steps for 64,000. A one-cycle
# course gets further in so few steps than the paper's; its peak is the paper's rate for half of the batch.
SMALL: dict[str, Any] = dict(
    width=8, batch_size=64, steps=USUAL_STEPS, lr=0.05, schedule="one_cycle", warmup=0.2, eval_steps=250, log_steps=10,
)  # fmt: skip
SMALL_SIZE = 16
SMALL_IMAGENET: dict[str, Any] = dict(
    width=16, image_size=64, batch_size=16, bn_group_size=16, steps=20, lr=0.01, warmup=0.2, eval_steps=20, log_steps=1
)
DIGITS_VALIDATION = 300  # of 1,438 images
RECALIBRATION_IMAGES = 5_000  # at the small scale; at the paper's, all


def training(name: str, setting: Setting) -> Training:
    """The trial that trains a network of NETWORKS with each seed."""
    network = NETWORKS[name]
    fields = _protocol(network, setting) | _data(network, setting) | network.fields
    fields |= network.paper if setting.scale == "paper" else network.small
    if fields.get("validation") and fields["data"] == "digits":
        fields["validation"] = DIGITS_VALIDATION
    steps = fields["steps"] / USUAL_STEPS if setting.scale == "small" else 1.0
    return Training(
        name,
        RunConfig(**fields),
        cost=network.layers * steps,
        optional=network.data == "cifar100",
        crops=network.data == "imagenet",
        recalibration_images=RECALIBRATION_IMAGES if setting.scale == "small" else None,
    )


def _protocol(network: Network, setting: Setting) -> dict[str, Any]:
    protocol = {"protocol": "he2016_imagenet" if network.data == "imagenet" else "he2016_cifar", "max_bad_steps": 20}
    if setting.scale == "paper":
        return protocol | {"log_steps": 100}
    return protocol | (SMALL_IMAGENET if network.data == "imagenet" else SMALL)


def _data(network: Network, setting: Setting) -> dict[str, Any]:
    """The network's data set: what was asked for stands for CIFAR-10."""
    data = "cifar100" if network.data == "cifar100" else setting.data
    fields: dict[str, Any] = {"data": data, "max_images": setting.max_images}
    small = setting.scale == "small" and data != "digits" and network.data != "imagenet"
    size = setting.image_size or (SMALL_SIZE if small else None)
    return fields | ({} if size is None else {"image_size": size})
