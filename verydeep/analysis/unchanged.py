"""`unchanged`: a model is handed back exactly as it came, whatever was done to it. Every analysis runs within it."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Within it, a model may be changed at will; afterwards all is as before, also if the block raised.

    Put back: attributes of every module (class, mode, hooks, submodules), values of parameters and buffers bit for bit,
    `requires_grad`, `.grad`, and the random states of torch (the CPU and the model's devices), numpy and Python. What
    was not written to is left alone, so that a graph recorded before can still be differentiated.
    """
    modules = [_Attributes(module) for module in model.modules()]
    tensors = [_Leaf(tensor) for tensor in (*model.parameters(), *model.buffers())]
    generators = _Generators([leaf.tensor.device for leaf in tensors])
    try:
        yield
    finally:
        for attributes in modules:
            attributes.restore()
        for leaf in tensors:
            leaf.restore()
        generators.restore()


@final
@dataclass
class _Attributes:
    """What a module itself holds. Dicts (hooks, submodules) keep their identity: handles of hooks refer to them."""

    module: nn.Module
    kind: type = field(init=False)
    values: dict[str, Any] = field(init=False)
    contents: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.kind = type(self.module)
        self.values = dict(vars(self.module))
        self.contents = {name: dict(value) for name, value in self.values.items() if isinstance(value, dict)}

    def restore(self) -> None:
        self.module.__class__ = self.kind
        vars(self.module).clear()
        vars(self.module).update(self.values)
        for name, content in self.contents.items():
            self.values[name].clear()
            self.values[name].update(content)


@final
@dataclass
class _Leaf:
    """A parameter or buffer, its gradient, and copies of both."""

    tensor: Tensor
    requires_grad: bool = field(init=False)
    value: "_Value" = field(init=False)
    grad: "_Value | None" = field(init=False)

    def __post_init__(self) -> None:
        self.requires_grad = self.tensor.requires_grad
        self.value = _Value(self.tensor)
        self.grad = None if self.tensor.grad is None else _Value(self.tensor.grad)

    def restore(self) -> None:
        if self.tensor.requires_grad != self.requires_grad:
            self.tensor.requires_grad_(self.requires_grad)
        self.value.restore()
        if self.grad is None:
            self.tensor.grad = None
        else:
            self.tensor.grad = self.grad.tensor
            self.grad.restore()


@final
@dataclass
class _Value:
    """A tensor and a copy of its value."""

    tensor: Tensor
    copy: Tensor = field(init=False)
    version: int = field(init=False)

    def __post_init__(self) -> None:
        self.copy = self.tensor.detach().clone()
        self.version = self.tensor._version

    @torch.no_grad()
    def restore(self) -> None:
        # the version tells a written -0.0 from 0.0, the values what was written past the version, through .data
        if self.tensor._version != self.version or not torch.equal(self.tensor, self.copy):
            self.tensor.copy_(self.copy)


@final
@dataclass
class _Generators:
    """The random states that a forward pass may draw from."""

    devices: list[torch.device]
    states: list[Any] = field(init=False)
    cuda: dict[torch.device, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.states = [torch.get_rng_state(), np.random.get_state(), random.getstate()]
        self.cuda = {device: torch.cuda.get_rng_state(device) for device in self.devices if device.type == "cuda"}

    def restore(self) -> None:
        torch.set_rng_state(self.states[0])
        np.random.set_state(self.states[1])
        random.setstate(self.states[2])
        for device, state in self.cuda.items():
            torch.cuda.set_rng_state(state, device)
