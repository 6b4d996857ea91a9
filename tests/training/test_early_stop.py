"""A run that ends once the validation error falls no more: when, with what, and the same after a resumption."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
import yaml

from tests.training.test_run import Overflows, assert_same_run, killed_after, metrics
from verydeep.data import Data
from verydeep.errors import UsageError
from verydeep.saved import evaluate_run
from verydeep.training.evaluate import Evaluation
from verydeep.training.loop import resume, train
from verydeep.training.progress import Progress

# evaluated each 4 steps; log lines come at other steps
OPTIONS = dict(validation=200, eval_steps=4, log_steps=10, steps=400, ema=0.0, early_stop=3, lr=0.3)


def evaluations(path: Path) -> list[dict]:
    return [line for line in metrics(path) if line["kind"] == "validation"]


def stops_at(errors: list[float], patience: int) -> int | None:
    """The evaluation after which to stop, counted from 1, by the definition: the last `patience` are no new lows."""
    for count in range(1, len(errors) + 1):
        lows = [i for i in range(count) if errors[i] < min(errors[:i], default=float("inf"))]
        if count - 1 - lows[-1] >= patience:
            return count
    return None


def test_it_stops_after_so_many_evaluations_without_a_lower_error(small, capsys):
    result = train(small(**OPTIONS))
    path, steps = result.directory, result.values["steps"]
    errors = [line["error_percent"] for line in evaluations(path)]
    assert result.finished and steps < 400 and stops_at(errors, 3) == len(errors) == steps // 4
    assert result.values["stopped_early"] == {"step": steps, "of": 400}
    assert json.loads((path / "result.json").read_text()) == result.values
    out = capsys.readouterr().out
    assert f"early stop at step {steps} of 400: the validation error has not fallen for 3 evaluation(s)" in out
    assert f"early stop   at step {steps} of 400" in result.summary() and "--weights best" in result.summary()
    last = [line for line in metrics(path) if line["kind"] == "train"][-1]
    assert last["step"] == steps  # all steps are in the log


def test_the_last_weights_and_the_best_are_both_there(small):
    result = train(small(**OPTIONS))
    path, best = result.directory, result.values["best"]
    assert best["step"] < result.values["steps"]
    assert best["validation_error_percent"] == min(line["error_percent"] for line in evaluations(path))
    assert evaluate_run(path)["error_percent"] == result.values["test_error_percent"]
    assert evaluate_run(path, weights="best")["error_percent"] == best["test_error_percent"]


def test_the_schedule_ends_where_it_stands(small):
    """Until it stops the run is the one without early stop, rates too."""
    stopped, whole = (
        train(small("stopped", **OPTIONS)),
        train(small("whole", **OPTIONS | dict(early_stop=None, steps=400))),
    )
    seen = evaluations(stopped.directory)
    assert len(seen) > 3 and seen == evaluations(whole.directory)[: len(seen)]
    rates = [{line["step"]: line["lr"] for line in metrics(run.directory) if "lr" in line} for run in (stopped, whole)]
    both = rates[0].keys() & rates[1].keys()
    assert both and all(rates[0][step] == rates[1][step] for step in both)
    assert whole.values["stopped_early"] is None and whole.values["steps"] == 400


@pytest.mark.parametrize("left", [0, 1, 5, 14])
def test_a_killed_run_stops_at_the_same_step(small, monkeypatch, left: int):
    """Killed so many steps before it would have stopped; at 0 it is killed between its last save and its result."""
    unbroken = train(small("unbroken", **OPTIONS))
    config = small("broken", checkpoint_seconds=0.0, **OPTIONS)
    if left:
        killed_after(monkeypatch, unbroken.values["steps"] - left, lambda: train(config))
    else:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr("verydeep.training.run.save_weights", interrupted)
            train(config)
    resumed = resume(config.out)
    assert resumed.finished and resumed.values["steps"] == unbroken.values["steps"]
    assert_same_run(unbroken.directory, resumed.directory)


def interrupted(*_) -> None:
    raise KeyboardInterrupt


def test_nan_is_never_a_lower_error():
    progress = Progress()
    for error, loss in [(50.0, 1.0), (10.0, float("nan")), (20.0, float("inf")), (49.0, 2.0), (49.0, 1.0), (49.5, 0.1)]:
        progress.validated(Evaluation(error, None, loss, 10))
    assert progress.best["error_percent"] == 49.0 and progress.best["loss"] == 1.0
    assert progress.stale_evaluations == 2  # an equal error with a lower loss is better, and no fall


def test_a_loss_that_is_never_finite_stops_the_run_with_no_best_weights(small):
    result = train(small(**OPTIONS | dict(early_stop=2)), Overflows(float("nan")))
    assert result.values["steps"] == 8 and result.values["best"] is None
    assert "--weights best" not in result.summary()


def test_without_validation_images_it_is_refused(small, tmp_path: Path):
    with pytest.raises(UsageError, match=r"early_stop 3: needs validation images, .* give --validation, such as 143,"):
        train(small(early_stop=3))
    assert list(tmp_path.iterdir()) == []


def test_at_the_last_step_the_run_has_not_stopped_early(small):
    options = OPTIONS | dict(schedule="constant", warmup=0.0)
    stopped = train(small("a", **options))
    assert stopped.values["stopped_early"] is not None
    result = train(small("b", **options | dict(steps=stopped.values["steps"])))
    errors = [line["error_percent"] for line in evaluations(result.directory)]
    assert stops_at(errors, 3) == len(errors)
    assert result.values["steps"] == stopped.values["steps"]
    assert result.values["stopped_early"] is None


def test_a_run_directory_from_before_these_fields_resumes(small, monkeypatch, digits: Data):
    """Fields that came later are absent from its config.yaml and its checkpoint."""
    later = ("early_stop", "logger", "lars_trust", "schedule_power")
    unbroken = train(small("unbroken", validation=200))
    config = small("old", checkpoint_seconds=0.0, validation=200)
    killed_after(monkeypatch, 6, lambda: train(config))
    file, last = Path(config.out) / "config.yaml", Path(config.out) / "checkpoints" / "last.pt"
    written = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({name: value for name, value in written.items() if name not in later}))
    values = torch.load(last, weights_only=True)
    for name in later:
        del values["config"][name]
    del values["progress"]["stale_evaluations"]
    torch.save(values, last)
    assert dataclasses.asdict(Progress(**values["progress"]))["stale_evaluations"] == 0
    assert_same_run(unbroken.directory, resume(config.out).directory)
