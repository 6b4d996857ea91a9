"""Faults put into networks of timm and torchvision."""

from collections.abc import Callable

from torch import nn

from fault_models.case import NUM_CLASSES, Arguments, Case, fault, images


def of_timm(name: str, change: Callable[[nn.Module], object], **options: object) -> Arguments:
    import timm

    model = timm.create_model(name, num_classes=NUM_CLASSES, **options)
    change(model)
    return Arguments(model, *images(size=32))


def vit(change: Callable[[nn.Module], object]) -> Arguments:
    return of_timm("vit_tiny_patch16_224", change, img_size=32, patch_size=8)


def timm_vit_without_final_norm() -> Arguments:
    return vit(lambda model: setattr(model, "norm", nn.Identity()))


def timm_vit_frozen_middle() -> Arguments:
    """The patch embedding before the frozen blocks trains, and so does the head."""
    return vit(lambda model: model.blocks[3:6].requires_grad_(False))


def timm_vit_constant_init() -> Arguments:
    def change(model: nn.Module) -> None:
        for block in model.blocks:
            nn.init.constant_(block.mlp.fc1.weight, 0.02)
            nn.init.constant_(block.mlp.fc2.weight, 0.02)

    return vit(change)


def timm_resnet_momentum() -> Arguments:
    def change(model: nn.Module) -> None:
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = 0.997

    return of_timm("resnet18", change)


def torchvision_resnet_softmax() -> Arguments:
    import torchvision

    model = torchvision.models.resnet18(weights=None)
    model.fc = nn.Sequential(nn.Linear(512, NUM_CLASSES), nn.Softmax(dim=1))
    return Arguments(model, *images(size=64), loss=nn.CrossEntropyLoss())


CASES: list[Case] = [
    fault(timm_vit_without_final_norm, "missing-final-norm", needs="timm"),
    fault(timm_vit_frozen_middle, "frozen-parameter", needs="timm"),
    fault(timm_vit_constant_init, "symmetric-init", needs="timm"),
    fault(timm_resnet_momentum, "norm-momentum", needs="timm"),
    fault(torchvision_resnet_softmax, "double-softmax", needs="torchvision"),
]
