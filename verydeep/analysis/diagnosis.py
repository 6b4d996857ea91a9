"""`Diagnosis`: what `diagnose` returns, and its forms: text, notebook, JSON, page."""

import dataclasses
import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verydeep.analysis.finding import SEVERITIES, Finding, Severity, evidence_text, finding_cells
from verydeep.analysis.site import Site
from verydeep.files import json_text, write_whole
from verydeep.report.number import number_text

MOST_SHOWN = 12  # findings in the short table


@dataclass(frozen=True)
class Diagnosis:
    """Findings, causes first, and the signals that they rest on.

    Args:    model: its class
             findings: the first is the one to mend
             sites: in running order
             facts: loss, mode, sizes, what was tried
    """

    model: str
    findings: Sequence[Finding]
    sites: Sequence[Site]
    facts: dict[str, Any]

    def worst(self) -> Severity | None:
        """The gravest severity; None without findings."""
        given = {finding.severity for finding in self.findings}
        return next((severity for severity in SEVERITIES if severity in given), None)

    def __str__(self) -> str:
        facts = ", ".join(f"{name} {_text(value)}" for name, value in self.facts.items())
        lines = [f"{self.model}: {facts}"]
        if not self.findings:
            return "\n".join([*lines, "nothing found"])
        for number, finding in enumerate(self.findings[:MOST_SHOWN], start=1):
            lines += _lines(number, finding)
        left = len(self.findings) - MOST_SHOWN
        return "\n".join(lines + ([f"and {left} more"] if left > 0 else []))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in ("", "rule", "site", "evidence", "why", "remedy"))
        rows = "".join(
            "<tr>" + "".join(f"<td style='text-align:left'>{html.escape(cell)}</td>" for cell in cells) + "</tr>"
            for cells in map(finding_cells, self.findings)
        )
        return f"<p><b>{html.escape(self.model)}</b></p><table><tr>{head}</tr>{rows}</table>"

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "model": self.model,
            "facts": self.facts,
            "findings": [finding.to_dict() for finding in self.findings],
            "sites": [dataclasses.asdict(site) for site in self.sites],
        }

    def to_json(self, path: str | Path) -> None:
        """Write findings, sites and facts as standard JSON.

        Raises:  RunError: if the file cannot be written.
        """
        write_whole(Path(path), json_text(self.to_dict(), indent=2) + "\n")

    def to_html(self, path: str | Path) -> None:
        """Write one self-contained page: findings, signal and gradient by depth, the table of sites.

        Raises:  RunError: if the file cannot be written.
        """
        from verydeep.analysis.diagnosis_page import write_page  # altair takes a second to import

        write_page(self.model, self.findings, self.sites, self.facts, Path(path))


def _lines(number: int, finding: Finding) -> list[str]:
    explained = f" (explained by {finding.explained_by})" if finding.explained_by else ""
    head = f"{number:>3}. {finding.severity:<8}{finding.rule} at {finding.site or 'the model'}{explained}"
    evidence = evidence_text(finding)
    lines = [head, f"     {finding.why}" + (f" [{evidence}]" if evidence else "")]
    return lines if finding.explained_by else [*lines, f"     -> {finding.remedy}"]


def _text(value: Any) -> str:
    return number_text(value) if isinstance(value, float) else str(value)
