"""A diagnosis from names, and the verb that prints it."""

import json

import pytest

from verydeep import UsageError, cli
from verydeep.analysis.named import diagnose_named


def test_first_batch_of_a_data_set_and_a_model_by_name():
    found = diagnose_named("plain32_cifar", image_size=16, batch_size=8, steps=2, lr=0.1)
    assert found.facts["steps"] == 2
    assert any(finding.rule == "no-shortcut" for finding in found.findings)


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_other_libraries(library):
    pytest.importorskip(library)
    found = diagnose_named(f"{library}:resnet18", image_size=32, batch_size=8)
    assert found.facts["residual additions"] == 8
    assert found.worst() in (None, "info")


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_unknown_names_are_refused_with_the_nearest(library):
    pytest.importorskip(library)
    with pytest.raises(UsageError, match=rf"model {library}:resnet19: unknown; nearest: .*resnet18"):
        diagnose_named(f"{library}:resnet19", image_size=32)


def test_a_function_of_the_users(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from torch import nn\n"
        "def make(num_classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes), nn.Softmax(1))\n"
    )
    assert diagnose_named(f"{path}:make").findings[0].rule == "double-softmax"


@pytest.mark.parametrize("fail_on, code", [("error", 0), ("warning", 1)])
def test_fail_on(work, tmp_path, capsys, fail_on, code):
    line = ["diagnose", "--model", "x", "--fail-on", fail_on, "--json", str(tmp_path / "d.json"), "--steps", "3"]
    assert cli.main(line) == code
    assert json.loads((tmp_path / "d.json").read_text())["findings"] == [{"rule": "no-shortcut"}]
    assert ("no-shortcut at stem" in capsys.readouterr().err) == bool(code)
    name, arguments, options = work.calls[0]
    assert (name, arguments, options["steps"], options["data"]) == ("diagnose_named", ("x",), 3, "digits")


def test_fail_on_is_a_severity(work, capsys):
    assert cli.main(["diagnose", "--model", "x", "--fail-on", "fatal"]) == 2
    assert "--fail-on 'fatal': must be error or warning" in capsys.readouterr().err


def test_a_forward_that_raises_is_the_users(tmp_path):
    code = "from torch import nn\nclass Ill(nn.Module):\n    def forward(self, x):\n        raise KeyError('k')\n"
    (tmp_path / "ill.py").write_text(code + "def make(num_classes, in_channels):\n    return Ill()\n")
    model = f"{tmp_path / 'ill.py'}:make"
    with pytest.raises(UsageError) as caught:
        diagnose_named(model, batch_size=4)
    assert str(caught.value) == f"model {model}: fails on images 4x1x8x8 (KeyError: 'k')"
