"""Bytes that a training step keeps, counted on the meta device: nothing is allocated, nothing computed."""

import copy
import os
from pathlib import Path

import torch
from torch import Tensor, nn


def activation_bytes(model: nn.Module, image_shape: tuple[int, ...], *, batch_size: int) -> int:
    """Bytes that autograd keeps between forward and backward, each storage once, parameters not counted.

    Args:    image_shape: (C, H, W) of one image
    """
    twin = copy.deepcopy(model).to("meta").train()
    own = {tensor.untyped_storage()._cdata for tensor in (*twin.parameters(), *twin.buffers())}
    kept: dict[int, Tensor] = {}  # holding the tensors keeps their storages' addresses from being used again

    def pack(tensor: Tensor) -> Tensor:
        kept.setdefault(tensor.untyped_storage()._cdata, tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = twin(torch.empty(batch_size, *image_shape, device="meta"))
    del output
    return sum(tensor.untyped_storage().nbytes() for key, tensor in kept.items() if key not in own)


def parameter_bytes(model: nn.Module) -> int:
    """Bytes of parameters, their gradients and one momentum."""
    return 3 * sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())


def largest_batch(model: nn.Module, image_shape: tuple[int, ...], *, free_bytes: int) -> int:
    """The largest batch whose activations and parameters fit into `free_bytes`; 0 if not one image does."""
    probe = 4
    per_image = activation_bytes(model, image_shape, batch_size=probe) / probe
    return max(0, int((free_bytes - parameter_bytes(model)) / per_image))


def free_bytes(device: torch.device) -> int | None:
    """Memory that this process may still take on a device; None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return None
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    available = int(lines["MemAvailable"].split()[0]) * 1024
    limit = _cgroup_limit()
    return available if limit is None else min(available, limit)


def _cgroup_limit() -> int | None:
    """What the container's memory limit leaves, where there is one."""
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = (group / "memory.max").read_text().strip(), int((group / "memory.current").read_text())
    except OSError:
        return None
    return None if limit == "max" else int(limit) - used


def peak_bytes(device: torch.device) -> int:
    """Largest memory so far: the device's allocations on CUDA, else the process's resident set."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource

    unit = 1 if os.uname().sysname == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
