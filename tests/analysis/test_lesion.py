"""Deletions against networks rebuilt without the unit; the cached way against the plain one, to the last bit."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.analysis.conftest import network
from verydeep import UsageError, evaluate
from verydeep.analysis import lesion
from verydeep.analysis.tensor_split import TensorSplit

VARIANTS = {
    "preact": dict(),
    "original": dict(order="original", option="B"),
    "gated": dict(order="original", shortcut="exclusive_gate", gate_bias=0.0),
    "plain": dict(order="original", shortcut="none"),
}


def logits_without(model, images, index):
    """The logits of a pre-activation network with identity shortcuts without one unit, written out."""
    x = model.stem(images)
    for i, unit in enumerate(model.units()):
        if i != index:
            x = unit(x)
        else:
            shared = unit.preact(x) if unit.share_preact else x
            x = unit.shortcut(shared)
    return model.head(x)


@pytest.mark.parametrize("index", range(5))
def test_a_deleted_unit_leaves_its_shortcut(model, batch, index):
    whole = copy.deepcopy(model.eval())
    name = ["stages.0.0", "stages.0.1", "stages.0.2", "stages.1.0", "stages.1.1"][index]
    with lesion.deleted(model, [name]):
        assert torch.equal(model(batch[0]), logits_without(whole, batch[0], index))
    assert torch.equal(model(batch[0]), whole(batch[0]))


def test_deleting_all_units_leaves_stem_and_head(batch):
    model = network(stage_units=(3,)).eval()
    with lesion.deleted(model, ["stages.0.0", "stages.0.1", "stages.0.2"]):
        assert torch.equal(model(batch[0]), model.head(model.stem(batch[0])))


def test_deleting_a_branch_that_is_zero_changes_nothing(batch):
    model = network(scale="zero_init")
    whole = evaluate(model, TensorSplit(*batch))
    for result in lesion.single_deletions(model, batch):
        assert (result.error_percent, result.loss) == (whole.error_percent, whole.loss)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("batch_size", [5, 256])
def test_cached_deletions_equal_plain_ones_bit_for_bit(batch, name, batch_size):
    model = network(**VARIANTS[name])
    results = lesion.single_deletions(model, batch, batch_size=batch_size)
    # the plain unit that changes the shape cannot be deleted
    assert len(results) == (4 if name == "plain" else 5)
    for result in results:
        with lesion.deleted(model, result.sites):
            expected = evaluate(model, TensorSplit(*batch), batch_size=batch_size)
        assert (result.error_percent, result.loss) == (expected.error_percent, expected.loss)


def test_what_runs_before_the_lesion_runs_once_a_batch(model, batch):
    calls = []
    for i, unit in enumerate(model.units()):
        unit.branch.register_forward_hook(lambda module, inputs, output, i=i: calls.append(i))
    lesion.single_deletions(model, batch)
    # unit i runs in the whole network and after each deletion of one before it
    assert [calls.count(i) for i in range(5)] == [1, 2, 3, 4, 5]


def test_chosen_sites_alone_are_deleted(model, batch):
    results = lesion.single_deletions(model, batch, sites=["stages.1.1", "stages.0.1"])
    assert [result.sites for result in results] == [("stages.0.1",), ("stages.1.1",)]
    everything = {result.sites: result for result in lesion.single_deletions(model, batch)}
    assert all(everything[result.sites] == result for result in results)


def test_random_deletions_delete_as_many_units_as_asked(model, batch):
    results = lesion.random_deletions(model, batch, num_deleted=2, num_draws=6)
    assert all(len(set(result.sites)) == 2 for result in results)
    assert len({result.sites for result in results}) > 1
    assert results == lesion.random_deletions(model, batch, num_deleted=2, num_draws=6)
    with lesion.deleted(model, results[0].sites):
        assert results[0].loss == evaluate(model, TensorSplit(*batch)).loss
    none = lesion.random_deletions(model, batch, num_deleted=0, num_draws=1)[0]
    assert none.loss == evaluate(model, TensorSplit(*batch)).loss


def test_layers_of_any_network_can_be_deleted(batch):
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.Linear(8, 8), nn.Linear(8, 10))
    with lesion.deleted(model, ["2"]):
        assert torch.equal(model(batch[0]), model[3](model[1](model[0](batch[0]))))
    with lesion.deleted(model, ["1"]), pytest.raises(UsageError, match=r"site '1': maps \(12, 192\) to \(12, 8\)"):
        model(batch[0])


def test_a_split_and_its_tensors_give_the_same(model, batch):
    assert lesion.single_deletions(model, TensorSplit(*batch)) == lesion.single_deletions(model, batch)


def test_loss_is_the_mean_over_images(model, batch):
    results = lesion.single_deletions(model, batch, sites=["stages.0.1"], batch_size=5)
    model.eval()
    with lesion.deleted(model, ["stages.0.1"]):
        expected = F.cross_entropy(model(batch[0]), batch[1]).item()
    assert results[0].loss == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("site", ["", "stages.0.9", "head.nothing"])
def test_unknown_sites_are_refused(model, batch, site):
    with pytest.raises(UsageError, match="not the name of a module"), lesion.deleted(model, [site]):
        pass
    with pytest.raises(UsageError, match="not a unit of ResNet"):
        lesion.single_deletions(model, batch, sites=[site])
    with pytest.raises(UsageError, match="num_deleted 6: 5 units can be deleted; nearest 5"):
        lesion.random_deletions(model, batch, num_deleted=6)
