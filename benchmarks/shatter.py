"""dy/dx of random scalar networks at 256 inputs: verydeep's pass over all of them against one backward call per input.

    python benchmarks/shatter.py [--rounds 3] [--networks 2]      writes results/shatter.json

Both sides have the same weights, and the same derivatives within 1e-3 of their size (float32, 100 layers), checked
before anything is timed. CPU, float32.
"""

import argparse
import sys

import torch
from timing import alternate, compare, write
from torch import Tensor, nn

from verydeep.analysis.scalar_network import draw_networks


def one_by_one(modules: list[nn.Sequential], inputs: Tensor) -> Tensor:
    """One forward and one backward call for each network and input, (R, n)."""
    derivatives = torch.empty(len(modules), len(inputs))
    for i, module in enumerate(modules):
        for j, value in enumerate(inputs):
            x = value.reshape(1, 1).clone().requires_grad_()
            derivatives[i, j] = torch.autograd.grad(module(x).sum(), x)[0].item()
    return derivatives


def measure(kind: str, *, num_networks: int, rounds: int) -> dict[str, object]:
    networks = draw_networks(kind, num_networks, generator=torch.Generator().manual_seed(0))
    modules = [networks.module(i).requires_grad_(False) for i in range(num_networks)]
    inputs = torch.linspace(-2, 2, 256)
    ours, naive = networks.value_and_derivative(inputs)[1], one_by_one(modules, inputs)
    difference = ((ours - naive).norm() / naive.norm()).item()
    assert difference < 1e-3, difference
    sides = {
        "verydeep": lambda: networks.value_and_derivative(inputs),
        "one backward per input": lambda: one_by_one(modules, inputs),
    }
    measured = compare(alternate(sides, rounds=rounds, warmup=1), ours="verydeep")
    return {"networks": num_networks, "inputs": len(inputs), "relative_difference": difference} | measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--networks", type=int, default=2)
    arguments = parser.parse_args()
    kinds = ("plain24", "plain100", "residual100")
    results = {kind: measure(kind, num_networks=arguments.networks, rounds=arguments.rounds) for kind in kinds}
    write("shatter.json", command=f"python benchmarks/shatter.py {' '.join(sys.argv[1:])}".strip(), results=results)


if __name__ == "__main__":
    main()
