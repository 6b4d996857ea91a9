"""The textbook chapter as experiments: every number, figure and exercise that a program can check."""

from collections.abc import Sequence

from verydeep.experiments.chapter.claims import CLAIMS
from verydeep.experiments.chapter.depth import DEPTH
from verydeep.experiments.chapter.exact import EXACT
from verydeep.experiments.chapter.norm import NORM
from verydeep.experiments.chapter.normfree import NORM_FREE
from verydeep.experiments.chapter.path import PATH
from verydeep.experiments.chapter.stochastic import STOCHASTIC
from verydeep.experiments.experiment import Claim, Experiment

EXPERIMENTS = (*EXACT, *STOCHASTIC, *DEPTH, *NORM, *PATH, *NORM_FREE)


def load(name: str) -> tuple[Sequence[Experiment], Sequence[Claim]]:
    """All of it; it has no parts."""
    return EXPERIMENTS, CLAIMS
