"""A model from what a user writes: a name of the catalogue, or FILE.py:FUNCTION, the user's own code."""

import importlib.util
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from verydeep.errors import UsageError
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
        text = (str(error).splitlines() or [""])[0]
        raise UsageError(f"model {name}: its code fails: {type(error).__name__}: {text}") from error


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
