"""What goes together: refusals with their reasons, the depth rules, and that every legal declaration trains."""

import itertools
import random
import re
from typing import Any

import pytest
import torch

from verydeep import ResNet, ResNetSpec, UsageError, create_model
from verydeep.models.spec import units_of_depth
from verydeep.nn.norm import NORMS
from verydeep.nn.scale import SCALES
from verydeep.nn.shortcut import SHORTCUTS
from verydeep.nn.unit import ORDERS, UNITS

REFUSALS = {
    "fixup_with_a_norm": (dict(scale="fixup"), "scale fixup with norm batch: Fixup takes the place of the norm"),
    "fixup_of_one_layer": (
        dict(scale="fixup", norm="none", unit="one_layer"),
        "scale fixup with unit one_layer: its factor L^(-1/(2m-2)) divides by zero at m = 1",
    ),
    "skipinit_and_fixup": (dict(scale="skipinit+fixup", norm="none"), "scale 'skipinit+fixup': one scaling a network"),
    "zero_init_before_a_relu": (
        dict(scale="zero_init", order="relu_before_addition"),
        "scale zero_init with order relu_before_addition: the ReLU that ends the branch passes no gradient at 0",
    ),
    "fixup_before_a_relu": (
        dict(scale="fixup", norm="none", order="relu_before_addition"),
        "scale fixup with order relu_before_addition: the ReLU that ends the branch passes no gradient at 0",
    ),
    "no_norm_after_addition": (
        dict(order="bn_after_addition", norm="none"),
        "order bn_after_addition with norm none: without a norm it is the order original",
    ),
    "stride_on_3x3_of_basic": (dict(stride_on="3x3"), "stride_on 3x3 with unit basic: its convolutions are all 3x3"),
    "stride_on_3x3_of_one_layer": (
        dict(stride_on="3x3", unit="one_layer"),
        "stride_on 3x3 with unit one_layer: its convolutions are all 3x3",
    ),
    "pool_first_of_a_stem_that_does_not_pool": (
        dict(stem_order="pool_first", order="full_preact"),
        "stem_order pool_first with stem cifar, order full_preact: is for stem imagenet, which pools",
    ),
    "pool_first_of_units_that_begin_otherwise": (
        dict(stem_order="pool_first", stem="imagenet", order="relu_only_preact"),
        "stem_order pool_first with stem imagenet, order relu_only_preact",
    ),
    "bottleneck_widen_of_basic": (
        dict(bottleneck_widen=2),
        "bottleneck_widen 2 with unit basic: is for bottleneck",
    ),
    "groups_of_batch_norm": (dict(num_groups=4), "num_groups 4 with norm batch: is for norm group"),
    "plain_skipinit": (
        dict(shortcut="none", scale="skipinit"),
        "scale skipinit with shortcut none: a plain network has no shortcut to carry the signal past a small branch",
    ),
    "plain_stochastic_depth": (
        dict(shortcut="none", stochastic_depth=0.5),
        "stochastic_depth 0.5 with shortcut none: dropping the branch of a plain unit drops the signal",
    ),
    "no_stage": (dict(stage_units=()), "stage_units (): one or more stages of at least 1 unit each"),
    "stage_without_units": (dict(stage_units=(2, 0)), "stage_units (2, 0): one or more stages of at least 1 unit"),
    "no_width": (dict(width=0), "width 0: must be at least 1"),
    "no_classes": (dict(num_classes=0), "num_classes 0: must be at least 1"),
    "no_image_channels": (dict(in_channels=-1), "in_channels -1: must be at least 1"),
    "widen_zero": (dict(widen=0), "widen 0: must be above 0"),
    "widen_leaves_nothing": (dict(widen=0.01), "widen 0.01: leaves no channel of width 16; nearest 0.0625"),
    "bottleneck_widen_zero": (dict(bottleneck_widen=0, unit="bottleneck"), "bottleneck_widen 0: must be above 0"),
    "bottleneck_widen_leaves_nothing": (
        dict(bottleneck_widen=0.1, unit="bottleneck", width=4),
        "bottleneck_widen 0.1: leaves no inner channel of 16; nearest 0.25",
    ),
    "certain_drop": (dict(stochastic_depth=1.0), "stochastic_depth 1.0: a probability of at least 0 and below 1"),
    "negative_dropout": (dict(shortcut_dropout=-0.1), "shortcut_dropout -0.1: a probability of at least 0"),
    "unknown_order": (dict(order="full_preactivation"), "order 'full_preactivation': unknown; nearest: full_preact"),
    "unknown_unit": (dict(unit="bottlneck"), "unit 'bottlneck': unknown; nearest: bottleneck"),
    "unknown_shortcut": (
        dict(shortcut="exclusivegates"),
        "shortcut 'exclusivegates': unknown; nearest: exclusive_gate",
    ),
    "unknown_norm": (dict(norm="bach"), "norm 'bach': unknown; nearest: batch"),
    "unknown_scale": (dict(scale="skip"), "scale 'skip': unknown; nearest: skipinit"),
    "unknown_option": (dict(option="C"), "option 'C': unknown; nearest: A, B"),
    "unknown_stem": (dict(stem="imagnet"), "stem 'imagnet': unknown; nearest: imagenet"),
    "unknown_stride": (dict(stride_on="2x2"), "stride_on '2x2': unknown; nearest: 1x1, 3x3"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals_say_why(case):
    options, reason = REFUSALS[case]
    with pytest.raises(UsageError, match="^" + re.escape(reason)) as raised:
        ResNetSpec(**(dict(stage_units=(1,)) | options))
    assert "\n" not in str(raised.value)


def test_groups_that_do_not_fit_are_refused_when_built():
    with pytest.raises(UsageError, match="num_groups 4: must divide 6 channels; nearest 3"):
        ResNet(ResNetSpec(stage_units=(1,), width=6, norm="group", num_groups=4))


@pytest.mark.parametrize(
    ("written", "meant"), [("zero-init", "zero_init"), ("ReZero", "rezero"), ("SkipInit", "skipinit")]
)
def test_names_are_understood_whatever_their_case_and_hyphens(written, meant):
    spec = ResNetSpec(stage_units=(1,), scale=written, order="Full-PreAct")
    assert (spec.scale, spec.order) == (meant, "full_preact")


def test_a_spec_survives_its_record():
    spec = ResNetSpec(stage_units=(1, 2), unit="bottleneck", stride_on="3x3", gate_bias=-3, shortcut="exclusive_gate")
    assert ResNetSpec(**spec.to_dict()) == spec
    assert spec.to_dict()["stride_on"] == "3x3"


@pytest.mark.parametrize(
    ("stage_units", "unit", "depth"),
    [
        ((3, 3, 3), "basic", 20),
        ((18, 18, 18), "basic", 110),
        ((36, 36, 36), "one_layer", 110),
        ((18, 18, 18), "bottleneck", 164),
        ((111, 111, 111), "bottleneck", 1001),
        ((200, 200, 200), "basic", 1202),
        ((3, 4, 6, 3), "bottleneck", 50),
        ((3, 24, 36, 3), "bottleneck", 200),
    ],
)
def test_depth_counts_the_stem_the_branches_and_the_head(stage_units, unit, depth):
    assert ResNetSpec(stage_units=stage_units, unit=unit).depth == depth


@pytest.mark.parametrize(
    ("depth", "unit", "expected"),
    [
        (20, None, ("basic", 3)),
        (56, None, ("basic", 9)),
        (110, None, ("basic", 18)),
        (110, "bottleneck", ("bottleneck", 12)),
        (110, "one_layer", ("one_layer", 36)),
        (110, "one-layer", ("one_layer", 36)),
        (164, None, ("bottleneck", 18)),
        (164, "basic", ("basic", 27)),
        (1001, None, ("bottleneck", 111)),
        (1202, None, ("basic", 200)),
        (11, None, ("bottleneck", 1)),
        (8, None, ("basic", 1)),
    ],
)
def test_units_of_a_depth(depth, unit, expected):
    assert units_of_depth(depth, unit=unit) == expected


@pytest.mark.parametrize(
    ("depth", "unit", "message"),
    [
        (
            100,
            None,
            "depth 100: CIFAR networks have depth 6n+2 (basic; nearest 98, 104) or 9n+2 (bottleneck; nearest 92, 101)",
        ),
        (1000, "basic", "depth 1000: CIFAR networks have depth 6n+2 (basic; nearest 998, 1004)"),
        (1001, "basic", "depth 1001: CIFAR networks have depth 6n+2 (basic; nearest 998, 1004)"),
        (109, "one_layer", "depth 109: CIFAR networks have depth 3n+2 (one_layer; nearest 107, 110)"),
        (2, "basic", "depth 2: CIFAR networks have depth 6n+2 (basic; nearest 8)"),
        (0, "bottleneck", "depth 0: CIFAR networks have depth 9n+2 (bottleneck; nearest 11)"),
    ],
)
def test_illegal_depths_name_the_rules_and_the_nearest(depth, unit, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        units_of_depth(depth, unit=unit)


@pytest.mark.parametrize("unit", ["one_layer", "basic", "bottleneck"])
def test_every_nearest_depth_is_legal(unit):
    for depth in range(200):
        try:
            units_of_depth(depth, unit=unit)
        except UsageError as error:
            named = [int(number) for number in re.search(r"nearest ([\d, ]+)\)", str(error))[1].split(", ")]
            assert named
            for other in named:
                assert create_spec_depth(other, unit) == other


def create_spec_depth(depth: int, unit: str) -> int:
    kind, units = units_of_depth(depth, unit=unit)
    return ResNetSpec(stage_units=(units,) * 3, unit=kind).depth


CHOICES: dict[str, tuple[Any, ...]] = {
    "unit": ("one_layer", "basic", "bottleneck"),
    "order": ("original", "bn_after_addition", "relu_before_addition", "relu_only_preact", "full_preact"),
    "shortcut": ("identity", "none", "constant", "exclusive_gate", "shortcut_gate", "conv1x1", "dropout"),
    "option": ("A", "B"),
    "norm": ("batch", "layer", "group", "instance", "rms", "none"),
    "num_groups": (None, 2, 3),
    "scale": ("none", "inverse_sqrt", "zero_init", "skipinit", "rezero", "fixup"),
    "stem": ("cifar", "imagenet"),
    "stem_order": ("act_first", "pool_first"),
    "stride_on": ("1x1", "3x3"),
    "stochastic_depth": (0.0, 0.5),
    "widen": (1.0, 1.5),
    "bottleneck_widen": (1.0, 2.0),
}

ILLEGAL_PAIRS = {
    frozenset({("scale", "fixup"), ("unit", "one_layer")}),
    frozenset({("scale", "fixup"), ("order", "relu_before_addition")}),
    frozenset({("scale", "zero_init"), ("order", "relu_before_addition")}),
    frozenset({("scale", "fixup"), ("order", "bn_after_addition")}),  # needs a norm, and no norm
    frozenset({("norm", "none"), ("order", "bn_after_addition")}),
    frozenset({("shortcut", "none"), ("stochastic_depth", 0.5)}),
    frozenset({("stem_order", "pool_first"), ("stem", "cifar")}),
    *(
        frozenset({("stem_order", "pool_first"), ("order", order)})
        for order in ("original", "bn_after_addition", "relu_before_addition", "relu_only_preact")
    ),
    *(frozenset({("scale", "fixup"), ("norm", norm)}) for norm in ("batch", "layer", "group", "instance", "rms")),
    *(
        frozenset({("shortcut", "none"), ("scale", scale)})
        for scale in ("inverse_sqrt", "zero_init", "skipinit", "rezero", "fixup")
    ),
    *(
        frozenset({(name, value), ("unit", unit)})
        for name, value in (("stride_on", "3x3"), ("bottleneck_widen", 2.0))
        for unit in ("one_layer", "basic")
    ),
    *(
        frozenset({("num_groups", groups), other})
        for groups in (2, 3)
        for other in (
            *(("norm", norm) for norm in ("batch", "layer", "instance", "rms", "none")),
            ("scale", "fixup"),
        )
    ),
}


def test_choices_are_complete():
    tables = {"unit": UNITS, "order": ORDERS, "shortcut": SHORTCUTS, "norm": NORMS, "scale": SCALES}
    for name, table in tables.items():
        assert CHOICES[name] == tuple(table)


def draw(generator: random.Random, **fixed: Any) -> dict[str, Any]:
    return {name: generator.choice(values) for name, values in CHOICES.items()} | fixed


def pairs_of(options: dict[str, Any]) -> set[frozenset]:
    return {frozenset(pair) for pair in itertools.combinations(options.items(), 2)}


def is_legal(options: dict[str, Any]) -> bool:
    try:
        ResNetSpec(stage_units=(1, 2), **options)
    except UsageError:
        return False
    return True


def covering_options() -> tuple[list[dict[str, Any]], set[frozenset]]:
    """Legal options in which each pair of choices occurs at least once, and the pairs for which none was found."""
    generator = random.Random(0)
    found: list[dict[str, Any]] = []
    uncovered = [
        pair
        for (first, second) in itertools.combinations(CHOICES, 2)
        for pair in itertools.product([(first, v) for v in CHOICES[first]], [(second, v) for v in CHOICES[second]])
    ]
    covered: set[frozenset] = set()
    missing: set[frozenset] = set()
    for pair in uncovered:
        if frozenset(pair) in covered:
            continue
        options = next((o for o in (draw(generator, **dict(pair)) for _ in range(3000)) if is_legal(o)), None)
        if options is None:
            missing.add(frozenset(pair))
        else:
            found.append(options)
            covered |= pairs_of(options)
    return found, missing


def test_every_pair_of_choices_is_legal_and_trains_or_is_refused_for_a_reason():
    found, missing = covering_options()
    assert missing == ILLEGAL_PAIRS
    for options in found:
        assert_trains(options, width=6 if options["num_groups"] == 3 else 4)


def test_random_choices_train_or_are_refused():
    generator = random.Random(1)
    outcomes = [trains_or_is_refused(draw(generator)) for _ in range(2000)]
    assert outcomes.count(True) > 50
    assert outcomes.count(False) > 50


def trains_or_is_refused(options: dict[str, Any]) -> bool:
    """Whether it is legal; an error other than UsageError goes through."""
    try:
        spec = ResNetSpec(stage_units=(1, 2), width=4, **options)
        with torch.device("meta"):
            ResNet(spec)
    except UsageError:
        return False
    assert_trains(options, width=4)
    return True


def assert_trains(options: dict[str, Any], *, width: int) -> None:
    """A narrow network of these options has finite logits, and a finite gradient in every parameter."""
    torch.manual_seed(0)
    model = ResNet(ResNetSpec(stage_units=(1, 2), width=width, **options))
    loss = torch.nn.functional.cross_entropy(model(torch.randn(3, 3, 16, 16)), torch.arange(3))
    assert loss.isfinite(), options
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, (name, options)
        assert parameter.grad.isfinite().all(), (name, options)
    assert model.head.linear.weight.grad.any(), options


def test_misplaced_options_of_create_model_name_the_nearest():
    with pytest.raises(UsageError, match="option 'shortcuts': unknown; nearest: shortcut"):
        create_model("resnet20_cifar", shortcuts="identity")
