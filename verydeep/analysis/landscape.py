"""The loss around a network's weights, along random directions scaled filter by filter, and how rough it is."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from verydeep.analysis.batch_norm import batch_statistics, recalibrate
from verydeep.analysis.tensor_split import ImagesAndLabels, all_batches, as_split
from verydeep.analysis.unchanged import unchanged
from verydeep.data.seed import generator
from verydeep.errors import UsageError, resolve_name
from verydeep.training.step import logits_of

Loss = Callable[[Tensor, Tensor], Tensor]
BATCH_NORM_MODES = ("train", "recalibrate", "eval")


@final
@dataclass(frozen=True, eq=False)
class Landscape:
    """The loss on a line or a plane through the weights.

    Args:    positions: steps along each direction, in units of the filters' norms; (n,)
             losses: (n,) on a line; (n, n) on a plane, the first direction by rows
    """

    positions: Tensor
    losses: Tensor


@final
@dataclass(frozen=True)
class Roughness:
    """How far a landscape is from smooth and convex; comparable between landscapes at the same positions.

    Args:    num_minima: interior points below all their neighbours (2 on a line, 8 on a plane)
             bending: mean absolute second difference along the axes, over the range of the losses
             negative_curvature: share of interior points where the least curvature is negative
    """

    num_minima: int
    bending: float
    negative_curvature: float


def filter_direction(model: nn.Module, *, seed: int) -> dict[str, Tensor]:
    """A random direction, each filter with the norm of the model's: d_ij <- d_ij / ||d_ij|| ||theta_ij||.

    A filter is what makes one output: a slice of a weight along its first dimension. Biases and the gains and shifts of
    norms do not move.

    Returns: parameter name -> tensor of its shape
    Source:  Li et al. 2018, section 4
    """
    stream = generator(seed)
    return {name: _scaled_like(parameter, stream) for name, parameter in model.named_parameters()}


@torch.no_grad()
def _scaled_like(parameter: Tensor, stream: torch.Generator) -> Tensor:
    if parameter.dim() < 2:
        return torch.zeros_like(parameter)
    direction = torch.randn(parameter.shape, generator=stream).to(parameter)
    axes = tuple(range(1, parameter.dim()))
    norm = torch.linalg.vector_norm(direction, dim=axes, keepdim=True)
    return direction / norm * torch.linalg.vector_norm(parameter, dim=axes, keepdim=True)


def loss_line(
    model: nn.Module,
    data: ImagesAndLabels,
    *,
    direction: dict[str, Tensor] | None = None,
    seed: int = 0,
    reach: float = 1.0,
    num_points: int = 51,
    loss: Loss = F.cross_entropy,
    batch_norm: str = "train",
    batch_size: int = 256,
) -> Landscape:
    """The mean loss at theta + a d for evenly spaced a from -reach to reach.

    Batch norms: with `train` each batch is normalised by its own statistics, what training minimises; one pass a point.
    With `recalibrate` the running statistics are taken anew at each point, what prediction would do after training
    there; two passes. With `eval` they stay those of the centre, as in the released code of Li et al.: then the scale
    of the weights, which norms cancel and filter normalisation is made to ignore, shows as loss. Everything else, such
    as dropout, is in eval mode.

    Args:    data: a split, or images and labels
             direction: parameter name -> tensor; None: `filter_direction` with the seed
             loss: (logits, labels) -> mean over images
             batch_norm: train, recalibrate or eval
    Source:  Li et al. 2018, section 4
    """
    directions = [filter_direction(model, seed=seed) if direction is None else direction]
    return _landscape(model, data, directions, reach, num_points, loss, batch_norm, batch_size)


def loss_plane(
    model: nn.Module,
    data: ImagesAndLabels,
    *,
    directions: Sequence[dict[str, Tensor]] | None = None,
    seed: int = 0,
    reach: float = 1.0,
    num_points: int = 21,
    loss: Loss = F.cross_entropy,
    batch_norm: str = "train",
    batch_size: int = 256,
) -> Landscape:
    """The mean loss at theta + a d + b e on a square grid; see `loss_line`.

    Args:    directions: d and e; None: filter directions with the seeds 2 seed and 2 seed + 1
    """
    if directions is None:
        directions = [filter_direction(model, seed=2 * seed + i) for i in range(2)]
    return _landscape(model, data, directions, reach, num_points, loss, batch_norm, batch_size)


def _landscape(
    model: nn.Module,
    data: ImagesAndLabels,
    directions: Sequence[dict[str, Tensor]],
    reach: float,
    num_points: int,
    loss: Loss,
    batch_norm: str,
    batch_size: int,
) -> Landscape:
    mode = resolve_name("batch_norm", batch_norm, BATCH_NORM_MODES)
    positions = torch.linspace(-reach, reach, num_points, dtype=torch.float64)
    centre = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    losses = []
    with unchanged(model), torch.no_grad():
        for steps in itertools.product(positions.tolist(), repeat=len(directions)):
            _move(model, centre, directions, steps)
            losses.append(_mean_loss(model, data, loss, mode=mode, batch_size=batch_size))
    return Landscape(positions, torch.tensor(losses, dtype=torch.float64).view([num_points] * len(directions)))


def _move(
    model: nn.Module, centre: dict[str, Tensor], directions: Sequence[dict[str, Tensor]], steps: Sequence[float]
) -> None:
    """theta = centre + sum of steps times directions."""
    for name, parameter in model.named_parameters():
        parameter.copy_(centre[name])
        for step, direction in zip(steps, directions, strict=True):
            parameter.add_(direction[name], alpha=step)


def _mean_loss(model: nn.Module, data: ImagesAndLabels, loss: Loss, *, mode: str, batch_size: int) -> float:
    device = next(model.parameters()).device
    if mode == "recalibrate":
        recalibrate(model, (images for images, _ in all_batches(data, batch_size=batch_size, device=device)))
    elif mode == "train":
        batch_statistics(model)
    else:
        model.eval()
    total = torch.zeros((), dtype=torch.float64, device=device)
    for images, labels in all_batches(data, batch_size=batch_size, device=device):
        total += loss(logits_of(model(images)), labels) * len(labels)
    return total.item() / len(as_split(data))


def roughness(losses: Tensor) -> Roughness:
    """Numbers for how rough a line (n,) or a plane (n, n) of losses is.

    Raises:  UsageError: if a loss is not finite, or there are fewer than 3 along a side.

    >>> roughness(torch.linspace(-1, 1, 5, dtype=torch.float64) ** 2)
    Roughness(num_minima=1, bending=0.5, negative_curvature=0.0)
    """
    losses = losses.double()
    if not losses.isfinite().all():
        raise UsageError(f"losses: {int((~losses.isfinite()).sum())} are not finite; choose a smaller reach")
    if losses.dim() not in (1, 2) or min(losses.shape) < 3:
        raise UsageError(f"losses of shape {tuple(losses.shape)}: must be a line or a plane of at least 3 a side")
    bends = [losses.diff(n=2, dim=axis).abs().mean() for axis in range(losses.dim())]
    spread = losses.max() - losses.min()
    return Roughness(
        num_minima=int(_lowest(losses).sum()),
        bending=(torch.stack(bends).mean() / spread).item() if spread > 0 else 0.0,
        negative_curvature=(_least_curvature(losses) < 0).double().mean().item(),
    )


def _shifted(losses: Tensor, shift: Sequence[int]) -> Tensor:
    """The interior points' neighbours in one direction."""
    return losses[tuple(slice(1 + s, size - 1 + s) for s, size in zip(shift, losses.shape, strict=True))]


def _lowest(losses: Tensor) -> Tensor:
    """Whether an interior point is below all its neighbours."""
    shifts = [shift for shift in itertools.product((-1, 0, 1), repeat=losses.dim()) if any(shift)]
    centre = _shifted(losses, [0] * losses.dim())
    return torch.stack([centre < _shifted(losses, shift) for shift in shifts]).all(0)


def _least_curvature(losses: Tensor) -> Tensor:
    """The smaller eigenvalue of the matrix of second differences at the interior points."""
    if losses.dim() == 1:
        return losses.diff(n=2)
    rows, columns = losses.diff(n=2, dim=0)[:, 1:-1], losses.diff(n=2, dim=1)[1:-1]
    corners = {shift: _shifted(losses, shift) for shift in itertools.product((-1, 1), repeat=2)}
    mixed = (corners[1, 1] + corners[-1, -1] - corners[1, -1] - corners[-1, 1]) / 4
    return (rows + columns) / 2 - (((rows - columns) / 2).square() + mixed.square()).sqrt()
