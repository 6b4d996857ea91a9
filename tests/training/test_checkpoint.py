"""Checkpoints: whole or the one before, at any moment; a damaged one is found and passed over."""

import os
from pathlib import Path

import pytest
import torch

from verydeep.errors import RunError
from verydeep.training import checkpoint
from verydeep.training.checkpoint import damage, load_checkpoint, remove_stale, save_checkpoint


def save(directory: Path, step: int) -> None:
    save_checkpoint(directory, {"step": step, "weights": torch.arange(5000.0) + step})


def test_the_last_two_are_kept(tmp_path: Path):
    for step in range(3):
        save(tmp_path, step)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last.pt", "previous.pt"]
    values, fault = load_checkpoint(tmp_path)
    assert values["step"] == 2 and fault is None
    assert torch.load(tmp_path / "previous.pt", weights_only=True)["step"] == 1


def test_no_checkpoint_is_none(tmp_path: Path):
    assert load_checkpoint(tmp_path / "absent") is None


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-700])


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def garbage(path: Path) -> None:
    path.write_bytes(os.urandom(4096))


@pytest.mark.parametrize("spoil", [truncate, flip_a_bit, empty, garbage])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path: Path, spoil):
    save(tmp_path, 1)
    save(tmp_path, 2)
    assert damage(tmp_path / "last.pt") is None
    spoil(tmp_path / "last.pt")
    values, fault = load_checkpoint(tmp_path)
    assert values["step"] == 1 and "last.pt is damaged" in fault
    assert load_checkpoint(tmp_path)[1] is None  # it has taken the damaged one's place, and the next save keeps it
    save(tmp_path, 3)
    assert torch.load(tmp_path / "previous.pt", weights_only=True)["step"] == 1
    spoil(tmp_path / "last.pt")
    spoil(tmp_path / "previous.pt")
    with pytest.raises(RunError, match="none is left"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("moment", ["save", "fsync", "link", "replace"])
def test_killed_at_any_moment_of_a_write_the_last_still_loads(tmp_path: Path, monkeypatch, moment: str):
    save(tmp_path, 1)
    save(tmp_path, 2)

    class Killed(BaseException):
        pass

    def die(*_, **__):
        raise Killed

    owner = {"save": torch, "fsync": os, "link": os, "replace": checkpoint.Path}[moment]
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(owner, moment, die)
        save(tmp_path, 3)
    values, fault = load_checkpoint(tmp_path)
    assert values["step"] == 2 and fault is None
    remove_stale(tmp_path, "last.pt", "previous.pt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last.pt", "previous.pt"]
    save(tmp_path, 3)
    assert load_checkpoint(tmp_path)[0]["step"] == 3


def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path: Path, monkeypatch):
    save(tmp_path, 1)
    before = (tmp_path / "last.pt").read_bytes()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(RunError, match=r"No space left on device.*is intact"):
        patch.setattr(os, "fsync", full)
        save(tmp_path, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["last.pt"]
    assert (tmp_path / "last.pt").read_bytes() == before


def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch):
    def refuse(*_):
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    save(tmp_path, 1)
    save(tmp_path, 2)
    assert torch.load(tmp_path / "previous.pt", weights_only=True)["step"] == 1


def test_reading_runs_no_code(tmp_path: Path):
    class Harm:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "harm"),))

    torch.save({"step": Harm()}, tmp_path / "last.pt")
    with pytest.raises(RunError, match="refused, it holds more than tensors"):
        load_checkpoint(tmp_path)
    assert not (tmp_path / "harm").exists()
