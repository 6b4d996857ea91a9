"""Shattered gradients: how much a gradient at one input tells about the gradient at the next along a line.

For any module by `gradient_correlation`; the figure's random scalar networks by `draws`.
"""

import copy
from collections.abc import Sequence
from contextlib import ExitStack

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from verydeep.analysis.draw import Draws, means_of
from verydeep.analysis.scalar_network import KINDS, draw_networks
from verydeep.analysis.unchanged import unchanged
from verydeep.data.seed import generator
from verydeep.errors import UsageError, resolve

_CHUNK = 10  # networks computed at once: their signals, 2 MB, stay in the cache


def line(start: Tensor, end: Tensor, *, num_points: int = 256) -> Tensor:
    """Evenly spaced points from one input to another, both included.

    Shape:   (...), (...) -> (num_points, ...)

    >>> line(torch.tensor([-2.0]), torch.tensor([2.0]), num_points=3)
    tensor([[-2.],
            [ 0.],
            [ 2.]])
    """
    weight = torch.linspace(0, 1, num_points, dtype=start.dtype, device=start.device)
    return torch.lerp(start, end, weight.view(-1, *[1] * start.dim()))


def input_gradients(model: nn.Module, inputs: Tensor) -> Tensor:
    """d(sum of outputs)/dx at each input: one forward and one backward pass for all of them, in eval mode.

    Eval mode because samples must not interact there: then the gradient of the sum over samples holds that of each.

    Shape:   (n, ...) -> (n, ...); for a scalar network (n, 1) -> (n, 1), dy/dx
    """
    with unchanged(model), torch.enable_grad():
        x = inputs.detach().clone().requires_grad_()
        return torch.autograd.grad(model.eval()(x).sum(), x)[0]


def ensemble_gradients(models: Sequence[nn.Module], inputs: Tensor) -> Tensor:
    """`input_gradients` of several models of one architecture in one vectorised pass.

    Shape:   (n, ...) -> (len(models), n, ...)
    Raises:  UsageError: if there is no model.
    """
    if not models:
        raise UsageError("models []: at least one")
    with ExitStack() as stack:
        for model in models:
            stack.enter_context(unchanged(model))
            model.eval()
        parameters, buffers = stack_module_state(list(models))
        base = copy.deepcopy(models[0]).to("meta")

        def output(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
            return functional_call(base, (parameters, buffers), (x,)).sum()

        return vmap(grad(output, argnums=2), in_dims=(0, 0, None))(parameters, buffers, inputs).detach()


def neighbour_correlation(gradients: Tensor) -> Tensor:
    """Pearson's correlation of g_1 .. g_{n-1} with g_2 .. g_n, in float64; NaN where the gradient is constant.

    Shape:   (..., n) -> (...)
    Source:  Balduzzi et al. 2017, section 2

    >>> neighbour_correlation(torch.tensor([1.0, 2.0, 3.0, 4.0])).item()
    1.0
    """
    return _pearson(gradients[..., :-1], gradients[..., 1:])


def gradient_correlation(model: nn.Module, inputs: Tensor) -> float:
    """Correlation between the gradients at neighbouring inputs of any module, all coordinates of an input together.

    Args:    inputs: points in order, (n, ...); see `line`
    """
    gradients = input_gradients(model, inputs)
    return _pearson(gradients[:-1].flatten(), gradients[1:].flatten()).item()


def _pearson(a: Tensor, b: Tensor) -> Tensor:
    a, b = a.double(), b.double()
    a = a - a.mean(-1, keepdim=True)
    b = b - b.mean(-1, keepdim=True)
    return (a * b).sum(-1) / (a.square().sum(-1) * b.square().sum(-1)).sqrt()


def network_correlations(kind: str, num_networks: int, *, seed: int = 0, num_inputs: int = 256) -> Tensor:
    """`neighbour_correlation` of random scalar networks at evenly spaced inputs on [-2, 2].

    float32: a rounding error moves the kinks of dy/dx by about 1e-6, a hundred thousandth of the inputs' spacing.

    Args:    kind: of KINDS
    Returns: float64 (num_networks,)
    """
    inputs = torch.linspace(-2, 2, num_inputs)
    correlations = []
    for chunk, first in enumerate(range(0, num_networks, _CHUNK)):
        networks = draw_networks(kind, min(_CHUNK, num_networks - first), generator=generator(seed, chunk))
        correlations.append(neighbour_correlation(networks.value_and_derivative(inputs)[1]))
    return torch.cat(correlations)


def draws(
    kind: str, *, num_draws: int = 500, seed: int = 0, num_networks: int | None = None, networks_per_draw: int = 10
) -> Draws:
    """Draws of the figure's number: the mean over ten networks of the neighbour correlation.

    Independent draws of the deep kinds would take 5000 networks each, minutes of arithmetic. So those draws are means
    over random ten of a pool of independent networks, by default 300 plain or 200 residual ones, and the result says
    so; the shallow network's draws are independent.

    Args:    kind: of KINDS
             num_networks: size of the pool; num_draws * networks_per_draw or more: independent draws
    Raises:  UsageError: if the kind is unknown, or the pool smaller than one draw.
    Source:  the chapter, Fig. 11.1
    """
    all_of_them = num_draws * networks_per_draw
    pool = min(num_networks or resolve("kind", kind, KINDS).pool or all_of_them, all_of_them)
    if pool < networks_per_draw:
        raise UsageError(f"num_networks {pool}: a draw is a mean over {networks_per_draw}; give at least those")
    members = network_correlations(kind, pool, seed=seed)
    values, independent = means_of(
        members, num_draws=num_draws, size=networks_per_draw, generator=generator(seed, pool)
    )
    return Draws(kind, values, seed=seed, pool=pool, independent=independent)
