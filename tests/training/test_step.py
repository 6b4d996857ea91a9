"""train_step against naive training in plain PyTorch, and the gate: a bad step changes nothing."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from verydeep.config import RunConfig
from verydeep.models.catalogue import create_model
from verydeep.nn.norm import convert_batch_norm
from verydeep.training.distributed import World
from verydeep.training.state import make_state
from verydeep.training.step import train_step

WORLD = World(rank=0, size=1, device=torch.device("cpu"))


def small_model(**options) -> nn.Module:
    torch.manual_seed(0)
    return create_model("preact_resnet8_cifar", in_channels=1, **options)


def batch(seed: int, num_images: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(num_images, 1, 8, 8, generator=generator)
    return images, torch.randint(0, 10, (num_images,), generator=generator)


def state_of(model: nn.Module, **changes):
    return make_state(model, RunConfig(**changes).resolved(), WORLD)


def step_on(state, *batches, step: int = 0, lr: float = 0.1, **options) -> None:
    num_images = sum(len(labels) for _, labels in batches)
    train_step(state, batches, step=step, lr=lr, num_images=num_images, num_micro_batches=len(batches), **options)


def snapshot(state) -> dict[str, torch.Tensor]:
    """Everything that a step writes, by name."""
    values = {f"model.{name}": t for name, t in state.model.state_dict().items()}
    for i, parameter in enumerate(state.model.parameters()):
        for name, value in state.optimizer.state[parameter].items():
            values[f"optimizer.{i}.{name}"] = value
    if state.ema is not None:
        values |= {f"ema.{name}": t for name, t in state.ema.model.state_dict().items()}
    return {name: value.clone() for name, value in values.items()}


def differing(before: dict, after: dict) -> list[str]:
    assert before.keys() == after.keys()
    return [name for name in before if not torch.equal(before[name], after[name])]


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("weight_decay_on", ["all", "weights"])
def test_steps_are_those_of_plain_sgd(nesterov: bool, weight_decay_on: str):
    model = small_model().double()
    twin = copy.deepcopy(model)
    state = state_of(model, nesterov=nesterov, weight_decay=1e-2, weight_decay_on=weight_decay_on)
    momentum = {name: torch.zeros_like(p) for name, p in twin.named_parameters()}
    for step, lr in enumerate([0.1, 0.05, 0.2]):
        images, labels = batch(step)
        images = images.double()
        step_on(state, (images, labels), step=step, lr=lr)
        twin.train()
        loss = F.cross_entropy(twin(images), labels)
        gradients = torch.autograd.grad(loss, list(twin.parameters()))
        with torch.no_grad():
            for (name, p), g in zip(twin.named_parameters(), gradients, strict=True):
                g = g + 1e-2 * p if weight_decay_on == "all" or p.ndim > 1 else g
                momentum[name] = 0.9 * momentum[name] + g
                p -= lr * (g + 0.9 * momentum[name] if nesterov else momentum[name])
    for (name, ours), theirs in zip(state.model.state_dict().items(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9, msg=name)


def test_weighted_classes_and_shared_labels_against_the_formula():
    """loss = -1/N sum_i sum_c w_c t_ic log p_ic, t one-hot or shares; errors by the larger share."""
    weights = torch.rand(10, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for shared in (False, True):
        model = small_model(norm="none", scale="skipinit").double()
        twin = copy.deepcopy(model)
        state = state_of(model, weight_decay=0.0, momentum=0.0, nesterov=False)
        images, labels = batch(0)
        images, own = images.double(), F.one_hot(labels, 10).double()
        targets = 0.7 * own + 0.3 * own.roll(1, 0) if shared else own
        step_on(state, (images, targets if shared else labels), class_weights=weights)
        logits = twin(images)
        loss = -(weights * targets * logits.log_softmax(1)).sum() / len(labels)
        gradients = torch.autograd.grad(loss, list(twin.parameters()))
        for ours, p, g in zip(state.model.parameters(), twin.parameters(), gradients, strict=True):
            torch.testing.assert_close(ours, p - 0.1 * g, rtol=1e-9, atol=1e-9)
        loss_sum, errors, *_ = state.tally.sums.tolist()
        assert abs(loss_sum - loss.item() * 16) < 1e-4
        assert errors == (logits.argmax(1) != labels).sum()


def test_accumulated_gradients_are_the_mean_over_all_images():
    """Without batch norm, micro-batches of 10 and 6 give the step of one batch of 16."""
    whole, parts = (state_of(small_model(norm="group").double()) for _ in range(2))
    images, labels = batch(0)
    images = images.double()
    step_on(whole, (images, labels))
    step_on(parts, (images[:10], labels[:10]), (images[10:], labels[10:]))
    for ours, theirs in zip(parts.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_clipping_bounds_the_step():
    """The clipped step has the direction of the free one and the length lr times the bound."""
    images, labels = batch(0)
    moves = []
    for bound in (None, 0.01):
        state = state_of(small_model().double(), momentum=0.0, weight_decay=0.0)
        start = torch.cat([p.detach().flatten() for p in state.model.parameters()])
        step_on(state, (images.double(), labels), clip_grad_norm=bound)
        moves.append(torch.cat([p.detach().flatten() for p in state.model.parameters()]) - start)
    free, clipped = moves
    assert free.norm() > 0.01
    assert clipped.norm() == pytest.approx(0.1 * 0.01, rel=1e-3)
    torch.testing.assert_close(clipped / clipped.norm(), free / free.norm())


@pytest.mark.parametrize("optimizer", RunConfig.__dataclass_fields__["optimizer"].metadata["choices"])
@pytest.mark.parametrize("when", [0, 2])
def test_a_bad_step_changes_nothing(optimizer: str, when: int):
    state = state_of(small_model(stochastic_depth=0.2), optimizer=optimizer, ema=0.9)
    for step in range(when):
        step_on(state, batch(step), step=step)
    before = snapshot(state)
    images, labels = batch(7)
    images[3, 0, 2, 2] = float("nan")
    step_on(state, (images, labels), step=when)
    after = snapshot(state)
    assert differing(before, {name: after[name] for name in before}) == []
    assert not any(after[name].any() for name in after.keys() - before.keys())  # AdamW makes its moments now
    assert state.tally.sums[3] == 1 and state.tally.sums[4] == when + 1
    step_on(state, batch(8), step=when + 1)
    changed = differing(after, snapshot(state))
    assert {name.split(".")[0] for name in changed} == {"model", "optimizer", "ema"}
    assert all(torch.isfinite(t).all() for t in snapshot(state).values())


def test_an_infinite_gradient_with_a_finite_loss_changes_nothing():
    class Sqrt(nn.Module):
        """Finite at 0, where its gradient is not."""

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(4, 10))

        def forward(self, images):
            return (images.flatten(1)[:, :4] @ self.weight).abs().sqrt()

    state = state_of(Sqrt())
    before = snapshot(state)
    step_on(state, batch(0))
    assert differing(before, snapshot(state)) == [] and state.tally.sums[3] == 1


def test_the_tally_counts_good_steps_only():
    state = state_of(small_model())
    step_on(state, batch(0, 16), step=0)
    images, labels = batch(1, 8)
    step_on(state, (images * float("inf"), labels), step=1)
    step_on(state, batch(2, 4), step=2)
    loss, errors, num_images, bad, first_bad, grad_norm = state.tally.sums.tolist()
    assert (num_images, bad, first_bad) == (20, 1, 2)
    assert 0 < loss < 20 * 10 and 0 <= errors <= 20 and 0 < grad_norm < 1e6


def test_one_batch_overfits():
    state = state_of(small_model(), weight_decay=0.0)
    for step in range(40):
        step_on(state, batch(0), step=step, lr=0.05)
    state.tally.reset()
    step_on(state, batch(0), step=40, lr=0.0)
    loss, errors, num_images = state.tally.sums[:3].tolist()
    assert errors == 0 and loss / num_images < 0.05


def test_buffers_stay_views_that_the_model_uses():
    """The guard's flat buffers are the model's own: a step moves both, names and dtypes unchanged."""
    reference = small_model()
    state = state_of(small_model())
    assert [(n, b.dtype, b.shape) for n, b in state.model.named_buffers()] == [
        (n, b.dtype, b.shape) for n, b in reference.named_buffers()
    ]
    step_on(state, batch(0))
    tracked = state.model.get_buffer("stem.act.norm.num_batches_tracked")
    assert tracked == 1 and tracked.dtype == torch.int64
    assert state.model.get_buffer("stem.act.norm.running_mean").abs().sum() > 0


def test_ema_against_its_formula():
    state = state_of(small_model(), ema=0.9)
    name = "stages.0.0.branch.conv1.weight"
    average = state.model.get_parameter(name).detach().clone()
    mean = state.model.get_buffer("stem.act.norm.running_mean").clone()
    for step in range(4):
        step_on(state, batch(step), step=step)
        decay = min(0.9, (1 + step) / (10 + step))
        average = decay * average + (1 - decay) * state.model.get_parameter(name).detach()
        mean = decay * mean + (1 - decay) * state.model.get_buffer("stem.act.norm.running_mean")
    torch.testing.assert_close(state.ema.model.get_parameter(name), average)
    torch.testing.assert_close(state.ema.model.get_buffer("stem.act.norm.running_mean"), mean)
    counter = state.ema.model.get_buffer("stem.act.norm.num_batches_tracked")
    assert counter == 4 and counter.dtype == torch.int64


def test_bf16_is_close_to_fp32():
    exact, rounded = state_of(small_model()), state_of(small_model())
    step_on(exact, batch(0))
    step_on(rounded, batch(0), precision="bf16")
    assert rounded.tally.sums[0] == pytest.approx(exact.tally.sums[0].item(), rel=0.02)
    assert rounded.tally.sums[0] != exact.tally.sums[0]
    assert next(rounded.model.parameters()).dtype == torch.float32


def test_a_frozen_norm_keeps_its_statistics():
    """Ten steps with the stem's norm frozen: bitwise the same buffers, also after model.train()."""
    model = small_model()
    model.stem.act.norm.requires_grad_(False)
    state = state_of(model)
    before = {name: buffer.clone() for name, buffer in model.stem.named_buffers()}
    for step in range(10):
        step_on(state, batch(step), step=step)
    assert all(torch.equal(before[name], buffer) for name, buffer in model.stem.named_buffers())
    assert model.stages[0][0].branch.act1.norm.num_batches_tracked == 10


def test_a_buffer_that_the_model_replaces_is_guarded_too():
    class Replaces(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 10)
            self.register_buffer("mean", torch.zeros(10))

        def forward(self, images):
            logits = self.linear(images.flatten(1))
            self.mean = 0.9 * self.mean + 0.1 * logits.detach().mean(0)
            return logits - self.mean

    state = state_of(Replaces())
    step_on(state, batch(0))
    before = state.model.mean.clone()
    images, labels = batch(1)
    step_on(state, (images * float("nan"), labels), step=1)
    assert before.any() and torch.equal(state.model.mean, before)
    step_on(state, batch(2), step=2)
    assert not torch.equal(state.model.mean, before)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "options", [{}, {"bn_group_size": 8}, {"ema": 0.9, "clip_grad_norm": 1.0}, {"optimizer": "lars"}]
)
def test_no_step_waits_for_the_host(options: dict):
    """Two steps to warm up, then any synchronisation is an error."""
    device = torch.device("cuda")
    model = create_model("preact_resnet8_cifar", in_channels=1)
    convert_batch_norm(model, group_size=options.get("bn_group_size"))
    state = make_state(model, RunConfig(**options).resolved(), World(rank=0, size=1, device=device))
    images, labels = (tensor.to(device) for tensor in batch(0))
    clip = options.get("clip_grad_norm")
    for step in range(3):
        if step == 2:
            torch.cuda.set_sync_debug_mode("error")
        try:
            step_on(state, (images, labels), step=step, clip_grad_norm=clip)
        finally:
            torch.cuda.set_sync_debug_mode("default")
