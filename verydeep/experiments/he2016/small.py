"""The small scale itself: which of the paper's orderings depend on its budget and settings, and by how much."""

from functools import partial

from verydeep.experiments.he2016.cell import ERROR, FIGURE, Cell
from verydeep.experiments.he2016.network import BUDGETS, CHANGES, COMPARED, USUAL_STEPS, trained_for
from verydeep.experiments.he2016.ordering import better
from verydeep.experiments.measured import differences

ORIGINAL, GATE = COMPARED


def _identity_ahead(name: str, what: str, original: str, gate: str) -> Cell:
    """An entry for the lead of identity shortcuts over the exclusive gate, both trained otherwise than usual."""
    return Cell(
        name,
        f"{what}: identity shortcuts are ahead of the exclusive gate",
        FIGURE,
        (original, gate),
        better(original, gate),
        values=partial(differences, ERROR, gate, original),
        quantity="points of test error by which the gate is behind",
    )


# The gate's branches begin near zero, which helps most at the start.
BUDGET = tuple(
    _identity_ahead(f"budget-{steps}", f"{steps:,} steps", trained_for(steps, ORIGINAL), trained_for(steps, GATE))
    for steps in sorted((*BUDGETS, USUAL_STEPS))
)

_CHANGES_IN_WORDS = {
    "width-16": "the paper's width, 16 for 8",
    "images-32": "the paper's images, 32x32 for 16x16",
    "batch-128": "the paper's batch, 128 for 64, and its rate",
    "course": "the paper's course of the rate, 0.1 to the middle of the run",
}

SETTINGS = tuple(
    _identity_ahead(f"settings-{change}", what, f"{ORIGINAL}-{change}", f"{GATE}-{change}")
    for change, what in _CHANGES_IN_WORDS.items()
)
assert set(_CHANGES_IN_WORDS) == set(CHANGES)
