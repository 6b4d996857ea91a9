"""Whole runs on digits: files, exact resume from any step, bad steps, validation, errors."""

import dataclasses
import fcntl
import json
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import nn

from verydeep.config import RunConfig
from verydeep.data import Data, ResidentSplit, Split
from verydeep.errors import RunError, UsageError
from verydeep.nn.fused import plain_operations
from verydeep.saved import evaluate_run
from verydeep.training import run as run_module
from verydeep.training.distributed import World
from verydeep.training.evaluate import Evaluation
from verydeep.training.loop import resume, train
from verydeep.training.progress import improves
from verydeep.training.setup import plan_of
from verydeep.weights import read_card

CPU = torch.device("cpu")

EVERYTHING = dict(
    stochastic_depth=0.3, shortcut="dropout", shortcut_dropout=0.1, ema=0.9, accumulate=2, clip_grad_norm=5.0,
    label_smoothing=0.1, validation=200, crop_padding=1,
    mixup=0.2, cutmix=1.0, class_weights="balanced",
)  # fmt: skip


def metrics(path: Path) -> list[dict]:
    """The lines of metrics.jsonl, without what depends on the clock."""
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "images_per_second"} for line in lines]


def tensors(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of the last checkpoint: weights, buffers, momentum, average."""
    values = torch.load(path / "checkpoints" / "last.pt", weights_only=True)
    flat = {f"model.{name}": t for name, t in values["model"].items()} | {"tally": values["tally"]}
    flat |= {f"ema.{name}": t for name, t in (values["ema"] or {}).items()}
    states = values["optimizer"]["state"]
    return flat | {f"momentum.{i}": state["momentum_buffer"] for i, state in states.items()}


def assert_same_run(path: Path, other: Path) -> None:
    assert metrics(path) == metrics(other)
    ours, theirs = tensors(path), tensors(other)
    assert ours.keys() == theirs.keys() and len(ours) > 50
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []
    weights, other_weights = (load_file(p / "model.safetensors") for p in (path, other))
    assert all(torch.equal(weights[name], other_weights[name]) for name in weights)


class Killed(BaseException):
    """Stands for a process that dies: nothing in the package catches it."""


def killed_after(monkeypatch, steps: int, start) -> None:
    """Run `start()` and let it die in the step after `steps` more."""
    whole_step, done = run_module.train_step, 0

    def dying_step(*args, **options):
        nonlocal done
        if done == steps:
            raise Killed
        done += 1
        whole_step(*args, **options)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(run_module, "train_step", dying_step)
        start()


def test_a_run_leaves_its_files(small, digits: Data):
    config = small(steps=None, epochs=2, data="digits")
    result = train(config)
    path = result.directory
    assert result.finished and path == Path(config.out)
    written = yaml.safe_load((path / "config.yaml").read_text())
    assert RunConfig.from_dict(written) == config.resolved()
    kinds = [line["kind"] for line in metrics(path)]
    assert (
        kinds.count("test") == 2 and kinds.count("train") == 2 * 12
    )  # 45 steps an epoch, a line each 4 and at its end
    assert list(path.glob("events.*")) and (path / "checkpoints" / "last.pt").exists()
    values = json.loads((path / "result.json").read_text())
    assert values == result.values
    assert values["steps"] == 90 and 0 < values["train_loss"] < 2.3 and values["test_error_percent"] < 60
    assert values["peak_memory_bytes"] > 1e7 and values["seconds"] > 0
    assert values["num_parameters"] == sum(t.numel() for n, t in load_file(path / "model.safetensors").items()
                                           if "running" not in n and "num_batches" not in n)  # fmt: skip
    assert metrics(path)[-1]["error_percent"] == values["test_error_percent"]
    assert evaluate_run(path)["error_percent"] == values["test_error_percent"]
    assert evaluate_run(path)["num_images"] == len(digits.test)
    for text in ("test error", "peak memory", str(path)):
        assert text in result.summary()


def test_the_same_seed_gives_the_same_run_and_another_does_not(small, digits: Data):
    first, second = (train(small(name, **EVERYTHING), data=None) for name in ("a", "b"))
    assert_same_run(first.directory, second.directory)
    third = train(small("c", seed=1, **EVERYTHING))
    assert metrics(third.directory) != metrics(first.directory)


@pytest.mark.parametrize("steps", [0, 1, 5, 9, 11, 19])
def test_a_killed_run_resumes_bit_for_bit(small, monkeypatch, steps: int):
    """Killed in an epoch, at its end (9 steps of 2 x 80), before the first save; saved each step, or long before."""
    options = EVERYTHING | dict(batch_size=80, steps=20, log_steps=3)
    unbroken = train(small("unbroken", **options))
    config = small("broken", checkpoint_seconds=0.0 if steps != 11 else 1e9, **options)
    killed_after(monkeypatch, steps, lambda: train(config))
    resumed = resume(config.out)
    assert resumed.finished
    assert_same_run(unbroken.directory, resumed.directory)


def test_killed_again_and_again(small, monkeypatch):
    options = EVERYTHING | dict(steps=9, log_steps=2)
    unbroken = train(small("unbroken", **options))
    config = small("broken", checkpoint_seconds=0.0, **options)
    killed_after(monkeypatch, 2, lambda: train(config))
    for _ in range(3):
        killed_after(monkeypatch, 2, lambda: resume(config.out))
    resume(config.out)
    assert_same_run(unbroken.directory, Path(config.out))


def test_half_a_line_of_metrics_is_dropped_on_resume(small, monkeypatch):
    unbroken = train(small("unbroken"))
    config = small("broken", checkpoint_seconds=0.0)
    killed_after(monkeypatch, 6, lambda: train(config))
    with (Path(config.out) / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 8, "lo')
    resume(config.out)
    assert metrics(unbroken.directory) == metrics(Path(config.out))


def test_a_damaged_checkpoint_resumes_from_the_one_before(small, monkeypatch, capsys):
    unbroken = train(small("unbroken"))
    config = small("broken", checkpoint_seconds=0.0)
    killed_after(monkeypatch, 7, lambda: train(config))
    last = Path(config.out) / "checkpoints" / "last.pt"
    last.write_bytes(last.read_bytes()[:-100])
    resume(config.out)
    assert "is damaged" in capsys.readouterr().out
    assert_same_run(unbroken.directory, Path(config.out))


def test_a_finished_run_resumes_to_its_result(small):
    first = train(small(steps=2))
    before = {path: path.stat().st_mtime_ns for path in first.directory.rglob("*") if path.is_file()}
    again = resume(first.directory)
    assert again.finished and again.values == first.values
    assert all(path.stat().st_mtime_ns == time for path, time in before.items() if path.name != ".lock")


def test_a_run_is_never_written_over(small):
    first = train(small(steps=1))
    with pytest.raises(UsageError, match=f"out {first.directory}: holds a run already; .*--resume"):
        train(small(steps=1))


def test_a_directory_in_use_is_refused(small, monkeypatch):
    config = small()
    killed_after(monkeypatch, 2, lambda: train(config))
    with (Path(config.out) / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="in use by another process"):
            resume(config.out)
    assert resume(config.out).finished


def test_a_resumed_run_keeps_its_settings(small, monkeypatch):
    config = small(checkpoint_seconds=0.0)
    killed_after(monkeypatch, 2, lambda: train(config))
    with pytest.raises(UsageError, match=r"lr 0\.3 .*the run has 0\.05"):
        resume(config.out, {"lr": 0.3})
    assert resume(config.out, {"checkpoint_seconds": 5.0, "lr": 0.05}).finished


def test_a_checkpoint_of_another_model_is_refused(small, monkeypatch):
    config = small(checkpoint_seconds=0.0)
    killed_after(monkeypatch, 2, lambda: train(config))
    path = Path(config.out) / "config.yaml"
    path.write_text(path.read_text().replace("preact_resnet8_cifar", "resnet8_cifar"))
    with pytest.raises(UsageError, match="holds another network"):
        resume(config.out)


class Spoilt(Split):
    """A split one of whose images is NaN once it is on the device."""

    def __init__(self, split: Split, index: int) -> None:
        self.split, self.index, self.labels = split, index, split.labels

    def batches(self, index_batches, *, epoch, device):
        index_batches = list(index_batches)
        whole = self.split.batches(index_batches, epoch=epoch, device=device)
        for indices, (images, labels) in zip(index_batches, whole, strict=True):
            images[indices == self.index] = float("nan")
            yield images, labels

    def with_labels(self, labels):
        return Spoilt(self.split.with_labels(labels), self.index)


def test_bad_steps_are_named_and_counted_and_the_rest_goes_on(small, digits: Data, capsys):
    result = train(small(steps=90), data=dataclasses.replace(digits, train=Spoilt(digits.train, 17)))
    bad = [line for line in metrics(result.directory) if line["kind"] == "bad"]
    assert len(bad) == 2 and all(line["site"] == "input" for line in bad)  # once an epoch of 45 steps
    assert result.values["bad_steps"] == 2 and result.values["test_error_percent"] < 60
    assert f"first at step {bad[0]['first_step']}, site: input" in capsys.readouterr().out


def test_too_many_bad_steps_stop_the_run_with_its_weights_finite(small):
    config = small(lr=1e30, max_bad_steps=3, steps=40, schedule="constant", warmup=0.0)
    with pytest.raises(RunError, match=r"first at step \d+, site: .*such steps in all, the run stops at 3"):
        train(config)
    kept = tensors(Path(config.out))
    assert all(torch.isfinite(tensor).all() for tensor in kept.values())


class BlowsUp(nn.Module):
    """A network whose second layer divides by zero from the third step on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.calls = nn.Linear(64, 16), Divide(), 0
        self.head = nn.Linear(16, 10)

    def forward(self, images):
        return self.head(self.second(self.first(images.flatten(1))))


class Divide(nn.Module):
    calls = 0

    def forward(self, x):
        self.calls += self.training
        return x / (0 if self.calls > 2 else 1)


def test_the_first_site_that_is_not_finite_is_named(small):
    with pytest.raises(RunError, match="first at step 2, site: output of second"):
        train(small(max_bad_steps=1), BlowsUp())


def test_last_and_best_are_both_reported(small):
    result = train(small(steps=None, epochs=3, validation=300, ema=0.0))
    evaluations = [line for line in metrics(result.directory) if line["kind"] == "validation"]
    best = result.values["best"]
    assert len(evaluations) == 3 and not any(line["kind"] == "test" for line in metrics(result.directory))
    assert best["validation_error_percent"] == min(line["error_percent"] for line in evaluations)
    assert best["step"] in [line["step"] for line in evaluations]
    assert result.values["test_error_percent"] is not None and best["test_error_percent"] is not None


def test_best_never_chooses_nan():
    best = None
    for loss in (1.0, float("nan"), 0.9):
        evaluation = Evaluation(error_percent=50.0, top5_error_percent=None, loss=loss, num_images=10)
        if improves(evaluation, best):
            best = evaluation.to_dict()
    assert best["loss"] == 0.9
    assert not improves(Evaluation(0.0, None, float("nan"), 10), None)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_run_of_few_steps(small, steps: int):
    assert train(small(steps=steps)).values["steps"] == steps


def test_any_module_trains_and_the_callers_random_state_stays(small):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    result = train(small(steps=3), model)
    assert torch.equal(torch.rand(3), expected)
    assert result.values["num_parameters"] == 650


def test_a_function_in_a_file_is_a_model(small, tmp_path: Path, monkeypatch):
    network = "nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))"
    (tmp_path / "mine.py").write_text(f"from torch import nn\ndef build(num_classes):\n    return {network}\n")
    config = small(model=f"{tmp_path}/mine.py:build", checkpoint_seconds=0.0, steps=4)
    killed_after(monkeypatch, 2, lambda: train(config))
    with pytest.raises(UsageError, match=r"give --model .*mine\.py:build again"):
        resume(config.out)
    assert resume(config.out, {"model": config.model}).finished
    with pytest.raises(UsageError, match=r"the user's own code .*; give --model .*mine\.py:build"):
        evaluate_run(config.out)
    assert evaluate_run(config.out, model=config.model)["num_images"] == 359
    with pytest.raises(UsageError, match="has no function 'buidl'; it has build"):
        train(small("other", model=f"{tmp_path}/mine.py:buidl"))


def test_a_batch_that_cannot_fit_says_what_would(small, monkeypatch):
    monkeypatch.setattr("verydeep.training.fit.free_bytes", lambda device: 10_000_000)
    with pytest.raises(
        UsageError, match=r"batch_size 1000: a step keeps .* GB, 0\.0 GB are free on cpu; nearest that fits \d+"
    ):
        train(small(batch_size=1000))


def test_out_of_memory_is_one_line(small, monkeypatch):
    def exhausted(*_, **__):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")

    monkeypatch.setattr(run_module, "train_step", exhausted)
    with pytest.raises(RunError, match=r"out of memory at batch_size 32.*--batch-size 16"):
        train(small())


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_the_drop_at_a_milestone_comes_at_its_step_wherever_the_run_is_resumed(small, monkeypatch, steps: int):
    config = small(
        steps=8, lr=0.1, schedule="steps", milestones=(0.5,), warmup=0.0, log_steps=1, checkpoint_seconds=0.0
    )
    killed_after(monkeypatch, steps, lambda: train(config))
    resume(config.out)
    logged = [line["lr"] for line in metrics(Path(config.out)) if line["kind"] == "train"]
    assert logged == pytest.approx([0.1] * 4 + [0.01] * 4)


def test_a_start_that_fails_leaves_nothing(small, tmp_path: Path):
    for changes in (dict(model="resnt20"), dict(data="digts"), dict(norm="none", scale="fixup", unit="one_layer")):
        with pytest.raises(UsageError):
            train(small(**changes))
    assert list(tmp_path.iterdir()) == []
    assert train(small(steps=1)).finished


def test_a_run_of_a_given_module_says_so(small, digits: Data):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    path = train(small(steps=2, data="cifar10"), model, data=digits).directory
    written = yaml.safe_load((path / "config.yaml").read_text())
    assert (written["model"], written["data"]) == ("module:Sequential", "digits")
    assert read_card(path / "model.safetensors").model == "module:Sequential"
    with pytest.raises(UsageError, match=r"the user's own code \(module:Sequential\); give --model FILE\.py:FUNCTION"):
        evaluate_run(path)
    (path / "result.json").unlink()
    with pytest.raises(UsageError, match="was given to `train` as a module; give it to `resume` again"):
        resume(path)


def test_resume_refuses_other_data_and_keeps_the_runs_device(small, monkeypatch, digits: Data):
    config = small(checkpoint_seconds=0.0, device="cpu")
    killed_after(monkeypatch, 2, lambda: train(config))
    fewer = dataclasses.replace(digits, train=ResidentSplit(digits.train.images[:700], digits.train.labels[:700],
                                                            digits.mean, digits.std))  # fmt: skip
    with pytest.raises(UsageError, match="training images were 1438, now 700"):
        resume(config.out, data=fewer)
    asked = []
    with monkeypatch.context() as patch:
        patch.setattr("verydeep.training.distributed.choose_device", lambda name, **_: asked.append(name) or CPU)
        resume(config.out)
    assert asked == ["cpu"]


def test_an_edited_config_with_a_value_of_another_type_is_one_line(small, monkeypatch):
    config = small()
    killed_after(monkeypatch, 1, lambda: train(config))
    path = Path(config.out) / "config.yaml"
    path.write_text(path.read_text().replace("lr: 0.05", "lr: 5e-2"))  # text in YAML 1.1
    with pytest.raises(UsageError, match="lr '5e-2': must be a number"):
        resume(config.out)


def test_groups_that_processes_would_make_smaller_are_refused():
    config = RunConfig(batch_size=128, bn_group_size=64).resolved()
    with pytest.raises(UsageError, match=r"bn_group_size 64 on 4 processes: a batch of 128 has 2 groups.*nearest 32"):
        plan_of(config, nn.Linear(1, 1), 1000, World(rank=0, size=4, device=CPU))


class Overflows(nn.Module):
    """A classifier of digits whose logits are multiplied by a number where it is evaluated."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)
        self.factor = factor

    def forward(self, images):
        logits = self.linear(images.flatten(1))
        return logits if self.training else logits * self.factor


def test_a_loss_that_is_not_finite_is_null_in_the_files(small):
    path = train(small(steps=2), Overflows(float("inf"))).directory
    text = (path / "metrics.jsonl").read_text() + (path / "result.json").read_text()
    assert "NaN" not in text and json.loads((path / "result.json").read_text())["test_loss"] is None


def test_other_dtypes_and_foreign_code_do_not_stop_the_memory_check(small):
    class Foreign(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 10)

        def forward(self, images):
            assert images.mean().item() < 100  # impossible on the meta device
            return self.linear(images.flatten(1))

    assert train(small(steps=1), Foreign()).finished


def test_equal_runs_write_equal_bytes(small):
    paths = [train(small(name, steps=3)).directory / "model.safetensors" for name in "ab"]
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_an_edited_setting_is_refused_on_resume(small, monkeypatch):
    config = small(checkpoint_seconds=0.0)
    killed_after(monkeypatch, 2, lambda: train(config))
    path = Path(config.out) / "config.yaml"
    path.write_text(path.read_text().replace("momentum: 0.9", "momentum: 0.5"))
    with pytest.raises(UsageError, match=r"momentum was 0\.9 until now, config\.yaml says 0\.5"):
        resume(config.out)


@pytest.mark.parametrize("name", ["checkpoints", "metrics.jsonl", "result.json", "model.safetensors"])
def test_files_of_another_run_are_never_written_over(small, tmp_path: Path, name: str):
    path = train(small(steps=1)).directory
    (path / "config.yaml").unlink()
    for other in ("checkpoints", "metrics.jsonl", "result.json", "model.safetensors"):
        if other != name:
            (path / other).rename(tmp_path / other)
    with pytest.raises(UsageError, match=f"holds {name} of another run; give another directory"):
        train(small(steps=1))


def test_a_line_of_metrics_that_is_none_is_named(small, monkeypatch):
    config = small(checkpoint_seconds=0.0)
    killed_after(monkeypatch, 4, lambda: train(config))
    path = Path(config.out) / "metrics.jsonl"
    path.write_text("garbage\n" + path.read_text())
    with pytest.raises(UsageError, match=r"metrics\.jsonl: is not as verydeep wrote it: 'garbage'"):
        resume(config.out)


def test_the_best_weights_can_be_used(small):
    result = train(small(steps=None, epochs=3, validation=300))
    path, best = result.directory, result.values["best"]
    assert evaluate_run(path, weights="best")["error_percent"] == best["test_error_percent"]
    assert evaluate_run(path)["error_percent"] == result.values["test_error_percent"]
    plain = train(small("plain", steps=1)).directory
    with pytest.raises(UsageError, match="there are none; a run with --validation chooses them"):
        evaluate_run(plain, weights="best")


def test_a_best_checkpoint_that_is_gone_does_not_stop_the_end(small, monkeypatch, capsys):
    config = small(steps=None, epochs=2, validation=300, checkpoint_seconds=0.0)
    killed_after(monkeypatch, 40, lambda: train(config))
    (Path(config.out) / "checkpoints" / "best.pt").unlink()
    monkeypatch.setattr("verydeep.training.progress.improves", lambda evaluation, best: False)
    result = resume(config.out)
    assert result.finished and result.values["best"]["test_error_percent"] is None
    assert "is not there; the best weights are not evaluated" in capsys.readouterr().out


OWN_CODE = {
    "raise ValueError('boom')": "its code fails: ValueError: boom",
    "raise SystemExit(3)": "its code fails: SystemExit: 3",
    "return nn.Sequential(nn.Flatten(), nn.Linear(64, 7))": r".* must return logits \(2, 10\), .* \(2, 7\)",
    "return nn.Sequential(nn.Flatten(), nn.Linear(9, 10))": r"fails on images \(2, 1, 8, 8\): RuntimeError",
    "return nn.Flatten()": r".* must return logits \(2, 10\)",
    "return 5": r"must return a torch\.nn\.Module, it returns int",
}


@pytest.mark.parametrize("body", OWN_CODE)
def test_mistakes_in_the_users_code_are_one_line(small, tmp_path: Path, body: str):
    (tmp_path / "own.py").write_text(f"from torch import nn\ndef build():\n    {body}\n")
    with pytest.raises(UsageError, match=f"own.py:build: {OWN_CODE[body]}"):
        train(small(model=f"{tmp_path}/own.py:build"))
    assert not (tmp_path / "run").exists()


def test_the_users_file_imports_its_neighbour_and_has_dataclasses(small, tmp_path: Path):
    (tmp_path / "verydeep_neighbour.py").write_text("CLASSES = 10\n")
    (tmp_path / "with_neighbour.py").write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom torch import nn\n"
        "from verydeep_neighbour import CLASSES\n@dataclass\nclass Size:\n    n: int = CLASSES\n"
        "def build():\n    return nn.Sequential(nn.Flatten(), nn.LazyLinear(Size().n))\n"
    )
    assert train(small(model=f"{tmp_path}/with_neighbour.py:build", steps=1)).finished


def test_training_works_where_gradients_are_switched_off(small):
    with torch.no_grad():
        assert train(small(steps=2)).values["train_loss"] is not None


def test_a_name_that_is_legal_only_with_an_option_trains(small):
    """17 = 3n+2: layers of units of one layer, and of no other."""
    assert train(small(model="resnet17_cifar", unit="one_layer", steps=1)).finished


GOLDEN = [2.2318, 2.01265]


def test_golden_losses(small):
    """Twenty steps of a small network: a refactor that changes the numbers is seen."""

    def losses(name: str) -> list[float]:
        result = train(small(name, steps=20, log_steps=10, schedule="constant", warmup=0.0, lr=0.05))
        return [line["loss"] for line in metrics(result.directory) if line["kind"] == "train"]

    with plain_operations():
        assert losses("plain") == pytest.approx(GOLDEN, rel=1e-3)
    # the fused operations round otherwise, and twenty steps at this rate let the difference grow
    assert losses("fused") == pytest.approx(GOLDEN, rel=5e-3)


@pytest.mark.gpu
def test_two_runs_on_a_gpu_with_deterministic_algorithms_agree(small, monkeypatch):
    """What has no deterministic algorithm, such as adaptive pooling, would raise."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        runs = [train(small(name, device="cuda")).directory for name in ("one", "two")]
    finally:
        torch.use_deterministic_algorithms(False)
    one, two = (load_file(path / "model.safetensors") for path in runs)
    assert all(torch.equal(tensor, two[name]) for name, tensor in one.items())
