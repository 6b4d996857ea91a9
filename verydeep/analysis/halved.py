"""What autograd keeps for the backward pass in half the bytes, for passes whose gradients need three digits."""

import itertools
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from verydeep.memory.system import give_back_above

SMALL = 1 << 14  # values: below, halving saves nothing worth a copy
TIDY_EVERY = 1024  # halves: what was freed between them is in pieces, which the allocator cannot use


@contextmanager
def halved(model: nn.Module) -> Iterator[None]:
    """Within it, autograd keeps large single-precision tensors as bfloat16: range and sign, 8 bits of mantissa.

    Signs decide where a ReLU lets a gradient through, and range whether it is finite; both are kept. Parameters, which
    are there anyway, are kept as they are.
    """
    own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    halves = _Halves()

    turns = itertools.count(1)

    def tidy() -> None:
        if next(turns) % TIDY_EVERY == 0:
            give_back_above(0)

    def pack(x: Tensor) -> Tensor | list[Tensor]:
        if x.dtype is not torch.float32 or x.numel() < SMALL or x.untyped_storage()._cdata in own:
            return x
        tidy()
        return [halves.of(x)]

    def unpack(kept: Tensor | list[Tensor]) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        tidy()
        return kept[0].to(torch.float32)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield


@final
class _Halves:
    """One half for all operations that keep the same tensor."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[StorageWeakRef, weakref.ref[Tensor]]] = {}

    def of(self, x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        key = (storage._cdata, x._version, x.storage_offset(), x.shape, x.stride())
        original, reference = self._known.get(key, (None, None))
        half = reference() if reference is not None else None
        if original is None or half is None or original.expired():  # another tensor may have the address now
            half = x.detach().to(torch.bfloat16)
            self._known[key] = StorageWeakRef(storage), weakref.ref(half)
        return half
