"""Entry points of torch.hub: `torch.hub.load(PATH, "preact_resnet164_cifar", source="local", num_classes=10)`.

There is one for each listed network, `create_model` for any name, and `pretrained` for weights that verydeep wrote.
"""

from functools import partial, update_wrapper

from torch import nn

from verydeep.models.catalogue import MODELS, create_model
from verydeep.saved import load_network

dependencies = ["torch", "torchvision", "numpy", "safetensors", "yaml"]


def pretrained(path: str) -> nn.Module:
    """The network in a safetensors that verydeep wrote, a run directory or a saved folder, in eval mode."""
    return load_network(path)[0]


def _entry(name: str) -> partial:
    entry = update_wrapper(partial(create_model, name), create_model)
    entry.__doc__ = f"{name}, freshly initialised; options as of verydeep.create_model."
    return entry


globals().update({name: _entry(name) for name in MODELS})
