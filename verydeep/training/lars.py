"""LARS: SGD whose rate in each layer follows the size of its weights. `make_optimizer` makes it.

torch has none. Trust ratios are a handful of multi-tensor operations; the update itself is torch's fused SGD, which
skips where `found_inf` is 1, so a bad step costs no wait and changes nothing.
"""

from collections.abc import Iterable
from typing import Any, final

import torch
from torch import Tensor
from torch.optim.sgd import sgd


@final
class LARS(torch.optim.Optimizer):
    """Layer-wise adaptive rate scaling.

    lambda = eta |w| / (|g| + beta |w|),  v <- m v + lambda (g + beta w),  w <- w - gamma v

    lambda is one number for each weight tensor of two or more dimensions, and 1 where |w| or |g| is 0; biases, norms
    and scalars have lambda = 1 always, so they are trained by plain SGD at rate gamma.

    Args:    params: parameters, or groups of them as in torch
             lr: gamma, of order 1 to 30 with the trust of the source
             momentum: m, 0 to below 1
             weight_decay: beta
             nesterov: w <- w - gamma (lambda (g + beta w) + m v)
             trust: eta, above 0
    Source:  You, Gitman and Ginsburg 2017 (Large Batch Training of Convolutional Networks), Algorithm 1
    Differs: gamma is outside the momentum, as in torch's SGD and timm's Lars: the same as long as gamma is constant

    >>> w = torch.nn.Parameter(torch.tensor([[3.0, 4.0]]))
    >>> w.grad = torch.tensor([[0.0, 2.0]])
    >>> LARS([w], lr=1.0, trust=0.1).step()  # lambda = 0.1 * 5 / 2
    >>> w.data
    tensor([[3.0000, 3.5000]])
    """

    grad_scale: Tensor | None
    found_inf: Tensor | None

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float | Tensor,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        trust: float = 0.001,
    ) -> None:
        super().__init__(
            params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov, trust=trust)
        )
        self.found_inf = None
        for group in self.param_groups if momentum > 0 else ():
            for parameter in group["params"]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """One update; the gradients are used up, the scaled ones take their place."""
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            weights = [parameter for parameter in parameters if parameter.ndim >= 2]
            _scale_gradients(weights, weight_decay=group["weight_decay"], trust=group["trust"])
            self._update(weights, group, weight_decay=0.0)  # it is in their gradients
            self._update([p for p in parameters if p.ndim < 2], group, weight_decay=group["weight_decay"])

    def _update(self, parameters: list[Tensor], group: dict[str, Any], *, weight_decay: float) -> None:
        sgd(
            parameters,
            [parameter.grad for parameter in parameters],  # type: ignore[misc]
            [self.state[parameter].get("momentum_buffer") for parameter in parameters],
            fused=True,
            found_inf=self.found_inf,
            weight_decay=weight_decay,
            momentum=group["momentum"],
            lr=group["lr"],
            dampening=0.0,
            nesterov=group["nesterov"],
            maximize=False,
        )


def _scale_gradients(weights: list[Tensor], *, weight_decay: float, trust: float) -> None:
    """g <- lambda (g + beta w) for each weight tensor, in place."""
    if not weights:
        return
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    weight_norms = torch.stack(torch._foreach_norm(weights))
    gradient_norms = torch.stack(torch._foreach_norm(gradients))
    ratios = trust * weight_norms / (gradient_norms + weight_decay * weight_norms)
    ratios = torch.where((weight_norms > 0) & (gradient_norms > 0), ratios, 1.0)
    if weight_decay:
        torch._foreach_add_(gradients, weights, alpha=weight_decay)
    torch._foreach_mul_(gradients, ratios.unbind())
