"""A finished run used by others: evaluate, predict, export, each on real files; and files that lie."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_digits

import verydeep
from verydeep.config import RunConfig
from verydeep.data import epoch_order, eval_image, load_data
from verydeep.errors import RunError, UsageError
from verydeep.export import export_run
from verydeep.onnx import runner
from verydeep.predict import predict
from verydeep.recalibrate import recalibrate_run
from verydeep.saved import evaluate_run, load_run, read_card
from verydeep.training.loop import train


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small network that has learnt the digits: two epochs."""
    path = tmp_path_factory.mktemp("runs") / "digits"
    train(RunConfig(model="preact_resnet8_cifar", epochs=4, batch_size=32, out=str(path)))
    return path


def write_digits(folder: Path, rows: range, *, classes: str = "0123456789") -> int:
    """Digits as PNG files in class folders, as a user would have them; returns how many."""
    digits = load_digits()
    rows = [i for i in rows if str(digits.target[i]) in classes]
    for i in rows:
        path = folder / str(digits.target[i]) / f"{i:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.round(digits.images[i] * 255 / 16).astype(np.uint8)).save(path)
    return len(rows)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    write_digits(tmp_path / "images", range(40))
    return tmp_path / "images"


@pytest.fixture(scope="module")
def folder_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same network on a folder of PNG files, which are read as colour."""
    folder = tmp_path_factory.mktemp("folder")
    write_digits(folder / "train", range(1200))
    write_digits(folder / "val", range(1200, 1500))
    path = folder / "run"
    config = RunConfig(model="preact_resnet8_cifar", data=f"folder:{folder}", image_size=8, flip=False, epochs=4)
    train(dataclasses.replace(config, out=str(path)))
    return path


def test_a_loaded_run_is_the_trained_network(run: Path):
    saved = load_run(run, device="cpu")
    assert not saved.model.training
    weights = load_file(run / "model.safetensors")
    assert all(torch.equal(t, weights[name]) for name, t in saved.model.state_dict().items())
    assert saved.card.classes == tuple("0123456789") and saved.card.channels == 1 and saved.card.resident
    assert verydeep.load_run is load_run


def test_predictions_are_right_about_as_often_as_on_the_test_set(run: Path, images: Path):
    predictions = predict(run, [images], top=3, device="cpu")
    assert len(predictions) == 40 and all(p.error is None and len(p.classes) == 3 for p in predictions)
    hits = sum(Path(p.path).parent.name == p.classes[0][0] for p in predictions)
    assert hits >= 34
    for prediction in predictions:
        probabilities = [probability for _, probability in prediction.classes]
        assert probabilities == sorted(probabilities, reverse=True) and 0 < sum(probabilities) <= 1.0001
    assert len(predict(run, [images], top=100, device="cpu")[0].classes) == 10


def test_a_file_that_is_no_image_is_named_and_the_rest_goes_on(run: Path, images: Path):
    bad = images / "0" / "bad.png"
    bad.write_bytes(b"not an image")
    predictions = predict(run, [bad, images / "1"], device="cpu")
    assert predictions[0].classes is None and "bad.png" in predictions[0].error
    assert all(p.error is None for p in predictions[1:]) and len(predictions) > 1


def test_what_cannot_be_predicted_is_one_line(run: Path, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no such file or folder"):
        predict(run, [tmp_path / "absent.png"])
    with pytest.raises(UsageError, match="no images in it"):
        predict(run, [tmp_path / "empty"])
    with pytest.raises(UsageError, match="top 0: must be at least 1"):
        predict(run, [tmp_path], top=0)


def test_another_folder_is_evaluated_by_class_name(folder_run: Path, tmp_path: Path):
    """Three of the classes, whose labels in their own folder are 0, 1, 2: matched by name, the error stays low."""
    own = evaluate_run(folder_run, device="cpu")
    assert own["num_images"] == 300 and own["error_percent"] < 25
    count = write_digits(tmp_path / "val", range(1500, 1797), classes="479")
    measured = evaluate_run(folder_run, data=f"folder:{tmp_path}", device="cpu")
    assert measured["num_images"] == count > 50 and measured["error_percent"] < 35
    predictions = predict(folder_run, [tmp_path / "val"], top=1, device="cpu")
    wrong = sum(Path(p.path).parent.name != p.classes[0][0] for p in predictions)
    assert measured["error_percent"] == pytest.approx(100 * wrong / count)


def test_a_class_that_the_network_does_not_know_is_named(folder_run: Path, tmp_path: Path):
    (tmp_path / "val" / "ten").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "val" / "ten" / "a.png")
    with pytest.raises(UsageError, match="class 'ten'"):
        evaluate_run(folder_run, data=f"folder:{tmp_path}", device="cpu")


def test_colour_for_a_network_of_grey_images_is_refused(run: Path, tmp_path: Path):
    write_digits(tmp_path / "val", range(40))
    with pytest.raises(UsageError, match="images of 3 channels; the network takes 1"):
        evaluate_run(run, data=f"folder:{tmp_path}", device="cpu")


def test_export_is_a_whole_file_with_the_architecture(run: Path, tmp_path: Path):
    target = tmp_path / "net.safetensors"
    written = export_run(run, format="safetensors", out=target)
    assert written["bytes"] == target.stat().st_size
    with safe_open(target, framework="pt") as file:
        metadata = json.loads(file.metadata()["verydeep"])
    assert metadata["spec"]["order"] == "full_preact" and metadata["classes"] == list("0123456789")
    assert metadata["versions"]["torch"] == torch.__version__
    assert read_card(target).model == "preact_resnet8_cifar"
    with pytest.raises(UsageError, match="exists"):
        export_run(run, format="safetensors", out=target)
    with pytest.raises(UsageError, match="format 'onx'"):
        export_run(run, format="onx", out=tmp_path / "x")


def test_an_onnx_file_gives_the_predictions_of_the_run(run: Path, images: Path, tmp_path: Path):
    """Folded, with the card in it, and its speed measured beside the network's."""
    target = tmp_path / "net.onnx"
    written = export_run(run, format="ONNX", out=target, fold=True, opset=18)
    assert written["bytes"] == target.stat().st_size and written["difference"] < 1e-4 and written["folded"]
    assert {name for name in written if name.endswith("images_per_second")} == {
        f"{side}_batch_{size}_images_per_second"
        for side in ("eager", "eager_folded", "onnxruntime")
        for size in (1, 64)
    }
    (entry,) = onnx.load(target).metadata_props
    assert entry.key == "verydeep" and json.loads(entry.value)["classes"] == list("0123456789")
    card, files = read_card(run / "model.safetensors"), sorted(images.rglob("*.png"))
    style = {"channels": 1, "mean": card.mean, "std": card.std, "resident_style": True}
    batch = torch.stack([eval_image(file, image_size=card.image_size, **style) for file in files])
    probabilities = runner(target)(batch).softmax(1).max(1)
    predictions = predict(run, [images], top=1, device="cpu")
    assert [p.path for p in predictions] == list(map(str, files))
    assert [card.classes[i] for i in probabilities.indices.tolist()] == [p.classes[0][0] for p in predictions]
    assert probabilities.values.tolist() == pytest.approx([p.classes[0][1] for p in predictions], abs=1e-5)
    with pytest.raises(UsageError, match="exists"):
        export_run(run, format="onnx", out=target)


def test_what_only_onnx_can_is_refused_for_safetensors(run: Path, tmp_path: Path):
    with pytest.raises(UsageError, match=r"^fold true: safetensors .* must be false, or --format onnx"):
        export_run(run, format="safetensors", out=tmp_path / "x", fold=True)
    with pytest.raises(UsageError, match=r"^opset 18: is of the format onnx"):
        export_run(run, format="safetensors", out=tmp_path / "x", opset=18)
    assert list(tmp_path.iterdir()) == []


def test_recalibrated_weights_stand_beside_the_run_and_are_used_by_name(run: Path, tmp_path: Path):
    target = copy_run(run, tmp_path / "copy")
    for verb in (load_run, evaluate_run):
        with pytest.raises(UsageError, match=r"weights recalibrated of .*: there are none; verydeep recalibrate"):
            verb(target, weights="recalibrated")
    before = {path.name: path.read_bytes() for path in target.iterdir()}
    measured = recalibrate_run(target, num_images=500, batch_size=100, device="cpu")
    assert (measured["num_images"], measured["batch_size"]) == (500, 100)
    assert {name: (target / name).read_bytes() for name in before} == before
    assert evaluate_run(target, device="cpu")["error_percent"] == measured["test_error_percent_before"]
    evaluation = evaluate_run(target, device="cpu", weights="recalibrated")
    assert (evaluation["error_percent"], evaluation["loss"]) == (measured["test_error_percent"], measured["test_loss"])
    assert evaluation["error_percent"] <= measured["test_error_percent_before"] + 5
    old, new = load_file(target / "model.safetensors"), load_file(target / "model-recalibrated.safetensors")
    changed = {name for name in old if not torch.equal(old[name], new[name])}
    assert {name.rpartition(".")[2] for name in changed} == {"running_mean", "running_var", "num_batches_tracked"}
    assert export_run(target, format="safetensors", out=tmp_path / "x", weights="recalibrated")["bytes"] > 0
    with pytest.raises(UsageError, match=r"has model-recalibrated\.safetensors already"):
        recalibrate_run(target)


def test_recalibrated_statistics_are_the_mean_of_batches_of_training_images(run: Path, tmp_path: Path):
    """The first norm takes the stem's convolution: by hand, from all training images in the order of the seed."""
    target = copy_run(run, tmp_path / "copy")
    recalibrate_run(target, batch_size=100, device="cpu")
    saved = load_run(target, device="cpu", weights="recalibrated")
    data = load_data("digits", mean=saved.card.mean, std=saved.card.std)
    order = epoch_order(len(data.train), seed=0, epoch=0)
    order = order[: len(order) // 100 * 100]
    images = torch.cat([batch for batch, _ in data.train.batches(order.split(100), epoch=None, device="cpu")])
    with torch.no_grad():
        y = saved.model.stem.conv(images).double()
    norm = saved.model.stem.act.norm
    expected = torch.stack([part.var((0, 2, 3)) for part in y.split(100)]).mean(0)
    torch.testing.assert_close(norm.running_var.double(), expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(norm.running_mean.double(), y.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)


def test_training_images_may_lie_elsewhere(folder_run: Path, tmp_path: Path):
    """The same images in another folder give the same statistics."""
    own, moved = (copy_run(folder_run, tmp_path / name) for name in ("own", "moved"))
    write_digits(tmp_path / "data" / "train", range(1200))
    recalibrate_run(own, device="cpu")
    measured = recalibrate_run(moved, data=f"folder:{tmp_path / 'data'}", device="cpu")
    assert (measured["test_error_percent"], measured["num_images"]) == (None, 1152)
    ours, theirs = (load_file(path / "model-recalibrated.safetensors") for path in (own, moved))
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def test_what_cannot_be_recalibrated_is_one_line(run: Path, tmp_path: Path):
    target = copy_run(run, tmp_path / "copy")
    with pytest.raises(UsageError, match="weights 'recalibrated': unknown; nearest: last, best"):
        recalibrate_run(target, weights="recalibrated")
    with pytest.raises(UsageError, match="batches of 1 image: statistics need at least 2"):
        recalibrate_run(target, num_images=1)
    assert not (target / "model-recalibrated.safetensors").exists()


def test_batches_change_no_prediction_and_a_bad_file_keeps_its_place(run: Path, images: Path):
    (images / "3" / "0000bad.png").write_bytes(b"")
    one, many = (predict(run, [images], batch_size=size, device="cpu") for size in (1, 16))
    assert [p.path for p in one] == [p.path for p in many] == sorted(p.path for p in one)
    assert [p.path for p in many if p.error] == [str(images / "3" / "0000bad.png")]
    for a, b in zip(one, many, strict=True):
        if a.classes is not None:
            assert [name for name, _ in a.classes] == [name for name, _ in b.classes]
            assert [value for _, value in a.classes] == pytest.approx([value for _, value in b.classes], abs=1e-6)


def test_patterns_name_images_and_folders(run: Path, images: Path, tmp_path: Path):
    everything = {str(path) for path in images.rglob("*.png")}
    for pattern in ("images/**/*.png", "images/*", "images/[0-9]/*.png", "images/**"):
        predictions = predict(run, [str(tmp_path / pattern)], device="cpu")
        assert len(predictions) == 40 and {p.path for p in predictions} == everything
    odd = tmp_path / "[1].png"  # a name that is a pattern too
    odd.write_bytes(next(images.rglob("*.png")).read_bytes())
    assert [p.path for p in predict(run, [odd], device="cpu")] == [str(odd)]
    with pytest.raises(UsageError, match="matches no file or folder"):
        predict(run, [str(tmp_path / "*.jpg")])
    with pytest.raises(UsageError, match="batch_size 0: must be at least 1"):
        predict(run, [odd], batch_size=0)


def test_an_export_that_cannot_be_written_leaves_nothing(run: Path, tmp_path: Path):
    with pytest.raises(RunError, match="cannot be written"):
        export_run(run, format="safetensors", out=tmp_path / "absent" / "net.safetensors")


TIED = """
from torch import nn

def build(num_classes):
    first, second = nn.Linear(64, 64), nn.Linear(64, 64)
    second.weight = first.weight
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), second, nn.ReLU(), nn.Linear(64, num_classes))
"""


def test_tied_weights_are_one_again_when_loaded(tmp_path: Path):
    """And a file in which they have come apart is refused, naming both."""
    (tmp_path / "tied.py").write_text(TIED)
    path, model = tmp_path / "run", f"{tmp_path / 'tied.py'}:build"
    train(RunConfig(model=model, steps=3, batch_size=32, out=str(path)))
    loaded = load_run(path, device="cpu", model=model).model
    assert loaded[1].weight is loaded[3].weight
    tensors = load_file(path / "model.safetensors")
    assert torch.equal(tensors["1.weight"], loaded[1].weight) and torch.equal(tensors["3.weight"], loaded[1].weight)
    with safe_open(path / "model.safetensors", framework="pt") as file:
        metadata = file.metadata()
    save_file(tensors | {"3.weight": tensors["3.weight"] + 1}, path / "model.safetensors", metadata=metadata)
    with pytest.raises(UsageError, match=r"1\.weight and 3\.weight differ, in the network they are one"):
        load_run(path, device="cpu", model=model)


@pytest.mark.parametrize("verb", [load_run, evaluate_run, lambda path: predict(path, ["x"])])
def test_a_directory_without_a_run_is_refused(tmp_path: Path, verb):
    with pytest.raises(UsageError, match=r"no model\.safetensors there"):
        verb(tmp_path)


def copy_run(run: Path, target: Path) -> Path:
    target.mkdir()
    for name in ("config.yaml", "model.safetensors"):
        (target / name).write_bytes((run / name).read_bytes())
    return target


def test_weights_of_another_network_are_refused(run: Path, tmp_path: Path):
    """The same weight shapes under another order: the metadata decides, and a missing tensor is named."""
    target = copy_run(run, tmp_path / "copy")
    with safe_open(run / "model.safetensors", framework="pt") as file:
        metadata = file.metadata()
    tensors = load_file(run / "model.safetensors")
    tensors.pop("stages.0.0.branch.conv1.weight")
    save_file(tensors, target / "model.safetensors", metadata=metadata)
    with pytest.raises(UsageError, match=r"holds another model; stages\.0\.0\.branch\.conv1\.weight is missing"):
        load_run(target)


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"\xff" * 5000])
def test_a_damaged_weights_file_is_refused(run: Path, tmp_path: Path, content: bytes):
    target = copy_run(run, tmp_path / "copy")
    (target / "model.safetensors").write_bytes(content)
    with pytest.raises(UsageError, match="cannot be read as safetensors"):
        load_run(target)


def test_weights_without_our_metadata_are_refused(run: Path, tmp_path: Path):
    target = copy_run(run, tmp_path / "copy")
    save_file({"a": torch.zeros(1)}, target / "model.safetensors")
    with pytest.raises(UsageError, match="written by another program"):
        load_run(target)
