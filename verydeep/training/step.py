"""One optimizer step, whole: forward, loss, backward, clipping, gate, update are all in `train_step`."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from verydeep.training.distributed import World
from verydeep.training.ema import EMA
from verydeep.training.finite import BufferGuard


@dataclass
class TrainState:
    """What a step changes.

    Args:    model: the network as the user knows it
             forward: what is called; the model, or its DistributedDataParallel wrapper
             tally: what was seen since the last log line
    """

    model: nn.Module
    forward: nn.Module
    optimizer: torch.optim.Optimizer
    buffers: BufferGuard
    ema: EMA | None
    tally: "Tally"
    world: World

    @property
    def final_model(self) -> nn.Module:
        """The model that is evaluated and kept: the average, if there is one."""
        return self.model if self.ema is None else self.ema.model

    def averaged_buffers(self) -> list[Tensor]:
        """The buffers of the moving average, if there is one."""
        return [] if self.ema is None else list(self.ema.model.buffers())


@dataclass
class Tally:
    """Sums on the device over the good steps since the last log line; `read` brings them to the host.

    `sums` holds loss, errors, images, bad steps, the first bad step + 1 (0: none) and the last gradient norm.
    """

    device: torch.device
    sums: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.sums = torch.zeros(6, dtype=torch.float64, device=self.device)

    def add(self, *, loss: Tensor, errors: Tensor, images: int, step: int, grad_norm: Tensor, bad: Tensor) -> None:
        """Add one step: summed loss, wrongly classified images; of a bad step, only that it was bad."""
        good = torch.stack([loss, errors, torch.full_like(loss, images)])
        self.sums[:3] += torch.where(bad, 0, good)
        self.sums[4] = torch.where(bad & (self.sums[4] == 0), step + 1, self.sums[4])
        self.sums[3] += bad
        self.sums[5] = torch.where(bad, self.sums[5], grad_norm)

    def reset(self) -> None:
        self.sums.zero_()


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
    step: int,
    lr: float,
    num_images: int,
    num_micro_batches: int,
    precision: str = "fp32",
    label_smoothing: float = 0.0,
    clip_grad_norm: float | None = None,
) -> None:
    """One optimizer step on the mean loss over `num_images` images, all processes' together.

    Args:    micro_batches: this process's (images (N, C, H, W), labels (N,)), `num_micro_batches` of them
             step: 0 for the first of the run
             lr: learning rate of this step
             clip_grad_norm: largest norm of all gradients; None: not clipped
    """
    device = state.world.device
    loss_sum, errors, local_images = torch.zeros((), device=device), torch.zeros((), device=device), 0
    state.buffers.save()
    for i, (images, labels) in enumerate(micro_batches):
        with _sync_gradients(state.forward, last=i == num_micro_batches - 1):
            with autocast(device, precision):
                logits = logits_of(state.forward(images))
            loss = F.cross_entropy(logits, labels, reduction="sum", label_smoothing=label_smoothing)
            # DistributedDataParallel averages over processes: times their number, over all images, is the mean
            (loss * (state.world.size / num_images)).backward()
        loss_sum += loss.detach()
        errors += (logits.detach().argmax(1) != labels).sum()
        local_images += len(labels)

    gradients = [p.grad for p in state.model.parameters() if p.grad is not None]
    grad_norm = torch.nn.utils.get_total_norm(gradients)
    bad = state.world.any(~(torch.isfinite(grad_norm) & torch.isfinite(loss_sum)))
    if clip_grad_norm is not None:
        torch._foreach_mul_(gradients, (clip_grad_norm / (grad_norm + 1e-6)).clamp(max=1.0))

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
