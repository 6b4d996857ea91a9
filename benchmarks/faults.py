"""What `verydeep.diagnose` finds: models with one known fault each, and healthy models, some of which look ill.

    python benchmarks/faults.py [--only PATTERN]      writes results/faults.json, unless --only is given

A fault is found if a rule that names it is among the errors and warnings, and first if it is the first finding of all.
A healthy model is to have no error and few warnings. CPU, float32; needs the extra `dev`, and takes the cases of
transformers where that is installed.
"""

import argparse
import fnmatch
import time
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec

import torch
from fault_models import activation, gradient, healthy_library, healthy_own, library, loss, norm, optimizer, shortcut
from fault_models import signal as signals
from fault_models.case import Case
from rich.console import Console
from rich.table import Table
from timing import write

import verydeep

_FAULTY = (signals, activation, shortcut, norm, gradient, loss, optimizer, library)
FAULTS: list[Case] = [case for kind in _FAULTY for case in kind.CASES]
HEALTHY: list[Case] = [*healthy_own.CASES, *healthy_library.CASES]


@dataclass(frozen=True)
class Verdict:
    """What was said of one case.

    Args:    expected: the rules that name the fault; empty for a healthy model
             first: the first finding's rule, "" if there is none
             errors, warnings: rules of the findings of that severity, in the order given
    """

    name: str
    expected: tuple[str, ...]
    first: str
    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    seconds: float

    @property
    def found(self) -> bool:
        return not {*self.expected}.isdisjoint(self.errors + self.warnings)

    @property
    def is_first(self) -> bool:
        return self.found and self.first in self.expected


def judge(case: Case) -> Verdict:
    """Diagnose one case."""
    arguments = case.build()
    start = time.perf_counter()
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        diagnosis = verydeep.diagnose(arguments.model, arguments.images, **arguments.options())
    seconds = time.perf_counter() - start
    findings = diagnosis.findings
    errors, milder = (
        tuple(finding.rule for finding in findings if finding.severity == severity) for severity in ("error", "warning")
    )
    first = findings[0].rule if findings else ""
    return Verdict(case.name, tuple(sorted(case.expected)), first, errors, milder, seconds)


def available(cases: Iterable[Case]) -> list[Case]:
    return [case for case in cases if find_spec(case.needs)]


def totals(faults: list[Verdict], healthy: list[Verdict]) -> dict[str, float]:
    """Percentages over the faults, counts over the healthy models; what has no cases is left out."""
    measured: dict[str, float] = {}
    if faults:
        measured["faults"] = len(faults)
        measured["found_percent"] = 100 * sum(verdict.found for verdict in faults) / len(faults)
        measured["first_percent"] = 100 * sum(verdict.is_first for verdict in faults) / len(faults)
    if healthy:
        measured["healthy"] = len(healthy)
        measured["errors_on_healthy"] = sum(len(verdict.errors) for verdict in healthy)
        measured["warnings_on_healthy_mean"] = sum(len(verdict.warnings) for verdict in healthy) / len(healthy)
    return measured


def show(faults: list[Verdict], healthy: list[Verdict]) -> None:
    """One line a case."""
    ill = Table("fault", "expected", "found", "first", "first finding", "seconds")
    for verdict in faults:
        marks = ("yes" if verdict.found else "NO", "yes" if verdict.is_first else "NO")
        ill.add_row(verdict.name, ", ".join(verdict.expected), *marks, verdict.first, f"{verdict.seconds:.2f}")
    well = Table("healthy", "errors", "warnings", "seconds")
    for verdict in healthy:
        rules = (", ".join(verdict.errors), ", ".join(verdict.warnings))
        well.add_row(verdict.name, *rules, f"{verdict.seconds:.2f}")
    for table in (ill, well):
        Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="PATTERN", help="cases whose name matches; nothing is written")
    pattern = parser.parse_args().only
    faults, well = (
        [judge(case) for case in available(cases) if fnmatch.fnmatch(case.name, pattern or "*")]
        for cases in (FAULTS, HEALTHY)
    )
    measured = totals(faults, well)
    if not pattern:
        record(faults, well, measured)
    show(faults, well)
    print(measured)


def record(faults: list[Verdict], well: list[Verdict], measured: dict[str, float]) -> None:
    """Write results/faults.json; the networks are those of the packages' versions."""
    results = {
        "packages": {name: version(name) for name in ("timm", "torchvision", "transformers") if find_spec(name)},
        "totals": measured | {"seconds": sum(verdict.seconds for verdict in faults + well)},
        "faults": [asdict(verdict) | {"found": verdict.found, "is_first": verdict.is_first} for verdict in faults],
        "healthy": [asdict(verdict) for verdict in well],
    }
    write("faults.json", command="python benchmarks/faults.py", results=results)


if __name__ == "__main__":
    main()
