"""What the tests of units and networks share: random weights, agreement with a reference, the order of operations."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

ABBREVIATIONS = {
    "Conv2d": "W",
    "BatchNorm2d": "BN",
    "ReLU": "ReLU",
    "Identity": "h",
    "PadShortcut": "h",
    "ScalarBias": "b",
    "Multiplier": "a",
    "MaxPool2d": "pool",
    "Linear": "fc",
}


@torch.no_grad()
def randomise(module: nn.Module, *, seed: int = 0, std: float = 0.3) -> None:
    """Move every parameter and running statistic off the value it starts at, so that nothing hides behind 1 and 0."""
    generator = torch.Generator().manual_seed(seed)

    def noise(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator, dtype=like.dtype)

    for parameter in module.parameters():
        parameter.add_(std * noise(parameter))
    for name, buffer in module.named_buffers():
        if name.endswith("running_mean"):
            buffer.copy_(std * noise(buffer))
        if name.endswith("running_var"):
            buffer.copy_(noise(buffer).mul(std).exp())


def assert_agree(
    module: nn.Module, reference: Callable[[Tensor], Tensor], x: Tensor, *, atol: float = 1e-10, rtol: float = 1e-10
) -> None:
    """Same output, and same gradients of the input and of every parameter, for a random linear loss.

    A parameter that either side does not use is an error of autograd.
    """
    x = x.clone().requires_grad_()
    variables = [x, *module.parameters()]
    names = ["input", *(name for name, _ in module.named_parameters())]
    ours, theirs = module(x), reference(x)
    torch.testing.assert_close(ours, theirs, atol=atol, rtol=rtol)
    probe = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1), dtype=ours.dtype)
    gradients = [torch.autograd.grad((output * probe).sum(), variables) for output in (ours, theirs)]
    for name, our_gradient, their_gradient in zip(names, *gradients, strict=True):
        torch.testing.assert_close(
            our_gradient,
            their_gradient,
            atol=atol,
            rtol=rtol,
            msg=lambda text, name=name: f"gradient of {name}: {text}",
        )


def random_images(*shape: int, seed: int = 2) -> Tensor:
    """Normal images in float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def trace(module: nn.Module, x: Tensor) -> str:
    """The operations of one forward in the order in which they ran, abbreviated: `W BN ReLU W BN h ReLU`."""
    ran: list[str] = []
    leaves = [leaf for leaf in module.modules() if not list(leaf.children())]
    handles = [
        leaf.register_forward_hook(lambda leaf, _, __: ran.append(ABBREVIATIONS[type(leaf).__name__]))
        for leaf in leaves
    ]
    module(x)
    for handle in handles:
        handle.remove()
    return " ".join(ran)
