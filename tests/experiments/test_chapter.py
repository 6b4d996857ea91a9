"""The chapter's experiments: the list is complete, exact claims hold, judging follows its rules."""

import contextlib
import math
import signal
from pathlib import Path

import pytest
import torch

from verydeep.analysis.draw import Draws
from verydeep.errors import UsageError
from verydeep.experiments.chapter import CLAIMS, EXPERIMENTS, depth, norm, normfree, path
from verydeep.experiments.chapter.cells import PANELS, moved_cells
from verydeep.experiments.chapter.claims import BY_ID
from verydeep.experiments.chapter.exact import EXACT, MEASURES, agrees, judge_claim
from verydeep.experiments.chapter.normfree import at_best_rate
from verydeep.experiments.chapter.stochastic import judge_draws
from verydeep.experiments.data import small_data
from verydeep.experiments.experiment import Setting
from verydeep.experiments.fit import config_of, fit
from verydeep.experiments.reproduce import reproduce, select
from verydeep.models.catalogue import create_model


def test_every_claim_belongs_to_one_experiment_of_its_kind():
    owners = {claim.id: [e for e in EXPERIMENTS if claim.id in e.claims] for claim in CLAIMS}
    assert len(CLAIMS) == 58
    for claim in CLAIMS:
        assert len(owners[claim.id]) == 1, claim.id
        assert owners[claim.id][0].kind == claim.kind, claim.id
    assert set(MEASURES) == {claim.id for claim in CLAIMS if claim.kind == "exact"}


def test_exact_claims_hold_to_the_digits_printed(tmp_path: Path):
    made = reproduce("chapter", only=["exact"], out=tmp_path)
    exact = [cell for cell in made.values["cells"] if cell["kind"] == "exact"]
    assert len(exact) == 33
    assert [cell["id"] for cell in exact if cell["verdict"] != "holds"] == []
    assert {cell["verdict"] for cell in made.values["cells"] if cell["kind"] != "exact"} == {"not run"}


@pytest.mark.parametrize("experiment", EXACT, ids=lambda experiment: experiment.name)
def test_a_wrong_number_fails(experiment):
    for identifier in experiment.claims:
        claim = BY_ID[identifier]
        wrong = 1e-3 if isinstance(claim.published, str) else _moved(claim.published, claim.digit)
        assert judge_claim(claim, wrong).verdict == "fails", identifier


def _moved(published, digit):
    """The published value, its last entry off by one in the last digit."""
    if isinstance(published, list):
        return [*published[:-1], _moved(published[-1], digit[-1] if isinstance(digit, list) else digit)]
    return published + digit


def test_rounding_to_the_last_digit():
    assert agrees(0.1249999, 0.12, 0.01) and not agrees(0.1251, 0.12, 0.01)
    assert not agrees([1.0], [1.0, 1.0], 0.1)


def test_figure_11_3_by_moving_a_cell():
    moved = {name: moved_cells(*panel) for name, panel in PANELS.items()}
    assert moved["batch"].sum() == 4 and moved["batch"][:, 2].all()
    assert moved["layer"].sum() == 6 and moved["layer"][1].all()
    assert moved["group (3 groups)"].nonzero().tolist() == [[1, 2], [1, 3]]
    assert moved["group (2 groups)"].nonzero().tolist() == [[1, 0], [1, 1], [1, 2]]
    assert moved["instance"].nonzero().tolist() == [[1, 2]]


@pytest.mark.parametrize(("shift", "verdict"), [(0.0, "holds"), (0.1, "holds"), (0.2, "fails"), (-0.2, "fails")])
def test_a_random_claim_holds_in_the_central_99_percent(shift: float, verdict: str):
    published = BY_ID["fig11.1-plain50"].published
    values = torch.linspace(published - 0.15, published + 0.15, 501, dtype=torch.float64) + shift
    judged = judge_draws("fig11.1-plain50", Draws("x", values, seed=0, pool=501, independent=True), "correlation")
    assert judged.verdict == verdict
    assert judged.interval == pytest.approx((published - 0.1485 + shift, published + 0.1485 + shift))


def test_trained_verdicts_follow_the_numbers():
    """Each trained experiment's judge, on numbers that show its claim and on numbers that contradict it."""
    degradation = next(e for e in EXPERIMENTS if e.name == "degradation")

    def results(plain_deep: float, residual_deep: float):
        errors = {"plain20": 1.0, "plain110": plain_deep, "resnet20": 1.0, "resnet110": residual_deep}
        return {name: [{"train_error_percent": error}] * 3 for name, error in errors.items()}

    assert degradation.judge(results(30.0, 1.0), Setting())["degradation"].verdict == "holds"
    assert degradation.judge(results(1.0, 1.0), Setting())["degradation"].verdict == "fails"
    assert degradation.judge(results(30.0, 30.0), Setting())["degradation"].verdict == "fails"


def test_values_that_train_are_judged_seed_by_seed():
    rates = next(e for e in EXPERIMENTS if e.name == "bn-larger-lr")
    results = {f"{norm_} {lr}": [{"train_loss": 2.0}] * 3 for norm_ in ("batch", "none") for lr in norm.LRS}
    results["none 0.02"] = [{"train_loss": 0.1}] * 3
    results["batch 0.2"] = [{"train_loss": 0.1}, {"train_loss": None}, {"train_loss": 0.2}]
    judged = rates.judge(results, Setting())["bn-larger-lr"]
    assert (judged.verdict, judged.measured, judged.interval) == ("holds", [0.2, 0.0, 0.2], (0.0, 0.2))
    results["batch 0.2"] = [{"train_loss": None}, {"train_loss": None}, {"train_loss": 0.2}]
    assert rates.judge(results, Setting())["bn-larger-lr"].verdict == "fails"


def test_the_noise_of_batch_norm_is_judged_by_the_median_gap():
    sizes = next(e for e in EXPERIMENTS if e.name == "batch-size")

    def results(gap_of_2: float, gap_of_64: float):
        gaps = {2: gap_of_2, 8: 1.0, 64: gap_of_64}
        of_norm = {f"batch {n}": [{"test_error_percent": 5 + g, "train_error_percent": 5}] * 3 for n, g in gaps.items()}
        return of_norm | {f"group {n}": of_norm[f"batch {n}"] for n in gaps}

    assert sizes.judge(results(0.5, 2.0), Setting())["bn-noise"].verdict == "holds"
    assert sizes.judge(results(2.0, 0.5), Setting())["bn-noise"].verdict == "fails"
    assert sizes.judge(results(0.5, 2.0), Setting())["bn-noise"].measured == [0.5, 0.5, 0.5]


def test_a_fit_is_a_run_in_memory(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base = {"data": "digits", "steps": 50, "log_steps": 20, "batch_size": 32, "model": "preact_resnet8_cifar"}
    trained, again = (fit(config_of(base, 3)) for _ in range(2))
    assert trained.to_dict() == again.to_dict()
    assert [step for step, _ in trained.curve] == [20, 40, 45, 50] and trained.test_error_percent < 60
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_diverges_is_a_result():
    diverged = fit(config_of({"steps": 30, "model": "resnet8_cifar", "norm": "none"}, 0, lr=1e20, warmup=0.0))
    assert diverged.diverged and diverged.train_loss is None and math.isclose(diverged.test_error_percent, 90)


def test_a_training_that_a_signal_stops_is_no_measurement():
    def interrupted(model: torch.nn.Module):
        model.register_forward_hook(lambda *_: signal.raise_signal(signal.SIGINT))
        return contextlib.nullcontext()

    with pytest.raises(KeyboardInterrupt):
        fit(config_of({"steps": 30, "model": "resnet8_cifar"}, 0), around=interrupted)


def test_selection_by_kind_experiment_and_claim():
    assert {e.kind for e in select(EXPERIMENTS, ["exact"])} == {"exact"}
    assert [e.name for e in select(EXPERIMENTS, ["Fig11.1"])] == ["fig11.1"]
    assert [e.name for e in select(EXPERIMENTS, ["bn-noise"])] == ["batch-size"]
    assert len(select(EXPERIMENTS, [])) == len(EXPERIMENTS)


TRAINED = [e for e in EXPERIMENTS if e.kind == "trained"]


class Declared(Exception):
    """A training that was declared; nothing is trained."""


@pytest.mark.parametrize(
    "setting", [Setting(), Setting("paper"), Setting(data="parquet:x/cifar10", image_size=16)], ids=str
)
@pytest.mark.parametrize("experiment", TRAINED, ids=lambda experiment: experiment.name)
def test_every_training_is_a_legal_run_in_every_setting(experiment, setting, monkeypatch):
    """Each trial's config resolves, and its network builds, without any data."""

    def declared(config, *, model=None, around=None):
        resolved = config.resolved()
        assert resolved.data == ("cifar10" if setting.scale == "paper" else setting.data)
        assert (resolved.protocol, resolved.image_size) == (
            "he2016_cifar" if setting.scale == "paper" else "quick",
            setting.image_size,
        )
        with torch.device("meta"):
            create_model(resolved.model, num_classes=10, **resolved.model_options())
        raise Declared

    for module in (depth, norm, normfree, path):
        monkeypatch.setattr(module, "fit", declared)
        if hasattr(module, "data_of"):
            monkeypatch.setattr(module, "data_of", lambda fields: small_data("digits"))
    trials = experiment.trials(setting)
    assert len({trial.name for trial in trials}) == len(trials)
    for trial in trials:
        with pytest.raises(Declared):
            trial.measure(0)


def test_trials_of_other_data_are_kept_apart():
    names = {
        str(Setting()),
        str(Setting("paper")),
        str(Setting(data="parquet:../cifar10", image_size=16, max_images=9)),
    }
    assert names == {"small", "paper", "small-cifar10-16-9-images"}


def test_a_network_is_judged_at_the_rate_that_trains_it_best():
    def measured(loss, error):
        return [{"train_loss": loss, "test_error_percent": error}] * 3

    best = at_best_rate({"a, lr 0.1": measured(0.5, 1), "a, lr 0.2": measured(0.1, 2), "b, lr 0.1": measured(None, 90)})
    assert {name: values[0]["test_error_percent"] for name, values in best.items()} == {"a": 2, "b": 90}


def test_absent_data_are_named_before_anything_is_measured(tmp_path: Path):
    with pytest.raises(UsageError, match="nowhere"):
        reproduce("chapter", only=["exact", "shift"], data="parquet:nowhere", image_size=16, out=tmp_path)
    assert list(tmp_path.iterdir()) == []
