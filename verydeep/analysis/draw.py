"""`Draws`: what many random draws of a quantity gave, to hold a published value against."""

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor


@final
@dataclass(frozen=True, eq=False)
class Draws:
    """Random draws of one quantity.

    Args:    name: of what was drawn
             values: float64 (num_draws,)
             seed: what the draws are a function of
             pool: independent members that the draws are means of
             independent: whether no member is in two draws; if not, the draws are random subsets of the pool
    """

    name: str
    values: Tensor
    seed: int
    pool: int
    independent: bool

    @property
    def median(self) -> float:
        return self.values.quantile(0.5).item()

    def interval(self, coverage: float = 0.99) -> tuple[float, float]:
        """The central interval that holds the share `coverage` of the draws."""
        tail = (1 - coverage) / 2
        low, high = self.values.quantile(torch.tensor([tail, 1 - tail], dtype=self.values.dtype)).tolist()
        return low, high

    def holds(self, published: float, *, coverage: float = 0.99) -> bool:
        """Whether a published value lies in the central interval."""
        low, high = self.interval(coverage)
        return low <= published <= high

    def to_dict(self) -> dict[str, Any]:
        """Median, 99 % interval and how they were drawn."""
        return {
            "name": self.name,
            "median": self.median,
            "interval": list(self.interval()),
            "num_draws": len(self.values),
            "pool": self.pool,
            "independent": self.independent,
            "seed": self.seed,
        }


def means_of(members: Tensor, *, num_draws: int, size: int, generator: torch.Generator) -> tuple[Tensor, bool]:
    """Draws that are means over `size` members, and whether they are independent.

    With `num_draws * size` members or more, each is used once at most. With fewer, each draw is the mean of a random
    subset, without repetition within a draw: the spread of such means is that of the pool, itself a sample.

    Args:    members: (num_members,), at least `size`
    Returns: (num_draws,), and a bool
    """
    independent = len(members) >= num_draws * size
    if independent:
        return members[: num_draws * size].view(num_draws, size).mean(1), True
    subsets = torch.rand(num_draws, len(members), generator=generator).argsort(1)[:, :size]
    return members[subsets].mean(1), False
