"""The networks of the paper's tables, by name, as fields of RunConfig: NETWORKS.

Tables and figures name networks from here, so that one that stands in several is trained once.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

PREACT: dict[str, Any] = {"order": "full_preact"}
ORDERS = ("bn_after_addition", "relu_before_addition", "relu_only_preact", "full_preact")  # beside the original
GATE_BIASES = tuple(range(0, -11, -1))  # of the search, section 3.1
USUAL_STEPS = 1_000  # at the small scale
BUDGETS = (250, 500, 2_000)  # steps at the small scale, beside the usual
COMPARED = ("resnet110", "exclusive-gate-b-6")  # trained by other budgets and settings of the small scale
# Compared with a thousand layers, and for that trained as long as they are.
BESIDE_DEEP = ("resnet164", "full_preact-resnet164", "cifar100-resnet164", "cifar100-full_preact-resnet164")
# What the small scale has otherwise than the paper, each put back alone: fields, and times the cost.
CHANGES: dict[str, tuple[dict[str, Any], int]] = {
    "width-16": ({"width": 16}, 2),
    "images-32": ({"image_size": 32}, 4),
    "batch-128": ({"batch_size": 128, "lr": 0.1}, 2),
    "course": ({"schedule": "steps", "lr": 0.1, "warmup": 0.05, "warmup_lr": 0.01}, 1),
}
DEEP_STEPS = 500  # at the small scale, of a thousand layers and more, whose step takes ten times as long
IMAGENET_COLORS: dict[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}  # of the released code
FIRST_RATE_EPOCHS = 30  # of ImageNet's 90, before the learning rate first falls


@dataclass(frozen=True)
class Network:
    """A network and what of its training is its own.

    Args:    fields: of RunConfig, at every scale
             small, paper: further fields at that scale
             data: cifar10, cifar100 or imagenet
             at_paper: name of the network that it is at the paper's scale; default: its own
             layers: for the time that a step takes, in layers of a CIFAR network
    """

    fields: dict[str, Any]
    small: dict[str, Any] = field(default_factory=dict)
    paper: dict[str, Any] = field(default_factory=dict)
    data: str = "cifar10"
    at_paper: str = ""
    layers: int = 110


def _cifar(depth: int, *, data: str = "cifar10", plain: bool = False, **fields: Any) -> Network:
    small = {"steps": DEEP_STEPS} if depth > 1000 else {}
    return Network({"model": f"{'plain' if plain else 'resnet'}{depth}_cifar"} | fields, small, data=data, layers=depth)


def _imagenet(depth: int, *, paper: dict[str, Any] | None = None, **fields: Any) -> Network:
    paper = IMAGENET_COLORS | (paper or {})
    return Network({"model": f"resnet{depth}"} | fields, paper=paper, data="imagenet", layers=40 * depth)


def _table1() -> Iterator[tuple[str, Network]]:
    yield "resnet110", _cifar(110)
    yield "scale0-branch1", _cifar(110, plain=True)
    for branch in (1.0, 0.5):
        name = f"scale0.5-branch{branch:g}"
        yield name, _cifar(110, shortcut="constant", shortcut_scale=0.5, branch_scale=branch)
    for bias in range(0, -8, -1):
        yield f"exclusive-gate-b{bias}", _cifar(110, shortcut="exclusive_gate", gate_bias=float(bias))
    for bias in (0, -6):
        yield f"shortcut-gate-b{bias}", _cifar(110, shortcut="shortcut_gate", gate_bias=float(bias))
    yield "conv1x1", _cifar(110, shortcut="conv1x1")
    yield "dropout0.5", _cifar(110, shortcut="dropout", shortcut_dropout=0.5)


def _tables_2_to_4() -> Iterator[tuple[str, Network]]:
    yield "resnet164", _cifar(164)
    for order in ORDERS:
        for depth in (110, 164):
            yield f"{order}-resnet{depth}", _cifar(depth, order=order)
    yield "resnet110-1layer", _cifar(110, unit="one_layer")
    yield "full_preact-resnet110-1layer", _cifar(110, unit="one_layer", **PREACT)
    yield "resnet1001", _cifar(1001)
    yield "full_preact-resnet1001", _cifar(1001, **PREACT)
    batch64 = {"batch_size": 64, "bn_group_size": 32, "steps": 128_000}
    half = {"batch_size": 32, "bn_group_size": 32, "steps": 2 * DEEP_STEPS}  # as many images in half the batch
    deepest = {"model": "resnet1001_cifar"} | PREACT
    yield "full_preact-resnet1001-batch64", Network(deepest, half, batch64, layers=1001)
    yield "resnet1202", _cifar(1202)
    for depth in (164, 1001):
        yield f"cifar100-resnet{depth}", _cifar(depth, data="cifar100")
        yield f"cifar100-full_preact-resnet{depth}", _cifar(depth, data="cifar100", **PREACT)


def _table5() -> Iterator[tuple[str, Network]]:
    for depth in (152, 200):
        yield f"resnet{depth}", _imagenet(depth)
        yield f"full_preact-resnet{depth}", _imagenet(depth, **PREACT)
    yield "full_preact-resnet200-aspect", _imagenet(200, augmentation="scale+aspect", **PREACT)
    yield "resnet101", _imagenet(101)
    yield "bn_after_addition-resnet101", _imagenet(101, order="bn_after_addition")
    stopped = {"epochs": FIRST_RATE_EPOCHS, "schedule": "constant"}  # as the authors did
    for shortcut in ("constant", "exclusive_gate", "shortcut_gate", "conv1x1", "dropout"):
        yield f"{shortcut}-resnet101", _imagenet(101, paper=stopped, shortcut=shortcut)


def _text() -> Iterator[tuple[str, Network]]:
    """What the paper reports outside of its tables."""
    for depth in (20, 56):
        yield f"plain{depth}", _cifar(depth, plain=True)
        yield f"resnet{depth}", _cifar(depth)
    for bias in GATE_BIASES:
        gate = {"model": "resnet110_cifar", "shortcut": "exclusive_gate", "gate_bias": float(bias), "validation": 5_000}
        yield f"gate-search-b{bias}", Network(gate, {"steps": 500})
    yield "resnet32", _cifar(32)
    yield "conv1x1-resnet32", _cifar(32, shortcut="conv1x1")
    yield "no-warmup-resnet110", _cifar(110, warmup=0.0)
    yield "no-warmup-full_preact-resnet110", _cifar(110, warmup=0.0, **PREACT)


NETWORKS: dict[str, Network] = dict([*_table1(), *_tables_2_to_4(), *_table5(), *_text()])
OTHER_SHORTCUTS = tuple(name for name, _ in _table1() if name != "resnet110")


def trained_for(steps: int, name: str) -> str:
    """The name of a network that the small scale trains in so many steps."""
    return name if steps == USUAL_STEPS else f"{name}-{steps}-steps"


NETWORKS |= {
    trained_for(steps, name): replace(NETWORKS[name], small={"steps": steps}, at_paper=name)
    for names, all_steps in ((COMPARED, BUDGETS), (BESIDE_DEEP, (DEEP_STEPS,)))
    for name in names
    for steps in all_steps
}
NETWORKS |= {
    f"{name}-{change}": Network(NETWORKS[name].fields, fields, layers=110 * cost)
    for name in COMPARED
    for change, (fields, cost) in CHANGES.items()
}


def name_at(scale: str, name: str) -> str:
    """The name of the training that stands for a network at a scale."""
    return (NETWORKS[name].at_paper or name) if scale == "paper" else name
