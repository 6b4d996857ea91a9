"""The residual unit and the five orders, against `tests/reference.py` and by their invariants."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests import reference
from tests.nn.comparison import assert_agree, random_images, randomise, trace
from verydeep import ResidualUnit, ResNetSpec, UsageError
from verydeep.nn.norm import NORMS
from verydeep.nn.scale import SCALES
from verydeep.nn.shortcut import SHORTCUTS
from verydeep.nn.unit import ORDERS, UNITS, NormAct, make_unit

ALL_ORDERS = ["original", "bn_after_addition", "relu_before_addition", "relu_only_preact", "full_preact"]
ALL_UNITS = ["one_layer", "basic", "bottleneck"]
ALL_SHORTCUTS = ["identity", "none", "constant", "exclusive_gate", "shortcut_gate", "conv1x1", "dropout"]
ALL_NORMS = ["batch", "layer", "group", "instance", "rms", "none"]
ALL_SCALES = ["none", "inverse_sqrt", "zero_init", "skipinit", "rezero", "fixup"]
PREACT_ORDERS = ["relu_only_preact", "full_preact"]
NO_ACTIVATION_AFTER_ADDITION = ["relu_before_addition", *PREACT_ORDERS]


def test_lists_are_complete():
    assert list(ORDERS) == ALL_ORDERS
    assert list(UNITS) == ALL_UNITS
    assert list(SHORTCUTS) == ALL_SHORTCUTS
    assert list(NORMS) == ALL_NORMS
    assert list(SCALES) == ALL_SCALES
    assert sorted(reference.UNITS) == sorted(ALL_ORDERS)


def make(
    in_channels: int = 8, out_channels: int = 8, *, stride: int = 1, first: bool = False, num_units: int = 3, **options
) -> tuple[ResidualUnit, reference.Unit]:
    """A unit in float64 with random weights, and the reference's view of it."""
    spec = ResNetSpec(stage_units=(num_units,), **options)
    unit = make_unit(
        spec.unit_spec(), in_channels, out_channels, stride=stride, num_units=num_units, preact=not first
    ).double()
    randomise(unit)
    unit.train(spec.shortcut != "dropout")
    named = reference.Unit(
        reference.tensors(unit), spec, stride=stride, num_units=num_units, first=first, training=unit.training
    )
    return unit, named


def assert_agrees(in_channels: int, out_channels: int, **options) -> None:
    unit, named = make(in_channels, out_channels, **options)
    formula = reference.UNITS[named.spec.order]
    assert_agree(unit, lambda x: formula(named, x), random_images(3, in_channels, 5, 7))


@pytest.mark.parametrize("dimension", ["same", "option_A", "option_B"])
@pytest.mark.parametrize("shortcut", ALL_SHORTCUTS)
@pytest.mark.parametrize("kind", ALL_UNITS)
@pytest.mark.parametrize("order", ALL_ORDERS)
def test_unit_equals_reference(order, kind, shortcut, dimension):
    options = dict(order=order, unit=kind, shortcut=shortcut, shortcut_scale=0.7, branch_scale=0.4)
    if dimension == "same":
        assert_agrees(8, 8, **options)
    else:
        assert_agrees(4, 8, stride=2, option=dimension[-1], **options)


@pytest.mark.parametrize("shape", ["stride_only", "channels_only", "channels_by_3"])
@pytest.mark.parametrize("option", ["A", "B"])
@pytest.mark.parametrize("order", ALL_ORDERS)
def test_unit_that_changes_one_dimension_equals_reference(order, option, shape):
    in_channels, out_channels, stride = {
        "stride_only": (8, 8, 2),
        "channels_only": (4, 8, 1),
        "channels_by_3": (4, 12, 3),
    }[shape]
    assert_agrees(in_channels, out_channels, stride=stride, order=order, option=option)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize(
    ("order", "norm"),
    [(order, norm) for order in ALL_ORDERS for norm in ALL_NORMS if (order, norm) != ("bn_after_addition", "none")],
)
def test_unit_of_every_norm_equals_reference(order, norm, training):
    unit, named = make(4, 8, stride=2, order=order, norm=norm, option="B", num_groups=2 if norm == "group" else None)
    unit.train(training)
    named = dataclasses.replace(named, training=training)
    assert_agree(unit, lambda x: reference.UNITS[order](named, x), random_images(3, 4, 5, 7))


def legal_scales() -> list[tuple[str, str, str]]:
    return [
        (scale, order, kind)
        for scale in ALL_SCALES
        for order in ALL_ORDERS
        for kind in ALL_UNITS
        if not (scale in ("zero_init", "fixup") and order == "relu_before_addition")
        if not (scale == "fixup" and (kind == "one_layer" or order == "bn_after_addition"))
    ]


@pytest.mark.parametrize(("scale", "order", "kind"), legal_scales())
def test_unit_of_every_scale_equals_reference(scale, order, kind):
    norm = "none" if scale == "fixup" else "batch"
    assert_agrees(4, 8, stride=2, order=order, unit=kind, scale=scale, norm=norm, option="B")


@pytest.mark.parametrize("order", ALL_ORDERS)
def test_bottleneck_with_stride_on_its_3x3_equals_reference(order):
    assert_agrees(4, 8, stride=2, order=order, unit="bottleneck", stride_on="3x3")


@pytest.mark.parametrize(("stride_on", "strides"), [("1x1", [2, 1, 1]), ("3x3", [1, 2, 1])])
def test_stride_of_a_bottleneck_sits_on_one_convolution(stride_on, strides):
    unit, _ = make(4, 8, stride=2, unit="bottleneck", stride_on=stride_on)
    assert [conv.stride[0] for conv in unit.branch.children() if isinstance(conv, nn.Conv2d)] == strides


@pytest.mark.parametrize("option", ["A", "B"])
@pytest.mark.parametrize("kind", ALL_UNITS)
@pytest.mark.parametrize("order", PREACT_ORDERS)
def test_first_unit_equals_reference(order, kind, option):
    assert_agrees(4, 8, order=order, unit=kind, option=option, first=True)


OPERATIONS = {
    ("original", "basic"): "W BN ReLU W BN h ReLU",
    ("bn_after_addition", "basic"): "W BN ReLU W h BN ReLU",
    ("relu_before_addition", "basic"): "W BN ReLU W BN ReLU h",
    ("relu_only_preact", "basic"): "ReLU W BN ReLU W BN h",
    ("full_preact", "basic"): "BN ReLU W BN ReLU W h",
    ("original", "bottleneck"): "W BN ReLU W BN ReLU W BN h ReLU",
    ("bn_after_addition", "bottleneck"): "W BN ReLU W BN ReLU W h BN ReLU",
    ("relu_before_addition", "bottleneck"): "W BN ReLU W BN ReLU W BN ReLU h",
    ("relu_only_preact", "bottleneck"): "ReLU W BN ReLU W BN ReLU W BN h",
    ("full_preact", "bottleneck"): "BN ReLU W BN ReLU W BN ReLU W h",
    ("original", "one_layer"): "W BN h ReLU",
    ("bn_after_addition", "one_layer"): "W h BN ReLU",
    ("relu_before_addition", "one_layer"): "W BN ReLU h",
    ("relu_only_preact", "one_layer"): "ReLU W BN h",
    ("full_preact", "one_layer"): "BN ReLU W h",
}


@pytest.mark.parametrize(("order", "kind"), OPERATIONS)
def test_operations_stand_in_the_order_of_figure_4(order, kind):
    unit, _ = make(order=order, unit=kind)
    assert trace(unit, random_images(2, 8, 4, 4)) == OPERATIONS[order, kind]


@pytest.mark.parametrize("option", ["A", "B"])
def test_one_norm_and_activation_feeds_branch_and_shortcut_where_the_dimension_changes(option):
    unit, _ = make(4, 8, stride=2, order="full_preact", option=option)
    seen: dict[str, Tensor] = {}
    unit.preact.register_forward_hook(lambda _, __, output: seen.update(preact=output))
    unit.branch.register_forward_pre_hook(lambda _, inputs: seen.update(branch=inputs[0]))
    unit.shortcut.register_forward_pre_hook(lambda _, inputs: seen.update(shortcut=inputs[0]))
    unit(random_images(2, 4, 4, 4))
    assert seen["branch"] is seen["preact"]
    assert seen["shortcut"] is seen["preact"]
    assert sum(isinstance(module, nn.BatchNorm2d) for module in unit.modules()) == 2  # the shared one, and act1's
    weighted = [module for module in unit.shortcut.modules() if list(module.parameters(recurse=False))]
    assert [type(module) for module in weighted] == ([nn.Conv2d] if option == "B" else [])
    assert all(module.bias is None for module in weighted)


@pytest.mark.parametrize("order", PREACT_ORDERS)
def test_shortcut_takes_raw_x_where_the_dimension_does_not_change(order):
    unit, _ = make(order=order)
    seen: list[Tensor] = []
    unit.shortcut.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    x = random_images(2, 8, 4, 4)
    unit(x)
    assert len(seen) == 1
    assert seen[0] is x


@pytest.mark.parametrize(
    ("order", "has_norm"),
    [
        ("original", True),
        ("bn_after_addition", False),
        ("relu_before_addition", True),
        ("relu_only_preact", True),
        ("full_preact", False),
    ],
)
def test_projection_has_a_norm_where_the_last_convolution_has(order, has_norm):
    unit, _ = make(4, 8, stride=2, order=order, option="B")
    kinds = [type(module) for module in unit.shortcut]
    assert kinds == ([nn.Conv2d, nn.BatchNorm2d] if has_norm else [nn.Conv2d])


def zero_branch(unit: ResidualUnit) -> None:
    """Zero everything in the branch that has weights."""
    with torch.no_grad():
        for parameter in unit.branch.parameters():
            parameter.zero_()


@settings(max_examples=25)
@given(
    order=st.sampled_from(NO_ACTIVATION_AFTER_ADDITION),
    kind=st.sampled_from(ALL_UNITS),
    norm=st.sampled_from(ALL_NORMS),
    seed=st.integers(0, 2**31),
)
def test_zero_branch_and_identity_shortcut_is_the_identity(order, kind, norm, seed):
    unit, _ = make(order=order, unit=kind, norm=norm)
    zero_branch(unit)
    x = random_images(2, 8, 4, 4, seed=seed)
    assert torch.equal(unit(x), x)


@settings(max_examples=10)
@given(kind=st.sampled_from(ALL_UNITS), seed=st.integers(0, 2**31))
def test_zero_branch_and_identity_shortcut_is_f_in_the_original_order(kind, seed):
    unit, _ = make(order="original", unit=kind)
    zero_branch(unit)
    x = random_images(2, 8, 4, 4, seed=seed)
    assert torch.equal(unit(x), x.relu())


@settings(max_examples=20)
@given(shortcut_scale=st.floats(-1.5, 1.5), num_units=st.integers(1, 12), seed=st.integers(0, 2**31))
def test_constant_shortcuts_multiply_to_lambda_to_the_L(shortcut_scale, num_units, seed):
    units = [make(order="full_preact", shortcut="constant", shortcut_scale=shortcut_scale)[0] for _ in range(num_units)]
    for unit in units:
        zero_branch(unit)
    x = random_images(2, 8, 3, 3, seed=seed)
    torch.testing.assert_close(nn.Sequential(*units)(x), shortcut_scale**num_units * x, atol=1e-12, rtol=1e-12)


@settings(max_examples=15)
@given(order=st.sampled_from(ALL_ORDERS), factor=st.floats(0.01, 100), kind=st.sampled_from(["basic", "bottleneck"]))
def test_scale_of_a_convolution_before_batch_norm_does_not_matter(order, factor, kind):
    unit, _ = make(order=order, unit=kind)
    for norm in (module for module in unit.modules() if isinstance(module, nn.BatchNorm2d)):
        norm.eps = 1e-14  # the invariance is exact only without it
    x, weight = random_images(3, 8, 4, 4), unit.branch.conv1.weight
    before = unit(x)
    (gradient,) = torch.autograd.grad(before.square().sum(), weight)
    with torch.no_grad():
        weight.mul_(factor)
    after = unit(x)
    (scaled_gradient,) = torch.autograd.grad(after.square().sum(), weight)
    torch.testing.assert_close(after, before, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(scaled_gradient * factor, gradient, atol=1e-8, rtol=1e-8)


def test_unit_around_a_residual_mlp():
    mlp = nn.Sequential(nn.Linear(6, 24), nn.GELU(), nn.Linear(24, 6)).double()
    norm = nn.LayerNorm(6).double()
    unit = ResidualUnit(nn.Sequential(norm, mlp))
    randomise(unit)
    x = random_images(5, 6)
    normalised = norm.weight * (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True, correction=0) + 1e-5).sqrt()
    hidden = (normalised + norm.bias) @ mlp[0].weight.T + mlp[0].bias
    hidden = hidden * (1 + torch.erf(hidden / 2**0.5)) / 2
    torch.testing.assert_close(unit(x), x + hidden @ mlp[2].weight.T + mlp[2].bias, atol=1e-12, rtol=1e-12)


class SelfAttention(nn.MultiheadAttention):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x, x, x, need_weights=False)[0]


def test_unit_around_attention_and_mlp_is_a_pre_norm_transformer_block():
    layer = nn.TransformerEncoderLayer(
        8, 2, dim_feedforward=16, dropout=0.0, activation="gelu", norm_first=True, batch_first=True, dtype=torch.float64
    )
    randomise(layer)
    attention = SelfAttention(8, 2, batch_first=True, dtype=torch.float64)
    attention.load_state_dict(layer.self_attn.state_dict())
    block = nn.Sequential(
        ResidualUnit(nn.Sequential(layer.norm1, attention)),
        ResidualUnit(nn.Sequential(layer.norm2, layer.linear1, nn.GELU(), layer.linear2)),
    )
    x = random_images(3, 5, 8)
    torch.testing.assert_close(block(x), layer(x), atol=1e-12, rtol=1e-12)


def test_shortcut_that_returns_a_pair_scales_the_branch():
    class Highway(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            g = torch.sigmoid(x)
            return (1 - g) * x, g

    branch = nn.Linear(4, 4).double()
    x = random_images(3, 4)
    g = torch.sigmoid(x)
    torch.testing.assert_close(ResidualUnit(branch, shortcut=Highway())(x), (1 - g) * x + g * branch(x))


def test_each_place_of_a_unit_acts_where_its_docstring_says():
    """x' = f(h(x) + drop(F(f^(x)))), and h takes f^(x) when it is shared."""
    places = dict(preact=nn.Softplus(), drop=nn.Tanh(), postact=nn.Sigmoid())
    branch, shortcut = nn.Linear(4, 4).double(), nn.Linear(4, 4).double()
    x = random_images(3, 4)
    activated = nn.functional.softplus(x)
    y = branch(activated).tanh()
    unit = ResidualUnit(branch, shortcut=shortcut, **places)
    torch.testing.assert_close(unit(x), torch.sigmoid(shortcut(x) + y))
    unit = ResidualUnit(branch, shortcut=shortcut, share_preact=True, **places)
    torch.testing.assert_close(unit(x), torch.sigmoid(shortcut(activated) + y))
    unit = ResidualUnit(branch, shortcut=None, **places)
    torch.testing.assert_close(unit(x), torch.sigmoid(y))


def test_shortcut_none_by_name_is_a_plain_unit():
    branch = nn.Linear(4, 4)
    x = torch.randn(3, 4)
    assert torch.equal(ResidualUnit(branch, shortcut="none")(x), branch(x))
    assert torch.equal(ResidualUnit(branch, shortcut="identity")(x), x + branch(x))


def test_unknown_shortcut_names_the_known():
    with pytest.raises(UsageError, match="shortcut 'identty': unknown; nearest: identity"):
        ResidualUnit(nn.Identity(), shortcut="identty")


@pytest.mark.parametrize("order", ALL_ORDERS)
def test_hooks_fire_on_every_norm_activation_and_convolution(order):
    unit, _ = make(order=order)
    leaves = [module for module in unit.modules() if isinstance(module, (nn.BatchNorm2d, nn.ReLU, nn.Conv2d))]
    forwards, backwards = [], []
    for leaf in leaves:
        leaf.register_forward_hook(lambda module, _, __: forwards.append(module))
        leaf.register_full_backward_hook(lambda module, _, __: backwards.append(module))
    unit(random_images(2, 8, 4, 4).requires_grad_()).sum().backward()
    assert len(leaves) == {"relu_before_addition": 6}.get(order, 6)
    assert sorted(map(id, forwards)) == sorted(map(id, leaves))
    assert sorted(map(id, backwards)) == sorted(map(id, leaves))


def test_a_hook_can_replace_an_activation():
    unit, _ = make(order="full_preact", shortcut="none", norm="none")
    unit.branch.act1.register_forward_hook(lambda _, __, output: torch.zeros_like(output))
    bias = unit.branch.conv2.bias[:, None, None].expand(2, 8, 4, 4)
    torch.testing.assert_close(unit(random_images(2, 8, 4, 4)), bias)


def test_a_hook_sees_the_norms_own_output_and_the_relu():
    """The ReLU is in place only while nobody looks: hooks see what the two modules give, and change no number."""
    torch.manual_seed(0)
    pair = NormAct(nn.BatchNorm2d(4))
    x = torch.randn(8, 4, 3, 3, requires_grad=True)
    pair(x).square().sum().backward()
    expected, gradient = pair(x).detach(), x.grad.clone()
    x.grad = None
    seen = {}
    for name in ("norm", "act"):
        getattr(pair, name).register_forward_hook(lambda _, __, output, name=name: seen.update({name: output}))
    output = pair(x)
    output.square().sum().backward()
    assert (seen["norm"] < 0).any() and torch.equal(seen["act"], seen["norm"].relu())
    assert torch.equal(output, expected) and torch.equal(x.grad, gradient)
