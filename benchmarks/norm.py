"""What a norm costs, forward and backward: RMSNorm and the others beside layer norm.

    python benchmarks/norm.py [--rounds 21]      writes results/norm.json

Feature maps (64, C, S, S) in channels_last through verydeep's norms by name, in training mode; and rows of a
transformer, (4096, 768), through torch's own LayerNorm and RMSNorm. The ratio is seconds over layer norm's, the median
of the rounds' ratios; weights are counted beside. CPU, float32.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping

import torch
from timing import alternate, write
from torch import Tensor, nn

from verydeep.nn.norm import NORMS

MAPS = {"16 x 32 x 32": (16, 32), "64 x 8 x 8": (64, 8), "256 x 8 x 8": (256, 8)}
ROWS = (4096, 768)


def forward_backward(norm: nn.Module, x: Tensor, gradient: Tensor) -> Callable[[], None]:
    """One forward and one backward pass of a norm, the input's gradient included."""

    def run() -> None:
        x.grad = None
        norm(x).backward(gradient)

    return run


def over_layer_norm(norms: Mapping[str, nn.Module], x: Tensor, *, rounds: int) -> dict[str, object]:
    gradient = torch.randn_like(x)
    x.requires_grad_()
    seconds = alternate({n: forward_backward(norm, x, gradient) for n, norm in norms.items()}, rounds=rounds, warmup=3)
    return {
        name: {
            "median_seconds": statistics.median(values),
            "over_layer_norm": statistics.median(a / b for a, b in zip(values, seconds["layer"], strict=True)),
            "weights": sum(p.numel() for p in norms[name].parameters()),
        }
        for name, values in seconds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21)
    rounds = parser.parse_args().rounds
    results: dict[str, object] = {}
    for name, (channels, size) in MAPS.items():
        norms = {norm: make(channels) for norm, make in NORMS.items() if make is not None}
        x = torch.randn(64, channels, size, size).contiguous(memory_format=torch.channels_last)
        results[f"map {name}"] = over_layer_norm(norms, x, rounds=rounds)
    rows = {"layer": nn.LayerNorm(ROWS[1]), "rms": nn.RMSNorm(ROWS[1])}
    results[f"rows {ROWS[0]} x {ROWS[1]}"] = over_layer_norm(rows, torch.randn(ROWS), rounds=rounds)
    write("norm.json", command=f"python benchmarks/norm.py {' '.join(sys.argv[1:])}".strip(), results=results)


if __name__ == "__main__":
    main()
