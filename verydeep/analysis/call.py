"""How a model is called, and what of its output is trained: tensors, tuples, dicts; logits and losses in structures."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Inputs = Tensor | Sequence[Any] | Mapping[str, Any]
Loss = Callable[[Any, Any], Tensor]


def call(model: nn.Module, inputs: Inputs) -> Any:
    """The model's output: a tensor is its one argument, a tuple its arguments, a dict its keywords."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(inputs) if isinstance(inputs, Tensor) else model(*inputs)


def map_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """The same structure with each tensor replaced."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {key: map_tensors(function, item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(map_tensors(function, item) for item in value)
    return value


def tensors(value: Any, name: str = "input") -> Iterator[tuple[str, Tensor]]:
    """The tensors of a structure with names; of dataclasses too."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from tensors(item, str(key))
    elif isinstance(value, (tuple, list)):
        for i, item in enumerate(value):
            yield from tensors(item, f"{name}{i}" if len(value) > 1 else name)
    elif hasattr(value, "__dict__") and not isinstance(value, nn.Module):
        yield from tensors(vars(value), name)


def logits_of(output: Any) -> Tensor | None:
    """The tensor that is trained: `logits`, or the first of floating point that is no scalar loss."""
    named = output if isinstance(output, Mapping) else getattr(output, "__dict__", {})
    found = named.get("logits")
    if isinstance(found, Tensor):
        return found
    candidates = [x for name, x in tensors(output) if x.is_floating_point() and name != "loss"]
    return candidates[0] if candidates else None


def own_loss(output: Any) -> Tensor | None:
    """The loss that the model computed itself: `loss` of a dict or dataclass."""
    named = output if isinstance(output, Mapping) else getattr(output, "__dict__", {})
    found = named.get("loss")
    return found if isinstance(found, Tensor) and found.numel() == 1 else None


def default_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy for whole labels, else mean squared error; of a sequence, over all its places."""
    if labels.is_floating_point():
        return F.mse_loss(logits, labels)
    if logits.dim() == labels.dim() + 1 and labels.dim() > 1 and logits.shape[:-1] == labels.shape:
        return F.cross_entropy(logits.flatten(0, -2), labels.flatten())
    return F.cross_entropy(logits, labels)


def loss_value(output: Any, labels: Any, loss: Loss | None) -> Tensor:
    """The scalar that a training step differentiates.

    Without labels, loss and a loss of the model's own, a fixed random direction of all outputs: gradients of what
    labels could ask for.
    """
    logits = logits_of(output)
    if loss is not None:
        given = logits if isinstance(loss, nn.Module) and not isinstance(output, Tensor) else output
        return loss(given, labels)
    own = own_loss(output)
    if own is not None:
        return own
    if logits is None:
        raise ValueError(f"output {type(output).__name__}: holds no tensor of floating point to differentiate")
    if isinstance(labels, Tensor):
        return default_loss(logits, labels)
    floating = [x for _, x in tensors(output, "output") if x.is_floating_point() and x.requires_grad]
    return random_direction(floating or [logits])


def random_direction(outputs: Sequence[Tensor]) -> Tensor:
    """Mean over samples of <output, v> for a fixed random v of unit variance over the root of the size."""
    total = outputs[0].new_zeros(())
    for x in outputs:
        stream = torch.Generator().manual_seed(x.numel())
        v = torch.randn(x.shape, generator=stream).to(x.device, x.dtype)
        total = total + (x * v).sum() / max(1, x.numel()) ** 0.5
    return total


def is_cross_entropy(loss: Loss | None, labels: Any) -> bool:
    """Whether the loss is cross-entropy over whole labels."""
    whole = isinstance(labels, Tensor) and not labels.is_floating_point()
    return whole and (loss is None or isinstance(loss, nn.CrossEntropyLoss) or loss is F.cross_entropy)
