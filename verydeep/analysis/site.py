"""`Site`: what was read at one point of a model, as users see it."""

from dataclasses import dataclass

from verydeep.analysis.reading import Reading


@dataclass(frozen=True)
class Site:
    """A point at which a signal was read; None where a quantity has no meaning or was not measured.

    Args:    site: the module, or the module and the operation
             kind: weight, norm, act, add, ...
             depth: weighted layers on the longest path to it
             mean_square, channel_variance: of the signal
             gradient: norm of the loss's gradient with respect to it
             dead, saturated: shares of its values
             branch_ratio: mean square of the branch over that of the shortcut, of a residual addition
             truncated: share of a sum's square that a ReLU after it cuts off
    """

    site: str
    kind: str
    depth: int
    shape: tuple[int, ...]
    mean_square: float | None = None
    channel_variance: float | None = None
    gradient: float | None = None
    dead: float | None = None
    saturated: float | None = None
    branch_ratio: float | None = None
    truncated: float | None = None


def sites_of(reading: Reading) -> list[Site]:
    """Every node at which a signal was read."""
    branches = {a.node: a for a in reading.additions}
    sites = []
    for index, values in sorted(reading.values.items()):
        node = reading.graph.nodes[index]
        if node.kind == "loss":
            continue
        ratio = None
        if index in branches:
            place = node.inputs.index(branches[index].branch)
            branch, shortcut = values.get(f"square{place}"), values.get(f"square{1 - place}")
            ratio = branch / shortcut if branch is not None and shortcut else None
        sites.append(
            Site(
                site=node.site,
                kind="sum" if index in branches else node.kind,
                depth=node.most,
                shape=node.shape,
                mean_square=values.get("mean_square"),
                channel_variance=values.get("channel_variance"),
                gradient=reading.gradients.get(index),
                dead=values.get("dead"),
                saturated=values.get("saturated", values.get("certain")),
                branch_ratio=ratio,
                truncated=values.get("truncated"),
            )
        )
    return sites
