"""Bytes that a training step keeps, counted on the meta device: nothing is allocated, nothing computed."""

import copy
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from verydeep.memory.segment import remove_checkpoints
from verydeep.nn.fused import plain_operations


def meta_twin(model: nn.Module) -> nn.Module:
    """A copy of a model on the meta device, in training mode, that recomputes nothing."""
    meta_twins: dict[int, Tensor] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        twin = torch.empty_like(tensor, device="meta")
        is_parameter = isinstance(tensor, nn.Parameter)
        meta_twins[id(tensor)] = nn.Parameter(twin, tensor.requires_grad) if is_parameter else twin
    twin_model = copy.deepcopy(model, dict(meta_twins)).train()  # the memo puts the twins where the tensors were
    remove_checkpoints(twin_model)
    return twin_model


def operations_of(model: nn.Module) -> AbstractContextManager:
    """The context in which a meta twin runs the operations that the model does: fused ones are for the CPU."""
    on_cpu = all(parameter.device.type in ("cpu", "meta") for parameter in model.parameters())
    return nullcontext() if on_cpu else plain_operations()


class Storages:
    """The storages of tensors, each once, those of a model's parameters and buffers left out.

    Args:    hold: keep the tensors alive, so that no other storage takes the address of one that is gone
    """

    def __init__(self, model: nn.Module, *, hold: bool = True) -> None:
        self._own = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
        self._held: dict[int, Tensor] = {}
        self._hold = hold

    def leave_out(self, tensor: Tensor) -> None:
        """Do not count the tensor's storage either."""
        self._held[tensor.untyped_storage()._cdata] = tensor
        self._own.add(tensor.untyped_storage()._cdata)

    def of(self, tensor: Tensor) -> dict[int, int]:
        """The tensor's storage, as {key: bytes}; nothing if it is a parameter's or buffer's."""
        storage = tensor.untyped_storage()
        if storage._cdata in self._own:
            return {}
        if self._hold:
            self._held.setdefault(storage._cdata, tensor)
        return {storage._cdata: storage.nbytes()}


def saved_tensors(note: Callable[[Tensor], None]) -> torch.autograd.graph.saved_tensors_hooks:
    """The context within which `note` is called with each tensor that autograd keeps."""

    def pack(tensor: Tensor) -> Tensor:
        note(tensor)
        return tensor

    return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)


def activation_bytes(model: nn.Module, image_shape: tuple[int, ...], *, batch_size: int) -> int:
    """Bytes that autograd keeps between forward and backward in fp32, each storage once, parameters not counted.

    Args:    image_shape: (C, H, W) of one image
    """
    twin = meta_twin(model)
    storages, kept = Storages(twin), dict[int, int]()
    with operations_of(model), saved_tensors(lambda tensor: kept.update(storages.of(tensor))):
        output = twin(torch.empty(batch_size, *image_shape, device="meta"))
    del output
    return sum(kept.values())


def parameter_bytes(model: nn.Module, *, states: int = 1) -> int:
    """Bytes of parameters, and of the gradient and the optimizer's state of those that are trained.

    Args:    states: tensors that the optimizer keeps for each parameter: 1 is momentum, 2 Adam's moments
    """
    return sum(p.numel() * p.element_size() * (2 + states if p.requires_grad else 1) for p in model.parameters())


def tensor_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of tensors, each by its own shape."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def largest_batch(model: nn.Module, image_shape: tuple[int, ...], *, free_bytes: int) -> int:
    """The largest batch whose activations and parameters fit into `free_bytes`; 0 if not one image does."""
    few, more = (activation_bytes(model, image_shape, batch_size=size) for size in (4, 8))
    per_image = (more - few) / 4
    fixed = few - 4 * per_image  # statistics of norms
    return max(0, int((free_bytes - parameter_bytes(model) - fixed) / per_image))
