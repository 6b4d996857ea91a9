"""`NormAct`, a norm and its ReLU. The building block of units, stems, heads and of the related networks."""

import torch.nn.functional as F
from torch import Tensor, nn

from verydeep.nn import fused


class NormAct(nn.Module):
    """relu(norm(x)): one fused operation where `fused.suits`, else the ReLU in place, as no norm needs its output.

    Where a hook may have seen that output, or waits at the ReLU, both modules are called as they are.
    """

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_unwatched():
            return self.act(self.norm(x))
        if fused.suits(x) and fused.plain_norm(self.norm, x, channels=x.shape[1]):
            return fused.norm_act(self.norm, x)
        return F.relu_(self.norm(x))

    def is_unwatched(self) -> bool:
        """Whether nothing but their own forward happens when the norm and the ReLU are called."""
        return fused.unwatched(self.norm) and fused.unwatched(self.act) and not fused.has_any_global_hook()
