"""`Finding`: a rule's verdict with evidence; `ranked` puts causes before symptoms."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from verydeep.report.number import number_text

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")


@dataclass(frozen=True)
class Finding:
    """One fault.

    Args:    rule: its name, of `rule.RULES`
             severity: error: it will not train or is broken; warning: it costs accuracy or stability; info
             site: where it is, or the first of several places
             evidence: numbers by what they are
             why: one plain sentence
             remedy: what to change
             source: where this is known from
             explained_by: the rule of the finding of which this is a symptom
             alone: whether it is a symptom of nothing, whatever else is found
    """

    rule: str
    severity: Severity
    site: str
    evidence: Mapping[str, float]
    why: str
    remedy: str
    source: str
    explained_by: str | None = None
    alone: bool = False

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        values = dataclasses.asdict(self) | {"evidence": dict(self.evidence)}
        del values["alone"]
        return values


def ranked(findings: Sequence[Finding], explains: Mapping[str, frozenset[str]], order: Sequence[str]) -> list[Finding]:
    """The findings, causes first, each symptom marked with what explains it and below everything unexplained.

    A cause is as grave as the gravest of what it explains. Among equals the order of `order` decides.

    Args:    explains: rule -> rules whose findings are its symptoms
             order: rules, deeper causes first
    """
    places = {rule: place for place, rule in enumerate(order)}
    marked = [
        dataclasses.replace(finding, explained_by=_cause(finding, findings, explains, places)) for finding in findings
    ]

    def gravity(finding: Finding) -> int:
        symptoms = [other.severity for other in marked if other.explained_by == finding.rule]
        return min(SEVERITIES.index(severity) for severity in (finding.severity, *symptoms))

    return sorted(marked, key=lambda f: (f.explained_by is not None, gravity(f), places[f.rule]))


def _cause(
    finding: Finding, findings: Sequence[Finding], explains: Mapping[str, frozenset[str]], places: Mapping[str, int]
) -> str | None:
    """The deepest rule among the findings that explains this one; what is only worth knowing explains nothing."""
    if finding.alone:
        return None
    causes = [
        other.rule
        for other in findings
        if other.rule != finding.rule and other.severity != "info" and finding.rule in explains.get(other.rule, ())
    ]
    return min(causes, key=lambda rule: places[rule], default=None)


def finding_cells(finding: Finding) -> list[str]:
    """Severity, rule, site, evidence, why and remedy as text."""
    why = finding.why + (f" Explained by {finding.explained_by}." if finding.explained_by else "")
    return [finding.severity, finding.rule, finding.site, evidence_text(finding), why, finding.remedy]


def evidence_text(finding: Finding) -> str:
    return ", ".join(f"{name} {number_text(float(value))}" for name, value in finding.evidence.items())
