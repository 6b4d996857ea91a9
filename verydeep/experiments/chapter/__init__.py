"""The textbook chapter as experiments: every number, figure and exercise that a program can check."""

from verydeep.experiments.chapter.claims import CLAIMS as CLAIMS
from verydeep.experiments.chapter.depth import DEPTH
from verydeep.experiments.chapter.exact import EXACT
from verydeep.experiments.chapter.norm import NORM
from verydeep.experiments.chapter.normfree import NORM_FREE
from verydeep.experiments.chapter.path import PATH
from verydeep.experiments.chapter.stochastic import STOCHASTIC

EXPERIMENTS = (*EXACT, *STOCHASTIC, *DEPTH, *NORM, *PATH, *NORM_FREE)
