"""What a training step changes: `TrainState`, made by `make_state`; and the sums since the last log line, `Tally`."""

import inspect
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from verydeep.config import RunConfig
from verydeep.training.distributed import World
from verydeep.training.ema import EMA
from verydeep.training.finite import BufferGuard
from verydeep.training.optimizer import make_optimizer

# torch 2.14 has renamed it; buffers are averaged at the log lines instead
_SYNC_BUFFERS = next(
    name
    for name in ("forward_sync_buffers", "broadcast_buffers")
    if name in inspect.signature(DistributedDataParallel).parameters
)


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

    def moving_buffers(self) -> list[Tensor]:
        """The buffers that steps change, those of the moving average too: not those of frozen parts."""
        models = [self.model] if self.ema is None else [self.model, self.ema.model]
        modules = [module for model in models for module in model.modules() if module.training]
        return [buffer for module in modules for buffer in module.buffers(recurse=False)]


@dataclass
class Tally:
    """Sums on the device over the good steps since the last log line; the run reads them at its log lines.

    `sums` holds loss, errors, images, bad steps, the first bad step + 1 (0: none) and the last gradient norm.
    """

    device: torch.device
    sums: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.sums = torch.zeros(6, dtype=torch.float64, device=self.device)

    def add(
        self, *, loss: Tensor, errors: Tensor, images: int, step: int | Tensor, grad_norm: Tensor, bad: Tensor
    ) -> None:
        """Add one step: summed loss, wrongly classified images; of a bad step, only that it was bad."""
        good = torch.stack([loss, errors, torch.full_like(loss, images)])
        self.sums[:3] += torch.where(bad, 0, good)
        self.sums[4] = torch.where(bad & (self.sums[4] == 0), step + 1, self.sums[4])
        self.sums[3] += bad
        self.sums[5] = torch.where(bad, self.sums[5], grad_norm)

    def reset(self) -> None:
        self.sums.zero_()


def make_state(model: nn.Module, config: RunConfig, world: World) -> TrainState:
    """A model on its device, in training mode, with all that its steps change.

    A norm none of whose parameters is trained is frozen: it keeps its statistics.
    """
    model = model.to(world.device).train()
    for module in model.modules():
        parameters = list(module.parameters(recurse=False))
        if isinstance(module, nn.modules.batchnorm._NormBase) and parameters:
            module.train(any(parameter.requires_grad for parameter in parameters))
    buffers = BufferGuard(model)
    forward: nn.Module = model
    if world.size > 1:
        forward = DistributedDataParallel(model, gradient_as_bucket_view=True, **{_SYNC_BUFFERS: False})  # type: ignore[arg-type]
    return TrainState(
        model=model,
        forward=forward,
        optimizer=make_optimizer(model, config),
        buffers=buffers,
        ema=EMA(model, decay=config.ema) if config.ema else None,
        tally=Tally(world.device),
        world=world,
    )
