"""What `reproduce` knows by name: SOURCES. A source is loaded when it is asked for."""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass

from verydeep.experiments.experiment import Claim, Experiment


@dataclass(frozen=True)
class Loaded:
    """Experiments and claims of a source.

    Args:    experiments: in the order of the source
    """

    experiments: Sequence[Experiment]
    claims: Sequence[Claim]


@dataclass(frozen=True)
class Source:
    """A text, or a part of one, whose results are measured again.

    Args:    name: in SOURCES
             module: where `load(name)` gives its experiments and claims
             work: the text of which it is a part: parts of one work share a directory, trainings and a page
    """

    name: str
    module: str
    work: "Work"

    def load(self) -> Loaded:
        return Loaded(*importlib.import_module(self.module).load(self.name))


@dataclass(frozen=True)
class Work:
    """A text.

    Args:    name: of its page and directory
             title, citation, intro: for people
    """

    name: str
    title: str
    citation: str
    intro: str


CHAPTER = Work(
    "chapter",
    "Residual networks and normalization: the chapter measured again",
    "Residual networks and normalization: training very deep networks (textbook chapter)",
    "Every number, figure and exercise of the chapter that a program can check, measured again. Exact claims are "
    "computed and compared to the digits printed; random ones hold when the published value lies in the central 99 % "
    "of the draws; trained ones state an ordering and by how much it holds.",
)
HE2016 = Work(
    "he2016",
    "Identity mappings in deep residual networks: the paper measured again",
    "He, Zhang, Ren, Sun 2016, Identity Mappings in Deep Residual Networks (arXiv 1603.05027)",
    "Tables and figures of He, Zhang, Ren and Sun 2016, each published number beside the measured one. At the paper's "
    "scale an entry holds where the median over seeds is near the published error. At the small scale networks are as "
    "deep as the paper's, but narrow, on small images and trained for a few minutes: there an entry holds where the "
    "ordering shows that the paper concludes from it, and no number is meant to be the published one.",
)
PARTS_OF_HE2016 = (
    "table1", "table2", "table3", "table4", "table5", "fig1", "fig3", "fig6", "degradation", "gate-bias",
    "conv1x1-depth", "forward-signal", "warmup", "budget", "settings", "imagenet-shortcuts",
)  # fmt: skip

SOURCES: dict[str, Source] = {
    "chapter": Source("chapter", "verydeep.experiments.chapter", CHAPTER),
    **{name: Source(name, "verydeep.experiments.he2016.part", HE2016) for name in PARTS_OF_HE2016},
}
