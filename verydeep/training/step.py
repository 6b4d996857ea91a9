"""One optimizer step, whole: forward, loss, backward, clipping, gate, update are all in `train_step`."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from verydeep.nn.clip import clip_gradients_adaptively
from verydeep.training.state import TrainState

# `train_step` on a state and by settings that are given: (micro_batches, *, step, lr, num_images, num_micro_batches)
Step = Callable[..., None]


def autocast(device: torch.device, precision: str) -> AbstractContextManager:
    """The arithmetic of a forward pass: fp32, or bf16 where torch deems it safe."""
    return nullcontext() if precision == "fp32" else torch.autocast(device.type, torch.bfloat16)


def logits_of(output: object) -> Tensor:
    """The logits in a model's output, the tensor itself or its attribute `logits`, in single precision at least."""
    logits = output if isinstance(output, Tensor) else output.logits  # type: ignore[attr-defined]
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def train_step(
    state: TrainState,
    micro_batches: Iterable[tuple[Tensor, Tensor]],
    *,
    step: int | Tensor,
    lr: float | Tensor,
    num_images: int,
    num_micro_batches: int,
    precision: str = "fp32",
    label_smoothing: float = 0.0,
    class_weights: Tensor | None = None,
    clip_grad_norm: float | None = None,
    clip_adaptive: float | None = None,
) -> None:
    """One optimizer step on the mean loss over `num_images` images, all processes' together.

    Args:    micro_batches: this process's (images (N, C, H, W), labels (N,)), `num_micro_batches` of them; labels may
                 be shares of the classes, (N, num_classes)
             step: 0 for the first of the run
             lr: learning rate of this step; it and `step` are tensors where the step is recorded, see `graph`
             class_weights: of each image's loss, by its class, (num_classes,); the sum is still divided by `num_images`
             clip_grad_norm: largest norm of all gradients; None: not clipped
             clip_adaptive: largest ratio of a unit's gradient to its weights, see `clip_gradients_adaptively`; the
                 model's `head` is left out, as in the source
    """
    device = state.world.device
    loss_sum, errors, local_images = torch.zeros((), device=device), torch.zeros((), device=device), 0
    state.buffers.save()
    for i, (images, labels) in enumerate(micro_batches):
        with _sync_gradients(state.forward, last=i == num_micro_batches - 1):
            with autocast(device, precision):
                logits = logits_of(state.forward(images))
            loss = F.cross_entropy(logits, labels, class_weights, reduction="sum", label_smoothing=label_smoothing)
            # DistributedDataParallel averages over processes: times their number, over all images, is the mean
            (loss * (state.world.size / num_images)).backward()
        loss_sum += loss.detach()
        errors += (logits.detach().argmax(1) != (labels if labels.dim() == 1 else labels.argmax(1))).sum()
        local_images += len(labels)

    gradients = [p.grad for p in state.model.parameters() if p.grad is not None]
    grad_norm = torch.nn.utils.get_total_norm(gradients)
    bad = state.world.any(~(torch.isfinite(grad_norm) & torch.isfinite(loss_sum)))
    if clip_grad_norm is not None:
        torch._foreach_mul_(gradients, (clip_grad_norm / (grad_norm + 1e-6)).clamp(max=1.0))

    if clip_adaptive is not None:
        body = (p for name, p in state.model.named_parameters() if not name.startswith("head."))
        clip_gradients_adaptively(body, clipping=clip_adaptive)

    for group in state.optimizer.param_groups:
        group["lr"] = lr
    state.optimizer.grad_scale, state.optimizer.found_inf = None, bad.float()  # type: ignore[attr-defined]
    state.optimizer.step()
    state.optimizer.zero_grad()
    state.buffers.restore_if(bad)
    if state.ema is not None:
        state.ema.update(step=step, bad=bad)
    state.tally.add(loss=loss_sum, errors=errors, images=local_images, step=step, grad_norm=grad_norm, bad=bad)


def _sync_gradients(forward: nn.Module, *, last: bool) -> AbstractContextManager:
    """Gradients cross processes once a step, in the backward pass of its last micro-batch."""
    return forward.no_sync() if isinstance(forward, DistributedDataParallel) and not last else nullcontext()
