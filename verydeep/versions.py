"""Versions of what computed a result; recorded wherever one is written."""

import platform

import torch
import torchvision

import verydeep


def versions() -> dict[str, str]:
    """Versions of this package, torch, torchvision and Python, and the system."""
    return {
        "verydeep": verydeep.__version__,
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
