"""What the benchmarks share: both sides in one process, in turn, medians and their ratio, written with the versions."""

import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from verydeep.config import RunConfig
from verydeep.training.distributed import World
from verydeep.training.state import make_state
from verydeep.training.step import train_step

RESULTS = Path(__file__).parents[1] / "results"


def alternate(sides: Mapping[str, Callable[[], object]], *, rounds: int, warmup: int = 2) -> dict[str, list[float]]:
    """Seconds of each side in each round; the order of the sides turns round with every round."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(warmup):
        for run in sides.values():
            run()
    names = list(sides)
    for i in range(rounds):
        for name in names if i % 2 == 0 else reversed(names):
            seconds[name].append(timed(sides[name]))
    return seconds


def timed(run: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def compare(seconds: Mapping[str, list[float]], *, ours: str) -> dict[str, Any]:
    """Medians, and for each other side how many times longer it takes: the median of the rounds' ratios."""
    ratios = {
        name: statistics.median(other / own for other, own in zip(values, seconds[ours], strict=True))
        for name, values in seconds.items()
        if name != ours
    }
    return {
        "median_seconds": {name: statistics.median(values) for name, values in seconds.items()},
        "min_seconds": {name: min(values) for name, values in seconds.items()},
        "ratio_over_ours": ratios,
        "rounds": len(seconds[ours]),
    }


def our_step(model: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], None]:
    """verydeep's own training step on one batch, as `verydeep train` runs it."""
    world = World(rank=0, size=1, device=torch.device("cpu"))
    state = make_state(model, RunConfig().resolved(), world)
    channels_last = images.contiguous(memory_format=torch.channels_last)  # as verydeep's data come
    count = len(labels)
    return lambda: train_step(state, [(channels_last, labels)], step=0, lr=0.1, num_images=count, num_micro_batches=1)


def write(name: str, *, command: str, results: object) -> None:
    """Write results/NAME with command, machine and versions, and print the results."""
    record = {
        "command": command,
        "machine": {"processor": _processor(), "threads": torch.get_num_threads(), "system": platform.platform()},
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "results": results,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / name).write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(results, indent=2))


def _processor() -> str:
    """The processor's model name, as the system gives it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
