"""A recorded step against the same step taken. A capture on the CPU calls the function again; a real one needs CUDA."""

import copy
from collections.abc import Callable

import pytest
import torch

from verydeep.config import RunConfig
from verydeep.models.catalogue import create_model
from verydeep.training.distributed import World
from verydeep.training.graph import RecordedStep, refusal
from verydeep.training.state import TrainState, make_state
from verydeep.training.step import train_step

CPU = World(rank=0, size=1, device=torch.device("cpu"))
CUDA = World(rank=0, size=1, device=torch.device("cuda"))


def state_of(world: World = CPU, **changes) -> TrainState:
    torch.manual_seed(0)
    options = {"stochastic_depth": 0.3}
    return make_state(create_model("preact_resnet8_cifar", **options), RunConfig(**changes).resolved(), world)


def batch(seed: int, num_images: int = 8, world: World = CPU) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(num_images, 3, 8, 8, generator=generator).contiguous(memory_format=torch.channels_last)
    return images.to(world.device), torch.randint(0, 10, (num_images,), generator=generator).to(world.device)


def calling_again(function: Callable[[], None]) -> Callable[[], None]:
    """A capture without a device: warms up as the real one does, then does the work at each replay."""
    for _ in range(3):
        function()
    return function


def step_function(state: TrainState, calls: list[int] | None = None, **options):
    def take(micro_batches, **arguments) -> None:
        batches = list(micro_batches)
        if calls is not None:
            calls.append(id(batches[0][0]))
        train_step(state, batches, **arguments, **options)

    return take


def everything(state: TrainState) -> dict[str, torch.Tensor]:
    values = {f"model.{name}": t for name, t in state.model.state_dict().items()} | {"tally": state.tally.sums}
    for i, parameter in enumerate(state.model.parameters()):
        values |= {f"optimizer.{i}.{name}": t for name, t in state.optimizer.state[parameter].items()}
    if state.ema is not None:
        values |= {f"ema.{name}": t for name, t in state.ema.model.state_dict().items()}
    return {name: value.detach().clone() for name, value in values.items()}


def assert_same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], **tolerance: float) -> None:
    assert ours.keys() == theirs.keys() and len(ours) > 30
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, **(tolerance or {"rtol": 0, "atol": 0}), msg=name)


def single(lr: float) -> float:
    """The rate in single precision, as a recorded step reads it."""
    return torch.tensor(lr).item()


OPTIONS = [
    (dict(optimizer="sgd", ema=0.99), dict(clip_grad_norm=1.0)),
    (dict(optimizer="sgd", momentum=0.0, nesterov=False), dict(label_smoothing=0.1)),
    (dict(optimizer="adamw"), dict(clip_adaptive=0.01)),
    (dict(optimizer="lars", ema=0.99), dict(clip_grad_norm=1.0)),
]


def take_steps(step, world: World, sizes: list[int]) -> None:
    for i, num_images in enumerate(sizes):
        torch.manual_seed(100 + i)
        images, labels = batch(i, num_images, world)
        if i == 2:
            images[0, 0, 0, 0] = float("nan")  # a bad step in between
        step([(images, labels)], step=i, lr=single(0.1 / (i + 1)), num_images=num_images, num_micro_batches=1)


@pytest.mark.parametrize(("config", "options"), OPTIONS)
def test_recorded_steps_are_bitwise_the_steps(config: dict, options: dict):
    """Learning rate and step number as tensors, static batches, a bad step, an odd last batch."""
    plain, recorded = state_of(**config), state_of(**config)
    calls: list[int] = []
    step = RecordedStep(step_function(recorded, calls, **options), recorded, *batch(9), capture=calling_again)
    del calls[:]
    take_steps(step_function(plain, **options), CPU, [8, 8, 8, 8, 5])
    take_steps(step, CPU, [8, 8, 8, 8, 5])
    assert_same(everything(recorded), everything(plain))
    assert plain.tally.sums[3] == 1
    assert len(set(calls[:4])) == 1 and calls[4] != calls[0]  # one static batch, and the odd one as it came


@pytest.mark.parametrize(("config", "options"), OPTIONS)
def test_recording_changes_nothing(config: dict, options: dict):
    state = state_of(**config)
    train_step(state, [batch(0)], step=0, lr=0.1, num_images=8, num_micro_batches=1)
    groups = copy.deepcopy([{k: v for k, v in g.items() if k != "params"} for g in state.optimizer.param_groups])
    before = everything(state)
    RecordedStep(step_function(state, **options), state, *batch(1), capture=calling_again)
    assert_same(everything(state), before)
    assert [{k: v for k, v in g.items() if k != "params"} for g in state.optimizer.param_groups] == groups
    assert all(parameter.grad is None for parameter in state.model.parameters())


def test_moments_made_while_recording_are_zero():
    state = state_of(optimizer="adamw")
    RecordedStep(step_function(state), state, *batch(1), capture=calling_again)
    moments = {name: t for name, t in everything(state).items() if name.startswith("optimizer")}
    assert len(moments) > 30 and not any(t.any() for t in moments.values())


def test_a_failed_recording_changes_nothing():
    state = state_of()
    before = everything(state)

    def failing(function: Callable[[], None]) -> Callable[[], None]:
        function()
        raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="not permitted"):
        RecordedStep(step_function(state), state, *batch(1), capture=failing)
    assert_same(everything(state), before)


def test_when_steps_are_not_recorded():
    one, two = (World(rank=0, size=size, device=torch.device("cuda")) for size in (1, 2))
    assert refusal(RunConfig().resolved(), one) is None
    assert refusal(RunConfig().resolved(), two) == "gradients cross processes"
    assert refusal(RunConfig(accumulate=2).resolved(), one) == "a step has 2 micro-batches"
    assert refusal(RunConfig().resolved(), CPU) == "the device is no CUDA device"


# On a GPU


@pytest.mark.gpu
@pytest.mark.parametrize(("config", "options"), OPTIONS)
def test_a_real_recording(config: dict, options: dict):
    """To 1e-3: convolutions may choose another algorithm in a recording."""
    plain, recorded = state_of(CUDA, **config), state_of(CUDA, **config)
    step = RecordedStep(step_function(recorded, **options), recorded, *batch(9, world=CUDA))
    take_steps(step_function(plain, **options), CUDA, [8, 8, 8, 8, 5])
    take_steps(step, CUDA, [8, 8, 8, 8, 5])
    assert_same(everything(recorded), everything(plain), rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
def test_no_recorded_step_waits_for_the_host():
    state = state_of(CUDA)
    step = RecordedStep(step_function(state), state, *batch(9, world=CUDA))
    images, labels = batch(0, world=CUDA)
    step([(images, labels)], step=0, lr=0.1, num_images=8, num_micro_batches=1)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for i in range(1, 4):
            step([(images, labels)], step=i, lr=0.1, num_images=8, num_micro_batches=1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert state.tally.sums[2] == 32


@pytest.mark.gpu
def test_each_seed_draws_for_itself_in_a_recording():
    """The same seed drops the same branches, another seed others."""
    losses = []
    for seed in (1, 1, 2):
        state = state_of(CUDA)
        step = RecordedStep(step_function(state), state, *batch(9, world=CUDA))
        torch.manual_seed(seed)
        step([batch(0, world=CUDA)], step=0, lr=0.1, num_images=8, num_micro_batches=1)
        losses.append(state.tally.sums[0].item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-6) and losses[2] != pytest.approx(losses[0], rel=1e-3)
