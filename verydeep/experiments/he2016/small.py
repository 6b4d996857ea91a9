"""The small scale itself: which of the paper's orderings depend on its budget and settings, and by how much."""

from functools import partial

from verydeep.experiments.experiment import Results
from verydeep.experiments.he2016.cell import ERROR, FIGURE, Cell, Ordering
from verydeep.experiments.he2016.network import BUDGETS, CHANGES, COMPARED
from verydeep.experiments.he2016.ordering import better
from verydeep.experiments.measured import differences, median_difference

ORIGINAL, GATE = COMPARED


def _lead(steps: int, results: Results) -> float:
    """Points by which the identity shortcut is ahead of the exclusive gate after a number of steps."""
    suffix = "" if steps == 1_000 else f"-{steps}-steps"
    return median_difference(ERROR, f"{GATE}{suffix}", f"{ORIGINAL}{suffix}", results)


BUDGET = (
    Cell(
        "budget", "the exclusive gate at -6, whose branches begin near zero, leads in a short training and loses in a "
        "longer one", FIGURE, ("exclusive-gate-b-6",),
        Ordering(
            "the original's lead at 1,000 and 2,000 steps is larger than at 250",
            ("resnet110", "exclusive-gate-b-6",
             *(f"{name}-{steps}-steps" for name in COMPARED for steps in BUDGETS)),
            lambda results: min(_lead(1_000, results), _lead(2_000, results)) > max(0.0, _lead(250, results)),
        ),
        values=lambda results: [_lead(steps, results) for steps in (250, 500, 1_000, 2_000)],
        quantity="points of test error by which the gate is behind, after 250, 500, 1,000 and 2,000 steps",
    ),
)  # fmt: skip

_CHANGES_IN_WORDS = {
    "width-16": "the paper's width, 16 for 8",
    "images-32": "the paper's images, 32x32 for 16x16",
    "batch-128": "the paper's batch, 128 for 64, and its rate",
    "course": "the paper's course of the rate, 0.1 to the middle of the run",
}

SETTINGS = tuple(
    Cell(
        f"settings-{change}", f"{what}: identity shortcuts stay ahead of the exclusive gate", FIGURE,
        (f"resnet110-{change}", f"exclusive-gate-b-6-{change}"),
        better(f"resnet110-{change}", f"exclusive-gate-b-6-{change}"),
        values=partial(differences, ERROR, f"{GATE}-{change}", f"{ORIGINAL}-{change}"),
        quantity="points of test error by which the gate is behind",
    )
    for change, what in _CHANGES_IN_WORDS.items()
)  # fmt: skip
assert set(_CHANGES_IN_WORDS) == set(CHANGES)
