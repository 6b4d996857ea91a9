"""The paper's declarations: every published number, every network, and verdicts that follow the numbers both ways."""

import json
from pathlib import Path

import pytest
import torch
from scipy.stats import spearmanr

from verydeep import cli
from verydeep.experiments.experiment import Setting
from verydeep.experiments.he2016 import setting
from verydeep.experiments.he2016.cell import FAIL, FIGURE
from verydeep.experiments.he2016.network import BESIDE_DEEP, CHANGES, DEEP_STEPS, NETWORKS, name_at, trained_for
from verydeep.experiments.he2016.part import PARTS, load
from verydeep.experiments.he2016.rank import bootstrap, share_of_orders, spearman
from verydeep.experiments.he2016.setting import training
from verydeep.experiments.he2016.tables import first_rate_loss
from verydeep.experiments.he2016.text import falls, steps_to
from verydeep.experiments.reproduce import _cell as entry
from verydeep.experiments.reproduce import reproduce
from verydeep.experiments.sources import SOURCES
from verydeep.models.catalogue import create_model
from verydeep.report.page import page_html
from verydeep.report.section import Section
from verydeep.saved import evaluate_run

SPEC = Path(__file__).parents[3] / "shared" / "spec" / "published.json"
SMALL, PAPER = Setting(), Setting("paper")
CELLS = {(name, cell.id): cell for name, part in PARTS.items() for cell in part.all_cells}
# What every network's test error would be at the paper's scale; `fail` is near chance.
ERRORS = {
    name: 88.0 if cell.published == FAIL else cell.number
    for part in ("table1", "table2", "table3", "table4")
    for cell in PARTS[part].cells
    for name in cell.networks
}
ERRORS |= {trained_for(DEEP_STEPS, name): ERRORS[name] for name in ("resnet110", *BESIDE_DEEP)}


def measured(error: float, **values):
    course = {"train_loss": error / 30, "curve": [(10, 1.0, error)], "diverged": False}
    return {"test_error_percent": error} | course | values


def results(errors: dict[str, float], seeds: int = 3):
    """Measurements of each network, seeds a tenth of a point apart."""
    return {name: [measured(error + seed / 10) for seed in range(seeds)] for name, error in errors.items()}


def published() -> dict[str, dict]:
    if not SPEC.exists():
        pytest.skip("needs the published values in ../shared/spec, which are absent")
    return json.loads(SPEC.read_text())


def given(part: str) -> dict[str, object]:
    return {cell.id: cell.published for cell in PARTS[part].cells}


def test_table_1_is_the_published_one():
    cells = published()["table1"]["cells"]
    assert given("table1") == {cell["id"]: FAIL if cell.get("fail") else cell["error_percent"] for cell in cells}


@pytest.mark.parametrize("table", ["table2", "table3"])
def test_tables_2_and_3_are_the_published_ones(table):
    values = published()[table]
    expected = {
        f"{row}/{column}": value
        for row, numbers in values["rows"].items()
        for column, value in zip(values["columns"], numbers, strict=True)
    }
    assert given(table) == expected


def test_table_4_is_the_published_one():
    expected = {
        f"{data}/{name}": value
        for data in ("cifar10", "cifar100")
        for name, value in published()["table4"][data].items()
    }
    assert given("table4") == expected


def test_table_5_is_the_published_one():
    table = published()["table5"]
    assert given("table5") == {name: row[3:] for name, row in table["rows"].items()}
    text = {name: value for name, value in given("imagenet-shortcuts").items() if value != FIGURE}
    assert text == table["text"]


def test_sources_name_every_part():
    assert [name for name in SOURCES if SOURCES[name].work.name == "he2016"] == list(PARTS)


@pytest.mark.parametrize("where", [SMALL, PAPER, Setting(data="parquet:x", image_size=12)], ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_is_a_run_that_can_be_carried_out(name, where):
    config = training(name, where).config.resolved()
    assert config.steps or config.epochs
    with torch.device("meta"):
        model = create_model(config.model, num_classes=10, **config.model_options())
    small = where.scale == "small"
    if NETWORKS[name].data != "imagenet" and not any(name.endswith(change) for change in CHANGES):
        assert config.protocol == "he2016_cifar" and model.spec.width == (8 if small else 16)
        assert config.batch_size == (32 if "batch64" in name else 64) if small else (64 if "batch64" in name else 128)
    if where.scale == "paper" and NETWORKS[name].data == "cifar10":
        assert (config.data, config.image_size) == ("cifar10", None)
        assert config.steps * config.batch_size == 64_000 * 128, "all see as many images"


@pytest.mark.parametrize(
    ("name", "millions"),
    [("resnet110", 1.7), ("resnet1202", 19.4), ("full_preact-resnet164", 1.7), ("full_preact-resnet1001", 10.3)],
)
def test_networks_have_the_published_sizes(name, millions):
    config = training(name, PAPER).config
    with torch.device("meta"):
        model = create_model(config.model, num_classes=10, **config.model_options())
    assert round(sum(parameter.numel() for parameter in model.parameters()) / 1e6, 1) == millions


@pytest.mark.parametrize("key", [key for key, cell in CELLS.items() if cell.networks and key[0] in PARTS], ids=str)
def test_every_cell_names_known_networks_and_says_what_it_shows(key):
    cell = CELLS[key]
    assert all(name in NETWORKS for name in cell.needed)
    assert cell.what and cell.quantity
    if cell.published == FIGURE:
        assert cell.ordering is not None, "without a number there must be an ordering"


@pytest.mark.parametrize("key", [key for key, cell in CELLS.items() if cell.ordering and not cell.partial], ids=str)
def test_what_an_ordering_compares_was_trained_on_as_many_images(key):
    for where in (SMALL, PAPER):
        names = {name_at(where.scale, name) for name in CELLS[key].ordering.networks}
        if NETWORKS[next(iter(names))].data == "imagenet" and where is PAPER:
            continue  # the authors stopped most of these
        configs = [training(name, where).config.resolved() for name in names]
        assert len({(config.epochs, (config.steps or 0) * config.batch_size) for config in configs}) == 1


TABLED = [key for key in CELLS if key[0] in ("table1", "table2", "table3", "table4") and CELLS[key].ordering]


@pytest.mark.parametrize("key", TABLED, ids=str)
def test_verdicts_hold_on_the_published_order_and_fail_on_its_reverse(key):
    cell, scale = CELLS[key], PAPER if key[1] == "rank-correlation-cifar100" else SMALL
    assert cell.judge(results(ERRORS), scale).verdict == "holds"
    reverse = {name: 100 - error for name, error in ERRORS.items()}
    if "nearer" in cell.ordering.text:  # a distance has no reverse: its own error moves away
        reverse = ERRORS | {cell.networks[0]: 40.0}
    assert cell.judge(results(reverse), scale).verdict == "fails"


@pytest.mark.parametrize("key", [key for key in TABLED if CELLS[key].published != FIGURE], ids=str)
def test_at_the_papers_scale_the_number_counts(key):
    cell = CELLS[key]
    judged = cell.judge(results(ERRORS), PAPER)
    assert judged.verdict == "holds" and len(judged.measured) == 3
    moved = {name: 19.0 if error == 88 else error + 2 for name, error in ERRORS.items()}
    assert cell.judge(results(moved), PAPER).verdict == "fails"


def test_at_the_papers_scale_a_number_that_agrees_is_not_enough():
    cell = CELLS["table2", "full_preact/resnet110_cifar"]
    worse = ERRORS | {"resnet110": 6.60, "full_preact-resnet110": 6.79}
    judged = cell.judge(results(worse), PAPER)
    assert judged.verdict == "fails" and "lowest of all" in judged.detail and "+0.52 points" in judged.detail
    assert cell.judge(results(ERRORS | {"full_preact-resnet110": 6.40}), PAPER).verdict == "holds"


def test_at_the_papers_scale_shorter_trainings_are_the_whole_ones():
    experiment = load("table4")[0][0]
    assert "resnet110-500-steps" in {trial.name for trial in experiment.trials(SMALL)}
    names = {trial.name for trial in experiment.trials(PAPER)}
    assert "resnet110" in names and "resnet110-500-steps" not in names
    measured = results({name: error for name, error in ERRORS.items() if name in names})
    assert experiment.judge(measured, PAPER)["cifar10/ResNet-1202 (19.4M)"].verdict == "holds"


def test_chance_is_that_of_the_classes():
    cell = CELLS["table1", "dropout0.5"]
    errors = results({"resnet110": 60.0, "dropout0.5": 76.0})
    assert cell.judge(errors, SMALL).verdict == "holds"
    of_hundred = {name: [m | {"chance_error_percent": 99.0} for m in seeds] for name, seeds in errors.items()}
    assert cell.judge(of_hundred, SMALL).verdict == "fails"


def test_errors_with_recomputed_statistics_stand_beside():
    values = {"resnet110": [measured(6.6, recalibrated_test_error_percent=error) for error in (6.0, 6.2, 6.4)]}
    values |= {"bn_after_addition-resnet110": [measured(8.2)] * 3}
    judged = CELLS["table2", "original/resnet110_cifar"].judge(values, SMALL)
    assert judged.beside == {"recalibrated_test_error_percent": [6.0, 6.2, 6.4]} and "6.2 %" in judged.detail
    del values["resnet110"][0]["recalibrated_test_error_percent"]
    assert CELLS["table2", "original/resnet110_cifar"].judge(values, SMALL).beside == {}


def test_a_median_with_its_deviation_is_printed_as_people_write_it():
    printed = cli._published_cell({"published": {"median": 4.92, "mean": 4.89, "std": 0.14}})
    assert printed == "4.92 (4.89 \u00b1 0.14)" and cli._published_cell({"published": 6.61}) == 6.61


def test_without_its_networks_a_cell_is_not_run():
    cell = CELLS["table3", "cifar100/resnet1001/original"]
    judged = cell.judge(results({"resnet110": 50.0}), SMALL)
    assert (judged.verdict, judged.measured) == ("not run", []) and "CIFAR-100" in judged.detail
    assert CELLS["table4", "cifar10/NIN"].judge(results(ERRORS), SMALL).verdict == "not run"


def test_of_several_networks_the_best_of_each_seed_is_measured():
    cell = CELLS["table1", "exclusive-gate-b0..-5"]
    errors = ERRORS | {"exclusive-gate-b-3": 85.0}
    assert cell.judge(results(errors), SMALL).measured == pytest.approx([85.0, 85.1, 85.2])
    assert cell.judge(results(ERRORS | {"exclusive-gate-b-5": 12.0}), SMALL).verdict == "fails", "one of them trains"


@pytest.mark.parametrize("seed", range(5))
def test_rank_correlation_is_spearmans(seed):
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randint(0, 6, (9,), generator=generator).tolist() for _ in range(2))
    assert spearman(a, b) == pytest.approx(spearmanr(a, b).statistic)
    assert spearman([1, 1, 1], [1, 2, 3]) == 0.0


def test_the_bootstrap_draws_seeds():
    certain = [[i, i + 0.1, i + 0.2] for i in range(6)]
    assert bootstrap(certain, [1, 2, 3, 4, 5, 6]) == (1.0, 1.0)
    low, high = bootstrap([[0, 5, 9], [1, 4, 8], [2, 3, 7]], [1, 2, 3])
    assert low < 0 < high


def test_rank_cells_judge_the_interval():
    cell = CELLS["table2", "rank-correlation"]
    judged = cell.judge(results(ERRORS), SMALL)
    assert judged.verdict == "holds" and judged.measured == [pytest.approx(1.0)] * 3 and judged.interval[0] > 0.8
    assert cell.judge(results({name: 50.0 for name in ERRORS}), SMALL).verdict == "fails"
    assert cell.judge(results(ERRORS, seeds=1), SMALL).verdict == "not run", "one seed has no interval"
    part = {name: error for name, error in ERRORS.items() if "164" not in name}
    assert cell.judge(results(part), SMALL).verdict == "holds", "judged by what there is"
    assert cell.judge(results({name: 6.0 for name in list(part)[:1]}), SMALL).verdict == "not run"


def test_ranks_are_within_a_data_set():
    cells = [CELLS["table3", name] for name in ("rank-correlation", "rank-correlation-cifar100")]
    assert [cell.judge(results(ERRORS), PAPER).verdict for cell in cells] == ["holds", "holds"]
    reverse = {name: (130.0 if "cifar100" in name else 30.0) - error for name, error in ERRORS.items()}
    assert [cell.judge(results(reverse), PAPER).verdict for cell in cells] == ["fails", "fails"]
    assert all("1001" not in name for name in _ranked(cells[0])), "at the small scale, of as many steps"
    absent = {name: error for name, error in ERRORS.items() if "cifar100" not in name}
    assert "CIFAR-100" in cells[1].judge(results(absent), SMALL).detail


def _ranked(cell) -> set[str]:
    """The networks whose errors change what is measured at the small scale."""
    before = cell.judge(results(ERRORS), SMALL).measured
    changed = {name: cell.judge(results(ERRORS | {name: 99.0}), SMALL).measured for name in cell.networks}
    return {name for name, values in changed.items() if values != before}


def test_a_correlation_that_random_orders_reach_does_not_hold():
    assert share_of_orders([1, 2, 3], [1, 2, 3]) == 1 / 6
    assert share_of_orders(range(8), range(8)) < 0.01
    cell = CELLS["table2", "rank-correlation"]
    errors = dict(zip(cell.networks, [69, 60, 67, 61, 65, 63, 64, 62, 68, 66], strict=True))
    judged = cell.judge(results(errors), SMALL)
    assert judged.interval[0] > 0 and judged.verdict == "fails" and "of random orders reach" in judged.detail


def test_steps_to_a_loss_are_counted_on_the_smoothed_course():
    curve = [(10 * i, loss, 0.0) for i, loss in enumerate([3.0, 3.0, 0.1, 3.0, 3.0, 1.0, 1.0, 1.0, 1.0, 1.0])]
    assert steps_to({"curve": curve}, 1.0) == 90, "the one low point does not count"
    assert steps_to({"curve": curve}, 0.5) is None


def observed(means: list[float], gains: list[float | None], truncated: float = 0.0):
    return [
        {"mean": means, "shortcut_gain": gains, "truncated": [truncated], "gradient_norm": [1.0], "gain_product": 1}
    ]


def test_a_run_without_finite_signals_has_no_falls():
    ends = [{"mean": [3.0, 2.0, 4.0, 1.0], "shortcut_gain": [None, 1.0, 1.0, 1.0]}, {"mean": [3.0, None, 1.0]}]
    found = [falls({"observed": [end], "diverged": False}) for end in ends]
    assert [*found, falls({"observed": [], "diverged": True})] == [2, None, None]


def test_negative_means_fall_when_they_grow_smaller():
    end = {"mean": [-1.0, -1.0, -0.9995, -1.1], "shortcut_gain": [1.0] * 4}
    assert falls({"observed": [end], "diverged": False}) == 1


def test_what_a_diverged_run_does_not_show_is_not_judged():
    gone = [measured(90.0, observed=[], diverged=True)]
    finite = [measured(50.0, observed=observed([1, 2], [1.0, 1.0], truncated=0.1))]
    cell = CELLS["fig1", "truncation-depth"]
    judged = cell.judge({name: gone if name == "resnet1001" else finite for name in cell.needed}, SMALL)
    assert judged.verdict == "not run" and "resnet1001 diverged" in judged.detail


def test_losses_on_imagenet_are_compared_at_the_first_rate():
    curve = [(step, 7.0 - step / 100_000, 50.0) for step in range(1_000, 451_000, 1_000)]
    whole = first_rate_loss(measured(30.0, curve=curve, config={"epochs": 90}))
    until = [point for point in curve if point[0] <= 150_000]
    stopped = first_rate_loss(measured(30.0, curve=until, config={"epochs": 30}))
    assert stopped == first_rate_loss(measured(30.0, curve=until, config={"epochs": None})), "a run counted in steps"
    assert whole == pytest.approx(stopped, abs=0.01) and whole == pytest.approx(5.57, abs=0.01)
    paper = training("dropout-resnet101", Setting("paper", data="folder:x")).config.resolved()
    assert (paper.epochs, paper.schedule, paper.mean) == (30, "constant", (0.485, 0.456, 0.406))


def test_crops_are_judged_and_shown_by_their_medians(tmp_path: Path, monkeypatch):
    crops = {"resnet152": ([23.4, 6.6], [21.0, 5.4]), "full_preact-resnet152": ([23.0, 6.5], [20.9, 5.5])}
    values = {
        name: [measured(near[0], train_crop=[near[0] + i, near[1]], large_crop=large) for i in (0, 0.2, 0.4)]
        for name, (near, large) in crops.items()
    }
    (experiment,) = load("table5")[0]
    verdicts = experiment.judge(values, Setting("paper", data="folder:x"))
    assert verdicts["ResNet-152 original @224"].verdict == "fails", "23.6 is more than half a point from 23.0"
    assert verdicts["ResNet-152 pre-act @320"].verdict == "holds"
    assert "20.9" in verdicts["ResNet-152 pre-act @320"].detail, "the crop of the row is compared"
    claim = next(claim for claim in load("table5")[1] if claim.id == "ResNet-152 original @224")
    cell = entry(claim, (experiment, verdicts[claim.id]), Setting("paper", data="folder:x"))
    assert cell["median"] == pytest.approx([23.6, 6.6]) and cell["difference"] == pytest.approx([0.6, -0.1])
    page = page_html("t", "", [Section("s", "S", cells=[cell])], {})
    assert "+0.60, -0.10" in page and "23.6, 6.6" in page


def test_figures_and_text_follow_their_numbers():
    def verdict(part: str, claim: str, values) -> str:
        return CELLS[part, claim].judge(values, SMALL).verdict

    course = [(10 * i, 2.0, 0.0) for i in range(1, 11)]
    sooner = [(10 * i, 2.0 if i < 3 else 0.5, 0.0) for i in range(1, 11)]
    for fast, expected in ((sooner, "holds"), ([(s, 3.0, e) for s, _, e in course], "fails")):
        deep = {"resnet1001": [measured(60.0, curve=course, train_loss=1.0)],
                "full_preact-resnet1001": [measured(50.0, curve=fast, train_loss=0.9)]}  # fmt: skip
        assert verdict("fig1", "fig1", deep) == expected
        diverged = {"resnet1001": [measured(90.0, curve=course, train_loss=None, diverged=True)]}
        assert verdict("fig1", "fig1", deep | diverged) == "not run", "there is no loss to be reached"
    rising, falling = (
        observed([1, 2, 5, 6], [1.0, 1.0, None, 1.0]),
        observed([2, 1, 5, 6], [1.0, 1.0, None, 1.0]),
    )
    signals = {name: [measured(50.0, observed=falling)] for name in CELLS["forward-signal", "monotone-signal"].needed}
    signals["relu_before_addition-resnet110"] = [measured(50.0, observed=rising)]
    assert verdict("forward-signal", "monotone-signal", signals) == "holds"
    signals["relu_before_addition-resnet110"] = [measured(50.0, observed=falling)]
    assert verdict("forward-signal", "monotone-signal", signals) == "fails"
    for best, expected in ((-6, "holds"), (0, "fails")):
        search = {f"gate-search-b{bias}": [measured(50.0, validation_error_percent=40.0 + abs(bias - best))]
                  for bias in range(0, -11, -1)}  # fmt: skip
        judged = CELLS["gate-bias", "gate-bias-search"].judge(search, SMALL)
        assert (judged.verdict, list(judged.measured)) == (expected, [best])
    costs = {"resnet32": 10.0, "conv1x1-resnet32": 11.0, "resnet110": 8.0, "conv1x1": 30.0}
    assert verdict("conv1x1-depth", "conv1x1-depth", results(costs)) == "holds"
    assert verdict("conv1x1-depth", "conv1x1-depth", results(costs | {"conv1x1": 8.5})) == "fails"
    depth = {"plain20": 10.0, "plain56": 20.0, "resnet20": 9.0, "resnet56": 8.0}
    assert verdict("degradation", "degradation-test", results(depth)) == "holds"
    assert verdict("degradation", "degradation-test", results(depth | {"plain56": 9.0})) == "fails"
    assert verdict("degradation", "degradation-test-residual", results(depth)) == "holds"
    assert verdict("degradation", "degradation-test-residual", results(depth | {"resnet56": 9.5})) == "fails"
    warm = {"resnet110": 10.0, "no-warmup-resnet110": 20.0, "full_preact-resnet110": 9.0}
    warm |= {"no-warmup-full_preact-resnet110": 9.2}
    assert verdict("warmup", "warmup", results(warm)) == "holds"
    assert verdict("warmup", "warmup", results(warm | {"no-warmup-full_preact-resnet110": 25.0})) == "fails"
    budget = {name: 50.0 for cell in PARTS["budget"].cells for name in cell.needed}
    budget |= {"exclusive-gate-b-6-250-steps": 45.0, "exclusive-gate-b-6": 55.0, "exclusive-gate-b-6-2000-steps": 60.0}
    verdicts = [verdict("budget", f"budget-{steps}", results(budget)) for steps in (250, 500, 1_000, 2_000)]
    assert verdicts == ["fails", "fails", "holds", "holds"]


@pytest.mark.parametrize("name", PARTS)
def test_a_part_is_one_experiment_with_its_claims(name):
    (experiment,), claims = load(name)
    assert tuple(claim.id for claim in claims) == experiment.claims and len(set(experiment.claims)) == len(claims)
    trials = experiment.trials(Setting("paper"))
    assert {trial.name for trial in trials} <= {name_at("paper", network) for network in PARTS[name].networks}
    if PARTS[name].small_only:
        assert trials == [] and experiment.trials(SMALL)
    elif not name.startswith("imagenet") and name != "table5":
        assert trials, "CIFAR-10 is asked of the user, so its cells are always tried"


def test_imagenet_needs_a_folder():
    (experiment,), _ = load("table5")
    assert experiment.trials(PAPER) == []
    trials = experiment.trials(Setting("paper", data="folder:/images"))
    assert {trial.config.data for trial in trials} == {"folder:/images"} and len(trials) == 5
    assert {trial.config.protocol for trial in trials} == {"he2016_imagenet"}


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory: pytest.TempPathFactory):
    """Degradation and the search for the gate's bias with a few steps on digits, in one directory."""
    out = tmp_path_factory.mktemp("he2016")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(setting, "SMALL", setting.SMALL | {"steps": 12, "eval_steps": 6, "width": 4})
        return out, [reproduce("degradation", out=out, seeds=2), reproduce("degradation", out=out, seeds=2)]


def test_a_part_is_measured_end_to_end(reproduced):
    out, (first, again) = reproduced
    cells = {cell["id"]: cell for cell in first.values["cells"]}
    assert set(cells) == {
        f"degradation-{which}" for which in ("training", "test", "training-residual", "test-residual")
    }
    assert all(cell["n"] == 2 and cell["verdict"] in ("holds", "fails") for cell in cells.values())
    assert len(cells["degradation-test"]["measured"]) == 2 and "plain20" in cells["degradation-test"]["detail"]
    runs = {path.name for path in (out / "runs" / "small").iterdir() if path.is_dir()}
    assert runs == {f"{name}-s{seed}" for name in ("plain20", "plain56", "resnet20", "resnet56") for seed in (0, 1)}
    assert again.values["seconds"] == first.values["seconds"], "nothing was run twice"


def test_its_runs_are_evaluated_like_any_other(reproduced):
    directory = reproduced[0] / "runs" / "small" / "plain20-s1"
    evaluated = evaluate_run(directory)
    measured = json.loads(directory.with_name("plain20-s1.json").read_text())["values"]
    assert evaluated["error_percent"] == measured["test_error_percent"]


def test_one_page_holds_all_parts(reproduced, monkeypatch):
    out, _ = reproduced
    monkeypatch.setattr(setting, "SMALL", setting.SMALL | {"steps": 12, "eval_steps": 6, "width": 4})
    reproduce("table5", out=out)
    page = (out / "he2016.html").read_text()
    assert "Degradation of plain networks" in page and "ImageNet, single crop" in page
    assert page.index("ImageNet, single crop") < page.index("Degradation of plain networks"), "the order of the paper"
    assert "give --data folder:DIR" in page, "what is not run says what it needs"
    values = json.loads((out / "table5.json").read_text())
    assert {cell["verdict"] for cell in values["cells"]} == {"not run"}
    assert (out / "he2016_files" / "degradation-course-1.svg").exists()
