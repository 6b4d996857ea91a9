"""Residual additions are found without names, and none falsely."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.analysis.models import Checkpointed, Encoder, Network, Unit
from verydeep import create_model
from verydeep.analysis.addition import Addition, find_additions
from verydeep.analysis.call import tensors
from verydeep.analysis.graph import Graph
from verydeep.analysis.record import Observer, recording


def graph_of(model: nn.Module, *args, operators: bool = False, **kwargs) -> Graph:
    with recording(model, Observer(), operators=operators) as recorder:
        for name, x in tensors((*args, kwargs)):
            recorder.input(x, name)
        output = model(*args, **kwargs)
        nodes = [recorder.node_of(x) for _, x in tensors(output)]
        recorder.graph.outputs = [node for node in nodes if node is not None]
    return recorder.graph


def additions(model: nn.Module, *args, **kwargs) -> list[Addition]:
    return find_additions(graph_of(model, *args, **kwargs))


# name: residual additions, side of the images
TIMM = {
    "resnet18": (8, 64), "resnet34": (16, 64), "resnet50": (16, 64), "resnetv2_50": (16, 64), "nf_resnet50": (16, 64),
    "efficientnet_b0": (9, 64), "mobilenetv3_small_100": (6, 64), "mnasnet_100": (10, 64), "regnety_002": (13, 64),
    "convnext_tiny": (18, 64), "vit_tiny_patch16_224": (24, 224), "deit_tiny_patch16_224": (24, 224),
    "mixer_s16_224": (16, 224), "swin_tiny_patch4_window7_224": (24, 224), "resmlp_12_224": (24, 224),
    "poolformer_s12": (24, 64), "dla34": (12, 64), "hrnet_w18_small": (23, 64), "coatnet_nano_rw_224": (25, 224),
    "maxvit_tiny_rw_224": (55, 224), "densenet121": (0, 64), "vgg11": (0, 64), "repvgg_a0": (0, 64),
    "mobileone_s0": (0, 64), "eva02_tiny_patch14_224": (24, 224),
}  # fmt: skip
TORCHVISION = {
    "resnet18": (8, 64), "resnet50": (16, 64), "efficientnet_b0": (9, 64), "mobilenet_v3_small": (6, 64),
    "mnasnet1_0": (10, 64), "regnet_y_400mf": (16, 64), "convnext_tiny": (18, 64), "vit_b_16": (24, 224),
    "swin_t": (24, 64), "maxvit_t": (55, 224), "shufflenet_v2_x1_0": (0, 64), "squeezenet1_0": (0, 64),
    "densenet121": (0, 64), "vgg11_bn": (0, 64),
}  # fmt: skip


@pytest.mark.parametrize("name", TIMM)
def test_timm(name):
    timm = pytest.importorskip("timm")
    expected, side = TIMM[name]
    assert len(additions(timm.create_model(name, num_classes=10), torch.randn(2, 3, side, side))) == expected


@pytest.mark.parametrize("name", TORCHVISION)
def test_torchvision(name):
    models = pytest.importorskip("torchvision").models
    expected, side = TORCHVISION[name]
    model = models.get_model(name, weights=None, num_classes=10)
    assert len(additions(model, torch.randn(2, 3, side, side))) == expected


def test_googlenet_has_none():
    models = pytest.importorskip("torchvision").models
    model = models.googlenet(weights=None, num_classes=10, init_weights=False)
    assert additions(model, torch.randn(2, 3, 64, 64)) == []


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "vit"])
def test_transformers(name):
    transformers = pytest.importorskip("transformers")
    size = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=6, num_attention_heads=2)
    ids = torch.randint(0, 50, (2, 12))
    match name:
        case "bert":
            model = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=50, **size))
        case "gpt2":
            model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=50, n_embd=32, n_layer=6, n_head=2))
        case "llama":
            model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=50, **size))
        case _:
            config = transformers.ViTConfig(image_size=32, patch_size=8, **size)
            model, ids = transformers.ViTForImageClassification(config), torch.randn(2, 3, 32, 32)
    assert len(additions(model, ids)) == 12


@pytest.mark.parametrize("norm_first", [True, False])
def test_transformer_encoder(norm_first):
    ids, mask = torch.randint(0, 50, (2, 12)), torch.ones(2, 12)
    found = additions(Encoder(norm_first=norm_first).train(), ids=ids, mask=mask)
    assert len(found) == 6
    assert all(addition.normed_first for addition in found) == norm_first
    assert sum("norm" in addition.before for addition in found) == (0 if norm_first else 5)


def test_projections_are_told_apart():
    found = additions(create_model("preact_resnet20_cifar", option="B"), torch.randn(2, 3, 32, 32))
    assert [addition.projection for addition in found] == [False] * 3 + [True, False, False] * 2
    assert found[3].before == ("norm", "act")
    assert found[3].on_shortcut == ("conv",)


def inplace(x, f):
    x = x.clone()
    x += f
    return x


ADDS = {
    "operator": lambda x, f: x + f,
    "reversed": lambda x, f: f + x,
    "torch.add": torch.add,
    "method": lambda x, f: f.add(x),
    "in place on the branch": lambda x, f: f.add_(x),
    "in place on the shortcut": inplace,
    "sum": lambda x, f: sum([x, f]),
    "addcmul": lambda x, f: torch.addcmul(x, f, torch.ones(())),
    "scaled branch": lambda x, f: x + 0.1 * f,
    "lambda of a view": lambda x, f: (x.flatten(1) + f.flatten(1)).view_as(x),
}


@pytest.mark.parametrize("name", ADDS)
def test_every_way_to_add(name):
    found = additions(Network([Unit(8, ADDS[name]) for _ in range(3)]), torch.randn(2, 3, 8, 8))
    assert len(found) == 3
    assert all(addition.on_shortcut == () and not addition.projection for addition in found)


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Conv2d(8, 8, 1)

    def forward(self, x, f):
        g = torch.sigmoid(self.gate(x))
        return (1 - g) * x + f


STANDING = {
    ("scale",): lambda: lambda x, f: 0.5 * x + f,
    ("gate",): Gate,
    ("dropout",): lambda: lambda x, f: F.dropout(x, 0.5) + f,
    ("act",): lambda: lambda x, f: F.relu(x) + f,
    ("pool",): lambda: lambda x, f: F.avg_pool2d(x, 3, 1, 1) + f,
}


@pytest.mark.parametrize("expected", STANDING)
def test_what_stands_on_the_shortcut(expected):
    found = additions(Network([Unit(8, STANDING[expected]()) for _ in range(3)]), torch.randn(2, 3, 8, 8))
    assert [addition.on_shortcut for addition in found] == [expected] * 3


@pytest.mark.parametrize(
    "order, before", [("original", ("act",)), ("bn_after_addition", ("norm", "act")), ("full_preact", ())]
)
def test_what_acts_on_the_sum(order, before):
    found = additions(create_model("resnet20_cifar", order=order), torch.randn(2, 3, 32, 32))
    assert {addition.before for addition in found[1:3]} == {before}


class Rotary(nn.Module):
    """Rotary embedding and a GELU written out: sums that are no residual additions."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.head = nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x):
        q = self.q(x)
        a, b = q.chunk(2, -1)
        q = q * torch.cos(torch.ones(8)) + torch.cat((-b, a), -1) * torch.sin(torch.ones(8))
        return self.head(0.5 * q * (1 + torch.tanh(0.8 * (q + 0.044715 * q**3))))


def test_rotary_and_gelu_are_not_residual():
    assert additions(Rotary(), torch.randn(4, 8)) == []


class Pyramid(nn.Module):
    """Two stages and the lateral sum of a feature pyramid; the deeper map is an output too."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.deep = nn.Sequential(nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
        self.lateral, self.top, self.out = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x):
        low = F.relu(self.stem(x))
        top = self.top(self.deep(low))
        return self.out(self.lateral(low) + F.interpolate(top, scale_factor=2.0)), self.out(top)


def test_lateral_is_not_residual():
    assert additions(Pyramid(), torch.randn(2, 3, 8, 8)) == []


def test_torchvision_pyramid():
    detection = pytest.importorskip("torchvision").models.detection
    model = detection.fcos_resnet50_fpn(weights=None, weights_backbone=None).backbone
    assert len(additions(model, torch.randn(1, 3, 64, 64))) == 16


class Mapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(torch.vmap(lambda v: v + torch.relu(self.inner(v)))(x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_inside_scripted_vmapped_and_compiled_code():
    x = torch.randn(2, 3, 8, 8)
    model = nn.Sequential(*(nn.Sequential(nn.Conv2d(3, 3, 1)) for _ in range(2)))
    assert len(additions(Mapped(), torch.randn(5, 4), operators=True)) == 1
    assert len(additions(torch.compile(Network([Unit(8) for _ in range(2)])), x)) == 2
    assert additions(model, x) == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_inside_a_scripted_model():
    models = pytest.importorskip("torchvision").models
    scripted = torch.jit.script(models.resnet18(weights=None, num_classes=10))
    assert len(additions(scripted, torch.randn(2, 3, 64, 64), operators=True)) == 8


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_units_count_once(reentrant):
    model = Network([Checkpointed(reentrant) for _ in range(3)])
    assert len(additions(model, torch.randn(2, 3, 8, 8))) == 3


def test_shared_module_is_two_calls():
    unit = Unit(8)
    found = additions(Network([unit, unit]), torch.randn(2, 3, 8, 8))
    assert [addition.site for addition in found] == ["units.0:add", "units.0:add#2"]


def test_nothing_is_kept_alive():
    import gc
    import weakref

    kept = []

    class Look(Observer):
        def after(self, node, operands, options, results):
            kept.append(weakref.ref(results[0]))

    model, x = Network([Unit(8) for _ in range(2)]), torch.randn(2, 3, 8, 8)
    with torch.no_grad(), recording(model, Look()) as recorder:
        recorder.input(x, "input")
        output = model(x)
        gc.collect()
        assert [ref() is not None for ref in kept] == [True] + [False] * (len(kept) - 2) + [True]  # input and output
    del output
