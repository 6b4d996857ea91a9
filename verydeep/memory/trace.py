"""What each residual unit of a network keeps, needs in passing and computes in a training step: `trace`, on meta.

Two passes over a twin without memory. The first goes forward as training does and notes what autograd keeps, unit by
unit. The second goes forward and backward under a dispatch mode that counts live bytes and multiply-adds.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from verydeep.errors import UsageError
from verydeep.memory.count import Storages, meta_twin, operations_of, saved_tensors
from verydeep.memory.segment import outermost
from verydeep.nn.unit import ResidualUnit


@dataclass
class UnitTrace:
    """One residual unit in a training step.

    Args:    name: of the module
             place: the `nn.Sequential` that runs it, and its index there; None if it is run otherwise
             inputs: bytes of the storages that go in, by key
             kept: bytes of the storages that autograd keeps, by key
             work: multiply-adds of the forward pass
             rework: of the recomputation, which ends with the last tensor that is kept
             passing_bytes: the most that the forward pass holds besides what is kept
             transient_bytes: the same of the backward pass, and of the recomputation before it
             output_bytes: of what comes out
    """

    name: str
    place: tuple[str, int] | None = None
    inputs: dict[int, int] = field(default_factory=dict)
    kept: dict[int, int] = field(default_factory=dict)
    work: int = 0
    rework: int = 0
    passing_bytes: int = 0
    transient_bytes: int = 0
    output_bytes: int = 0

    @property
    def kept_bytes(self) -> int:
        return sum(self.kept.values())

    def follows(self, other: "UnitTrace") -> bool:
        """Whether the other is the module before it in one `nn.Sequential`."""
        return None not in (self.place, other.place) and self.place == (other.place[0], other.place[1] + 1)  # type: ignore[index]


@dataclass
class Trace:
    """A training step of a network.

    Args:    units: the outermost residual units in running order
             around: bytes of the storages kept before each unit, and after the last, by key
             transient_around: the most that the backward pass holds there besides
             work: multiply-adds of the forward pass, units and all
             plain_bytes: what units keep where their fused path steps aside
    """

    units: list[UnitTrace] = field(default_factory=list)
    around: list[dict[int, int]] = field(default_factory=lambda: [{}])
    transient_around: list[int] = field(default_factory=list)
    work: int = 0
    plain_bytes: int = 0

    @property
    def unit_bytes(self) -> int:
        """What all units keep, each storage once."""
        kept: dict[int, int] = {}
        for unit in self.units:
            kept |= unit.kept
        return sum(kept.values())


def trace(model: nn.Module, input_shape: tuple[int, ...]) -> Trace:
    """A training step in fp32 on images of this shape, unit by unit.

    Raises:  UsageError: if the model has no residual unit, or one runs twice in one pass.
    """
    twin = meta_twin(model)
    for module in twin.modules():  # the user's hooks would see images that are none
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
    as_trained = _Forward(twin)
    with operations_of(model):
        as_trained.run(input_shape)
    found = as_trained.trace
    counted = _Step(twin)
    counted.run(input_shape)
    weight = max((parameter.nbytes for parameter in twin.parameters()), default=0)
    for unit, other in zip(found.units, counted.trace.units, strict=True):
        # a fused operation holds in passing what the plain ones keep, and runs to its end before it keeps anything
        fused = max(0, other.kept_bytes - unit.kept_bytes)
        unit.work, unit.rework = other.work, other.work if fused else other.rework
        unit.passing_bytes = _with_scratch(other.passing_bytes + fused, weight)
        unit.transient_bytes = _with_scratch(other.transient_bytes + fused, weight)
        unit.output_bytes = other.output_bytes
    found.transient_around = [_with_scratch(size, weight) for size in counted.trace.transient_around]
    found.work = counted.trace.work
    found.plain_bytes = counted.trace.unit_bytes
    return found


def _with_scratch(size: int, weight: int) -> int:
    """Bytes held in passing, and what kernels take: the largest weight in blocks, a little for odd channels."""
    return size + size // 50 + weight


class _Forward:
    """A forward pass that notes what goes into units and what autograd keeps, by where it runs."""

    hold = True

    def __init__(self, twin: nn.Module) -> None:
        self.trace = Trace()
        self._twin = twin
        self._storages = Storages(twin, hold=self.hold)
        self._inside: UnitTrace | None = None
        self._containers: list[str] = []  # that are running
        self._names: set[str] = set()
        names = outermost(twin, ResidualUnit)
        if not names:
            raise UsageError(
                f"model {type(twin).__name__}: has no ResidualUnit to plan for; checkpoint_units takes other modules"
            )
        parents = {name.rpartition(".")[0] for name in names if name}
        self._wraps = {name: partial(self._run_unit, name) for name in names}
        self._wraps |= {
            name: partial(self._run_container, name)
            for name in parents
            if type(twin.get_submodule(name)) is nn.Sequential
        }

    @contextmanager
    def _wrapped(self) -> Iterator[None]:
        """Wraps in the place of forwards: unlike hooks, the fused paths inside do not see them."""
        own = {name: self._twin.get_submodule(name).forward for name in self._wraps}
        for name, wrap in self._wraps.items():
            self._twin.get_submodule(name).forward = partial(wrap, own[name])
        try:
            yield
        finally:
            for name, forward in own.items():
                self._twin.get_submodule(name).forward = forward

    def run(self, input_shape: tuple[int, ...]) -> None:
        with torch.enable_grad(), self._wrapped(), saved_tensors(self._note):
            output = self._twin(self._images(input_shape))
        del output

    def _images(self, input_shape: tuple[int, ...]) -> Tensor:
        """Images, which the caller holds whatever the network keeps of them."""
        images = torch.empty(input_shape, device="meta")
        self._storages.leave_out(images)
        return images

    def _run_container(self, name: str, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._containers.append(name)
        output = forward(*args, **kwargs)
        self._containers.pop()
        return output

    def _run_unit(self, name: str, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if name in self._names:
            raise UsageError(f"unit {name!r}: runs twice in one pass; units must be modules of their own")
        self._names.add(name)
        unit = UnitTrace(name, self._place(name))
        for tensor in _tensors((args, kwargs)):
            unit.inputs |= self._storages.of(tensor)
        self.trace.units.append(unit)
        self._inside = unit
        self._enter(unit, (args, kwargs))
        output = forward(*args, **kwargs)
        self._leave(unit, output)
        self._inside = None
        self.trace.around.append({})
        return output

    def _place(self, name: str) -> tuple[str, int] | None:
        container, _, own = name.rpartition(".")
        if not self._containers or self._containers[-1] != container:
            return None
        return container, list(self._twin.get_submodule(container)._modules).index(own)

    def _note(self, tensor: Tensor) -> None:
        kept = self.trace.around[-1] if self._inside is None else self._inside.kept
        kept |= self._storages.of(tensor)

    def _enter(self, unit: UnitTrace, inputs: object) -> None: ...

    def _leave(self, unit: UnitTrace, output: object) -> None: ...


class _Step(_Forward):
    """A forward and backward pass under `_Live`, which also measures what is held in passing.

    The hook of a gradient says where the backward pass is: in a unit from the gradient of its output on, until that of
    its input is there.
    """

    hold = False  # what backward lets go must be seen to go

    def __init__(self, twin: nn.Module) -> None:
        super().__init__(twin)
        self._live = _Live(self._storages)
        self._kept: dict[int, int] = {}  # each storage that is kept so far
        self._kept_in: list[int] = []  # bytes kept when a unit's forward pass was over
        self._kept_before: list[int] = []  # and when it began, and at the end
        self._backward: UnitTrace | None = None  # the unit that the backward pass is in
        self._peak = 0  # live bytes at the most, up to the last tensor that the unit keeps
        self._ahead = 0  # units whose backward pass has not begun

    def run(self, input_shape: tuple[int, ...]) -> None:
        for parameter in self._twin.parameters():  # their gradients are not counted here
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(lambda parameter: setattr(parameter, "grad", None))
        images = self._images(input_shape)
        with torch.enable_grad(), self._live:
            with self._wrapped(), saved_tensors(self._note):
                output = self._twin(images)
            self._pass_around()
            self.trace.work, self._ahead = self._live.work, len(self.trace.units)
            outputs = [tensor for tensor in _tensors(output) if tensor.requires_grad]
            torch.autograd.backward(outputs, [torch.empty_like(tensor) for tensor in outputs])
            self._account()
        self.trace.transient_around[-1] += 2 * _bytes(outputs)  # the loss: log-softmax and its gradient

    def _note(self, tensor: Tensor) -> None:
        super()._note(tensor)
        self._kept |= self._storages.of(tensor)
        if self._inside is not None:
            self._inside.rework = self._live.work - self._inside.work
            self._peak = self._live.peak

    def _enter(self, unit: UnitTrace, inputs: object) -> None:
        self._pass_around()
        self._peak = self._live.peak
        unit.work = self._live.work
        for tensor in _tensors(inputs):
            if tensor.requires_grad:
                tensor.register_hook(partial(self._move_out_of, unit))

    def _leave(self, unit: UnitTrace, output: object) -> None:
        unit.work = self._live.work - unit.work
        self._kept_in.append(sum(self._kept.values()))
        unit.output_bytes = _bytes(_tensors(output))
        unit.passing_bytes = max(0, self._live.peak - self._kept_in[-1])
        # a recomputation ends with the last tensor that it keeps, and the gradient of the output is there
        unit.transient_bytes = max(0, self._peak - self._kept_in[-1]) + unit.output_bytes
        self._live.restart()
        for tensor in _tensors(output):
            if tensor.requires_grad:
                tensor.register_hook(partial(self._move_into, unit, len(self.trace.units) - 1))

    def _pass_around(self) -> None:
        self._kept_before.append(sum(self._kept.values()))
        self.trace.transient_around.append(max(0, self._live.peak - self._kept_before[-1]))
        self._live.restart()

    def _move_into(self, unit: UnitTrace, index: int, _: Tensor) -> None:
        if index < self._ahead:
            self._account()
            self._backward, self._ahead = unit, index

    def _move_out_of(self, unit: UnitTrace, _: Tensor) -> None:
        if self._backward is unit:
            self._account()
            self._backward = None

    def _account(self) -> None:
        """The backward pass leaves where it is."""
        if self._backward is not None:
            transient = self._live.peak - self._kept_in[self._ahead]
            self._backward.transient_bytes = max(self._backward.transient_bytes, transient)
        else:
            around = self.trace.transient_around
            around[self._ahead] = max(around[self._ahead], self._live.peak - self._kept_before[self._ahead])
        self._live.restart()


class _Live(TorchDispatchMode):
    """Counts multiply-adds, and the bytes of storages that are alive.

    Args:    storages: says which count
    """

    def __init__(self, storages: Storages) -> None:
        super().__init__()
        self._storages = storages
        self.work = 0
        self.peak = 0  # the most bytes alive since `restart`
        self._bytes = 0
        self._alive: dict[int, weakref.ref] = {}

    def restart(self) -> None:
        self.peak = self._bytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        count = flop_registry.get(func.overloadpacket)
        if count is not None:
            self.work += count(*args, **kwargs, out_val=output) // 2
        for tensor in _tensors(output):
            for key, size in self._storages.of(tensor).items():
                if key not in self._alive:
                    self._alive[key] = weakref.ref(tensor.untyped_storage(), partial(self._gone, key, size))
                    self._bytes += size
        self.peak = max(self.peak, self._bytes)
        return output

    def _gone(self, key: int, size: int, _: object) -> None:
        del self._alive[key]
        self._bytes -= size


def _tensors(values: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _bytes(tensors: list[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
