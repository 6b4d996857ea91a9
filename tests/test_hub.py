"""Networks in hub folders and under timm's and torch.hub's names: offline round trips, the same logits everywhere."""

import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml

from verydeep import create_model, list_models
from verydeep.config import RunConfig
from verydeep.errors import UsageError
from verydeep.models.catalogue import RESNETS
from verydeep.saved import load_network, load_run
from verydeep.training.loop import train
from verydeep.weights import ModelCard, read_card

hub = pytest.importorskip("verydeep.hub")
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "digits"
    train(RunConfig(model="preact_resnet8_cifar", option="B", steps=20, batch_size=32, out=str(path)))
    return path


@pytest.fixture(scope="module")
def folder(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hub") / "network"
    hub.HubModel.of_run(run).save_pretrained(path)
    return path


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def test_a_folder_holds_the_network_of_the_run(run: Path, folder: Path, images):
    expected = load_run(run, device="cpu").model(images)
    loaded = hub.HubModel.from_pretrained(folder)
    assert torch.equal(loaded(images), expected) and not loaded.training
    assert loaded.card == read_card(run / "model.safetensors")
    assert (folder / "model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()
    network, card = load_network(folder)
    assert torch.equal(network(images), expected) and card == loaded.card
    assert torch.equal(load_network(folder / "model.safetensors")[0](images), expected)


def test_saved_again_it_is_the_same(folder: Path, tmp_path: Path):
    hub.HubModel.from_pretrained(str(folder)).save_pretrained(tmp_path / "again")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()


def test_the_page_is_the_runs_config_and_result(run: Path, folder: Path):
    page = (folder / "README.md").read_text()
    result = json.loads((run / "result.json").read_text())
    _, front, body = page.split("---\n", 2)
    values = yaml.safe_load(front)
    metric = values["model-index"][0]["results"][0]["metrics"][0]
    assert metric["value"] == pytest.approx(1 - result["test_error_percent"] / 100, abs=1e-6)
    assert values["library_name"] == "verydeep" and values["pipeline_tag"] == "image-classification"
    rows = dict(line[2:-2].split(" | ") for line in body.splitlines() if re.fullmatch(r"\| .+ \| .+ \|", line))
    assert rows["test_error_percent"] == str(result["test_error_percent"])
    assert (rows["option"], rows["order"], rows["steps"]) == ("B", "full_preact", "20")
    assert rows["batch_size"] == "32" and rows["classes"].startswith("10: 0, 1, 2")
    assert "out" not in rows and result["command"] in body
    bare = hub.model_page(read_card(run / "model.safetensors"))
    assert "## Measured" not in bare and "model-index" not in bare


def test_push_sends_the_folder(folder: Path, monkeypatch):
    sent = {}

    class Api:
        def __init__(self, token=None): ...

        def create_repo(self, repo_id, **_):
            return type("Repo", (), {"repo_id": repo_id})

        def upload_folder(self, *, repo_id, folder_path, **_):
            sent.update({path.name: path.read_bytes() for path in Path(folder_path).iterdir()}, repo=repo_id)
            return "url"

    monkeypatch.setattr("huggingface_hub.hub_mixin.HfApi", Api)
    assert hub.HubModel.from_pretrained(folder).push_to_hub("user/name") == "url"
    assert sent.keys() == {"model.safetensors", "config.json", "README.md", "repo"} and sent["repo"] == "user/name"
    assert sent["model.safetensors"] == (folder / "model.safetensors").read_bytes()


def test_own_code_does_not_go_to_a_hub(folder: Path, tmp_path: Path):
    card = ModelCard("own.py:make", None, ("a", "b"), 8, 1, (0.5,), (0.5,), True)
    with pytest.raises(UsageError, match=r"model own\.py:make: is your own code"):
        hub.HubModel(torch.nn.Linear(1, 2), card)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"no model\.safetensors there"):
        load_network(tmp_path / "empty")


@torch.no_grad()
def test_timm_makes_and_loads_our_networks(run: Path, folder: Path, images, caplog):
    timm = pytest.importorskip("timm")
    pytest.importorskip("verydeep.timm")
    assert set(timm.list_models("verydeep_*")) == {f"verydeep_{name}" for name in RESNETS}
    torch.manual_seed(0)
    ours = create_model("preact_resnet20_cifar", num_classes=7, in_channels=1, stochastic_depth=0.2)
    torch.manual_seed(0)
    theirs = timm.create_model("verydeep_preact_resnet20_cifar", num_classes=7, in_chans=1, drop_path_rate=0.2)
    assert theirs.spec == ours.spec and theirs.num_classes == 7
    assert torch.equal(theirs.eval()(images), ours.eval()(images))
    assert timm.create_model("verydeep", name="preact_resnet29_cifar", num_classes=3).spec.depth == 29
    loaded = timm.create_model(f"local-dir:{folder}", pretrained=True)
    assert torch.equal(loaded.eval()(images), load_run(run, device="cpu").model(images))
    other = timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=4)
    assert other(images).shape == (3, 4)
    weight = other.state_dict()["stages.0.0.branch.conv1.weight"]
    assert torch.equal(weight, loaded.state_dict()["stages.0.0.branch.conv1.weight"])
    config = timm.data.resolve_data_config(model=loaded)
    assert (
        tuple(config["input_size"]) == (1, 8, 8) and tuple(config["mean"]) == read_card(run / "model.safetensors").mean
    )
    assert not [record for record in caplog.records if "configuration" in record.message]
    with pytest.raises(UsageError, match="model verydeep: name is required"):
        timm.create_model("verydeep")


@torch.no_grad()
def test_torch_hub_loads_from_the_repository(run: Path, folder: Path, images):
    load = partial(torch.hub.load, str(ROOT), source="local")
    torch.manual_seed(0)
    theirs = load("preact_resnet20_cifar", in_channels=1)
    torch.manual_seed(0)
    assert torch.equal(theirs.eval()(images), create_model("preact_resnet20_cifar", in_channels=1).eval()(images))
    assert load("create_model", "preact_resnet29_cifar").spec.depth == 29
    for path in (run, folder, run / "model.safetensors"):
        assert torch.equal(load("pretrained", str(path))(images), load_run(run, device="cpu").model(images))
    for entry in list_models("plain*"):
        assert load(entry, num_classes=3).spec.num_classes == 3


def test_torch_hub_needs_no_installation(tmp_path: Path):
    """From another folder, the package found through the repository alone."""
    code = f"import torch; print(torch.hub.load({str(ROOT)!r}, 'resnet20_cifar', source='local').spec.depth)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "20"
