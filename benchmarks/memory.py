"""Peak memory and time of a training step: plain PyTorch, verydeep, and verydeep within a memory budget.

    python benchmarks/memory.py [--only NAME ...] [--depth 1001] [--batch-size 64]      writes results/memory.json

Every case is a process of its own, so that its peak resident set is its own; what the process holds before the network
is built (Python, torch) is measured too and taken off in `step_bytes`. The plain network is written out here with
torch.nn alone, as a user writes it: out-of-place ReLUs, default memory format, torch.optim.SGD. CPU, float32.
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
from timing import our_step, timed, write
from torch import Tensor, nn

import verydeep

SERIES = (164, 1001, 2000)  # 9n+2: 2000 is the depth of 222 units a stage


class PlainBottleneck(nn.Module):
    """The pre-activation bottleneck of He et al. 2016 in plain torch.nn."""

    def __init__(self, in_channels: int, inner: int, *, stride: int, preact: bool) -> None:
        super().__init__()
        out_channels = 4 * inner
        self.preact = nn.Sequential(nn.BatchNorm2d(in_channels), nn.ReLU()) if preact else nn.Identity()
        self.conv1 = nn.Conv2d(in_channels, inner, 1, stride=stride, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, out_channels, 1, bias=False)
        changes = stride > 1 or in_channels != out_channels
        self.project = nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        activated = self.preact(x)
        y = torch.relu(self.bn1(self.conv1(activated)))
        y = torch.relu(self.bn2(self.conv2(y)))
        return self.conv3(y) + (x if self.project is None else self.project(activated))


def plain_network(depth: int) -> nn.Module:
    """preact_resnet{depth}_cifar of bottlenecks, 10 classes."""
    count = (depth - 2) // 9
    units, channels = [], 16
    for stage, inner in enumerate((16, 32, 64)):
        for i in range(count):
            stride = 2 if stage and not i else 1
            units.append(PlainBottleneck(channels, inner, stride=stride, preact=bool(units)))
            channels = 4 * inner
    stem = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    head = [nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]
    return nn.Sequential(*stem, *units, *head)


def our_network(depth: int) -> nn.Module:
    return verydeep.create_model(f"preact_resnet{depth}_cifar", unit="bottleneck", option="B")


def measure(depth: int, batch_size: int, budget: str | None, rounds: int) -> dict[str, Any]:
    """One case, in this process.

    Args:    budget: `plain` for the plain network, `none` for ours as it is, `smallest`, or a size
    """
    images, labels = torch.randn(batch_size, 3, 32, 32), torch.randint(0, 10, (batch_size,))
    before = _peak()
    values: dict[str, Any] = {"depth": depth, "batch_size": batch_size, "budget": budget}
    if budget == "plain":
        step = _plain_step(plain_network(depth).train(), images, labels)
    else:
        model = our_network(depth)
        values["parameters"] = sum(parameter.numel() for parameter in model.parameters())
        if budget != "none":
            plan = _plan(model, tuple(images.shape), budget)
            verydeep.apply_plan(model, plan)
            values["plan"] = plan.summary()
        step = our_step(model, images, labels)
    warm = timed(step)
    seconds = [timed(step) for _ in range(rounds)]
    peak = _peak()
    return values | {
        "median_seconds": statistics.median(seconds or [warm]),
        "seconds": [warm, *seconds],
        "peak_resident_bytes": peak,
        "step_bytes": peak - before,
    }


def _plan(model: nn.Module, shape: tuple[int, ...], budget: str) -> Any:
    if budget != "smallest":
        return verydeep.plan_memory(model, shape, budget)
    from verydeep.memory.plan import DoesNotFit

    try:
        return verydeep.plan_memory(model, shape, 1)
    except DoesNotFit as error:
        return verydeep.plan_memory(model, shape, error.smallest_budget)


def _plain_step(model: nn.Module, images: Tensor, labels: Tensor) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def _peak() -> int:
    """Largest resident set of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def in_child(depth: int, batch_size: int, budget: str, rounds: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--case", str(depth), str(batch_size), budget, str(rounds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        return {"depth": depth, "batch_size": batch_size, "budget": budget, "failed": done.returncode}
    return json.loads(done.stdout.splitlines()[-1])


def against_plain(depth: int, batch_size: int, rounds: int, budgets: list[str]) -> dict[str, Any]:
    """One depth and batch: plain PyTorch, ours, ours within budgets; how memory and time compare with plain."""
    sides = {budget: in_child(depth, batch_size, budget, rounds) for budget in ("plain", "none", *budgets)}
    plain = sides["plain"]
    for side in sides.values():
        if "failed" not in side and "failed" not in plain:
            side["memory_of_plain"] = side["step_bytes"] / plain["step_bytes"]
            side["time_of_plain"] = side["median_seconds"] / plain["median_seconds"]
    return sides


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=("plain", "large_batch", "depth"))
    parser.add_argument("--depth", type=int, default=1001)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--budgets", nargs="+", default=["1GB", "smallest"], help="of the comparison with plain")
    parser.add_argument("--budget", default="1GB", help="of the large batch and the series of depths")
    parser.add_argument("--depths", type=int, nargs="+", default=list(SERIES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--case", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        depth, batch_size, budget, rounds = arguments.case
        print(json.dumps(measure(int(depth), int(batch_size), budget, int(rounds))))
        return
    only = arguments.only or ["plain", "large_batch", "depth"]
    depth, batch_size, rounds = arguments.depth, arguments.batch_size, arguments.rounds
    results: dict[str, Any] = {}
    if "plain" in only:
        results["against_plain"] = against_plain(depth, batch_size, rounds, arguments.budgets)
    if "large_batch" in only:
        results["large_batch"] = in_child(depth, 2 * batch_size, arguments.budget, rounds=1)
    if "depth" in only:
        results["by_depth"] = [
            in_child(depth, batch_size, budget, rounds=1)
            for depth in arguments.depths
            for budget in (arguments.budget, "smallest")
        ]
    write("memory.json", command=f"python benchmarks/memory.py {' '.join(sys.argv[1:])}".strip(), results=results)


if __name__ == "__main__":
    main()
