"""Residual networks of any depth: build them, train them by an exactly declared protocol, use them.

The public names are resolved on first use (PEP 562), so that `import verydeep` costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verydeep import theory as theory
    from verydeep.analysis.diagnose import diagnose as diagnose
    from verydeep.analysis.watch import watch as watch
    from verydeep.config import PROTOCOLS as PROTOCOLS
    from verydeep.config import RunConfig as RunConfig
    from verydeep.data import load_data as load_data
    from verydeep.errors import RunError as RunError
    from verydeep.errors import UsageError as UsageError
    from verydeep.experiments.reproduce import reproduce as reproduce
    from verydeep.fold.batch_norm import fold_batch_norm as fold_batch_norm
    from verydeep.memory.plan import apply_plan as apply_plan
    from verydeep.memory.plan import plan_memory as plan_memory
    from verydeep.memory.segment import checkpoint_units as checkpoint_units
    from verydeep.memory.segment import remove_checkpoints as remove_checkpoints
    from verydeep.models.catalogue import create_model as create_model
    from verydeep.models.catalogue import list_models as list_models
    from verydeep.models.foreign import export_weights as export_weights
    from verydeep.models.foreign import import_weights as import_weights
    from verydeep.models.resnet import ResNet as ResNet
    from verydeep.models.spec import ResNetSpec as ResNetSpec
    from verydeep.models.torch7 import import_torch7 as import_torch7
    from verydeep.nn.unit import ResidualUnit as ResidualUnit
    from verydeep.onnx import write_onnx as write_onnx
    from verydeep.saved import load_run as load_run
    from verydeep.training.evaluate import evaluate as evaluate
    from verydeep.training.find_lr import find_lr as find_lr
    from verydeep.training.loop import train as train

__version__ = "0.1.0"

_MODULE_OF = {
    "diagnose": "verydeep.analysis.diagnose",
    "watch": "verydeep.analysis.watch",
    "PROTOCOLS": "verydeep.config",
    "RunConfig": "verydeep.config",
    "load_data": "verydeep.data",
    "RunError": "verydeep.errors",
    "UsageError": "verydeep.errors",
    "reproduce": "verydeep.experiments.reproduce",
    "fold_batch_norm": "verydeep.fold.batch_norm",
    "apply_plan": "verydeep.memory.plan",
    "plan_memory": "verydeep.memory.plan",
    "checkpoint_units": "verydeep.memory.segment",
    "remove_checkpoints": "verydeep.memory.segment",
    "create_model": "verydeep.models.catalogue",
    "list_models": "verydeep.models.catalogue",
    "export_weights": "verydeep.models.foreign",
    "import_weights": "verydeep.models.foreign",
    "ResNet": "verydeep.models.resnet",
    "ResNetSpec": "verydeep.models.spec",
    "import_torch7": "verydeep.models.torch7",
    "ResidualUnit": "verydeep.nn.unit",
    "write_onnx": "verydeep.onnx",
    "load_run": "verydeep.saved",
    "evaluate": "verydeep.training.evaluate",
    "find_lr": "verydeep.training.find_lr",
    "train": "verydeep.training.loop",
}

__all__ = [*_MODULE_OF, "__version__", "theory"]


def __getattr__(name: str) -> Any:
    if name == "theory":
        return importlib.import_module("verydeep.theory")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'verydeep' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value  # resolved once
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
