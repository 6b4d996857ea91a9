"""The family of norms: against torch's, and who shares statistics with whom, found by moving one cell."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from verydeep import UsageError, theory

TORCHS = {
    "batch": lambda x, eps: F.batch_norm(x, None, None, training=True, eps=eps or 1e-300),  # torch refuses 0
    "layer": lambda x, eps: F.layer_norm(x, x.shape[1:], eps=eps),
    "group": lambda x, eps: F.group_norm(x, 3, eps=eps),
    "instance": lambda x, eps: F.instance_norm(x, eps=eps),
    "rms": lambda x, eps: F.rms_norm(x, list(x.shape[1:]), eps=eps),
}
GROUPS = {"group": 3}


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_every_kind_is_tested():
    assert set(TORCHS) == set(theory.NORMALIZATIONS)


CASES = [(kind, shape) for kind in TORCHS for shape in [(4, 6), (4, 6, 2, 3)] if (kind, len(shape)) != ("instance", 2)]


@pytest.mark.parametrize("eps", [0.0, 0.1])
@pytest.mark.parametrize(("kind", "shape"), CASES)
def test_equals_torchs(kind, shape, eps):
    x = random(*shape)
    ours = theory.normalize(x, kind, num_groups=GROUPS.get(kind), eps=eps)
    torch.testing.assert_close(ours, TORCHS[kind](x, eps), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize(
    ("kind", "num_groups"),
    [("batch", None), ("layer", None), ("group", 2), ("group", 3), ("instance", None), ("rms", None)],
)
def test_cells_that_share_are_those_that_move_together(kind, num_groups):
    """Fig. 11.3: of 4 samples x 6 channels, one cell is perturbed; the outputs that move share its statistics."""
    x = random(4, 6, 2, 2)
    before = theory.normalize(x, kind, num_groups=num_groups)
    for sample, channel in [(0, 0), (1, 3), (3, 5)]:
        moved = x.clone()
        moved[sample, channel, 0, 0] += 1
        seen = (theory.normalize(moved, kind, num_groups=num_groups) - before).abs().amax((2, 3)) > 1e-9
        shared = theory.shared_cells(kind, 4, 6, cell=(sample, channel), num_groups=num_groups)
        assert torch.equal(seen, shared)


@pytest.mark.parametrize(
    ("kind", "num_groups", "rows", "columns"),
    [
        ("batch", None, range(4), [2]),
        ("layer", None, [1], range(6)),
        ("group", 2, [1], [0, 1, 2]),
        ("group", 3, [1], [2, 3]),
        ("instance", None, [1], [2]),
    ],
)
def test_panels_of_figure_11_3(kind, num_groups, rows, columns):
    expected = torch.zeros(4, 6, dtype=torch.bool)
    for row in rows:
        for column in columns:
            expected[row, column] = True
    assert torch.equal(theory.shared_cells(kind, 4, 6, cell=(1, 2), num_groups=num_groups), expected)


@pytest.mark.parametrize(
    ("kind", "shape", "num_groups", "message"),
    [
        ("instance", (4, 3), None, "each value is alone"),
        ("batch", (1, 3), None, "each value is alone"),
        ("group", (2, 6), 3, None),
        ("group", (2, 6), 4, "must divide 6 channels; nearest 3"),
        ("group", (2, 6), None, "needs it"),
        ("layer", (2, 6), 2, "is for norm group"),
        ("bacth", (2, 6), None, "unknown; nearest: batch"),
    ],
)
def test_what_has_no_statistics_is_refused(kind, shape, num_groups, message):
    if message is None:
        assert theory.normalize(random(*shape), kind, num_groups=num_groups).shape == shape
        return
    with pytest.raises(UsageError, match=message):
        theory.normalize(random(*shape), kind, num_groups=num_groups)
