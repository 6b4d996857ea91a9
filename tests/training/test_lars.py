"""LARS against the formula, timm's and plain SGD; what a bad step leaves; whole runs, killed and resumed."""

import copy

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn

from tests import reference
from tests.training.test_run import EVERYTHING, assert_same_run, killed_after
from verydeep.training.lars import LARS
from verydeep.training.loop import resume, train

SHAPES = [(8, 3, 3, 3), (5, 7), (7,), (), (4, 1)]


def parameters(dtype: torch.dtype = torch.float64) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)) for shape in SHAPES]


def set_gradients(tensors: list[nn.Parameter], seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    for tensor in tensors:
        tensor.grad = torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.dtype)
    return [tensor.grad.clone() for tensor in tensors]


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_steps_are_those_of_the_formula(momentum: float, decay: float, nesterov: bool):
    ours = parameters()
    optimizer = LARS(
        ours, lr=1.0, momentum=momentum, weight_decay=decay, nesterov=nesterov and momentum > 0, trust=0.02
    )
    theirs = [(p.detach().clone(), torch.zeros_like(p)) for p in ours]
    options = dict(momentum=momentum, decay=decay, trust=0.02, nesterov=nesterov and momentum > 0)
    for step, lr in enumerate([1.0, 3.0, 0.5, 0.5]):
        gradients = set_gradients(ours, step)
        optimizer.param_groups[0]["lr"] = lr
        optimizer.step()
        theirs = [reference.lars(w, g, v, lr=lr, **options) for (w, v), g in zip(theirs, gradients, strict=True)]
    for p, (w, v) in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p.detach(), w, rtol=1e-12, atol=1e-14)
        if momentum:
            torch.testing.assert_close(optimizer.state[p]["momentum_buffer"], v, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_steps_are_those_of_timm(decay: float, nesterov: bool):
    """timm scales all parameters of a group, or with weight decay 0 none: so biases stand in a group of their own."""
    with torch._dynamo.config.patch(recompile_limit=torch._dynamo.config.recompile_limit):
        timm = pytest.importorskip("timm.optim")  # which sets that limit for the whole process
    ours, theirs = parameters(), parameters()

    def groups(tensors: list[nn.Parameter], **scaled) -> list[dict]:
        weights, others = [p for p in tensors if p.ndim >= 2], [p for p in tensors if p.ndim < 2]
        return [dict(params=weights, weight_decay=decay, **scaled), dict(params=others, weight_decay=0.0)]

    options = dict(lr=0.5, momentum=0.9, nesterov=nesterov)
    optimizer = LARS(groups(ours), trust=0.01, **options)
    other = timm.Lars(groups(theirs, always_adapt=True), trust_coeff=0.01, eps=0.0, **options)
    for step in range(4):
        set_gradients(ours, step)
        set_gradients(theirs, step)
        optimizer.step()
        other.step()
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("weight", "gradient"), [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_weights_or_gradients_of_zero_are_trained_by_plain_sgd(weight: float, gradient: float, decay: float):
    p = nn.Parameter(torch.full((3, 2), weight))
    p.grad = torch.full((3, 2), gradient)
    LARS([p], lr=0.5, weight_decay=decay, trust=0.001).step()
    torch.testing.assert_close(p.detach(), torch.full((3, 2), weight - 0.5 * (gradient + decay * weight)))


def test_a_step_does_not_depend_on_the_scale_of_the_gradient():
    moves = []
    for scale in (1.0, 1e-6, 1e6):
        ours = parameters()
        set_gradients(ours, 0)
        before = ours[0].detach().clone()
        ours[0].grad *= scale
        LARS(ours, lr=1.0, trust=0.01).step()
        moves.append(ours[0].detach() - before)
    torch.testing.assert_close(moves[1], moves[0])
    torch.testing.assert_close(moves[2], moves[0])
    assert moves[0].norm() == pytest.approx(0.01 * parameters()[0].norm().item())


@pytest.mark.parametrize("when", [0, 1])
def test_found_inf_leaves_weights_and_momentum(when: int):
    ours = parameters(torch.float32)
    optimizer = LARS(ours, lr=1.0, momentum=0.9, weight_decay=0.01)
    for step in range(when):
        set_gradients(ours, step)
        optimizer.step()
    before = copy.deepcopy(([p.detach() for p in ours], optimizer.state_dict()["state"]))
    set_gradients(ours, 9)
    ours[0].grad[0, 0, 0, 0] = float("nan")
    ours[2].grad[0] = float("inf")
    optimizer.found_inf = torch.tensor(1.0)
    optimizer.step()
    after = [p.detach() for p in ours], optimizer.state_dict()["state"]
    assert all(map(torch.equal, before[0], after[0]))
    assert all(torch.equal(before[1][i]["momentum_buffer"], after[1][i]["momentum_buffer"]) for i in range(len(SHAPES)))


def test_an_optimizer_of_weights_alone_and_one_of_biases_alone():
    for shape in ((3, 2), (3,)):
        p = nn.Parameter(torch.ones(shape))
        p.grad = torch.ones(shape)
        LARS([p], lr=1.0, momentum=0.9).step()
        assert (p < 1).all()


LARS_RUN = dict(optimizer="lars", lr=2.0, batch_size=80, steps=20, log_steps=3)


@pytest.mark.parametrize("steps", [1, 9, 13])
def test_a_killed_run_resumes_bit_for_bit(small, monkeypatch, steps: int):
    """With everything beside it: average, accumulation, clipping, dropout, smoothed labels, a schedule of its own."""
    options = (
        EVERYTHING | LARS_RUN | dict(schedule="polynomial", warmup=0.2, weight_decay_on="weights", lars_trust=0.01)
    )
    unbroken = train(small("unbroken", **options))
    config = small("broken", checkpoint_seconds=0.0, **options)
    killed_after(monkeypatch, steps, lambda: train(config))
    assert_same_run(unbroken.directory, resume(config.out).directory)


@pytest.mark.parametrize("options", [{}, {"precision": "bf16"}, {"freeze": "stem"}, {"norm": "group"}])
def test_a_large_batch_trains(small, options: dict):
    result = train(small(**dict(optimizer="lars", lr=3.0, batch_size=360, steps=60, warmup=0.1) | options))
    assert result.values["train_loss"] < 1.2 and result.values["bad_steps"] == 0
