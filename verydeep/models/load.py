"""A model from what a user writes: a name of the catalogue or of another library, or FILE.py:FUNCTION, own code."""

import importlib.util
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from verydeep.errors import UsageError, described, nearest
from verydeep.models.catalogue import create_model, option_names


def load_model(name: str, *, num_classes: int, in_channels: int, image_size: int, options: dict[str, Any]) -> nn.Module:
    """The network `name`, or what FUNCTION in FILE.py returns.

    Both are called with those of `num_classes`, `in_channels` and `image_size` that they take.

    Raises:  UsageError: if there is no such name, file or function, it returns no module, or options of the catalogue
             are given for code.
    """
    given = {"num_classes": num_classes, "in_channels": in_channels, "image_size": image_size}
    if ".py:" not in name:
        taken = option_names(name)
        return create_model(name, **{key: value for key, value in given.items() if key in taken}, **options)
    if options:
        raise UsageError(f"{next(iter(options))}: is an option of the catalogue's networks, not of {name}")
    with _naming(name):
        function = _load_function(name)
        wanted = inspect.signature(function).parameters
        model = function(**{key: value for key, value in given.items() if key in wanted})
    if not isinstance(model, nn.Module):
        raise UsageError(f"model {name}: must return a torch.nn.Module, it returns {type(model).__name__}")
    return model


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Whatever the user's code raises, said in one line; the traceback stays with it."""
    try:
        yield
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(f"model {name}: its code fails: {described(error)}") from error


def _load_function(name: str) -> Any:
    """FUNCTION of FILE.py; the file may import its neighbours, as a script may."""
    file, _, function = name.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise UsageError(f"model {name}: no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # where dataclasses and pickle look for it
    folder = str(path.parent.resolve())
    if folder not in sys.path:
        sys.path.append(folder)
    spec.loader.exec_module(module)
    found = getattr(module, function, None)
    if not callable(found):
        functions = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        raise UsageError(f"model {name}: {path} has no function {function!r}; it has {', '.join(functions) or 'none'}")
    return found


def load_any(name: str, *, num_classes: int, in_channels: int, image_size: int) -> nn.Module:
    """`load_model`, and networks of other libraries at random initialisation: `timm:NAME`, `torchvision:NAME`.

    Raises:  UsageError: if the library is absent or has no such network, or the network takes other channels.
    """
    library, separator, own = name.partition(":")
    if not separator or library not in LIBRARIES:
        return load_model(name, num_classes=num_classes, in_channels=in_channels, image_size=image_size, options={})
    with _naming(name):
        return LIBRARIES[library](own, num_classes=num_classes, in_channels=in_channels, image_size=image_size)


def default_image_size(name: str) -> int | None:
    """The side that a network of another library was made for; None for others."""
    library, _, own = name.partition(":")
    if library == "torchvision":
        return 224
    if library != "timm":
        return None
    timm = _library("timm")
    try:
        return timm.models.get_pretrained_cfg(own).input_size[-1]
    except (RuntimeError, AttributeError):  # no such model, said by `load_any`; no published weights
        return 224


def _timm(name: str, *, num_classes: int, in_channels: int, image_size: int) -> nn.Module:
    timm = _library("timm")
    if not timm.is_model(name):
        raise UsageError(f"model timm:{name}: unknown; nearest: {', '.join(nearest(name, timm.list_models()))}")
    options = {"num_classes": num_classes, "in_chans": in_channels}
    try:
        return timm.create_model(name, **options, img_size=image_size)
    except TypeError:  # takes images of any size
        return timm.create_model(name, **options)


def _torchvision(name: str, *, num_classes: int, in_channels: int, image_size: int) -> nn.Module:
    models = _library("torchvision").models
    known = models.list_models(module=models)
    if name not in known:
        raise UsageError(f"model torchvision:{name}: unknown; nearest: {', '.join(nearest(name, known))}")
    if in_channels != 3:
        raise UsageError(f"model torchvision:{name}: takes images of 3 channels, not {in_channels}")
    return models.get_model(name, weights=None, num_classes=num_classes)


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UsageError(f"model {name}:...: needs the package {name}, which is not installed") from None


LIBRARIES = {"timm": _timm, "torchvision": _torchvision}
