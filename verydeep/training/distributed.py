"""One training over many processes, as `torchrun` starts them. A single process is a world of size 1."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from verydeep.errors import UsageError


@dataclass(frozen=True)
class World:
    """This process among all: its rank, their number, its device."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum over processes, on each of them."""
        if self.size > 1:
            values = values.clone()
            dist.all_reduce(values)
        return values

    def any(self, flag: Tensor) -> Tensor:
        """Whether the boolean scalar is true on any process; no host waits for it."""
        return flag if self.size == 1 else self.sum(flag.to(torch.int32)) > 0

    def average_(self, tensors: list[Tensor]) -> None:
        """Replace floating-point tensors by their mean over processes.

        Running statistics are linear in each batch's: where all shards have equally many images, their mean is what one
        process with all groups would have.
        """
        for tensor in tensors if self.size > 1 else ():
            if tensor.is_floating_point():
                dist.all_reduce(tensor)
                tensor /= self.size

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """The main process passes alone, then the others: what it downloads or writes is there for them."""
        if self.size > 1 and not self.is_main:
            dist.barrier()
        try:
            yield
        finally:
            if self.size > 1 and self.is_main:
                dist.barrier()

    def first(self, value: str | None) -> str | None:
        """The value of the lowest rank that has one, on every process."""
        if self.size == 1:
            return value
        values: list[str | None] = [None] * self.size
        dist.all_gather_object(values, value)
        return next((v for v in values if v is not None), None)

    def from_main(self, value: object) -> object:
        """The main process's value, on every process."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]


@contextmanager
def joined(device: str) -> Iterator[World]:
    """The processes that torchrun started, joined for the time of the context; alone where it did not.

    A process group that is there already is used, and left as it is.

    Args:    device: auto, cpu, cuda or cuda:N
    Raises:  UsageError: if the device is not there.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    local_rank = int(os.environ["LOCAL_RANK"]) if size > 1 and "LOCAL_RANK" in os.environ else None
    chosen = choose_device(device, local_rank=local_rank)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    joins = size > 1 and not dist.is_initialized()
    if joins:
        try:
            dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
        except ValueError as error:
            raise UsageError(f"WORLD_SIZE {size}: {error}; start the processes with torchrun") from None
    try:
        if dist.is_initialized():
            yield World(rank=dist.get_rank(), size=dist.get_world_size(), device=chosen)
        else:
            yield World(rank=0, size=1, device=chosen)
    finally:
        if joins:
            dist.destroy_process_group()


def choose_device(name: str, *, local_rank: int | None = None) -> torch.device:
    """The device that a name means; `auto` is a CUDA device where there is one, else the CPU.

    Raises:  UsageError: if the name is no device, or the device is not there.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"device {name!r}: must be auto, cpu, cuda or cuda:N") from None
    if device.type == "cuda":
        index = int(name.partition(":")[2] or local_rank or 0)
        count = torch.cuda.device_count()
        if index >= count:
            raise UsageError(f"device {name}: {count} CUDA devices are here; nearest: {'cuda:0' if count else 'cpu'}")
        return torch.device("cuda", index)
    if name != "cpu":
        raise UsageError(f"device {name!r}: must be auto, cpu, cuda or cuda:N")
    return device


def shard(indices: Tensor, *, rank: int, size: int, group_size: int = 1) -> Tensor:
    """This rank's contiguous part of a batch; batch-norm groups, cut as one process cuts them, stay whole.

    Args:    group_size: images a batch-norm group, see GhostBatchNorm2d; 1: any image may be parted from the next

    >>> [shard(torch.arange(10), rank=rank, size=2, group_size=4).tolist() for rank in (0, 1)]
    [[0, 1, 2, 3], [4, 5, 6, 7, 8, 9]]
    """
    groups = indices.tensor_split(-(-len(indices) // group_size))
    if len(groups) < size:
        return indices.tensor_split(size)[rank]
    mine = groups[len(groups) * rank // size : len(groups) * (rank + 1) // size]
    return torch.cat(mine)
