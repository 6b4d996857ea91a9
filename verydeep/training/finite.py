"""A bad step (NaN or inf in loss or gradient) changes nothing: a flag on the device gates every write.

The optimizer is gated by torch's own `found_inf`, buffers by `BufferGuard`, the moving average by its weight. No step
waits for the host; the host reads the count at the log interval.
"""

from collections import defaultdict

import torch
from torch import Tensor, nn


class BufferGuard:
    """A model's buffers as views of one flat tensor per dtype, so that a step's changes are undone in one operation.

    A buffer that the model replaces instead of writing into it is taken in again, at its new value.

    Args:    model: its buffers are replaced by views of equal value; parameters, names and shapes stay
    """

    def __init__(self, model: nn.Module) -> None:
        places: dict[torch.dtype, list[tuple[nn.Module, str]]] = defaultdict(list)
        for module in model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                places[buffer.dtype].append((module, name))
        self._flat: list[Tensor] = []
        self._views: list[tuple[nn.Module, str, Tensor]] = []
        for owners in places.values():
            flat, views = _flatten(owners)
            self._flat.append(flat)
            self._views += views
        self._saved = [flat.clone() for flat in self._flat]

    def save(self) -> None:
        """Remember the buffers as they are now."""
        self._take_in()
        for saved, flat in zip(self._saved, self._flat, strict=True):
            saved.copy_(flat)

    def restore_if(self, bad: Tensor) -> None:
        """Put the remembered buffers back where `bad`, a boolean scalar on the device, is true."""
        self._take_in()
        for saved, flat in zip(self._saved, self._flat, strict=True):
            torch.where(bad, saved, flat, out=flat)

    @torch.no_grad()
    def _take_in(self) -> None:
        for module, name, view in self._views:
            buffer = module._buffers[name]
            if buffer is not view and buffer is not None:
                view.copy_(buffer)
                module._buffers[name] = view


def _flatten(owners: list[tuple[nn.Module, str]]) -> tuple[Tensor, list[tuple[nn.Module, str, Tensor]]]:
    """One tensor with the values of the named buffers, which become views of it; a shared buffer stays shared."""
    buffers = {id(module.get_buffer(name)): module.get_buffer(name) for module, name in owners}
    flat = torch.cat([buffer.detach().reshape(-1) for buffer in buffers.values()])
    parts = flat.split([buffer.numel() for buffer in buffers.values()])
    # `data` counts versions by itself: a norm's update is none of another buffer that autograd has kept
    views = {key: part.view(buffer.shape).data for (key, buffer), part in zip(buffers.items(), parts, strict=True)}
    placed = [(module, name, views[id(module.get_buffer(name))]) for module, name in owners]
    for module, name, view in placed:
        module._buffers[name] = view
    return flat, placed
