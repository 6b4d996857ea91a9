"""`diagnose` finds each known fault of `benchmarks/faults.py`, and leaves its healthy models alone."""

import functools

import pytest
from fault_models.case import Case
from faults import FAULTS, HEALTHY, Verdict, available, judge, totals

from verydeep.analysis.rule import RULES


@functools.cache
def verdict(case: Case) -> Verdict:
    """One diagnosis for all the tests of a case."""
    return judge(case)


def each(cases: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


@pytest.fixture(scope="module")
def measured() -> dict[str, float]:
    faults, healthy = ([verdict(case) for case in available(cases)] for cases in (FAULTS, HEALTHY))
    return totals(faults, healthy)


def test_every_rule_has_a_case():
    assert {rule for case in FAULTS for rule in case.expected} == set(RULES)


def test_names_are_unique():
    names = [case.name for case in FAULTS + HEALTHY]
    assert len(set(names)) == len(names)


# Known misses: a recurrent network grows along time, not depth; statistics taken one step before differ little enough.
MISSED = ("recurrent_relu", "averaged_weights_without_statistics")


@each(FAULTS)
def test_fault_is_found(case: Case):
    pytest.importorskip(case.needs)
    said = verdict(case)
    assert said.found == (case.name not in MISSED), said


@each(HEALTHY)
def test_healthy_model_has_no_error(case: Case):
    pytest.importorskip(case.needs)
    said = verdict(case)
    assert said.errors == (), said


def test_share_of_faults_found(measured: dict[str, float]):
    assert measured["found_percent"] >= 95


def test_share_of_faults_that_come_first(measured: dict[str, float]):
    assert measured["first_percent"] >= 85


def test_warnings_on_healthy_models(measured: dict[str, float]):
    assert measured["warnings_on_healthy_mean"] <= 2
