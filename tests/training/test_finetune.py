"""Runs that start from weights of others: what is taken, replaced, frozen, resumed and refused."""

import dataclasses
from pathlib import Path

import pytest
import torch
import torchvision
import yaml
from safetensors.torch import load_file, save_file
from torch import nn

from tests.training.test_run import killed_after
from verydeep import create_model, import_weights
from verydeep.config import RunConfig
from verydeep.errors import UsageError
from verydeep.saved import evaluate_run
from verydeep.training import run as run_module
from verydeep.training.finetune import start_from
from verydeep.training.loop import resume, train


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("base") / "run"
    train(RunConfig(model="preact_resnet8_cifar", epochs=4, batch_size=32, out=str(path)))
    return path


def test_a_run_goes_on_from_anothers_weights(base: Path, small, capsys):
    config = small(finetune=str(base), steps=1, lr=1e-6)
    train(config)
    own, given = load_file(Path(config.out) / "model.safetensors"), load_file(base / "model.safetensors")
    name = "stages.1.0.branch.conv1.weight"
    torch.testing.assert_close(own[name], given[name], atol=1e-4, rtol=0)
    assert "all weights taken" in capsys.readouterr().out
    assert evaluate_run(config.out, device="cpu")["error_percent"] < 20
    recorded = yaml.safe_load((Path(config.out) / "config.yaml").read_text())
    assert recorded["finetune"] == str(base) and recorded["freeze"] is None


def test_frozen_parts_of_a_run_are_bitwise_those_of_the_file(base: Path, small):
    config = small(finetune=str(base / "model.safetensors"), freeze="stem, stages.0", ema=0.9, steps=10)
    train(config)
    own, given = load_file(Path(config.out) / "model.safetensors"), load_file(base / "model.safetensors")
    for name, tensor in given.items():
        frozen = name.startswith(("stem.", "stages.0."))
        assert torch.equal(own[name], tensor) == frozen, name


@pytest.mark.parametrize("option", [dict(memory_budget="40MB"), dict(bn_group_size=16), dict(accumulate=2)])
def test_frozen_parts_rest_under_every_way_to_take_a_step(base: Path, small, option):
    config = small(finetune=str(base), freeze="stages.1", steps=3, **option)
    train(config)
    own, given = load_file(Path(config.out) / "model.safetensors"), load_file(base / "model.safetensors")
    for name, tensor in given.items():
        assert torch.equal(own[name], tensor) == name.startswith("stages.1."), name


@pytest.mark.parametrize("steps", [0, 5])
def test_a_resumed_run_is_the_unbroken_one_and_does_not_load_again(base: Path, small, monkeypatch, steps: int):
    """Killed before the first checkpoint it needs the file again, afterwards no more."""
    whole = small("whole", finetune=str(base), freeze="stem", checkpoint_seconds=0)
    train(whole)
    broken = dataclasses.replace(whole, out=whole.out.replace("whole", "broken"))
    killed_after(monkeypatch, steps, lambda: train(broken))
    calls = []
    monkeypatch.setattr(run_module, "start_from", lambda *given: calls.append(given) or start_from(*given))
    resume(broken.out)
    assert len(calls) == (1 if steps == 0 else 0)
    weights = [load_file(Path(config.out) / "model.safetensors") for config in (whole, broken)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    with pytest.raises(UsageError, match=r"freeze 'stages\.0' with resume"):
        resume(broken.out, {"freeze": "stages.0"})


def torchvision_file(path: Path, *, kind: str, name: str = "resnet18") -> Path:
    torch.manual_seed(0)
    state = torchvision.models.get_model(name, num_classes=12).state_dict()
    if kind == "safetensors":
        save_file(state, path / "weights.safetensors")
        return path / "weights.safetensors"
    torch.save({"state_dict": {"state_dict": state, "epoch": 3}, "raw": state}[kind], path / "weights.pth")
    return path / "weights.pth"


@pytest.mark.parametrize("kind", ["raw", "state_dict", "safetensors"])
def test_torchvisions_weights_with_another_head(tmp_path: Path, kind: str):
    file = torchvision_file(tmp_path, kind=kind)
    model = create_model("resnet18", num_classes=5)
    head = model.head.linear.weight.detach().clone()
    assert start_from(model, file) == f"finetune {file}: weights taken; the head replaced, 12 classes there, 5 here"
    assert torch.equal(model.head.linear.weight, head)
    torch.manual_seed(0)
    given = torchvision.models.resnet18(num_classes=12)
    assert torch.equal(model.stages[3][1].branch.conv2.weight, given.layer4[1].conv2.weight)
    same = create_model("resnet18", num_classes=12)
    assert "all weights taken" in start_from(same, file)
    assert torch.equal(same.head.linear.bias, given.fc.bias)


def test_the_users_own_module_takes_weights_by_their_names(tmp_path: Path):
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2, 3))
    state = {f"module.{key}": torch.ones_like(value) for key, value in module.state_dict().items()}
    torch.save(state, tmp_path / "own.pt")
    start_from(module, tmp_path / "own.pt")
    assert all((parameter == 1).all() for parameter in module.parameters())
    with pytest.raises(UsageError, match=r"finetune .*: holds another model; 0\.weight is"):
        start_from(nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4, 3)), tmp_path / "own.pt")


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("preact_resnet8_cifar", dict(order="original"), "order original with finetune .*: .* order full_preact"),
        ("preact_resnet14_cifar", {}, r"stage_units \[2, 2, 2\] with finetune .*: .* stage_units \[1, 1, 1\]"),
        ("preact_resnet8_cifar", dict(in_channels=3), "in_channels 3 with finetune .*: .* in_channels 1"),
        ("preact_resnet8_cifar", dict(option="B"), "option B with finetune .*: .* option A; nearest A"),
    ],
)
def test_another_network_is_refused_by_the_option_that_differs(base: Path, model, options, message):
    with pytest.raises(UsageError, match=message):
        start_from(create_model(model, **dict(in_channels=1) | options), base)


def test_the_place_of_the_stride_is_compared(tmp_path: Path):
    file = torchvision_file(tmp_path, kind="raw", name="resnet50")
    with pytest.raises(UsageError, match=r"stride_on 1x1 with finetune .*: its network has stride_on 3x3; nearest 3x3"):
        start_from(create_model("resnet50", num_classes=5), file)
    model = create_model("resnet50", num_classes=12, stride_on="3x3")
    start_from(model, file)
    other = import_weights(torch.load(file, weights_only=True))
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in model.state_dict().items())


class Runs:
    """What a pickle may not do."""

    def __reduce__(self):
        return print, ("executed",)


@pytest.mark.parametrize(
    ("name", "write", "message"),
    [
        ("absent.pth", None, "absent.pth: no such file"),
        ("folder", lambda path: path.mkdir(), "folder: no model.safetensors there"),
        ("code.pth", lambda path: torch.save({"a": Runs()}, path), "code.pth: refused"),
        ("text.pth", lambda path: path.write_text("no weights"), "text.pth: "),
        ("empty.pth", lambda path: path.write_bytes(b""), "empty.pth: cannot be read"),
        ("list.pth", lambda path: torch.save([1], path), "list.pth: holds list"),
        ("text.safetensors", lambda path: path.write_text("no weights"), "cannot be read as safetensors"),
        ("other.pth", lambda path: torch.save({"a": torch.ones(1)}, path), "their names .a, .... are not those of"),
        ("numbers.pth", lambda path: torch.save({"a": 1}, path), "'a' holds int"),
    ],
)
def test_what_is_no_weights_is_one_line(tmp_path: Path, capsys, name, write, message):
    if write:
        write(tmp_path / name)
    with pytest.raises(UsageError, match=f"finetune .*{message}") as caught:
        start_from(create_model("resnet8_cifar"), tmp_path / name)
    assert "\n" not in str(caught.value) and "executed" not in capsys.readouterr().out


def test_a_checkpoint_of_a_run_points_to_the_run(base: Path):
    with pytest.raises(UsageError, match="is a checkpoint of a run; give the run's directory"):
        start_from(create_model("preact_resnet8_cifar"), base / "checkpoints" / "last.pt")


def test_a_start_that_is_refused_leaves_nothing(small):
    for changes in (dict(finetune="absent"), dict(freeze="stages.7"), dict(freeze=",")):
        config = small(**changes)
        with pytest.raises(UsageError):
            train(config)
        assert not Path(config.out).exists()
