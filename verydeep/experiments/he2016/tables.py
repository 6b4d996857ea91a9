"""Tables 1 to 5: published values, the networks that stand for them, and what the small scale must show."""

import statistics
from functools import partial

from verydeep.experiments.experiment import Measurement
from verydeep.experiments.he2016.cell import FAIL, FIGURE, Cell
from verydeep.experiments.he2016.network import DEEP_STEPS, FIRST_RATE_EPOCHS, ORDERS, OTHER_SHORTCUTS, trained_for
from verydeep.experiments.he2016.ordering import best, better, fails, gains_more, nearer, trains_but_worse, worse
from verydeep.experiments.measured import values_of

BASE = "resnet110"
SHALLOW = trained_for(DEEP_STEPS, BASE)
FAILING_GATES = tuple(f"exclusive-gate-b{bias}" for bias in range(0, -6, -1))

TABLE1 = (
    Cell(
        "original", "identity shortcut, the original unit", 6.61, (BASE,),
        best(BASE, OTHER_SHORTCUTS),
    ),
    Cell("scale0-branch1", "shortcut times 0: a plain network", FAIL, ("scale0-branch1",), fails(["scale0-branch1"])),
    Cell("scale0.5-branch1", "shortcut times 0.5", FAIL, ("scale0.5-branch1",), fails(["scale0.5-branch1"])),
    Cell(
        "scale0.5-branch0.5", "shortcut and branch times 0.5, a frozen gate", 12.35, ("scale0.5-branch0.5",),
        trains_but_worse("scale0.5-branch0.5", BASE, "scale0.5-branch1"),
    ),
    Cell(
        "exclusive-gate-b0..-5", "exclusive gate, bias 0 to -5 at the start; the best of the six", FAIL,
        FAILING_GATES, fails(FAILING_GATES),
    ),
    Cell(
        "exclusive-gate-b-6", "exclusive gate, bias -6", 8.70, ("exclusive-gate-b-6",),
        trains_but_worse("exclusive-gate-b-6", BASE, "exclusive-gate-b0"),
    ),
    Cell(
        "exclusive-gate-b-7", "exclusive gate, bias -7", 9.81, ("exclusive-gate-b-7",),
        worse("exclusive-gate-b-7", "exclusive-gate-b-6"),
    ),
    Cell(
        "shortcut-gate-b0", "shortcut-only gate, bias 0", 12.86, ("shortcut-gate-b0",),
        worse("shortcut-gate-b0", "shortcut-gate-b-6"),
    ),
    Cell(
        "shortcut-gate-b-6", "shortcut-only gate, bias -6", 6.91, ("shortcut-gate-b-6",),
        nearer("shortcut-gate-b-6", BASE, "exclusive-gate-b-6"),
    ),
    Cell("conv1x1", "1x1 convolution on the shortcut", 12.22, ("conv1x1",), worse("conv1x1", BASE)),
    Cell("dropout0.5", "dropout 0.5 on the shortcut", FAIL, ("dropout0.5",), fails(["dropout0.5"])),
)  # fmt: skip

_TABLE2 = {
    "original": (6.61, 5.93),
    "bn_after_addition": (8.17, 6.50),
    "relu_before_addition": (7.84, 6.14),
    "relu_only_preact": (6.71, 5.91),
    "full_preact": (6.37, 5.46),
}


def _table2(order: str, depth: int, published: float) -> Cell:
    base = f"resnet{depth}"
    name = base if order == "original" else f"{order}-{base}"
    ordering = {
        "original": better(base, f"bn_after_addition-{base}"),
        "relu_only_preact": nearer(name, base, f"bn_after_addition-{base}"),
        "full_preact": best(name, [base, *(f"{other}-{base}" for other in ORDERS if other != order)]),
    }.get(order, worse(name, base))
    return Cell(f"{order}/resnet{depth}_cifar", f"order {order}, {depth} layers", published, (name,), ordering)


TABLE2 = tuple(
    _table2(order, depth, published)
    for order, row in _TABLE2.items()
    for depth, published in zip((110, 164), row, strict=True)
)

# row: (network, published of the original unit, of full pre-activation)
_TABLE3 = {
    "cifar10/resnet110_1layer": ("resnet110-1layer", 9.90, 8.91),
    "cifar10/resnet110": ("resnet110", 6.61, 6.37),
    "cifar10/resnet164": ("resnet164", 5.93, 5.46),
    "cifar10/resnet1001": ("resnet1001", 7.61, 4.92),
    "cifar100/resnet164": ("cifar100-resnet164", 25.16, 24.33),
    "cifar100/resnet1001": ("cifar100-resnet1001", 27.82, 22.71),
}


def _preact(name: str) -> str:
    """`cifar100-full_preact-resnet164` of `cifar100-resnet164`."""
    data, _, depth = name.rpartition("resnet")
    return f"{data}full_preact-resnet{depth}"


def _table3(row: str, name: str, original: float, full_preact: float) -> tuple[Cell, Cell]:
    preact, tolerance = _preact(name), 1.0 if row.startswith("cifar100") else 0.5
    ordering = better(preact, name)
    if row.endswith("resnet1001"):
        shallow = [trained_for(DEEP_STEPS, deep.replace("1001", "164")) for deep in (name, preact)]
        ordering = gains_more((name, preact), (shallow[0], shallow[1]))
    return (
        Cell(f"{row}/original", f"{name}, original units", original, (name,), worse(name, preact), tolerance=tolerance),
        Cell(
            f"{row}/full_preact", f"{name}, full pre-activation", full_preact, (preact,), ordering, tolerance=tolerance
        ),
    )


TABLE3 = tuple(cell for row, values in _TABLE3.items() for cell in _table3(row, *values))

_OTHERS = {
    "cifar10": {"NIN": 8.81, "DSN": 8.22, "FitNet": 8.39, "Highway": 7.72, "All-CNN": 7.25,
                "ELU (no augmentation)": 6.55, "FitResNet, LSUV": 5.84},
    "cifar100": {"NIN": 35.68, "DSN": 34.57, "FitNet": 35.04, "Highway": 32.39, "All-CNN": 33.71,
                 "ELU (no augmentation)": 24.28, "FitNet, LSUV": 27.66},
}  # fmt: skip

TABLE4 = (
    *(
        Cell(f"{data}/{method}", f"{method}, {data}", published)
        for data, methods in _OTHERS.items()
        for method, published in methods.items()
    ),
    Cell("cifar10/ResNet-110 (1.7M)", "original units, 110 layers", 6.61, ("resnet110",),
         better(SHALLOW, "resnet1202")),
    Cell("cifar10/ResNet-1202 (19.4M)", "original units, 1,202 layers", 7.93, ("resnet1202",),
         worse("resnet1202", SHALLOW)),
    Cell("cifar10/pre-act ResNet-164 (1.7M)", "full pre-activation, 164 layers", 5.46, ("full_preact-resnet164",),
         better("full_preact-resnet164", "resnet164")),
    Cell("cifar10/pre-act ResNet-1001 (10.2M)", "full pre-activation, 1,001 layers",
         {"median": 4.92, "mean": 4.89, "std": 0.14},
         ("full_preact-resnet1001",), better("full_preact-resnet1001", "resnet1202")),
    Cell("cifar10/pre-act ResNet-1001 (10.2M), batch 64", "the same in batches of 64",
         {"median": 4.62, "mean": 4.69, "std": 0.20},
         ("full_preact-resnet1001-batch64",), better("full_preact-resnet1001-batch64", "full_preact-resnet1001")),
    Cell("cifar100/ResNet-164 (1.7M)", "original units, CIFAR-100", 25.16, ("cifar100-resnet164",), tolerance=1.0),
    Cell("cifar100/ResNet-1001 (10.2M)", "original units, CIFAR-100", 27.82, ("cifar100-resnet1001",), tolerance=1.0),
    Cell("cifar100/pre-act ResNet-164 (1.7M)", "full pre-activation, CIFAR-100", 24.33,
         ("cifar100-full_preact-resnet164",), better("cifar100-full_preact-resnet164", "cifar100-resnet164"),
         tolerance=1.0),
    Cell("cifar100/pre-act ResNet-1001 (10.2M)", "full pre-activation, CIFAR-100",
         {"median": 22.71, "mean": 22.68, "std": 0.22},
         ("cifar100-full_preact-resnet1001",), better("cifar100-full_preact-resnet1001", "cifar100-resnet1001"),
         tolerance=1.0),
)  # fmt: skip

NEAR, LARGE = "train_crop", "large_crop"  # 224 of shorter side 256; 320 of 320


def _top1(crop: str, measurement: Measurement) -> float:
    """Top-1 error_percent of a crop."""
    return measurement[crop][0]


def _table5(
    name: str, what: str, published: list[float], network: str = "", *, crop: str = LARGE, than: str = ""
) -> Cell:
    return Cell(
        name,
        what,
        published,
        (network,) if network else (),
        better(network, than, number=partial(_top1, crop)) if than else None,
        values=partial(values_of, crop, network),
        quantity="[top-1, top-5] error_percent, single crop",
    )


TABLE5 = (
    _table5("ResNet-152 original @224", "trained and tested at 224x224", [23.0, 6.7], "resnet152", crop=NEAR),
    _table5("ResNet-152 original @320", "tested at 320x320", [21.3, 5.5], "resnet152"),
    _table5("ResNet-152 pre-act @320", "tested at 320x320", [21.1, 5.5], "full_preact-resnet152", than="resnet152"),
    _table5("ResNet-200 original @320", "tested at 320x320", [21.8, 6.0], "resnet200"),
    _table5("ResNet-200 pre-act @320", "tested at 320x320", [20.7, 5.3], "full_preact-resnet200", than="resnet200"),
    _table5("ResNet-200 pre-act @320, scale+aspect", "augmented in aspect ratio too", [20.1, 4.8],
            "full_preact-resnet200-aspect", than="full_preact-resnet200"),
    _table5("Inception v3", "of others, 299x299", [21.2, 5.6]),
)  # fmt: skip


def first_rate_loss(measurement: Measurement) -> float | None:
    """Mean training loss over the last tenth of the steps at the first learning rate; None where the run diverged.

    A run that is counted in steps, as at the small scale, is taken whole.
    """
    curve, epochs = measurement["curve"], measurement["config"]["epochs"]
    if measurement["diverged"]:
        return None
    last = curve[-1][0] * min(1.0, FIRST_RATE_EPOCHS / epochs if epochs else 1.0)
    return statistics.fmean(loss for step, loss, *_ in curve if 0.9 * last < step <= last)


IMAGENET_SHORTCUTS = (
    _table5("ResNet-101 original", "tested at 224x224", [23.6, 7.1], "resnet101", crop=NEAR),
    _table5("ResNet-101 BN after addition", "tested at 224x224", [24.6, 7.5], "bn_after_addition-resnet101", crop=NEAR),
    *(
        Cell(f"ResNet-101 {shortcut}", f"{shortcut} on all shortcuts: a higher training loss at the first rate", FIGURE,
             (f"{shortcut}-resnet101",), worse(f"{shortcut}-resnet101", "resnet101", number=first_rate_loss),
             values=partial(values_of, first_rate_loss, f"{shortcut}-resnet101"),
             quantity="training loss, last tenth of the steps at the first learning rate")
        for shortcut in ("constant", "exclusive_gate", "shortcut_gate", "conv1x1", "dropout")
    ),
    _table5("Inception-ResNet-v2", "of others", [19.9, 4.9]),
)  # fmt: skip
