"""A whole training step, forward to update: verydeep's own `train_step` against the same network elsewhere.

    python benchmarks/step.py [--rounds 15] [--only NAME]      writes results/step.json

Ours is what `verydeep train` runs (finite gate, fused SGD, channels_last). The others are run as their users run them:
plain forward, cross-entropy, backward, torch.optim.SGD. Equal multiply-adds (the stride on the 3x3 convolution) are
checked before anything is timed. The floor is what no step of separate operations can be faster than: the network's
convolutions alone, forward and backward, in channels_last; `step_over_floor` is our step's time over it. CPU, float32;
needs the extra `bench`.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass

import timm
import torch
import torch.nn.functional as F
import torch_resnet
import torchvision
from timing import alternate, compare, our_step, write
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import verydeep


def with_head(model: nn.Module) -> nn.Module:
    """A torch-resnet network, which ends before its head, with the linear layer of CIFAR-10."""
    model.set_head(nn.Linear(model.out_planes, 10))
    return model


@dataclass(frozen=True)
class Case:
    """Ours and the others: functions that build the same network; images (N, 3, size, size)."""

    ours: Callable[[], nn.Module]
    others: dict[str, Callable[[], nn.Module]]
    batch_size: int
    image_size: int
    num_classes: int


CASES = {
    "preact_resnet164_cifar": Case(
        lambda: verydeep.create_model("preact_resnet164_cifar", stride_on="3x3"),
        {"torch-resnet": lambda: with_head(torch_resnet.PreActResNet164())},
        batch_size=64,
        image_size=32,
        num_classes=10,
    ),
    "preact_resnet110_cifar": Case(
        lambda: verydeep.create_model("preact_resnet110_cifar", option="B"),
        {"torch-resnet": lambda: with_head(torch_resnet.PreActResNet110())},
        batch_size=64,
        image_size=32,
        num_classes=10,
    ),
    "preact_resnet50": Case(
        lambda: verydeep.create_model("preact_resnet50", stride_on="3x3"),
        {"timm": lambda: timm.create_model("resnetv2_50", pretrained=False)},
        batch_size=16,
        image_size=224,
        num_classes=1000,
    ),
    "resnet50": Case(
        lambda: verydeep.create_model("resnet50", stride_on="3x3"),
        {
            "torchvision": lambda: torchvision.models.resnet50(weights=None),
            "timm": lambda: timm.create_model("resnet50", pretrained=False),
        },
        batch_size=16,
        image_size=224,
        num_classes=1000,
    ),
}


def multiply_adds(model: nn.Module, image_size: int) -> int:
    """Multiply-adds of one image's forward pass."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(torch.zeros(1, 3, image_size, image_size))
    return counter.get_total_flops() // 2


def plain_step(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def convolutions(model: nn.Module, images: torch.Tensor) -> Callable[[], None]:
    """All convolutions of a network forward, then all backward, on inputs of the shapes that they have in it."""
    work: list[tuple[nn.Conv2d, torch.Tensor, torch.Tensor]] = []
    maps: dict[torch.Size, torch.Tensor] = {}  # one for all inputs and gradients of a shape

    def record(conv: nn.Conv2d, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        x, gradient = (maps.setdefault(t.shape, torch.randn_like(t)) for t in (inputs[0], output))
        work.append((conv, x, gradient))

    handles = [m.register_forward_hook(record) for m in model.modules() if isinstance(m, nn.Conv2d)]
    with torch.no_grad():
        model(images)
    for handle in handles:
        handle.remove()

    @torch.no_grad()
    def run() -> None:
        for conv, x, _ in work:
            torch.conv2d(x, conv.weight, conv.bias, conv.stride, conv.padding, conv.dilation, conv.groups)
        for i, (conv, x, gradient) in reversed(list(enumerate(work))):
            geometry = (conv.stride, conv.padding, conv.dilation, False, [0, 0], conv.groups)
            need = [i > 0, True, False]  # the images need no gradient
            torch.ops.aten.convolution_backward(gradient, x, conv.weight, None, *geometry, need)

    return run


def measure(case: Case, *, rounds: int) -> dict[str, object]:
    images = torch.randn(case.batch_size, 3, case.image_size, case.image_size)
    labels = torch.randint(0, case.num_classes, (case.batch_size,))
    work = {
        name: multiply_adds(build(), case.image_size) for name, build in ({"verydeep": case.ours} | case.others).items()
    }
    assert len(set(work.values())) == 1, work
    sides = {"verydeep": our_step(case.ours(), images, labels)}
    sides |= {name: plain_step(build(), images, labels) for name, build in case.others.items()}
    sides["floor"] = convolutions(case.ours(), images)
    measured = compare(alternate(sides, rounds=rounds), ours="verydeep")
    step_over_floor = 1 / measured["ratio_over_ours"].pop("floor")
    return {
        "batch_size": case.batch_size,
        "multiply_adds_per_image": work["verydeep"],
        "step_over_floor": step_over_floor,
    } | measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", choices=CASES)
    arguments = parser.parse_args()
    names = [arguments.only] if arguments.only else list(CASES)
    results = {name: measure(CASES[name], rounds=arguments.rounds) for name in names}
    write("step.json", command=f"python benchmarks/step.py {' '.join(sys.argv[1:])}".strip(), results=results)


if __name__ == "__main__":
    main()
