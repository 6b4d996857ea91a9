"""Memory that the machine has left for this process, and the most that the process has held."""

import ctypes
import functools
import os
from collections.abc import Callable
from pathlib import Path

import torch


def free_bytes(device: torch.device) -> int | None:
    """Memory that this process may still take on a device; None where the system does not say."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return None
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    available = int(lines["MemAvailable"].split()[0]) * 1024
    limit = _cgroup_limit()
    return available if limit is None else min(available, limit)


def _cgroup_limit() -> int | None:
    """What the container's memory limit leaves, where there is one; page cache can be taken back and counts as free."""
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = (group / "memory.max").read_text().strip(), int((group / "memory.current").read_text())
        statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except OSError:
        return None
    return None if limit == "max" else int(limit) - used + int(statistics.get("inactive_file", 0))


def reset_peak(device: torch.device) -> None:
    """Count the peak from now on, where the device lets it be reset; a process's resident set does not."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int:
    """Largest memory so far: the device's allocations on CUDA, else the process's resident set."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource

    unit = 1 if os.uname().sysname == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def resident_bytes() -> int | None:
    """What the process takes of the machine's memory now; None where the system does not say."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else None


def give_back_above(limit: int) -> None:
    """Give freed memory back to the system where the process takes more than `limit` bytes.

    glibc holds freed blocks of up to 32 MB for later ones, and where sizes vary these do not fit into them.
    """
    trim = _malloc_trim()
    if trim is not None and (resident_bytes() or 0) > limit:
        trim(0)


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    """glibc's `malloc_trim`; None with another C library."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
