"""What the machine has left, and what a process has held."""

from pathlib import Path

import pytest
import torch

from verydeep.memory import system
from verydeep.memory.system import free_bytes, peak_bytes, resident_bytes


@pytest.mark.parametrize(
    ("limit", "free"),
    [("max", 8_000 * 1024), ("5000000", 5_000_000 - 3_000_000 + 1_000_000), ("90000000", 8_000 * 1024)],
)
def test_free_memory_is_the_systems_or_the_containers(tmp_path: Path, monkeypatch, limit: str, free: int):
    files = {
        "/proc/meminfo": "MemTotal: 9000 kB\nMemAvailable: 8000 kB\n",
        "/sys/fs/cgroup/memory.max": limit + "\n",
        "/sys/fs/cgroup/memory.current": "3000000\n",
        "/sys/fs/cgroup/memory.stat": "anon 5\ninactive_file 1000000\n",
    }
    for name, text in files.items():
        path = tmp_path / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr("verydeep.memory.system.Path", lambda name: tmp_path / name.lstrip("/"))
    assert free_bytes(torch.device("cpu")) == free


def test_peak_memory_counts_what_was_held():
    before = peak_bytes(torch.device("cpu"))
    held = torch.ones(50_000_000)
    assert held.sum() > 0 and peak_bytes(torch.device("cpu")) - before > -1 and before > 50_000_000


@pytest.mark.skipif(resident_bytes() is None, reason="needs /proc")
def test_freed_memory_goes_back_above_a_limit_and_only_there(monkeypatch):
    calls: list[int] = []
    monkeypatch.setattr(system, "_malloc_trim", lambda: calls.append)
    system.give_back_above(10**15)
    assert calls == []
    system.give_back_above(1)
    assert calls == [0]


@pytest.mark.skipif(resident_bytes() is None, reason="needs /proc")
def test_resident_bytes_follow_what_is_written():
    before = resident_bytes()
    block = torch.ones(30_000_000)
    assert 100_000_000 < resident_bytes() - before < 200_000_000
    del block
