"""Bytes that a training step keeps, counted on the meta device: nothing is allocated, nothing computed."""

import copy
import os
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn

from verydeep.nn.fused import plain_operations


def activation_bytes(model: nn.Module, image_shape: tuple[int, ...], *, batch_size: int) -> int:
    """Bytes that autograd keeps between forward and backward in fp32, each storage once, parameters not counted.

    Args:    image_shape: (C, H, W) of one image
    """
    meta_twins: dict[int, Tensor] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        twin = torch.empty_like(tensor, device="meta")
        is_parameter = isinstance(tensor, nn.Parameter)
        meta_twins[id(tensor)] = nn.Parameter(twin, tensor.requires_grad) if is_parameter else twin
    twin_model = copy.deepcopy(model, dict(meta_twins)).train()  # the memo puts the twins where the tensors were
    own = {tensor.untyped_storage()._cdata for tensor in meta_twins.values()}
    kept: dict[int, Tensor] = {}  # holding the tensors keeps their storages' addresses from being used again

    def pack(tensor: Tensor) -> Tensor:
        kept.setdefault(tensor.untyped_storage()._cdata, tensor)
        return tensor

    on_cpu = all(parameter.device.type in ("cpu", "meta") for parameter in model.parameters())
    with (
        nullcontext() if on_cpu else plain_operations(),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
    ):
        output = twin_model(torch.empty(batch_size, *image_shape, device="meta"))
    del output
    return sum(tensor.untyped_storage().nbytes() for key, tensor in kept.items() if key not in own)


def parameter_bytes(model: nn.Module) -> int:
    """Bytes of parameters, and of the gradient and one momentum of those that are trained."""
    return sum(p.numel() * p.element_size() * (3 if p.requires_grad else 1) for p in model.parameters())


def largest_batch(model: nn.Module, image_shape: tuple[int, ...], *, free_bytes: int) -> int:
    """The largest batch whose activations and parameters fit into `free_bytes`; 0 if not one image does."""
    few, more = (activation_bytes(model, image_shape, batch_size=size) for size in (4, 8))
    per_image = (more - few) / 4
    fixed = few - 4 * per_image  # statistics of norms
    return max(0, int((free_bytes - parameter_bytes(model) - fixed) / per_image))


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
