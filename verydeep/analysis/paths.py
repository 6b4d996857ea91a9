"""How much of the gradient comes along paths of each length through the units of a residual network.

A path takes the branch of some units and the shortcut of the others. The forward pass is always the whole network's;
only the gradient is led along a path. Shape legend: K units, N images, k branches on a path.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from verydeep.analysis.unchanged import unchanged
from verydeep.analysis.units import shortcut_units
from verydeep.data.seed import generator
from verydeep.errors import UsageError
from verydeep.theory.path import paths_by_length
from verydeep.training.step import logits_of

Loss = Callable[[Tensor, Tensor], Tensor]
Change = Callable[[int, Tensor, bool], Tensor]


@final
@dataclass(frozen=True, eq=False)
class PathGradients:
    """The gradient's share by path length.

    Args:    norms: size of the gradient that one path of k branches brings to the image, mean over paths and images
             sizes: size of what all paths of k branches bring together
             layers_per_branch: weight layers of a branch
    Shape:   norms, sizes: float64 (K + 1,)
    """

    norms: Tensor
    sizes: Tensor
    layers_per_branch: int

    @property
    def shares(self) -> Tensor:
        """Each length's part of the total size, (K + 1,); sums to 1."""
        return self.sizes / self.sizes.sum()

    def central_range(self, coverage: float = 0.95) -> tuple[int, int]:
        """The least and greatest number of branches between which the share `coverage` of the gradient lies.

        What is left out is split evenly between shorter and longer paths, as far as whole lengths allow.
        """
        below = self.shares.cumsum(0)
        tail = (1 - coverage) / 2
        low, high = torch.searchsorted(below, torch.tensor([tail, 1 - tail], dtype=below.dtype)).tolist()
        return low, min(high, len(below) - 1)

    def layer_range(self, coverage: float = 0.95) -> tuple[int, int]:
        """`central_range` in weight layers: branches times the layers of a branch; stem and head are not counted."""
        low, high = self.central_range(coverage)
        return low * self.layers_per_branch, high * self.layers_per_branch


def sampled_paths(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    loss: Loss = F.cross_entropy,
    num_paths: int = 16,
    seed: int = 0,
    batch_size: int = 256,
) -> PathGradients:
    """Mean gradient norm of single paths of k branches, times the binomial(K, k) paths there are.

    Sampled paths of all lengths go through the network side by side, each on every image, in
    about num_paths K N / batch_size passes. A length of at most `num_paths` paths is not sampled: each counts once.

    In eval mode, in which images do not interact. A network whose batch norms have not seen data yet should first be
    given its statistics, see `recalibrated`.

    Args:    images, labels: a few; the gradient is of each image's own loss
             loss: (logits, labels) -> mean over images
             num_paths: paths sampled of each length
             batch_size: pairs of a path and an image in one pass
    Returns: `norms` of single paths; `sizes` are norms times counts
    Raises:  UsageError: if a unit has no shortcut.
    Source:  Veit et al. 2016, section 5 and Fig. 6
    Differs: mean over all sampled paths and images given, at the image, in eval mode
    """
    units = shortcut_units(model)
    masks, lengths = _sample_masks(len(units), num_paths=num_paths, stream=generator(seed))
    norms = torch.zeros(len(masks), dtype=torch.float64)
    paths_at_once = max(1, batch_size // len(images))
    for start in range(0, len(masks), paths_at_once):
        chunk = masks[start : start + paths_at_once]
        norms[start : start + len(chunk)] = _path_gradients(model, images, labels, chunk, loss=loss).mean(1)
    means = torch.stack([norms[lengths == k].mean() for k in range(len(units) + 1)])
    return PathGradients(means, means * _counts(len(units)), _layers_per_branch(units))


def _counts(num_units: int) -> Tensor:
    """Paths of k = 0..K branches, float64 (K + 1,)."""
    return torch.tensor([float(count) for count in paths_by_length(num_units)], dtype=torch.float64)


def _sample_masks(num_units: int, *, num_paths: int, stream: torch.Generator) -> tuple[Tensor, Tensor]:
    """Which branches each path takes, bool (P, K), and how many, (P,)."""
    masks = []
    for k in range(num_units + 1):
        if math.comb(num_units, k) <= num_paths:
            chosen = torch.tensor(list(itertools.combinations(range(num_units), k)), dtype=torch.int64)
        else:
            chosen = torch.rand(num_paths, num_units, generator=stream).argsort(1)[:, :k]
        masks.append(torch.zeros(len(chosen), num_units, dtype=torch.bool).scatter_(1, chosen, True))
    together = torch.cat(masks)
    return together, together.sum(1)


def _path_gradients(model: nn.Module, images: Tensor, labels: Tensor, masks: Tensor, *, loss: Loss) -> Tensor:
    """Norm of the gradient that comes to each image along each path. Shape: masks (P, K) -> (P, N)"""
    num_paths, num_images = len(masks), len(images)

    def along_path(unit: int, y: Tensor, of_branch: bool) -> Tensor:
        taken = (masks[:, unit] == of_branch).repeat_interleave(num_images).to(y.device)  # (P N,)
        return torch.where(taken.view(-1, *[1] * (y.dim() - 1)), y, y.detach())

    gradients = _image_gradients(
        model, images, labels, copies=num_paths, counted=num_paths, change=along_path, loss=loss
    )
    return gradients.flatten(2).double().norm(dim=2).cpu()


def summed_paths(
    model: nn.Module, images: Tensor, labels: Tensor, *, loss: Loss = F.cross_entropy, batch_size: int = 256
) -> PathGradients:
    """Norm of the sum of the gradients of all paths of k branches, exactly, for all k in one backward pass.

    With t before each branch the gradient is prod_k (S_k + t B_k) g, a polynomial in t whose k-th coefficient is the
    sum over the paths of k branches. K + 1 copies of an image carry the coefficients back: where the gradient enters a
    branch, it moves on by one copy, which is the multiplication by t.

    Paths cancel in the sum, and in `sampled_paths` they do not: independent paths add up to the root of their number
    times their size. The coefficients add up to the network's gradient.

    Args:    images, labels: a few; the gradient is of each image's own loss, in eval mode
             batch_size: copies of images in one pass, at least those of one image
    Returns: `sizes`, norms of the sums, mean over images; `norms` are `sizes` over counts, a lower bound on the mean
             norm of one path
    Raises:  UsageError: if a unit has no shortcut.
    Source:  the chapter, Eq. 11.4, its terms by the number of factors
    """
    units = shortcut_units(model)
    copies = len(units) + 1
    images_at_once = max(1, batch_size // copies)
    sizes = torch.zeros(copies, dtype=torch.float64)
    for few, few_labels in zip(images.split(images_at_once), labels.split(images_at_once), strict=True):
        sums = coefficient_gradients(model, few, few_labels, loss=loss)
        sizes += sums.flatten(2).double().norm(dim=2).sum(1).cpu()
    sizes /= len(images)
    return PathGradients(sizes / _counts(len(units)), sizes, _layers_per_branch(units))


def coefficient_gradients(model: nn.Module, images: Tensor, labels: Tensor, *, loss: Loss = F.cross_entropy) -> Tensor:
    """The sum over all paths of k branches of their gradients, for each image; see `summed_paths`.

    Shape:   images (N, ...) -> (K + 1, N, ...)
    """
    copies = len(shortcut_units(model)) + 1

    def times_t(gradient: Tensor) -> Tensor:
        of_copies = gradient.unflatten(0, (copies, -1))  # (K + 1, N, ...)
        return torch.cat((torch.zeros_like(of_copies[:1]), of_copies[:-1])).flatten(0, 1)

    def change(unit: int, y: Tensor, of_branch: bool) -> Tensor:
        if of_branch:
            y.register_hook(times_t)
        return y

    return _image_gradients(model, images, labels, copies=copies, change=change, counted=1, loss=loss)


def _image_gradients(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    copies: int,
    counted: int,
    change: Change,
    loss: Loss,
) -> Tensor:
    """Gradient of each image's loss at the image, for several copies of the images side by side.

    Args:    counted: copies, from the first, whose loss counts
             change: (index of a unit, output of its branch or shortcut, whether of its branch) -> what takes its place
    Shape:   (N, ...) -> (copies, N, ...)
    """
    with unchanged(model), torch.enable_grad(), _unit_hooks(model.eval(), change):
        x = images.detach().repeat(copies, *[1] * (images.dim() - 1)).requires_grad_()
        num_counted = counted * len(images)
        mean = loss(logits_of(model(x))[:num_counted], labels.repeat(counted))
        return torch.autograd.grad(mean * num_counted, x)[0].unflatten(0, (copies, -1))


@contextmanager
def _unit_hooks(model: nn.Module, change: Change) -> Iterator[None]:
    """Within it, what branches and shortcuts give is changed. The factor that a gate gives goes with the shortcut."""

    def hook(index: int, *, of_branch: bool) -> Callable[[nn.Module, Any, Any], Any]:
        def changed(module: nn.Module, inputs: Any, output: Any) -> Any:
            if isinstance(output, tuple):
                return tuple(changed(module, inputs, part) for part in output)
            return change(index, output, of_branch) if isinstance(output, Tensor) else output

        return changed

    handles = []
    for i, unit in enumerate(shortcut_units(model).values()):
        assert unit.shortcut is not None
        handles.append(unit.branch.register_forward_hook(hook(i, of_branch=True)))
        handles.append(unit.shortcut.register_forward_hook(hook(i, of_branch=False)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _layers_per_branch(units: dict[str, Any]) -> int:
    """Weight layers of each branch.

    Raises:  UsageError: if branches differ, so that a length in layers is not that in branches times a number.
    """
    counts = {name: sum(_has_matrix(module) for module in unit.branch.modules()) for name, unit in units.items()}
    first_name, first = next(iter(counts.items()))
    for name, count in counts.items():
        if count != first:
            raise UsageError(f"unit {name!r}: its branch has {count} weight layers, that of {first_name!r} {first}")
    return first


def _has_matrix(module: nn.Module) -> bool:
    return any(parameter.dim() > 1 for parameter in module.parameters(recurse=False))
