"""`diagnose` finds what is wrong, leaves everything as it was, and calls healthy networks healthy."""

import gc
import json
from graphlib import TopologicalSorter

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.analysis.fingerprint import fingerprint
from tests.analysis.models import Checkpointed, Encoder, Network, Unit, mlp
from tests.analysis.test_unchanged import with_gradients
from verydeep import create_model, diagnose
from verydeep.analysis.rule import EXPLAINS, RULES


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def images(n=16, side=16):
    return torch.randn(n, 3, side, side), torch.randint(0, 10, (n,))


def features(n=64):
    return torch.randn(n, 32), torch.randint(0, 10, (n,))


def grave(diagnosis):
    return [finding for finding in diagnosis.findings if finding.severity != "info"]


class Constant(nn.Module):
    def forward(self, x):
        return x.mean(0, keepdim=True).expand(len(x), -1)


class Detached(nn.Module):
    def forward(self, x):
        return x.detach()


class Root(nn.Module):
    def forward(self, x):
        return torch.sqrt(x - 1)


def standing(add, **options):
    return lambda: (Network([Unit(8, add) for _ in range(12)], **options), *images())


def dead():
    model = mlp(4)
    nn.init.constant_(model[2].bias, -100.0)
    return model, *features()


def filled(value):
    model = mlp(3)
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.constant_(layer.weight, value)
    return model, *features()


def frozen():
    model = mlp(4)
    model[4].requires_grad_(False)
    return model, *features()


def large_head():
    model = mlp(4)
    model[-1].weight.data *= 50
    return model, *features()


def inserted(module, place=-1):
    layers = list(mlp(4))
    layers.insert(place, module)
    return nn.Sequential(*layers), *features()


def zeroed_last_norm():
    model = create_model("resnet20_cifar", order="relu_before_addition")
    for unit in (unit for stage in model.stages for unit in stage):
        norms = [module for module in unit.branch.modules() if isinstance(module, nn.BatchNorm2d)]
        nn.init.zeros_(norms[-1].weight)
    return model, *images(8, 32)


def trained(make, steps):
    model = mlp(4, norm=True)
    return model, *features(), None, make(model), steps


FAULTS = {
    "shortcut-not-identity": standing(lambda x, f: 0.5 * x + f),
    "nonnegative-branch": standing(lambda x, f: x + F.relu(f)),
    "dead-branch": zeroed_last_norm,
    "missing-final-norm": standing(torch.add, final_norm=False),
    "shortcut-truncated": lambda: (create_model("resnet146_cifar", unit="basic"), *images(4, 16)),
    "no-shortcut": lambda: (create_model("plain56_cifar"), *images(8, 32)),
    "variance-explosion": lambda: (mlp(20, std=0.5), *features()),
    "variance-collapse": lambda: (mlp(20, std=0.02), *features()),
    "gradient-vanishing": lambda: (mlp(15, act=nn.Sigmoid, std=0.125), *features()),
    "saturated-activation": lambda: (mlp(5, act=nn.Tanh, std=1.5), *features()),
    "dead-activation": dead,
    "symmetric-init": lambda: filled(0.1),
    "constant-output": lambda: inserted(Constant()),
    "blocked-gradient": lambda: inserted(Detached()),
    "frozen-parameter": frozen,
    "nonfinite": lambda: inserted(Root()),
    "norm-degenerate-batch": lambda: (mlp(4, norm=True), *features(2)),
    "norm-momentum": lambda: inserted(nn.BatchNorm1d(64, momentum=0.99), 1),
    "double-norm": lambda: inserted(nn.Sequential(nn.BatchNorm1d(64), nn.LayerNorm(64)), 1),
    "unnormalised-input": lambda: (mlp(4), torch.rand(64, 32) * 255, features()[1]),
    "bad-initial-loss": large_head,
    "double-softmax": lambda: (nn.Sequential(mlp(3), nn.Softmax(1)), *features()),
    "label-mismatch": lambda: (mlp(3), torch.randn(64, 32), torch.randint(5, 15, (64,))),
    "update-too-large": lambda: trained(lambda m: torch.optim.SGD(m.parameters(), lr=100.0), 0),
    "update-too-small": lambda: trained(lambda m: torch.optim.SGD(m.parameters(), lr=1e-7), 12),
    "loss-not-decreasing": lambda: trained(lambda m: torch.optim.SGD(m.parameters(), lr=0.1, maximize=True), 12),
}  # fmt: skip


@pytest.mark.parametrize("rule", FAULTS)
def test_fault_is_found_first(rule):
    found = grave(diagnose(*FAULTS[rule]()))
    assert found and found[0].rule == rule, [finding.rule for finding in found]
    assert found[0].explained_by is None
    assert all(isinstance(value, float) for value in found[0].evidence.values())


def test_shattered_gradients_are_explained_by_missing_shortcuts():
    found = {finding.rule: finding for finding in diagnose(*FAULTS["no-shortcut"]()).findings}
    assert found["gradient-shattering"].explained_by == "no-shortcut"
    assert abs(found["gradient-shattering"].evidence["correlation"]) < 0.5


HEALTHY = {
    "pre-activation": standing(torch.add),
    "preact_resnet110_cifar": lambda: (create_model("preact_resnet110_cifar"), *images(8, 32)),
    "resnet20_cifar": lambda: (create_model("resnet20_cifar"), *images(8, 32)),
    "zero-init": lambda: (create_model("preact_resnet20_cifar", scale="zero_init"), *images(8, 32)),
    "fixup": lambda: (create_model("resnet20_cifar", norm="none", scale="fixup"), *images(8, 32)),
    "mlp": lambda: (mlp(6), *features()),
    "mlp and sgd": lambda: trained(lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9), 12),
    "mlp and adam": lambda: trained(lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3), 12),
    "regression": lambda: (nn.Sequential(mlp(3), nn.Linear(10, 1)), torch.randn(64, 32), torch.randn(64, 1)),
    "encoder": lambda: (Encoder().train(), {"ids": torch.randint(0, 50, (8, 12)), "mask": torch.ones(8, 12)}),
    "encoder with its own loss": lambda: (
        Encoder(norm_first=False).train(),
        {"ids": torch.randint(0, 50, (8, 12)), "labels": torch.randint(0, 50, (8, 12))},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy(name):
    assert grave(diagnose(*HEALTHY[name]())) == []


def test_every_explanation_names_rules_and_has_no_cycle():
    assert set(EXPLAINS) | {symptom for symptoms in EXPLAINS.values() for symptom in symptoms} <= set(RULES)
    list(TopologicalSorter({cause: set(symptoms) - {cause} for cause, symptoms in EXPLAINS.items()}).static_order())


def test_fresh_network_in_eval_mode_is_not_called_exploding():
    found = grave(diagnose(create_model("preact_resnet20_cifar").eval(), *images(8, 32)))
    assert [finding.rule for finding in found] == ["norm-stats-stale"]


class Twice(nn.Module):
    """One layer called twice, and a branch added in place or not, through a ReLU in place or not."""

    def __init__(self, inplace: bool) -> None:
        super().__init__()
        self.stem, self.shared, self.head = nn.Linear(32, 16), nn.Linear(16, 16), nn.Linear(16, 10)
        self.act, self.inplace = nn.ReLU(inplace=inplace), inplace

    def forward(self, x):
        x = self.stem(x)
        for _ in range(2):
            branch = self.shared(self.act(self.shared(x)))
            if self.inplace:
                branch += x
                x = branch
            else:
                x = x + branch
        return self.head(self.act(x))


def test_in_place_operations_are_recorded_as_their_twin():
    model, twin = Twice(True), Twice(False)
    twin.load_state_dict(model.state_dict())
    batch = features()
    sites, expected = diagnose(model, *batch).sites, diagnose(twin, *batch).sites
    assert [site.kind for site in sites] == [site.kind for site in expected]
    for site, other in zip(sites, expected, strict=True):
        assert site.mean_square == other.mean_square
        assert site.gradient == pytest.approx(other.gradient, rel=1e-5)


def test_input_of_an_in_place_relu_is_recorded_as_it_was():
    model = nn.Sequential(nn.Identity(), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(2, 2))
    sites = diagnose(model, torch.tensor([[1.23, -4.56]])).sites
    assert sites[0].mean_square == pytest.approx((1.23**2 + 4.56**2) / 2)
    assert next(site for site in sites if site.kind == "act").dead == 0.5


def test_a_shared_modules_parameters_count_once_and_its_calls_separately():
    diagnosis = diagnose(Twice(False), *features())
    assert diagnosis.facts["parameters"] == 33 * 16 + 17 * 16 + 17 * 10
    names = [site.site for site in diagnosis.sites if site.kind == "weight"]
    assert names == ["stem", "shared", "shared#2", "shared#3", "shared#4", "head"]


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_units_count_once(reentrant):
    diagnosis = diagnose(Network([Checkpointed(reentrant) for _ in range(3)]), *images())
    assert sum(site.kind == "sum" for site in diagnosis.sites) == 3
    assert grave(diagnosis) == []


def test_nothing_is_changed(model, batch):
    with_gradients(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer.step()
    state = [value["momentum_buffer"].clone() for value in optimizer.state.values()]
    before, groups = fingerprint(model), [dict(group) for group in optimizer.param_groups]
    diagnose(model, *batch, None, optimizer, 3)
    assert fingerprint(model) == before
    assert [dict(group) for group in optimizer.param_groups] == groups
    assert all(map(torch.equal, state, [value["momentum_buffer"] for value in optimizer.state.values()]))


def test_nothing_is_changed_by_a_diagnosis_that_raises(model, batch):
    with_gradients(model)
    model.head.linear.in_features = 3
    model.head.linear.weight = nn.Parameter(torch.randn(10, 3))
    before = fingerprint(model)
    with pytest.raises(RuntimeError):
        diagnose(model, *batch)
    assert fingerprint(model) == before


def test_zero_heads_are_put_back():
    model = create_model("preact_resnet20_cifar", scale="zero_init")
    nn.init.zeros_(model.head.linear.weight)
    batch = images(8, 32)
    before = fingerprint(model)
    assert grave(diagnose(model, *batch)) == []
    assert fingerprint(model) == before


def test_a_hundred_diagnoses_leak_nothing():
    model, batch = Network([Unit(2) for _ in range(2)], width=2), images(8, 4)

    def tensors() -> int:
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    diagnose(model, *batch)
    count = tensors()
    for _ in range(100):
        diagnose(model, *batch)
    assert tensors() <= count


def test_the_probe_does_not_see_itself():
    names = {site.site for site in diagnose(mlp(2), *features()).sites}
    assert names == {"input", "0", "1", "2", "3", "4"}


def test_a_scripted_model_is_seen_inside():
    with pytest.warns():
        scripted = torch.jit.script(Network([nn.Conv2d(8, 8, 1)]))
    assert any("conv" in site.site for site in diagnose(scripted, *images()).sites)


def test_forms(tmp_path):
    diagnosis = diagnose(*FAULTS["no-shortcut"]())
    assert "no-shortcut at stem.conv" in str(diagnosis)
    assert "<table>" in diagnosis._repr_html_()
    diagnosis.to_json(tmp_path / "d.json")
    read = json.loads((tmp_path / "d.json").read_text())
    assert [finding["rule"] for finding in read["findings"]] == [finding.rule for finding in diagnosis.findings]
    assert len(read["sites"]) == len(diagnosis.sites)
    diagnosis.to_html(tmp_path / "d.html")
    page = (tmp_path / "d.html").read_text()
    assert (
        page.index("no-shortcut") < page.index("Mean square of the signal") < page.index("stages.0.0.branch.conv1</td>")
    )
