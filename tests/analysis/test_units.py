"""Units by name, their signals, and modules replaced for a while."""

import itertools

import pytest
import torch
from torch import nn

from tests.analysis.conftest import network
from tests.analysis.fingerprint import fingerprint
from verydeep import UsageError
from verydeep.analysis.tensor_split import TensorSplit
from verydeep.analysis.units import replaced, residual_units, shortcut_units, unit_signals

NAMES = ["stages.0.0", "stages.0.1", "stages.0.2", "stages.1.0", "stages.1.1"]


def test_units_are_named_and_run_in_order(model, batch):
    signals = unit_signals(model.eval(), batch[0])
    assert list(residual_units(model)) == list(signals) == NAMES
    for first, second in itertools.pairwise(NAMES):
        assert signals[first][1] is signals[second][0]


def test_models_without_units_or_shortcuts_are_refused():
    with pytest.raises(UsageError, match="model Linear: has no ResidualUnit"):
        residual_units(nn.Linear(1, 1))
    with pytest.raises(UsageError, match=r"unit 'stages.0.0': has no shortcut"):
        shortcut_units(network(shortcut="none", order="original"))


def test_a_unit_that_runs_twice_is_refused(model):
    unit = model.stages[0][1]
    with pytest.raises(UsageError, match="unit '0': runs twice"):
        unit_signals(nn.Sequential(unit, unit), torch.randn(2, 4, 4, 4))


@pytest.mark.parametrize("name", ["", "stages.0.7", "nothing"])
def test_only_modules_inside_the_model_are_replaced(model, name):
    before = fingerprint(model)
    with pytest.raises(UsageError, match="not the name of a module"), replaced(model, {name: nn.Identity()}):
        pass
    assert fingerprint(model) == before


def test_nested_replacements_are_undone_in_reverse(model):
    before = fingerprint(model)
    with replaced(model, {"stages.0": nn.Identity(), "head": nn.Flatten()}), replaced(model, {"stages.0": nn.ReLU()}):
        assert isinstance(model.stages[0], nn.ReLU)
    assert fingerprint(model) == before


def test_labels_must_match_images():
    with pytest.raises(UsageError, match="labels 3: there are 2 images"):
        TensorSplit(torch.zeros(2, 3), torch.zeros(3, dtype=torch.int64))
