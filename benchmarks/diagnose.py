"""Time and peak memory of `verydeep.diagnose`, as multiples of a plain training step of the same network and batch.

    python benchmarks/diagnose.py [--only NAME ...] [--rounds 3]      writes results/diagnose.json

Every measurement of memory is a process of its own; what the process holds before the first step (Python, torch, the
network) is counted, as it is in a training. The step is forward, backward and SGD with momentum; `plain_step` is the
same without verydeep's fused operations, which step aside where operations are recorded. CPU, float32. Limits: 6 steps'
time, 1.3 times the memory.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
from typing import Any

import torch
import torch.nn.functional as F
from timing import timed, write

import verydeep
from verydeep.nn.fused import plain_operations

CASES = {"resnet50": 224, "preact_resnet1001_cifar": 32}  # name: side of the images
BATCH_SIZE = 8


def make(name: str, side: int) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return verydeep.create_model(name).train(), torch.randn(BATCH_SIZE, 3, side, side), torch.arange(BATCH_SIZE) % 10


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor) -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(images), labels).backward()
    optimizer.step()


def measure(name: str, what: str, rounds: int) -> dict[str, float]:
    """Seconds, the median over rounds after one of warm-up, and the process's peak."""
    model, images, labels = make(name, CASES[name])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def run() -> None:
        if what == "step":
            step(model, optimizer, images, labels)
        elif what == "plain_step":
            with plain_operations():
                step(model, optimizer, images, labels)
        else:
            verydeep.diagnose(model, images, labels)

    run()
    seconds = [timed(run) for _ in range(rounds)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": statistics.median(seconds), "peak_bytes": float(peak)}


def in_own_process(name: str, what: str, rounds: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--measure", name, what, "--rounds", str(rounds)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(CASES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(*arguments.measure, arguments.rounds)))
        return
    results: dict[str, Any] = {}
    for name in arguments.only:
        sides = {what: in_own_process(name, what, arguments.rounds) for what in ("step", "plain_step", "diagnose")}
        ratios = {
            f"{key} over {what}": sides["diagnose"][key] / sides[what][key]
            for what in ("step", "plain_step")
            for key in ("seconds", "peak_bytes")
        }
        results[name] = {"image_size": CASES[name], "batch_size": BATCH_SIZE, **sides, **ratios}
        print(name, {key: round(value, 2) for key, value in ratios.items()}, flush=True)
    write("diagnose.json", command=f"python benchmarks/diagnose.py --rounds {arguments.rounds}", results=results)


if __name__ == "__main__":
    main()
