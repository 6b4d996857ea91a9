"""A table of the paper as a declaration: its cells with the published values, and what they must show at each scale."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

FAIL = "fail"  # what the paper prints for a test error above 20 %
FAIL_PERCENT = 20.0
ERROR = "test_error_percent"

Errors = Mapping[str, float]  # network -> median over seeds


@dataclass(frozen=True)
class Ordering:
    """What must hold between errors at the small scale.

    Args:    text: in words
             networks: whose errors it compares; without all of them nothing is judged
             holds: of the medians over seeds
    """

    text: str
    networks: tuple[str, ...]
    holds: Callable[[Errors], bool]


@dataclass(frozen=True)
class Cell:
    """One entry of a table.

    Args:    id: as in the published values
             what: in words
             published: error_percent; [top-1, top-5]; FAIL
             networks: of NETWORKS; of several each must fail; none: another method, which is not run
             ordering: what the small scale must show
    """

    id: str
    what: str
    published: Any
    networks: tuple[str, ...] = ()
    ordering: Ordering | None = None
