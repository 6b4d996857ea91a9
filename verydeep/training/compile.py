"""Compile by unit: units of one structure share one compilation, so that compile time does not grow with depth.

`compile_units` makes a network's units run compiled code; `prepare_step` does all that a run with `compile` needs
before its first step.
"""

import time
import types
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor, nn
from torchvision.ops import StochasticDepth

from verydeep.config import RunConfig
from verydeep.errors import RunError, first_line
from verydeep.models.densenet import DenseLayer
from verydeep.nn.fused import has_any_global_hook, transformed, unwatched
from verydeep.nn.mode import evaluating
from verydeep.nn.norm import SyncBatchNorm2d
from verydeep.nn.unit import ResidualUnit
from verydeep.training.graph import RecordedStep, refusal
from verydeep.training.state import TrainState
from verydeep.training.step import Step, autocast, logits_of


class CompileError(RunError):
    """A network cannot be compiled; one line says why."""


class CompiledUnit(ResidualUnit):
    """A residual unit that runs compiled code; names, weights, buffers and hooks are those of the unit.

    Parameters and buffers are inputs of the code, and stochastic depth draws outside it, so that all units of one
    `structure` share it. The unit runs as it is while something must see its inside (see `_plain`).
    """

    structure: str

    def forward(self, x: Tensor) -> Tensor:
        if _plain(self, x):
            return super().forward(x)
        drop: nn.Module | Tensor | None = self.drop
        if isinstance(drop, StochasticDepth):
            # its factor on each image, drawn as it draws it
            drop = drop(x.new_ones((len(x), *[1] * (x.dim() - 1)))) if drop.training else None
        return _compiled(_transform, self.structure)(self, _any_batch(x), drop)


class CompiledDenseLayer(DenseLayer):
    """A layer of a DenseNet that runs compiled code, as `CompiledUnit` does."""

    structure: str

    def forward(self, x: Tensor) -> Tensor:
        if _plain(self, x):
            return super().forward(x)
        return _compiled(_forward_dense, self.structure)(self, _any_batch(x))


_COMPILED: dict[type[nn.Module], type[nn.Module]] = {ResidualUnit: CompiledUnit, DenseLayer: CompiledDenseLayer}


def _transform(unit: ResidualUnit, x: Tensor, drop: nn.Module | Tensor | None) -> Tensor:
    return unit.transform(x, (lambda y: y * drop.to(y.dtype)) if isinstance(drop, Tensor) else drop)


def _forward_dense(layer: DenseLayer, x: Tensor) -> Tensor:
    return DenseLayer.forward(layer, x)


@cache
def _compiled(function: types.FunctionType, structure: str) -> Callable[..., Tensor]:
    """The function compiled for units of one structure.

    Torch counts recompilations by code object and leaves a function uncompiled after a few, so each structure has a
    code object of its own. What `structure` does not say (a number, the mode) is guarded by torch.
    """
    name = f"{function.__name__}_{zlib.crc32(structure.encode()):08x}"  # equal code objects are one to some tables
    own = types.FunctionType(function.__code__.replace(co_name=name), function.__globals__, name)
    # the random draws are those of the plain unit
    return torch.compile(own, fullgraph=True, options={"fallback_random": True})


def _any_batch(x: Tensor) -> Tensor:
    """The tensor, whose number of images the compiled code shall leave open."""
    torch._dynamo.maybe_mark_dynamic(x, 0)
    return x


def _plain(unit: nn.Module, x: Tensor) -> bool:
    """Whether the unit is to run as it is: a hook or mode sees its inside, or another compiler traces it."""
    return (
        type(x) is not Tensor
        or x.device.type not in ("cpu", "cuda")
        or transformed()
        or torch._C._len_torch_function_stack() > 0
        or has_any_global_hook()
        or not all(unwatched(module) for module in unit.modules() if module is not unit)
    )


def compile_units(model: nn.Module) -> int:
    """Make every residual unit and dense layer of a model run compiled code, from its next call on.

    In place, and for copies of the model too: only the class of the units changes. The numbers are the plain units' to
    rounding. Compiled code has no second derivative: for one, `undo_compile` first.

    Returns: the number of distinct structures: what is compiled for each mode, however deep the model is
    """
    structures: set[str] = set()
    for module in model.modules():
        if type(module) in _COMPILED:
            structure = _structure(module)
            module.__class__ = _COMPILED[type(module)]
            module.structure = structure  # type: ignore[assignment]
            structures.add(structure)
        elif type(module) in _COMPILED.values():
            structures.add(str(module.structure))
    return len(structures)


def undo_compile(model: nn.Module) -> None:
    """Let every compiled unit of a model run as it is again."""
    plain = {compiled: own for own, compiled in _COMPILED.items()}
    for module in model.modules():
        if type(module) in plain:
            module.__class__ = plain[type(module)]
            del module.structure


def _structure(unit: nn.Module) -> str:
    """What units must share to share code: modules with their settings and modes, shapes and types of tensors.

    Numbers that no `repr` shows, such as the rates of stochastic depth or a factor on the branch, are left out.
    """
    parts: list[tuple] = []
    for name, module in unit.named_modules():
        if isinstance(module, StochasticDepth):
            parts.append((name, type(module).__name__))
            continue
        own = repr(module) if not any(module.children()) else type(module).__name__
        tensors = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        shapes = [(key, tuple(t.shape), t.dtype, t.device.type, t.requires_grad) for key, t in tensors]
        parts.append((name, own, module.training, shapes))
    return str(parts)


def prepare_step(
    step_function: Step,
    state: TrainState,
    config: RunConfig,
    image_shape: tuple[int, ...],
    *,
    batch_size: int,
    say: Callable[[str], None],
) -> Step:
    """A run's step on compiled units, and on a CUDA device recorded as a graph; what cannot be done is said.

    Args:    step_function: takes a step on `state`
             image_shape: (C, H, W)
             batch_size: images of a micro-batch of this process
             say: reports one line
    """
    began = time.monotonic()
    try:
        count = compile_units(state.model)
        if state.final_model is not state.model:
            compile_units(state.final_model)
        _check_compiles(state.model)
        say(f"compiling {count} distinct units")
        warm_up(state, image_shape, batch_size=batch_size, precision=config.precision)
        say(f"compiled {count} distinct units in {time.monotonic() - began:.0f} s")
    except CompileError as error:
        for model in (state.model, state.final_model):
            undo_compile(model)
        say(f"compile: {error}; the units run uncompiled")
    return _recorded(step_function, state, config, image_shape, batch_size, say)


def _check_compiles(model: nn.Module) -> None:
    """Refuse a model of which nothing can be compiled.

    Raises:  CompileError: saying why.
    """
    if any(type(module) is SyncBatchNorm2d for module in model.modules()):
        raise CompileError("batch-norm statistics over all processes (sync_bn) cannot be compiled")
    if not any(type(module) in _COMPILED.values() for module in model.modules()):
        raise CompileError("the network has no residual unit or dense layer, which are what is compiled")


def warm_up(state: TrainState, image_shape: tuple[int, ...], *, batch_size: int, precision: str) -> None:
    """Compile what steps and evaluations will run, by running it once; nothing of the state changes.

    Args:    image_shape, batch_size: see `prepare_step`
    Raises:  CompileError: if torch cannot.
    """
    device = state.world.device
    images = _zeros(batch_size, image_shape, device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), _stating_failure():
        state.buffers.save()
        try:
            with autocast(device, precision):
                logits = logits_of(state.forward(images))
            logits.sum().backward()
        finally:
            state.buffers.restore_if(torch.tensor(True, device=device))
            state.optimizer.zero_grad()
        with evaluating(state.final_model), torch.no_grad(), autocast(device, precision):
            state.final_model(images)


@contextmanager
def _stating_failure() -> Iterator[None]:
    """Turn torch's failure to compile into a `CompileError`, with the first line of what torch says."""
    from torch._dynamo.exc import TorchDynamoException
    from torch._inductor.exc import CppCompileError, InvalidCxxCompiler

    try:
        yield
    except (TorchDynamoException, CppCompileError, InvalidCxxCompiler) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise CompileError(lines[0].rstrip(".") if lines else type(error).__name__) from error


def _recorded(
    step_function: Step,
    state: TrainState,
    config: RunConfig,
    image_shape: tuple[int, ...],
    batch_size: int,
    say: Callable[[str], None],
) -> Step:
    """The step recorded as a CUDA graph; as it is where that cannot be."""
    device = state.world.device
    if device.type != "cuda":
        return step_function
    reason = refusal(config, state.world)
    if reason is None:
        images, labels = _zeros(batch_size, image_shape, device), torch.zeros(batch_size, dtype=torch.int64)
        try:
            return RecordedStep(step_function, state, images, labels.to(device))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            reason = first_line(error)
    say(f"compile: steps are not recorded as a CUDA graph: {reason}")
    return step_function


def _zeros(batch_size: int, image_shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Images of the layout in which batches come."""
    images = torch.zeros(batch_size, *image_shape, device=device)
    return images.contiguous(memory_format=torch.channels_last)
