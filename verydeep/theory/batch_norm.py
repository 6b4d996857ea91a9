"""Batch normalisation, forward (11.6) and backward (11.7), each unit over the samples of a batch.

B samples along the first axis; every other axis is a unit with statistics of its own. Convolutional maps, where
positions share statistics with samples, are `normalize(x, "batch")`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class BatchNorm:
    """The steps of a batch norm.

    Args:    mean: mu
             variance: sigma^2, over B, biased
             normalized: z-hat
             output: y
    """

    mean: Tensor
    variance: Tensor
    normalized: Tensor
    output: Tensor


def batch_norm(z: Tensor, *, gamma: float | Tensor = 1.0, beta: float | Tensor = 0.0, eps: float = 0.0) -> BatchNorm:
    """Normalise each unit over the batch, then scale and shift it.

    z-hat_i = (z_i - mu) / sqrt(sigma^2 + eps),    y_i = gamma z-hat_i + beta    (11.6)

    Shape:   z (B, ...); mean and variance (...); gamma and beta numbers or (...)
    Source:  the chapter, Eq. 11.6; Ioffe and Szegedy 2015, Algorithm 1

    >>> bn = batch_norm(torch.tensor([2.0, 4.0, 6.0, 8.0]), gamma=2, beta=1)
    >>> bn.mean, bn.variance
    (tensor(5.), tensor(5.))
    >>> bn.normalized.round(decimals=3), bn.output.round(decimals=3)
    (tensor([-1.3420, -0.4470,  0.4470,  1.3420]), tensor([-1.6830,  0.1060,  1.8940,  3.6830]))

    A shift changes nothing (exercise 11.1):

    >>> batch_norm(torch.tensor([1.0, 3.0, 5.0, 7.0])).output.round(decimals=3)
    tensor([-1.3420, -0.4470,  0.4470,  1.3420])
    """
    mean = z.mean(0)
    variance = (z - mean).square().mean(0)
    normalized = (z - mean) / torch.sqrt(variance + eps)
    return BatchNorm(mean, variance, normalized, gamma * normalized + beta)


def batch_norm_backward(g: Tensor, z: Tensor, *, eps: float = 0.0) -> Tensor:
    """Gradient of the loss in z, from the gradient in z-hat.

    dl/dz_i = (g_i - mean_j g_j - z-hat_i mean_j(g_j z-hat_j)) / sqrt(sigma^2 + eps)    (11.7)

    Sums to zero over the batch. It is orthogonal to z-hat at eps = 0; otherwise
    sum_i z-hat_i dl/dz_i = eps / (sigma^2 + eps)^(3/2) sum_i g_i z-hat_i.

    Args:    g: dl/dz-hat, which is gamma dl/dy
    Shape:   g, z (B, ...) -> (B, ...)
    Source:  the chapter, Eq. 11.7; it is exact for eps > 0 too, with z-hat and the divisor as in (11.6)

    >>> z, g = torch.tensor([2.0, 4.0, 6.0, 8.0]), torch.tensor([1.0, 0.0, 0.0, 0.0])
    >>> batch_norm_backward(g, z).round(decimals=3)
    tensor([ 0.1340, -0.1790, -0.0450,  0.0890])
    """
    bn = batch_norm(z, eps=eps)
    along = bn.normalized * (g * bn.normalized).mean(0)
    return (g - g.mean(0) - along) / torch.sqrt(bn.variance + eps)


@dataclass(frozen=True)
class BatchNormGradients:
    """Gradients of the loss in a batch norm's input, gain and shift."""

    z: Tensor
    gamma: Tensor
    beta: Tensor


def batch_norm_gradients(dy: Tensor, z: Tensor, *, gamma: float | Tensor = 1.0, eps: float = 0.0) -> BatchNormGradients:
    """Gradients in z, gamma and beta, from dl/dy.

    dl/dgamma = sum_i dl/dy_i z-hat_i,    dl/dbeta = sum_i dl/dy_i,    dl/dz by (11.7) with g = gamma dl/dy

    Shape:   dy, z (B, ...); gamma a number or (...)
    Source:  Ioffe and Szegedy 2015, section 3

    >>> z, dy = torch.tensor([2.0, 4.0, 6.0, 8.0]), torch.tensor([1.0, 0.0, 0.0, 0.0])
    >>> gradients = batch_norm_gradients(dy, z, gamma=2)
    >>> gradients.z.round(decimals=3)
    tensor([ 0.2680, -0.3580, -0.0890,  0.1790])
    """
    normalized = batch_norm(z, eps=eps).normalized
    return BatchNormGradients(batch_norm_backward(gamma * dy, z, eps=eps), (dy * normalized).sum(0), dy.sum(0))


def prediction_affine(
    mean: Tensor, variance: Tensor, *, gamma: float | Tensor = 1.0, beta: float | Tensor = 0.0, eps: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Gain a and shift b of the fixed map y = a z + b that a batch norm is at prediction.

    a = gamma / sqrt(sigma^2 + eps),    b = beta - a mu: a layer z = W x + c before it becomes a W x + (a c + b)

    Args:    mean, variance: running averages
    Shape:   (...) -> (...), (...)
    Source:  the chapter, section 4

    >>> prediction_affine(torch.tensor(5.0), torch.tensor(4.0), gamma=2, beta=1)
    (tensor(1.), tensor(-4.))
    """
    gain = gamma / torch.sqrt(variance + eps)
    return gain, beta - gain * mean
