"""Lesions: what a trained network loses when units are deleted. In another order: see `reorder.py`.

Deleting a residual unit takes its branch away; deleting any other module puts the identity in its place.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from verydeep.analysis.tensor_split import ImagesAndLabels, all_batches, as_split, first_images
from verydeep.analysis.unchanged import unchanged
from verydeep.analysis.units import replaced, residual_units, unit_signals
from verydeep.data.seed import generator
from verydeep.errors import UsageError
from verydeep.nn.unit import ResidualUnit
from verydeep.training.evaluate import evaluate
from verydeep.training.step import logits_of


@final
@dataclass(frozen=True)
class Lesion:
    """What a network does without some of its modules.

    Args:    sites: names of the modules that were deleted
             error_percent, loss: of the network without them
    """

    sites: tuple[str, ...]
    error_percent: float
    loss: float


@contextmanager
def deleted(model: nn.Module, sites: Sequence[str]) -> Iterator[None]:
    """Within it, the modules named are deleted.

    Raises:  UsageError: if a name is not of a module inside the model; in the forward pass, if what was deleted has no
                 shortcut and changes the shape.
    Source:  Veit et al. 2016, section 4.1
    """
    modules = dict(model.named_modules())
    with replaced(model, dict(_lesion(site, modules.get(site)) for site in sites)):
        yield


def single_deletions(
    model: nn.Module, data: ImagesAndLabels, *, sites: Sequence[str] | None = None, batch_size: int = 256
) -> list[Lesion]:
    """Each unit deleted alone, in eval mode.

    What comes before the deleted unit is computed once for a batch and not again, so that K deletions cost about K/2
    forward passes; the numbers are those of `evaluate` within `deleted`, to the last bit.

    Args:    data: a split, or images and labels
             sites: units to delete; None: all with a shortcut, and the plain ones that keep the shape
             batch_size: images at once; the outputs of all units for so many are kept
    Returns: one lesion a site, in running order
    Raises:  UsageError: if a site is not a unit of the model.
    Source:  Veit et al. 2016, section 4.1 and Fig. 3
    """
    device = next(model.parameters()).device
    sums: dict[str, Tensor] = defaultdict(lambda: torch.zeros(2, dtype=torch.float64, device=device))
    with unchanged(model), torch.no_grad():
        model.eval()
        for images, labels in all_batches(data, batch_size=batch_size, device=device):
            for site, logits in _logits_without_each(model, images, sites):
                wrong = (logits.argmax(1) != labels).sum()
                sums[site] += torch.stack([wrong, F.cross_entropy(logits, labels, reduction="sum")])
    num_images = len(as_split(data))
    totals = {site: total.tolist() for site, total in sums.items()}
    return [Lesion((site,), 100 * wrong / num_images, loss / num_images) for site, (wrong, loss) in totals.items()]


def random_deletions(
    model: nn.Module,
    data: ImagesAndLabels,
    *,
    num_deleted: int,
    num_draws: int = 10,
    seed: int = 0,
    batch_size: int = 256,
) -> list[Lesion]:
    """Several units chosen at random deleted together, in eval mode.

    Raises:  UsageError: if fewer than `num_deleted` can be.
    Source:  Veit et al. 2016, section 4.2 and Fig. 5a
    """
    with unchanged(model):
        sites = _deletable(model, unit_signals(model.eval(), first_images(model, data)))
        if not 0 <= num_deleted <= len(sites):
            raise UsageError(f"num_deleted {num_deleted}: {len(sites)} units can be deleted; nearest {len(sites)}")
        lesions = []
        for draw in range(num_draws):
            chosen = torch.randperm(len(sites), generator=generator(seed, draw))[:num_deleted]
            names = tuple(sites[i] for i in sorted(chosen.tolist()))
            with deleted(model, names):
                evaluation = evaluate(model, as_split(data), batch_size=batch_size)
            lesions.append(Lesion(names, evaluation.error_percent, evaluation.loss))
    return lesions


def _deletable(model: nn.Module, signals: dict[str, tuple[Tensor, Tensor]]) -> list[str]:
    """Units with a shortcut, and plain ones that keep the shape, in running order."""
    units = residual_units(model)
    return [name for name, (x, y) in signals.items() if units[name].shortcut is not None or x.shape == y.shape]


def _logits_without_each(model: nn.Module, images: Tensor, sites: Sequence[str] | None) -> Iterator[tuple[str, Tensor]]:
    """The logits without each site in turn; units that ran before it answer with what they gave in the whole model."""
    signals = unit_signals(model, images)
    chosen = _deletable(model, signals) if sites is None else sites
    unknown = [site for site in chosen if site not in signals]
    if unknown:
        raise UsageError(f"site {unknown[0]!r}: not a unit of {type(model).__name__}")
    before: dict[str, nn.Module] = {}
    for name, (_, output) in signals.items():
        if name in chosen:
            with replaced(model, before), deleted(model, [name]):
                logits = logits_of(model(images))
            yield name, logits
        before[name] = _Replay(output)


def _lesion(site: str, module: nn.Module | None) -> tuple[str, nn.Module]:
    """The name of the module to replace, and what deletes it."""
    if isinstance(module, ResidualUnit) and module.shortcut is not None:
        return f"{site}.branch".lstrip("."), _Nothing()
    return site, _Identity(site, module)


@final
class _Nothing(nn.Module):
    """The branch that adds 0."""

    def forward(self, x: Tensor) -> Tensor:
        return x.new_zeros(())


@final
class _Identity(nn.Module):
    """The identity in the place of a module, which must keep the shape."""

    def __init__(self, name: str, original: nn.Module | None) -> None:
        super().__init__()
        self.name = name
        self.original = original

    def forward(self, x: Tensor) -> Tensor:
        assert self.original is not None  # `replaced` refuses a name that is of no module
        shape = self.original(x).shape
        if shape != x.shape:
            raise UsageError(f"site {self.name!r}: maps {tuple(x.shape)} to {tuple(shape)}; the identity cannot")
        return x


@final
class _Replay(nn.Module):
    """A unit whose output is known."""

    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self.output = output

    def forward(self, x: Tensor) -> Tensor:
        return self.output
