"""Imports go one way, as docs/design.md draws it, and what is cheap stays cheap."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import verydeep

PACKAGE = Path(__file__).parents[1] / "verydeep"
FILES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}

# A part may import the parts before it, and itself; between modules there is no cycle.
ORDER = ["errors", "size", "files", "theory", "report", "config", "versions", "nn", "models", "fold", "probe", "memory"]
ORDER += ["data", "weights", "training", "bench", "saved", "predict", "onnx", "export", "modelpage", "hub", "timm"]
ORDER += ["analysis", "recalibrate", "experiments", "flags", "output", "cli", "__main__"]
# Further apart than the order says: data knows nothing of networks, and networks nothing of data.
APART = {"data": {"nn", "models", "probe", "memory", "theory", "report"}, "nn": {"theory", "report"}}
TORCH_FREE = ["verydeep", "verydeep.errors", "verydeep.config", "verydeep.flags", "verydeep.output", "verydeep.cli"]
TORCH_FREE += ["verydeep.size", "verydeep.training.schedule"]


def part(module: str) -> str:
    """`training` of `training.step`."""
    return module.split(".")[0]


def imported(path: Path) -> Iterator[str]:
    """The modules of the package that the file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            names = [node.module or ""]
            if node.module == "verydeep":
                names = [f"verydeep.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name.removeprefix("verydeep.") for name in names if name.startswith("verydeep."))


def test_order_names_every_part():
    assert {part(module) for module in FILES} - {"__init__"} <= set(ORDER)


@pytest.mark.parametrize("module", [module for module in FILES if module != "__init__"])
def test_imports_go_one_way(module):
    own = part(module)
    for name in imported(FILES[module]):
        other = part(name)
        if other == "__version__":
            continue
        assert ORDER.index(other) <= ORDER.index(own), f"{module} imports {name}"
        assert other not in APART.get(own, ()), f"{module} imports {name}"


def test_no_cycle():
    graph = {module: set(imported(path)) & set(FILES) for module, path in FILES.items() if module != "__init__"}
    list(TopologicalSorter(graph).static_order())  # CycleError names the cycle


def test_a_wrong_import_is_seen(tmp_path):
    path = tmp_path / "wrong.py"
    path.write_text("import verydeep.cli\ndef f():\n    from verydeep.training.loop import train\n")
    assert list(imported(path)) == ["cli", "training.loop"]


def loaded(module: str, heavy: list[str]) -> str:
    code = f"import sys, {module}; print(*[name for name in {heavy!r} if name in sys.modules])"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("module", TORCH_FREE)
def test_torch_free(module):
    heavy = ["torch", "torchvision", "numpy", "sklearn", "matplotlib", "pandas", "datasets", "pyarrow", "rich", "numba"]
    assert loaded(module, heavy) == ""


def test_heavy_modules_would_be_seen():
    assert loaded("numpy", ["numpy", "torch"]) == "numpy"


@pytest.mark.parametrize("name", verydeep.__all__)
def test_public_name_resolves(name):
    assert getattr(verydeep, name) is not None
    assert name in dir(verydeep)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = verydeep.trian


def test_type_checkers_see_the_public_names():
    block = next(node for node in ast.parse(FILES["__init__"].read_text()).body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in block.body for alias in node.names}  # type: ignore[attr-defined]
    assert seen == verydeep._MODULE_OF | {"theory": "verydeep"}
