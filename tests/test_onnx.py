"""ONNX files: the logits of the network in eval mode, for any batch size; what cannot be one is refused on one line."""

import copy
import sys
import types
from pathlib import Path

import onnx
import pytest
import torch
from torch import nn

from verydeep import RunError, UsageError, create_model, fold_batch_norm
from verydeep.analysis.batch_norm import recalibrate
from verydeep.onnx import OPSET, images_per_second, runner, write_onnx


def calibrated(name: str, size: int, **options) -> nn.Module:
    """A network whose norms have the statistics of some images, so that its logits are neither tiny nor infinite."""
    torch.manual_seed(0)
    model = create_model(name, **options)
    recalibrate(model, [torch.randn(16, 3, size, size)])
    return model


def assert_same(path: Path, model: nn.Module, size: int) -> None:
    compute = runner(path)
    for count in (1, 2, 7):
        images = torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(count))
        with torch.no_grad():
            expected = model.eval()(images)
        assert (compute(images) - expected).abs().max() <= 1e-4 * expected.abs().max().clamp(min=1)


@pytest.mark.parametrize("fold", [False, True])
def test_made_from_one_image_it_computes_any_batch_and_modes_are_kept(tmp_path, fold):
    model = calibrated("preact_resnet8_cifar", 8)
    network = fold_batch_norm(model) if fold else model
    model.train()
    model.stages[0].eval()
    modes = [module.training for module in network.modules()]
    before = copy.deepcopy(network.state_dict())
    file = write_onnx(network, torch.randn(1, 3, 8, 8), tmp_path / "x.onnx", expected=model, metadata={"a": "b"})
    assert [module.training for module in network.modules()] == modes
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    assert_same(file.path, model, 8)
    assert (file.opset, file.bytes) == (OPSET, file.path.stat().st_size) and 0 <= file.difference < 1e-5
    proto = onnx.load(file.path)
    assert [(entry.key, entry.value) for entry in proto.metadata_props] == [("a", "b")]
    assert {entry.version for entry in proto.opset_import if entry.domain == ""} == {OPSET}
    operators = {node.op_type for node in proto.graph.node}
    assert ("BatchNormalization" in operators) != fold and "Conv" in operators


class Output(nn.Module):
    """Logits in an attribute, as transformers' models give them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 2)

    def forward(self, x):
        return types.SimpleNamespace(logits=self.conv(x).mean((2, 3)))


def test_another_opset_and_an_output_with_logits(tmp_path):
    model = Output()
    file = write_onnx(model, torch.randn(3, 3, 4, 4), tmp_path / "x.onnx", opset=20)
    images = torch.randn(5, 3, 4, 4)
    torch.testing.assert_close(runner(file.path)(images), model(images).logits.detach())
    assert file.opset == 20


def test_a_file_that_computes_something_else_is_not_written(tmp_path):
    torch.manual_seed(0)
    one, other = nn.Sequential(nn.Conv2d(3, 4, 3)), nn.Sequential(nn.Conv2d(3, 4, 3))
    with pytest.raises(RunError, match=r"^onnx .*logits differ from the network's by .*; not written"):
        write_onnx(one, torch.randn(1, 3, 4, 4), tmp_path / "x.onnx", expected=other)
    assert list(tmp_path.iterdir()) == []


class Chaotic(nn.Module):
    """So steep that float32 is far from float64."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 50, 3)

    def forward(self, x):
        return torch.sin(1e5 * self.conv(x).mean((2, 3)))


def test_rounding_that_the_network_itself_has_is_allowed(tmp_path):
    torch.manual_seed(0)
    file = write_onnx(Chaotic(), torch.randn(1, 3, 8, 8), tmp_path / "x.onnx")
    assert 1e-4 < file.difference < 0.5


class Branched(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def test_what_cannot_be_exported_is_one_line(tmp_path):
    with pytest.raises(RunError, match=r"^model Branched: cannot be exported to ONNX \(") as refusal:
        write_onnx(Branched(), torch.randn(1, 3, 4, 4), tmp_path / "x.onnx")
    assert "\n" not in str(refusal.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("opset", [17, 999])
def test_an_unknown_opset_is_refused(tmp_path, opset):
    with pytest.raises(UsageError, match=f"^opset {opset}: must be 18 to "):
        write_onnx(nn.Identity(), torch.randn(1, 3, 4, 4), tmp_path / "x.onnx", opset=opset)


@pytest.mark.parametrize("module", ["onnx", "onnxscript", "onnxruntime"])
def test_without_the_extra_it_says_what_to_install(tmp_path, monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=rf"{module} is not installed; pip install 'verydeep\[onnx\]'"):
        write_onnx(nn.Identity(), torch.randn(1, 3, 4, 4), tmp_path / "x.onnx")
    assert list(tmp_path.iterdir()) == []


def test_speed_counts_the_images_of_a_call():
    calls = []
    speed = images_per_second({"a": calls.append, "b": lambda _: None}, torch.zeros(4, 3, 2, 2), seconds=0)
    assert list(speed) == ["a", "b"] and min(speed.values()) > 0
    assert [tuple(batch.shape) for batch in calls] == [(4, 3, 2, 2)] * 2


@pytest.mark.slow
@pytest.mark.parametrize("fold", [False, True])
def test_a_thousand_layers_within_the_default_recursion_limit(tmp_path, monkeypatch, fold):
    assert sys.getrecursionlimit() <= 1000
    # branches scaled: untrained networks of this depth multiply any rounding by thousands
    model = calibrated("preact_resnet1001_cifar", 8, scale="inverse_sqrt")
    network = fold_batch_norm(model) if fold else model
    file = write_onnx(network, torch.randn(1, 3, 8, 8), tmp_path / "x.onnx", expected=model)
    assert_same(file.path, model, 8)
