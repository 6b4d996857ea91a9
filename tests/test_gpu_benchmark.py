"""`benchmarks/gpu.py` runs whole, on tiny sizes and the CPU, and leaves standard JSON behind each measurement."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(out: Path, *flags: str) -> dict:
    script = str(ROOT / "benchmarks" / "gpu.py")
    command = [sys.executable, script, "--device", "cpu", "--quick", "--out", str(out), *flags]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    return json.loads(out.read_text())["results"]


def test_sections_measure_or_say_why_not(tmp_path: Path):
    results = run(tmp_path / "gpu.json", "--only", "numbers,waiting,memory,depth", "--ways", "eager,recorded")
    assert set(results) == {"numbers", "waiting", "memory", "depth"}
    measured = [value for section in results.values() for value in section.values()]
    assert all("failed" not in value for value in measured), measured
    assert results["numbers"]["preact_resnet8_cifar eager"]["holds"] is True
    assert results["waiting"]["eager"] == {"not run": "needs a CUDA device"}
    assert results["depth"]["14 eager"]["median_seconds"] > 0


def test_a_run_out_of_time_says_so_of_each_measurement_that_is_left(tmp_path: Path):
    results = run(tmp_path / "gpu.json", "--only", "numbers", "--seconds", "0", "--ways", "eager")
    assert results["numbers"]["preact_resnet8_cifar eager"]["not run"].startswith("out of time")


@pytest.mark.slow
def test_all_sections(tmp_path: Path):
    results = run(tmp_path / "gpu.json")
    assert set(results) == {"numbers", "waiting", "steps", "memory", "depth", "peers"}
    flat = {f"{section} {name}": value for section, values in results.items() for name, value in values.items()}
    assert [name for name, value in flat.items() if isinstance(value, dict) and "failed" in value] == []
    assert results["numbers"]["preact_resnet8_cifar compiled"]["holds"] is True
    assert results["steps"]["preact_resnet8_cifar fp32 eager / preact_resnet8_cifar fp32 compiled"] > 0
