"""What `reproduce` knows by name: SOURCES. A source is loaded when it is asked for."""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from verydeep.experiments.experiment import Experiment


@dataclass(frozen=True)
class Loaded:
    """Experiments and claims of a source.

    Args:    experiments: in the order of the source
             claims: with `id`, `kind`, `section`, `what`, `published`
    """

    experiments: Sequence[Experiment]
    claims: Sequence[Any]


@dataclass(frozen=True)
class Source:
    """A text whose results are measured again.

    Args:    title, citation, intro: for people
             module: where its experiments are declared
    """

    title: str
    citation: str
    module: str
    intro: str = ""

    def load(self) -> Loaded:
        module = importlib.import_module(self.module)
        return Loaded(module.EXPERIMENTS, module.CLAIMS)


SOURCES: dict[str, Source] = {
    "chapter": Source(
        title="Residual networks and normalization: the chapter measured again",
        citation="Residual networks and normalization: training very deep networks (textbook chapter)",
        module="verydeep.experiments.chapter",
        intro=(
            "Every number, figure and exercise of the chapter that a program can check, measured again. Exact claims "
            "are computed and compared to the digits printed; random ones hold when the published value lies in the "
            "central 99 % of the draws; trained ones state an ordering and by how much it holds."
        ),
    ),
}
