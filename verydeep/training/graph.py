"""A training step recorded once on a CUDA device as a graph, and replayed for each batch: one launch a step.

`record_step` wraps `train_step`. What a step is given is copied into tensors that the recording reads: images, labels,
the step's number and its learning rate.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from verydeep.config import RunConfig
from verydeep.training.distributed import World
from verydeep.training.state import TrainState
from verydeep.training.step import Step

# from a function to one that does its work on the device again
Capture = Callable[[Callable[[], None]], Callable[[], None]]


def capture_on_cuda(function: Callable[[], None]) -> Callable[[], None]:
    """Record the kernels that `function` launches, after three calls that let every library set itself up.

    Random draws continue the stream of torch's CUDA generator at each replay, which takes its seed of then.

    Raises:  RuntimeError: if the function does what cannot be recorded, such as waiting for the device.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # other threads (worker processes' pinned memory) may allocate meanwhile
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        function()
    return graph.replay


def refusal(config: RunConfig, world: World) -> str | None:
    """Why the steps of a run are not recorded; None if they can be."""
    if world.device.type != "cuda":
        return "the device is no CUDA device"
    if world.size > 1:
        return "gradients cross processes"
    if config.accumulate is not None and config.accumulate > 1:
        return f"a step has {config.accumulate} micro-batches"
    if config.mixup or config.cutmix:
        return "images are blended before a step"
    if getattr(config, "memory_budget", None) is not None:
        return "a memory budget recomputes parts of the network"
    return None


class RecordedStep:
    """A step that replays its recording on batches of the recorded shape, and runs as it is on others.

    The recording keeps its activations' memory, so that a step of another shape needs its own beside it.

    Args:    step_function: takes a step on `state`
             state: what the step changes; recording leaves it as it was
             images, labels: a batch, of the shape and layout to record
             capture: see Capture
    """

    def __init__(
        self,
        step_function: Step,
        state: TrainState,
        images: Tensor,
        labels: Tensor,
        *,
        capture: Capture = capture_on_cuda,
    ) -> None:
        self._step_function = step_function
        self._images, self._labels = images.clone(), labels.clone()
        device = images.device
        self._step = torch.zeros((), dtype=torch.float64, device=device)
        self._lr = torch.zeros((), device=device)  # the fused optimizers read single precision
        with _unchanged(state), _recordable(state.optimizer):
            self._replay = capture(self._take)

    def __call__(
        self,
        micro_batches: Iterable[tuple[Tensor, Tensor]],
        *,
        step: int,
        lr: float,
        num_images: int,
        num_micro_batches: int,
    ) -> None:
        batches = list(micro_batches)
        if not self._fits(batches, num_images):
            self._step_function(batches, step=step, lr=lr, num_images=num_images, num_micro_batches=num_micro_batches)
            return
        images, labels = batches[0]
        self._images.copy_(images)
        self._labels.copy_(labels)
        self._step.fill_(step)
        self._lr.fill_(lr)
        self._replay()

    def _fits(self, batches: list[tuple[Tensor, Tensor]], num_images: int) -> bool:
        images, labels = batches[0]
        return (
            len(batches) == 1
            and num_images == len(labels)
            and images.shape == self._images.shape
            and (images.dtype, labels.dtype) == (self._images.dtype, self._labels.dtype)
        )

    def _take(self) -> None:
        """The step on the tensors that a replay reads."""
        batch, count = (self._images, self._labels), len(self._labels)
        self._step_function([batch], step=self._step, lr=self._lr, num_images=count, num_micro_batches=1)


@contextmanager
def _unchanged(state: TrainState) -> Iterator[None]:
    """Put back, in place, all that steps within the context change; moments made within it are zero afterwards."""
    before = {id(tensor): tensor.detach().clone() for tensor in _tensors(state)}
    try:
        yield
    finally:
        state.optimizer.zero_grad()
        with torch.no_grad():
            for tensor in _tensors(state):
                saved = before.get(id(tensor))
                tensor.zero_() if saved is None else tensor.copy_(saved)


def _tensors(state: TrainState) -> list[Tensor]:
    """All that a step writes."""
    models = [state.model] if state.ema is None else [state.model, state.ema.model]
    moments = [value for moments in state.optimizer.state.values() for value in moments.values()]
    return [
        *(tensor for model in models for tensor in (*model.parameters(), *model.buffers())),
        *(value for value in moments if isinstance(value, Tensor)),
        state.tally.sums,
    ]


@contextmanager
def _recordable(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Let torch record the optimizer's step; its settings, which a checkpoint holds, are put back afterwards."""
    names = ("lr", "capturable")
    before = [{name: group[name] for name in names if name in group} for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = True
    try:
        yield
    finally:
        for group, own in zip(optimizer.param_groups, before, strict=True):
            group.update(own)
