"""Networks of timm, torchvision and transformers at their random initialisation, in training mode."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fault_models.case import Arguments, Case, healthy, images, init_normal

# name: pixels of its image
TIMM = {
    "resnet18": 64,
    "resnet50": 64,
    "resnetv2_50": 64,
    "seresnet18": 64,
    "regnetx_002": 64,
    "mobilenetv3_small_100": 64,
    "efficientnet_b0": 64,
    "mnasnet_100": 64,
    "densenet121": 64,
    "dla34": 64,
    "convnext_atto": 64,
    "poolformer_s12": 64,
    "nf_regnet_b0": 64,
    "vit_tiny_patch16_224": 64,
    "cait_xxs24_224": 64,
    "mixer_s32_224": 64,
    "resmlp_12_224": 64,
    "xcit_nano_12_p8_224": 64,
    "swin_tiny_patch4_window7_224": 56,
    "test_coatnet": 160,
    "test_maxvit": 160,
}
SIZED = ("vit_", "cait_", "mixer_", "resmlp_", "xcit_", "swin_")  # those that must be told the size of an image
TORCHVISION = ("resnet18", "squeezenet1_1", "mnasnet1_0", "mobilenet_v2", "shufflenet_v2_x0_5")


def timm_model(name: str, size: int) -> Arguments:
    import timm

    options: dict[str, Any] = {"img_size": size} if name.startswith(SIZED) else {}
    return Arguments(timm.create_model(name, num_classes=10, **options), *images(16, size=size))


def torchvision_model(name: str, *, size: int = 64) -> Arguments:
    """A thousand classes; labels over all of them."""
    import torchvision

    pictures, _ = images(16, size=size)
    return Arguments(torchvision.models.get_model(name, weights=None), pictures, torch.randint(0, 1000, (16,)))


def vgg16() -> Arguments:
    """The convolutions of VGG-16, plain and without norms, and one linear layer."""
    import torchvision

    model = torchvision.models.vgg16(weights=None, init_weights=False, num_classes=10)
    model.classifier = nn.Linear(512 * 49, 10)
    return Arguments(init_normal(model), *images(16, size=32))


def googlenet() -> Arguments:
    """Its output in training is a named tuple of three logits."""
    import torchvision

    model = torchvision.models.googlenet(weights=None, init_weights=False, num_classes=10)
    return Arguments(model, *images(8, size=96))


def bert() -> Arguments:
    """Four layers of width 32; its output has logits."""
    from transformers import BertConfig, BertForSequenceClassification

    sizes = dict(vocab_size=100, hidden_size=32, num_hidden_layers=4, num_attention_heads=2, intermediate_size=64)
    return of_tokens(BertForSequenceClassification(BertConfig(**sizes, num_labels=10)))


def gpt2() -> Arguments:
    from transformers import GPT2Config, GPT2ForSequenceClassification

    sizes = dict(vocab_size=100, n_positions=32, n_embd=32, n_layer=4, n_head=2, num_labels=10)
    special = dict(pad_token_id=0, bos_token_id=0, eos_token_id=0)
    return of_tokens(GPT2ForSequenceClassification(GPT2Config(**sizes, **special)))


def of_tokens(model: nn.Module) -> Arguments:
    rows: Tensor = torch.randint(1, 100, (16, 12))
    return Arguments(model, rows, rows[:, 0] % 10)


CASES: list[Case] = [
    *(healthy(partial(timm_model, name, size), name=f"timm_{name}", needs="timm") for name, size in TIMM.items()),
    *(healthy(partial(torchvision_model, name), name=f"tv_{name}", needs="torchvision") for name in TORCHVISION),
    healthy(vgg16, needs="torchvision"),
    healthy(googlenet, needs="torchvision"),
    healthy(bert, needs="transformers"),
    healthy(gpt2, needs="transformers"),
]
