"""Curvature of the loss along a direction: Hessian-vector products of any model, which stays as it was."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from verydeep.analysis.unchanged import unchanged
from verydeep.errors import UsageError
from verydeep.training.step import logits_of


def hessian_vector_product(model: nn.Module, images: Tensor, labels: Tensor, vector: Sequence[Tensor]) -> list[Tensor]:
    """H v, with H the Hessian of the mean cross-entropy with respect to the trainable parameters, in the model's mode.

    H v = d/dw (dE/dw . v), by differentiating twice; H is never formed.

    Args:    vector: v, a tensor of the shape of each trainable parameter, in the order of `model.parameters()`
    Returns: H v, in the same order; zero for a parameter on which the loss does not depend twice
    Raises:  UsageError: if the shapes are not those of the parameters.
    Source:  Pearlmutter 1994, Fast Exact Multiplication by the Hessian

    >>> model = nn.Linear(2, 2).double()
    >>> v = [torch.ones_like(p) for p in model.parameters()]
    >>> [tuple(part.shape) for part in hessian_vector_product(model, torch.eye(2).double(), torch.tensor([0, 1]), v)]
    [(2, 2), (2,)]
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if [part.shape for part in vector] != [parameter.shape for parameter in parameters]:
        raise UsageError(
            f"vector of {len(vector)} tensors: must have the shapes of the {len(parameters)} trainable parameters"
        )
    with unchanged(model), torch.enable_grad():
        loss = F.cross_entropy(logits_of(model(images)), labels)
        gradients = torch.autograd.grad(loss, parameters, create_graph=True, materialize_grads=True)
        along = sum(((g * part).sum() for g, part in zip(gradients, vector, strict=True)), torch.zeros(()))
        return list(torch.autograd.grad(along, parameters, materialize_grads=True))
