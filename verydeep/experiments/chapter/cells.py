"""Figure 11.3, measured: which values a norm takes together, found by replacing one and seeing what moves."""

import torch
from torch import Tensor

from verydeep.data.seed import generator
from verydeep.nn.norm import norm_factory


def moved_cells(kind: str, num_groups: int | None) -> Tensor:
    """Cells of a (4 samples, 6 channels) batch whose output moves when cell (1, 2) is replaced: Fig. 11.3, measured.

    Shape:   (4, 6), bool
    """
    factory = norm_factory(kind, num_groups=num_groups)
    assert factory is not None
    norm = factory(6).double()
    before, after = _random(4, 6, seed=5), _random(4, 6, seed=5)
    after[1, 2] = _random(1, 1, seed=6)[0, 0]
    return (norm(after) - norm(before)).abs().amax((2, 3)) > 1e-9


PANELS: dict[str, tuple[str, int | None]] = {
    "batch": ("batch", None),
    "layer": ("layer", None),
    "group (3 groups)": ("group", 3),
    "group (2 groups)": ("group", 2),
    "instance": ("instance", None),
}


def _random(num_samples: int, num_channels: int, *, seed: int) -> Tensor:
    return torch.randn(num_samples, num_channels, 3, 3, dtype=torch.float64, generator=generator(seed))
