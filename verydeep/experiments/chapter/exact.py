"""The chapter's exact claims: computed in float64, or counted, and compared to the last digit that is printed."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torchvision
from torch import Tensor, nn

from verydeep import theory
from verydeep.data.seed import generator
from verydeep.experiments.chapter.cells import PANELS, moved_cells
from verydeep.experiments.chapter.claims import BY_ID, CLAIMS, Claim
from verydeep.experiments.chapter.figure import shared_cell_charts
from verydeep.experiments.experiment import Experiment, Results, Setting, Trial, Verdict
from verydeep.models.catalogue import create_model
from verydeep.nn.unit import ResidualUnit, UnitSpec, make_unit
from verydeep.report.section import FAILS, HOLDS

TOLERANCE = 1e-10  # of identities, in float64
TABLE = torch.tensor([[2.0, 0, 4], [4, 2, 0], [6, 2, 4], [8, 4, 4]], dtype=torch.float64)


def _vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator(seed))


def unravel_error() -> float:
    """Largest error of (11.2) on networks of tanh branches and of (11.4) on random Jacobians, K = 1..6, width 5."""
    errors = []
    for num_units in range(1, 7):
        weights = _random(num_units, 5, 5, seed=num_units)
        branches = [lambda h, w=w: torch.tanh(w @ h) for w in weights]
        y = x = _random(5)
        for branch in branches:
            y = y + branch(y)
        errors.append((torch.stack(theory.unravelled_terms(branches, x)).sum(0) - y).abs().max())
        errors.append((torch.stack(list(theory.path_terms(branches, x).values())).sum(0) - y).abs().max())
        terms = torch.stack(list(theory.path_jacobians(weights).values()))
        errors.append((terms.sum(0) - theory.jacobian_product(weights)).abs().max())
    return max(errors).item()


def scale_invariance_error() -> float:
    """Weights into batch norm times a = 0.1, 3, 50: change of the output, of a times the gradient, of a^2 tan(angle).

    The angle is that by which a gradient step turns a unit's weights; its tangent is lr |gradient| / |weight|, since
    the two are orthogonal, which is checked too.
    """
    x, target = _random(32, 6, seed=1), _random(32, 4, seed=2)

    def output_and_gradient(weight: Tensor) -> tuple[Tensor, Tensor]:
        weight = weight.detach().requires_grad_()
        output = theory.batch_norm(x @ weight).output
        (gradient,) = torch.autograd.grad((output - target).square().sum() + output.pow(3).sum(), weight)
        return output.detach(), gradient

    def turn(weight: Tensor, gradient: Tensor) -> Tensor:
        return gradient.norm(dim=0) / weight.norm(dim=0)

    weight = _random(6, 4, seed=3)
    output, gradient = output_and_gradient(weight)
    errors = [(weight * gradient).sum(0).abs().max()]
    for scale in (0.1, 3.0, 50.0):
        scaled_output, scaled_gradient = output_and_gradient(scale * weight)
        errors.append((scaled_output - output).abs().max())
        errors.append((scale * scaled_gradient - gradient).abs().max())
        errors.append((turn(scale * weight, scaled_gradient) * scale**2 / turn(weight, gradient) - 1).abs().max())
    return max(errors).item()


def bias_error() -> float:
    """A bias of 7 before batch norm: change of the output, and the bias's gradient."""
    z, bias = _random(16, 3, seed=4), torch.full((3,), 7.0, dtype=torch.float64, requires_grad=True)
    output = theory.batch_norm(z + bias).output
    (gradient,) = torch.autograd.grad(output.pow(3).sum(), bias)
    return max((output - theory.batch_norm(z).output).abs().max().item(), gradient.abs().max().item())


def fold_error() -> float:
    """Convolution and batch norm in eval mode against one convolution with the norm folded into it."""
    conv, norm = nn.Conv2d(3, 5, 3, padding=1).double(), nn.BatchNorm2d(5).double().eval()
    assert norm.running_mean is not None and norm.running_var is not None and conv.bias is not None
    with torch.no_grad():
        for i, tensor in enumerate((norm.running_mean, norm.weight, norm.bias)):
            tensor.copy_(_random(5, seed=i))
        norm.running_var.copy_(_random(5, seed=9).square() + 0.1)
        conv.weight.copy_(_random(5, 3, 3, 3, seed=10))
        conv.bias.copy_(_random(5, seed=11))
        scale, shift = theory.prediction_affine(
            norm.running_mean, norm.running_var, gamma=norm.weight, beta=norm.bias, eps=norm.eps
        )
        folded = nn.Conv2d(3, 5, 3, padding=1).double()
        folded.weight.copy_(conv.weight * scale[:, None, None, None])
        folded.bias.copy_(conv.bias * scale + shift)  # type: ignore[union-attr]
        x = _random(2, 3, 8, 8)
        return (norm(conv(x)) - folded(x)).abs().max().item()


def shift_and_scale_error() -> float:
    """Batch norm of a z + c against that of z, for a from 0.01 to 100 and c from -50 to 50."""
    z = _random(8, 5)
    expected = theory.batch_norm(z).output
    pairs = [(a, c) for a in (0.01, 0.5, 2.0, 100.0) for c in (-50.0, 0.0, 3.0, 50.0)]
    return max((theory.batch_norm(a * z + c).output - expected).abs().max().item() for a, c in pairs)


def preact_sum_error() -> float:
    """Pre-activation: the last signal against the first plus all branches, in four units of a stage.

    Raises:  AssertionError: if the original unit satisfied it too, which the ReLU after the addition prevents.
    """
    errors = {order: _sum_error(order) for order in ("full_preact", "original")}
    assert errors["original"] > 0.01, errors
    return errors["full_preact"]


def _sum_error(order: str) -> float:
    torch.manual_seed(0)
    units = [make_unit(UnitSpec(order=order), 8, 8, stride=1, num_units=4).double() for _ in range(4)]
    h, total = _random(4, 8, 6, 6), _random(4, 8, 6, 6)
    with torch.no_grad():
        for unit in units:
            total = total + _branch(unit, h)
            h = unit(h)
    return (h - total).abs().max().item()


def _branch(unit: ResidualUnit, x: Tensor) -> Tensor:
    return unit.branch(x if unit.preact is None else unit.preact(x))


def shared_cells_error() -> float:
    """Cells on which measurement and definition of Fig. 11.3 differ, over all five panels."""
    differing = 0
    for kind, num_groups in PANELS.values():
        expected = theory.shared_cells(kind, 4, 6, cell=(1, 2), num_groups=num_groups)
        differing += int((moved_cells(kind, num_groups) != expected).sum())
    return float(differing)


def resnet50_parameters() -> int:
    """Parameters of ResNet-50, which must be under a fifth of VGG-16's."""
    with torch.device("meta"):
        ours = sum(p.numel() for p in create_model("resnet50").parameters())
        vgg16 = sum(p.numel() for p in torchvision.models.vgg16(weights=None).parameters())
    assert ours < vgg16 / 5
    return ours


def _example_statistics() -> list[float]:
    result = theory.batch_norm(_vector(2, 4, 6, 8))
    return [result.mean.item(), result.variance.item()]


def _fixup() -> list[float]:
    return [theory.fixup_scale(54, 2), theory.fixup_scale(54, 3)]


# A number is compared digit by digit; of an identity the error is given, and must be below TOLERANCE.
MEASURES: Mapping[str, Callable[[], Any]] = {
    "paths-3": lambda: theory.paths_by_length(3),
    "paths-total": lambda: theory.num_paths(3),
    "unravel": unravel_error,
    "chain-0.5": lambda: theory.plain_chain([0.5] * 20),
    "chain-0.9": lambda: theory.plain_chain([0.9] * 20),
    "chain-1.1": lambda: theory.plain_chain([1.1] * 20),
    "reschain+0.05": lambda: theory.residual_chain([0.05] * 20),
    "reschain-0.05": lambda: theory.residual_chain([-0.05] * 20),
    "var-growth-50": lambda: theory.unscaled_variance(50),
    "bn-example-stats": _example_statistics,
    "bn-example": lambda: theory.batch_norm(_vector(2, 4, 6, 8)).normalized,
    "bn-example-affine": lambda: theory.batch_norm(_vector(2, 4, 6, 8), gamma=_vector(2), beta=_vector(1)).output,
    "bn-backward": lambda: theory.batch_norm_backward(_vector(1, 0, 0, 0), _vector(2, 4, 6, 8)),
    "bn-scale-invariance": scale_invariance_error,
    "table-bn": lambda: theory.normalize(TABLE, "batch"),
    "table-ln": lambda: theory.normalize(TABLE, "layer"),
    "rms": lambda: theory.normalize(TABLE[:1], "rms")[0],
    "fig11.3": shared_cells_error,
    "basic-256": lambda: theory.basic_weights(256),
    "bottleneck-256-64": lambda: theory.bottleneck_weights(256, 64),
    "bottleneck-ratio": lambda: theory.basic_weights(256) / theory.bottleneck_weights(256, 64),
    "resnet50-params": resnet50_parameters,
    "preact-sum": preact_sum_error,
    "fixup": _fixup,
    "ex11.1": lambda: theory.batch_norm(_vector(1, 3, 5, 7)).output,
    "ex11.2": lambda: [theory.num_paths(4), theory.num_paths(4, length=2)],
    "ex11.3": shift_and_scale_error,
    "ex11.4": lambda: [theory.unscaled_variance(10), theory.scaled_variance(10, 10)],
    "ex11.5": lambda: theory.normalize(_vector(1, 2, 3, 6)[None], "layer")[0],
    "ex11.6": lambda: theory.bottleneck_weights(512, 128),
    "ex11.7": lambda: [theory.residual_chain([c] * 100) for c in (0.01, -0.01)],
    "bn-bias": bias_error,
    "bn-fold": fold_error,
}


def agrees(measured: Any, published: Any, digit: Any) -> bool:
    """Whether a measured value, rounded to the last printed digit, is the published one.

    >>> agrees([1.3416, 0.1057], [1.342, 0.106], 0.001), agrees(0.1216, 0.13, 0.01)
    (True, False)
    """
    if isinstance(published, list):
        digits = digit if isinstance(digit, list) else [digit] * len(published)
        return len(measured) == len(published) and all(map(agrees, measured, published, digits))
    return math.fabs(measured - published) <= digit / 2 * (1 + 1e-9)


def judge_claim(claim: Claim, measured: Any) -> Verdict:
    """The verdict on one exact claim."""
    if isinstance(claim.published, str):
        holds = measured <= TOLERANCE
        return Verdict(HOLDS if holds else FAILS, [measured], "largest error", f"must be at most {TOLERANCE:g}")
    holds = agrees(measured, claim.published, claim.digit)
    return Verdict(HOLDS if holds else FAILS, [measured], "value", "to the digits printed")


def _experiment(section: str) -> Experiment:
    claims = [claim for claim in CLAIMS if claim.kind == "exact" and claim.section == section]

    def measure(seed: int) -> dict[str, Any]:
        values = {claim.id: MEASURES[claim.id]() for claim in claims}
        return {name: value.tolist() if isinstance(value, Tensor) else value for name, value in values.items()}

    def judge(results: Results, setting: Setting) -> dict[str, Verdict]:
        return {name: judge_claim(BY_ID[name], value) for name, value in results["compute"][0].items()}

    return Experiment(
        name=f"exact-{section}",
        kind="exact",
        title="Exercises" if section == "exercises" else "Notes" if section == "notes" else f"Section {section}: exact",
        trials=lambda setting: [Trial("compute", measure, cost=1.0)],
        judge=judge,
        charts=shared_cell_charts if section == "5" else lambda results: (),
        claims=tuple(claim.id for claim in claims),
        settings="float64; identities on random inputs with fixed seeds",
    )


EXACT = tuple(_experiment(section) for section in dict.fromkeys(c.section for c in CLAIMS if c.kind == "exact"))
