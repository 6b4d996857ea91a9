"""Everything that needs a GPU, measured in one run of under 8 minutes: step times, equal numbers, memory, no waiting.

    python benchmarks/gpu.py [--seconds 460] [--only SECTION,...]      writes results/gpu.json

Needs torch and torchvision only; peers that are not installed are named as not run. The file is written after each
measurement, so that a run that is cut leaves what it has. `--device cpu --quick` runs all of it on tiny sizes, to test
the script: its times mean nothing.

A step is forward, loss, backward, gate and update (`train_step`). Ways of taking it: `eager`; `compiled`, units
compiled by structure; `recorded`, the whole step one CUDA graph; `compiled+recorded`, as `verydeep train --compile`.
"""

import argparse
import gc
import importlib.util
import json
import platform
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn

import verydeep
from verydeep.config import RunConfig
from verydeep.training.compile import compile_units
from verydeep.training.distributed import World
from verydeep.training.graph import RecordedStep
from verydeep.training.state import TrainState, make_state
from verydeep.training.step import train_step

RESULTS = Path(__file__).parents[1] / "results"
WAYS = ("eager", "compiled", "recorded", "compiled+recorded")


class OutOfTimeError(Exception):
    """A measurement took longer than it may."""


@dataclass
class Bench:
    """Where it is measured, how large, how long; and the results so far."""

    device: torch.device
    quick: bool
    out: Path
    command: str
    deadline: float
    ways: tuple[str, ...]
    results: dict[str, Any] = field(default_factory=dict)

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def rounds(self) -> int:
        return 2 if self.quick else 20

    def synchronize(self) -> None:
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def measure(self, section: str, name: str, function: Callable[[], Any], *, limit: float) -> None:
        """Put what `function` returns, or why it could not be run, into the results and onto the disk."""
        left = min(limit, self.deadline - time.monotonic())
        began = time.monotonic()
        try:
            if left < 1:
                raise OutOfTimeError
            with time_limit(left):
                value = function()
        except OutOfTimeError:
            value = {"not run": f"out of time after {time.monotonic() - began:.0f} s"}
        except NotRun as reason:
            value = {"not run": str(reason)}
        except Exception as error:  # one measurement that fails leaves the others
            value = {"failed": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"}
        self.results.setdefault(section, {})[name] = value
        print(f"{section} {name}: {json.dumps(value)}", flush=True)
        self.write()
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()

    def write(self) -> None:
        machine = {
            "device": torch.cuda.get_device_name(self.device) if self.cuda else "cpu",
            "system": platform.platform(),
            "quick": self.quick,
        }
        versions = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "torchvision": torchvision.__version__,
            "cuda": torch.version.cuda,
            "verydeep": verydeep.__version__,
        }
        record = {"command": self.command, "machine": machine, "versions": versions, "results": self.results}
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self.out.write_text(json.dumps(record, indent=2) + "\n")


class NotRun(Exception):
    """Why something is not measured here."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise OutOfTimeError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# Steps


def batch(bench: Bench, num_images: int, size: int, num_classes: int = 10) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(num_images, 3, size, size, generator=generator)
    labels = torch.randint(0, num_classes, (num_images,), generator=generator)
    return images.to(bench.device).contiguous(memory_format=torch.channels_last), labels.to(bench.device)


def state_of(bench: Bench, name: str, **options: Any) -> TrainState:
    torch.manual_seed(0)
    with bench.device:
        model = verydeep.create_model(name, **options)
    return make_state(model, RunConfig().resolved(), World(rank=0, size=1, device=bench.device))


def our_step(
    bench: Bench, state: TrainState, images: Tensor, labels: Tensor, *, way: str, precision: str, lr: float = 0.01
) -> Callable[[], None]:
    """A function that takes one step on the batch; building it compiles and records."""
    if "recorded" in way and not bench.cuda:
        raise NotRun("a CUDA graph needs a CUDA device")
    if "compiled" in way:
        compile_units(state.model)
    take: Callable[..., None] = partial(train_step, state, precision=precision)
    if "recorded" in way:
        take = RecordedStep(take, state, images, labels)
    count = len(labels)
    return lambda: take([(images, labels)], step=0, lr=lr, num_images=count, num_micro_batches=1)


def plain_step(model: nn.Module, images: Tensor, labels: Tensor, *, precision: str) -> Callable[[], None]:
    """A step as users of other libraries write it."""
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=5e-4)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(images.device.type, torch.bfloat16, enabled=precision == "bf16"):
            logits = model(images)
        F.cross_entropy(logits.float(), labels).backward()
        optimizer.step()

    return step


def timed(bench: Bench, build: Callable[[], Callable[[], None]]) -> dict[str, float]:
    """Median seconds of a step, seconds until the first was done, and the peak of memory."""
    if bench.cuda:
        torch.cuda.reset_peak_memory_stats(bench.device)
    began = time.perf_counter()
    step = build()
    step()
    bench.synchronize()
    first = time.perf_counter() - began
    for _ in range(2):
        step()
    seconds = []
    for _ in range(bench.rounds):
        bench.synchronize()
        start = time.perf_counter()
        step()
        bench.synchronize()
        seconds.append(time.perf_counter() - start)
    measured = {
        "median_seconds": statistics.median(seconds),
        "min_seconds": min(seconds),
        "seconds_to_first": first,
        "rounds": bench.rounds,
    }
    if bench.cuda:
        measured["peak_bytes"] = torch.cuda.max_memory_allocated(bench.device)
    return measured


def ratio(bench: Bench, section: str, over: str, under: str) -> None:
    """The ratio of two measured medians, among the results, where both were measured."""
    values = bench.results.get(section, {})
    if over == under:
        return
    times = [values.get(name, {}).get("median_seconds") for name in (over, under)]
    if all(times):
        values[f"{over} / {under}"] = times[0] / times[1]
        bench.write()


# Sections


def steps(bench: Bench) -> None:
    """Step times of the CIFAR networks, batch 128."""
    names = ("preact_resnet110_cifar", "preact_resnet164_cifar", "preact_resnet1001_cifar")
    names, num_images, size = (("preact_resnet8_cifar",), 4, 8) if bench.quick else (names, 128, 32)
    for precision in ("fp32", "bf16"):
        for name in names:
            for way in bench.ways:

                def build(name: str = name, way: str = way, precision: str = precision) -> Callable[[], None]:
                    images, labels = batch(bench, num_images, size)
                    return our_step(bench, state_of(bench, name), images, labels, way=way, precision=precision)

                bench.measure("steps", f"{name} {precision} {way}", partial(timed, bench, build), limit=120)
            for way in bench.ways:
                ratio(bench, "steps", f"{name} {precision} eager", f"{name} {precision} {way}")


def peers(bench: Bench) -> None:
    """The same networks of other libraries, run as their users do, against `compiled+recorded`."""
    num_images, size, classes = (2, 32, 10) if bench.quick else (64, 224, 1000)

    def ours(precision: str, way: str) -> Callable[[], None]:
        images, labels = batch(bench, num_images, size, classes)
        state = state_of(bench, "resnet50", stride_on="3x3", num_classes=classes)
        return our_step(bench, state, images, labels, way=way, precision=precision)

    def theirs(make: Callable[[], nn.Module], precision: str, channels_last: bool) -> Callable[[], None]:
        images, labels = batch(bench, num_images, size, classes)
        model = make().to(bench.device)
        if channels_last:
            model = model.to(memory_format=torch.channels_last)
        return plain_step(model, images if channels_last else images.contiguous(), labels, precision=precision)

    makers: dict[str, Callable[[], nn.Module]] = {
        "torchvision": lambda: torchvision.models.resnet50(weights=None, num_classes=classes)
    }
    for precision in ("fp32", "bf16"):
        for way in bench.ways[:1] if bench.quick else bench.ways:
            name = f"resnet50 {precision} verydeep {way}"
            bench.measure("peers", name, partial(timed, bench, partial(ours, precision, way)), limit=90)
            for peer, make in makers.items():
                for layout in ("default", "channels_last"):
                    other = f"resnet50 {precision} {peer} {layout}"
                    if other not in bench.results["peers"]:
                        build = partial(theirs, make, precision, layout == "channels_last")
                        bench.measure("peers", other, partial(timed, bench, build), limit=30)
                    ratio(bench, "peers", other, name)
    bench.measure("peers", "torch-resnet", partial(torch_resnet_times, bench), limit=40)


def torch_resnet_times(bench: Bench) -> dict[str, Any]:
    """Step times of torch-resnet's networks, for those of `steps`."""
    if importlib.util.find_spec("torch_resnet") is None:
        raise NotRun("torch-resnet is not installed")
    import torch_resnet

    num_images, size = (2, 8) if bench.quick else (128, 32)
    measured = {}
    for depth in (110,) if bench.quick else (110, 164):

        def build(depth: int = depth) -> Callable[[], None]:
            model = getattr(torch_resnet, f"PreActResNet{depth}")()
            model.set_head(nn.Linear(model.out_planes, 10))
            images, labels = batch(bench, num_images, size)
            return plain_step(model.to(bench.device), images.contiguous(), labels, precision="fp32")

        measured[f"preact_resnet{depth} fp32"] = timed(bench, build)
    return measured


def numbers(bench: Bench) -> None:
    """Losses of 20 steps from the same weights: each way against eager, in full single precision."""
    name, num_images, size = ("preact_resnet8_cifar", 8, 8) if bench.quick else ("preact_resnet164_cifar", 128, 32)

    def losses(way: str) -> list[float]:
        state = state_of(bench, name)
        step = our_step(bench, state, *batch(bench, num_images, size), way=way, precision="fp32")
        seen = []
        for _ in range(20):
            state.tally.reset()
            step()
            seen.append(state.tally.sums[0].item() / num_images)
        return seen

    def against_eager(way: str) -> dict[str, Any]:
        tf32 = torch.backends.cudnn.allow_tf32
        torch.backends.cudnn.allow_tf32 = False
        try:
            theirs, ours = losses("eager"), losses(way)
        finally:
            torch.backends.cudnn.allow_tf32 = tf32
        difference = max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))
        return {
            "largest_relative_difference": difference,
            "tolerance": 2e-3,
            "holds": difference < 2e-3,
            "last_loss": ours[-1],
        }

    for way in bench.ways:  # eager against itself shows what the device's own order costs
        bench.measure("numbers", f"{name} {way}", partial(against_eager, way), limit=60)


def waiting(bench: Bench) -> None:
    """Steps under torch's synchronisation check: none may wait for the host."""

    def check(way: str) -> dict[str, Any]:
        if not bench.cuda:
            raise NotRun("needs a CUDA device")
        state = state_of(bench, "preact_resnet110_cifar")
        step = our_step(bench, state, *batch(bench, 128, 32), way=way, precision="fp32")
        for _ in range(2):
            step()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(5):
                step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return {"steps": 5, "holds": True}

    for way in bench.ways:
        bench.measure("waiting", way, partial(check, way), limit=60)


def memory(bench: Bench) -> None:
    """Peak memory of a step at depth 1001, without and with a budget of a quarter of it."""
    name, num_images, size = ("preact_resnet8_cifar", 4, 8) if bench.quick else ("preact_resnet1001_cifar", 128, 32)

    def whole() -> dict[str, float]:
        images, labels = batch(bench, num_images, size)
        return timed(
            bench, lambda: our_step(bench, state_of(bench, name), images, labels, way="eager", precision="fp32")
        )

    def within_budget() -> dict[str, Any]:
        if not bench.cuda:
            raise NotRun("needs a CUDA device")
        if "plan_memory" not in verydeep.__all__:
            raise NotRun("this version plans no memory")
        from verydeep.memory.plan import apply_plan

        peak = bench.results["memory"][f"{name} whole"]["peak_bytes"]
        images, labels = batch(bench, num_images, size)
        state = state_of(bench, name)
        plan = verydeep.plan_memory(state.model, images.shape, peak // 4)
        apply_plan(state.model, plan)
        build = partial(our_step, bench, state, images, labels, way="eager", precision="fp32")
        return {"budget_bytes": peak // 4, "planned_peak_bytes": plan.peak_bytes} | timed(bench, build)

    bench.measure("memory", f"{name} whole", whole, limit=60)
    bench.measure("memory", f"{name} a quarter", within_budget, limit=60)


def depth(bench: Bench) -> None:
    """Step time against depth, units of two layers, batch 128."""
    depths, num_images, size = ((8, 14), 4, 8) if bench.quick else ((110, 218, 434, 866), 128, 32)
    for way in bench.ways[:1] if bench.quick else bench.ways:
        for layers in depths:

            def build(way: str = way, layers: int = layers) -> Callable[[], None]:
                state = state_of(bench, f"preact_resnet{layers}_cifar")
                return our_step(bench, state, *batch(bench, num_images, size), way=way, precision="fp32")

            bench.measure("depth", f"{layers} {way}", partial(timed, bench, build), limit=60)


SECTIONS: dict[str, Callable[[Bench], None]] = {
    "numbers": numbers,
    "waiting": waiting,
    "steps": steps,
    "memory": memory,
    "depth": depth,
    "peers": peers,
}


def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does the script work?")
    parser.add_argument("--seconds", type=float, default=460, help="of the whole run; default: 460")
    parser.add_argument("--only", default=",".join(SECTIONS), metavar="SECTION,...", help=", ".join(SECTIONS))
    parser.add_argument("--ways", default=",".join(WAYS), metavar="WAY,...", help=", ".join(WAYS))
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu.json")
    arguments = parser.parse_args(argv)
    command = f"python benchmarks/gpu.py {' '.join(argv)}".strip()
    deadline = time.monotonic() + arguments.seconds
    ways = tuple(arguments.ways.split(","))
    bench = Bench(torch.device(arguments.device), arguments.quick, arguments.out, command, deadline, ways)
    for name in arguments.only.split(","):
        SECTIONS[name](bench)


if __name__ == "__main__":
    main()
