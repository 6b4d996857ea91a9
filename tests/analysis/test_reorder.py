"""Units in other places, against stages rebuilt in that order."""

import pytest
import torch
from torch import nn

from tests.analysis.conftest import network
from verydeep import UsageError, evaluate
from verydeep.analysis import reorder
from verydeep.analysis.tensor_split import TensorSplit


def test_reordered_units_run_in_the_new_order(model, batch):
    model.eval()
    with reorder.reordered(model, {"stages.0.1": "stages.0.2", "stages.0.2": "stages.0.1"}):
        moved = model(batch[0])
    first, second, third = model.stages[0]
    expected = model.head(model.stages[1](second(third(first(model.stem(batch[0]))))))
    assert torch.equal(moved, expected)
    assert not torch.equal(moved, model(batch[0]))


@pytest.mark.parametrize(
    ("options", "movable"),
    [
        (dict(), {"stages.0.1", "stages.0.2"}),  # the first unit has no pre-activation of its own
        (dict(order="original"), {"stages.0.0", "stages.0.1", "stages.0.2"}),
        (dict(order="original", stage_units=(1, 3)), {"stages.1.1", "stages.1.2"}),  # the first changes the shape
    ],
)
def test_only_interchangeable_units_move(batch, options, movable):
    results = reorder.random_reorderings(network(**options), batch, num_swaps=3, num_draws=8)
    for result in results:
        assert set(result.order) == set(result.order.values()) == movable
    orders = {tuple(result.order.values()) for result in results}
    assert len(orders) == 1 if len(movable) == 2 else len(orders) > 1  # three swaps of two units are one


def test_results_are_those_of_the_order_and_repeatable(batch):
    model = network(order="original")
    results = reorder.random_reorderings(model, batch, num_swaps=2, num_draws=4)
    assert results == reorder.random_reorderings(model, batch, num_swaps=2, num_draws=4)
    for result in results:
        with reorder.reordered(model, result.order):
            evaluation = evaluate(model, TensorSplit(*batch))
        assert (result.error_percent, result.loss) == (evaluation.error_percent, evaluation.loss)
        assert (result.kendall_tau == 1) == (result.order == {place: place for place in result.order})


def test_no_swaps_change_nothing(model, batch):
    result = reorder.random_reorderings(model, batch, num_swaps=0, num_draws=1)[0]
    assert result.kendall_tau == 1
    assert result.loss == evaluate(model, TensorSplit(*batch)).loss


def test_kendall_tau_counts_pairs_within_stages():
    assert reorder.kendall_tau([[0, 1], [1, 0]]) == 0
    assert reorder.kendall_tau([[1, 0, 2, 3]]) == pytest.approx(1 - 2 / 6)


def test_impossible_orders_are_refused(model, batch):
    with pytest.raises(UsageError, match="each module must stand in one place"):
        reorder.reordered(model, {"stages.0.1": "stages.0.2"}).__enter__()
    with pytest.raises(UsageError, match="'nothing': not the name"):
        reorder.reordered(model, {"nothing": "nothing"}).__enter__()
    with pytest.raises(UsageError, match="no two units can change places"):
        reorder.random_reorderings(network(stage_units=(1, 1)), batch, num_swaps=1)


def test_units_of_any_container_can_move(batch):
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 192), nn.ReLU(), nn.Linear(192, 10))
    with reorder.reordered(model, {"1": "2", "2": "1"}):
        moved = model(batch[0])
    assert torch.equal(moved, model[3](model[1](model[2](model[0](batch[0])))))
