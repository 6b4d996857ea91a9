"""What a training step of a network costs on this machine, beside its floor: the convolutions alone. For `bench`.

The step is the one of `train`, on one batch of the config's data; nothing is written.
"""

import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from verydeep.config import RunConfig
from verydeep.memory.count import activation_bytes
from verydeep.memory.system import peak_bytes, reset_peak
from verydeep.nn.mode import evaluating
from verydeep.training.distributed import World, choose_device
from verydeep.training.reporter import Reporter, SilentReporter
from verydeep.training.run import Run
from verydeep.training.setup import StepBatches
from verydeep.versions import versions


@dataclass(frozen=True)
class Bench:
    """A step measured.

    Args:    batch_size: images of a step, those of all its accumulated batches
             step_seconds: median of `rounds` steps
             floor_seconds: every convolution alone, forward and backward, at its own shape; medians, summed up
             step_over_floor: how many times longer the whole step takes
             activation_bytes: kept between forward and backward, counted from the shapes
             memory_plan: what is recomputed, where the config has a memory budget
             peak_memory_bytes: the device's largest allocation on CUDA, else the largest resident set of the process
    """

    model: str
    batch_size: int
    image_shape: tuple[int, ...]
    precision: str
    device: str
    threads: int
    rounds: int
    step_seconds: float
    steps_per_second: float
    images_per_second: float
    floor_seconds: float
    step_over_floor: float
    activation_bytes: int
    peak_memory_bytes: int
    memory_plan: dict[str, Any] | None
    versions: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def bench(config: RunConfig, *, rounds: int = 5, reporter: Reporter | None = None) -> Bench:
    """Time whole training steps of a config's network, after one step of warm-up, and its convolutions alone.

    Args:    rounds: steps timed
             reporter: where notes about the run go
    Raises:  UsageError: if the config cannot be carried out.
    """
    config = config.resolved()
    world = World(rank=0, size=1, device=choose_device(config.device))
    run = Run(config, Path("."), world, reporter=reporter or SilentReporter())
    run.prepare()
    first = next(run.epoch_batches())
    batch_size, micro_batches = first.num_images, list(first.batches)
    images = micro_batches[0][0]

    def step() -> None:
        run.take_step(StepBatches(batch_size, len(micro_batches), iter(micro_batches)))

    plan = run.memory_plan
    if plan is not None:
        run.reporter.say(str(plan))
        kept = plan.kept_bytes
    else:
        kept = activation_bytes(run.state.model, tuple(images.shape[1:]), batch_size=len(images))
    reset_peak(world.device)
    seconds = timed(step, rounds=rounds, device=world.device)
    peak = peak_bytes(world.device)
    calls = sum((conv_calls(run.state.model, images) for images, _ in micro_batches), Counter[ConvCall]())
    dtype = images.dtype if config.precision == "fp32" else torch.bfloat16
    floor = convolution_seconds(calls, rounds=rounds, device=world.device, dtype=dtype)
    return Bench(
        model=config.model,
        batch_size=batch_size,
        image_shape=tuple(images.shape[1:]),
        precision=config.precision,
        device=str(world.device),
        threads=torch.get_num_threads(),
        rounds=rounds,
        step_seconds=seconds,
        steps_per_second=1 / seconds,
        images_per_second=batch_size / seconds,
        floor_seconds=floor,
        step_over_floor=seconds / floor,
        activation_bytes=kept,
        peak_memory_bytes=peak,
        memory_plan=None if plan is None else plan.summary(),
        versions=versions(),
    )


def timed(run: Callable[[], object], *, rounds: int, device: torch.device) -> float:
    """Median seconds of a call, after one that is not counted; the device's work is waited for."""
    seconds = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


class ConvCall(NamedTuple):
    """One convolution at one input; equal calls cost the same.

    Args:    weight_shape: (C_out, C_in / groups, k, k)
             first: its input is the images, which need no gradient
    """

    input_shape: tuple[int, ...]
    weight_shape: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    first: bool


@torch.no_grad()
def conv_calls(model: nn.Module, images: Tensor) -> Counter[ConvCall]:
    """The convolutions of a forward pass on the images, (N, C, H, W), and how often each is called."""
    calls: Counter[ConvCall] = Counter()

    def note(conv: nn.Conv2d, inputs: tuple[Tensor, ...]) -> None:
        shape = (len(images), *inputs[0].shape[1:])
        assert not isinstance(conv.padding, str)
        sizes = tuple(conv.weight.shape), tuple(conv.stride), tuple(conv.padding), tuple(conv.dilation)
        calls[ConvCall(shape, *sizes, conv.groups, first=not calls)] += 1

    hooks = [m.register_forward_pre_hook(note) for m in model.modules() if isinstance(m, nn.Conv2d)]
    try:
        with evaluating(model):
            model(images[:1])
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def convolution_seconds(calls: Counter[ConvCall], *, rounds: int, device: torch.device, dtype: torch.dtype) -> float:
    """The floor of a training step: seconds of its convolutions alone, forward and backward, in channels_last.

    Each distinct one is timed by itself, median of `rounds`, and counted as often as it is called.
    """
    return sum(
        count * timed(_forward_backward(call, device, dtype), rounds=rounds, device=device)
        for call, count in calls.items()
    )


def _forward_backward(call: ConvCall, device: torch.device, dtype: torch.dtype) -> Callable[[], None]:
    def random(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, device=device, dtype=dtype).contiguous(memory_format=torch.channels_last)

    x, weight = random(call.input_shape), random(call.weight_shape)
    places = list(call.stride), list(call.padding), list(call.dilation)
    mask = [not call.first, True, False]

    def run() -> None:
        y = torch.ops.aten.convolution(x, weight, None, *places, False, [0, 0], call.groups)
        torch.ops.aten.convolution_backward(y, x, weight, None, *places, False, [0, 0], call.groups, mask)

    return run
