"""Norm and ReLU, and the 1x1 convolution after them, forward and backward: PyTorch, our fused kernels, Inductor.

    python benchmarks/fused.py [--rounds 15]      writes results/fused.json

The shapes are those of preact_resnet164_cifar at 64 images and of resnet50 at 16; training mode, channels_last,
float32, CPU. Inductor (torch.compile) is there to compare; it needs a C++ compiler, which the package does not.
What each keeps between forward and backward is in bytes per value of the input. The C library's heap is kept from
shrinking after each call, as the other layers of a network do: a fresh page costs more than what is computed in it.
"""

import argparse
import ctypes
import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
from timing import alternate, compare, write
from torch import Tensor, nn

from verydeep.nn import fused

# images, channels, height, channels of the 1x1 convolution
SHAPES = [
    (64, 64, 32, 16),
    (64, 16, 32, 64),
    (64, 128, 16, 32),
    (64, 32, 16, 128),
    (64, 256, 8, 64),
    (64, 64, 8, 256),
    (16, 64, 56, 256),
    (16, 128, 28, 512),
    (16, 256, 14, 1024),
    (16, 512, 7, 2048),
]


def plain(norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
    return F.relu_(norm(x))


def plain_conv(norm: nn.BatchNorm2d, x: Tensor, conv: nn.Conv2d) -> Tensor:
    return conv(F.relu_(norm(x)))


def fused_conv(norm: nn.BatchNorm2d, x: Tensor, conv: nn.Conv2d) -> Tensor:
    return fused.norm_act_conv(norm, x, conv)[0]


def forward_backward(function: Callable[..., Tensor], x: Tensor, *modules: nn.Module) -> Callable[[], None]:
    norm, *rest = modules
    gradient = torch.randn_like(function(norm, x, *rest))

    def run() -> None:
        function(norm, x, *rest).backward(gradient)
        x.grad = None

    return run


def kept(function: Callable[..., Tensor], x: Tensor, *modules: nn.Module) -> float:
    """Bytes kept for the backward pass, parameters not counted, per value of x."""
    storages: dict[int, int] = {}
    own = {parameter.data_ptr() for module in modules for parameter in module.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in own:
            storages[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    norm, *rest = modules
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        function(norm, x, *rest)
    return round(sum(storages.values()) / x.numel(), 3)


def measure(shape: tuple[int, int, int, int], *, rounds: int) -> dict[str, object]:
    images, channels, height, columns = shape
    x = torch.randn(images, channels, height, height).contiguous(memory_format=torch.channels_last).requires_grad_()
    norm, conv = nn.BatchNorm2d(channels), nn.Conv2d(channels, columns, 1, bias=False)
    conv.to(memory_format=torch.channels_last)
    results: dict[str, object] = {}
    cases = {
        "norm_relu": ((norm,), {"pytorch": plain, "fused": fused.norm_act, "inductor": torch.compile(plain)}),
        "norm_relu_conv": (
            (norm, conv),
            {"pytorch": plain_conv, "fused": fused_conv, "inductor": torch.compile(plain_conv)},
        ),
    }
    for name, (modules, functions) in cases.items():
        sides = {side: forward_backward(function, x, *modules) for side, function in functions.items()}
        bytes_kept = {side: kept(functions[side], x, *modules) for side in ("pytorch", "fused")}
        results[name] = compare(alternate(sides, rounds=rounds, warmup=3), ours="fused") | {"bytes_kept": bytes_kept}
    torch.compiler.reset()
    return results


def keep_heap() -> None:
    """Serve large blocks from the heap (M_MMAP_THRESHOLD, -3), and never give its end back (M_TRIM_THRESHOLD, -1)."""
    library = ctypes.CDLL(None)
    if not (library.mallopt(-3, 2**30) and library.mallopt(-1, 2**31 - 1)):
        raise RuntimeError("mallopt refused; this benchmark needs the GNU C library")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    keep_heap()
    results = {" ".join(map(str, shape)): measure(shape, rounds=arguments.rounds) for shape in SHAPES}
    write("fused.json", command=f"python benchmarks/fused.py {' '.join(sys.argv[1:])}".strip(), results=results)


if __name__ == "__main__":
    main()
