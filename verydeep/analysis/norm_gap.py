"""The gap between what batch norm computes in training and in prediction, by batch size and momentum."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from verydeep.analysis.batch_norm import batch_norms, batch_statistics, images_of
from verydeep.analysis.tensor_split import ImagesAndLabels, as_split
from verydeep.analysis.unchanged import unchanged
from verydeep.data.seed import generator
from verydeep.errors import UsageError
from verydeep.training.step import logits_of


@final
@dataclass(frozen=True)
class NormGap:
    """How far batches of one size are from the running statistics that such batches left.

    Args:    batch_size, momentum: of the batches, and of the running statistics
             mean_gap: root mean square of (mu_B - mu) / sigma over channels, norms and batches
             variance_gap: root mean square of sigma_B^2 / sigma^2 - 1
             output_gap: ||train-mode output - eval-mode output|| / ||eval-mode output||
    """

    batch_size: int
    momentum: float
    mean_gap: float
    variance_gap: float
    output_gap: float


def norm_gaps(
    model: nn.Module,
    data: ImagesAndLabels,
    *,
    batch_sizes: Sequence[int] = (2, 8, 32, 128),
    momenta: Sequence[float] = (0.01, 0.1, 0.5),
    num_steps: int = 50,
    num_batches: int = 8,
    seed: int = 0,
) -> list[NormGap]:
    """The gap at fixed weights for each batch size and momentum.

    The running statistics start at those of the model and take `num_steps` random batches; then `num_batches` others
    are held against them. With one norm on independent samples of N(0, sigma^2) the mean gap tends to
    sqrt((1 + m / (2 - m)) / B): the batch's own noise, and that of the moving average. What the weights' movement adds
    in training is not in it.

    Args:    data: a split, or images and labels
             momenta: weight of the new batch in the moving average, as torch has it
    Returns: one gap a pair, batch sizes outermost
    Raises:  UsageError: if the model has no batch norm with running statistics, or a batch is larger than the data.
    """
    split, norms = as_split(data), batch_norms(model)
    if not norms:
        raise UsageError(f"model {type(model).__name__}: has no batch norm with running statistics")
    for batch_size in batch_sizes:
        nearest = min(max(batch_size, 2), len(split))
        if batch_size != nearest:
            raise UsageError(f"batch_size {batch_size}: must be from 2 to {len(split)}, the images; nearest {nearest}")
    gaps = []
    device = next(model.parameters()).device
    for batch_size, momentum in itertools.product(batch_sizes, momenta):
        stream = generator(seed)
        index = [torch.randperm(len(split), generator=stream)[:batch_size] for _ in range(num_steps + num_batches)]
        batches = images_of(split, index, device)
        with unchanged(model), torch.no_grad():
            batch_statistics(model)
            _set_momentum(model, momentum)
            for images in itertools.islice(batches, num_steps):
                model(images)
            gaps.append(NormGap(batch_size, momentum, *_gap(model, batches)))
    return gaps


def _set_momentum(model: nn.Module, momentum: float) -> None:
    for norm in batch_norms(model).values():
        norm.momentum = momentum


def _gap(model: nn.Module, batches: Iterator[Tensor]) -> tuple[float, float, float]:
    """mean_gap, variance_gap and output_gap over these batches."""
    mean_gaps: list[Tensor] = []
    variance_gaps: list[Tensor] = []
    differences: list[Tensor] = []
    outputs: list[Tensor] = []
    _set_momentum(model, 0.0)  # the running statistics stay as they are
    for images in batches:
        batch_statistics(model)
        with _statistics_read(model, mean_gaps, variance_gaps):
            trained = logits_of(model(images))
        predicted = logits_of(model.eval()(images))
        differences.append((trained - predicted).flatten())
        outputs.append(predicted.flatten())
    output_gap = torch.cat(differences).norm() / torch.cat(outputs).norm()
    return _root_mean_square(mean_gaps), _root_mean_square(variance_gaps), output_gap.item()


def _root_mean_square(parts: list[Tensor]) -> float:
    return torch.cat(parts).double().square().mean().sqrt().item()


@contextmanager
def _statistics_read(model: nn.Module, mean_gaps: list[Tensor], variance_gaps: list[Tensor]) -> Iterator[None]:
    """Within it, each batch norm's input is held against its running statistics, channel by channel."""

    def reader(norm: nn.modules.batchnorm._BatchNorm) -> Callable[[nn.Module, tuple[Tensor]], None]:
        def read(module: nn.Module, inputs: tuple[Tensor]) -> None:
            assert norm.running_mean is not None and norm.running_var is not None
            axes = [0, *range(2, inputs[0].dim())]
            variance, mean = torch.var_mean(inputs[0], axes, correction=0)
            mean_gaps.append((mean - norm.running_mean) * (norm.running_var + norm.eps).rsqrt())
            variance_gaps.append((variance + norm.eps) / (norm.running_var + norm.eps) - 1)

        return read

    handles = [norm.register_forward_pre_hook(reader(norm)) for norm in batch_norms(model).values()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
