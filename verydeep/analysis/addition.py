"""The residual additions of a recorded computation: y = h(x) + F(x), found by what was computed, not by names."""

from collections.abc import Sequence
from dataclasses import dataclass

from verydeep.analysis.graph import ROOT, Graph

_STANDS = {"weight": "conv"}  # kind of a node -> what is said to stand on the shortcut
_NEUTRAL = {"shape", "input", "add", "other"}


@dataclass(frozen=True)
class Addition:
    """One residual addition.

    Args:    node, site: of the sum
             fork: the node from which branch and shortcut part: x
             branch, shortcut: the operands' nodes: F(x) and h(x)
             projection: whether the shortcut has a weight
             on_shortcut: what stands on the shortcut: scale, gate, conv, dropout, norm, act, pool
             in_branch: kinds of the operations along the branch, from the fork on
             before: what acts on the sum of the addition before and feeds both paths of this one: act, norm, ...
             previous: the addition whose sum `before` acts on, as its node; None where there is a weight between
             num_weights: fewest weights of the branch
    """

    node: int
    site: str
    fork: int
    branch: int
    shortcut: int
    projection: bool
    on_shortcut: tuple[str, ...]
    in_branch: tuple[str, ...]
    before: tuple[str, ...]
    previous: int | None
    num_weights: int

    @property
    def normed_first(self) -> bool:
        """Whether the branch begins with a norm: pre-activation, pre-norm."""
        return next((kind for kind in self.in_branch if kind not in _NEUTRAL), "") == "norm"


def find_additions(graph: Graph) -> list[Addition]:
    """The residual additions in running order.

    An addition of two signals is residual if both part from one earlier tensor of floating point, the fork, and one of
    them, the shortcut, has no weight on its way from there, or one where the branch has more (a projection). Not
    judged: two weights on both ways (a fusion); a projection past which the branch leads elsewhere (the laterals of
    feature pyramids); parallel linear branches (RepVGG's); sums without weights and norm (rotary embeddings, GELU).
    """
    found: list[Addition] = []
    reaching = graph.reaching_output()
    for node in graph.of_kind("add"):
        if node.index in reaching and len(node.inputs) == 2 and node.floating:
            addition = _judge(graph, node.index, reaching, {known.node for known in found})
            if addition is not None:
                found.append(addition)
    return found


def _judge(graph: Graph, index: int, reaching: set[int], known: set[int]) -> Addition | None:
    nodes = graph.nodes
    fork = nodes[index].dominator
    if fork == ROOT or not nodes[fork].floating:
        return None
    ways = sorted((_way(graph, fork, operand) for operand in nodes[index].inputs), key=lambda way: way[:2])
    (shortcut_weights, _, shortcut_path), (branch_weights, _, branch_path) = ways
    on_shortcut = _kinds(graph, shortcut_path)
    in_branch = tuple(nodes[i].kind for i in branch_path)
    if shortcut_weights > 1 or "attention" in on_shortcut or "loss" in in_branch or not branch_path:
        return None
    if shortcut_weights == 1 and (branch_weights <= 1 or _leads_elsewhere(graph, fork, index, branch_path, reaching)):
        return None
    if branch_weights == 0 and (on_shortcut or "norm" not in in_branch):
        return None
    if "norm" in on_shortcut and shortcut_weights == 0 and branch_weights == 1 and "act" not in in_branch:
        return None
    before, previous = _before(graph, fork, known)
    return Addition(
        node=index,
        site=nodes[index].site,
        fork=fork,
        branch=branch_path[-1],
        shortcut=shortcut_path[-1] if shortcut_path else fork,
        projection=shortcut_weights == 1,
        on_shortcut=on_shortcut,
        in_branch=in_branch,
        before=before,
        previous=previous,
        num_weights=branch_weights,
    )


def _way(graph: Graph, fork: int, operand: int) -> tuple[int, int, list[int]]:
    """Weights, length and nodes of the lightest path from the fork to an operand."""
    path = [] if operand == fork else [i for i in graph.lightest_path(fork, operand) if i != fork]
    return sum(graph.nodes[i].num_weights for i in path), len(path), path


def _kinds(graph: Graph, path: Sequence[int]) -> tuple[str, ...]:
    kinds = (graph.nodes[i].kind for i in path)
    return tuple(_STANDS.get(kind, kind) for kind in kinds if kind not in _NEUTRAL)


def _leads_elsewhere(graph: Graph, fork: int, index: int, branch_path: Sequence[int], reaching: set[int]) -> bool:
    """Whether something inside the branch reaches the output past the addition."""
    inside = graph.between(fork, branch_path[-1]) | {branch_path[-1]}
    allowed = inside | {index}
    return any(user in reaching and user not in allowed for i in inside for user in graph.users[i])


def _before(graph: Graph, fork: int, known: set[int]) -> tuple[tuple[str, ...], int | None]:
    """What acts on the sum of the addition before, up to the fork."""
    kinds: list[str] = []
    index = fork
    while index not in known:
        node = graph.nodes[index]
        if len(node.inputs) != 1 or node.kind in ("weight", "add", "input", "attention"):
            return (), None
        if node.kind not in _NEUTRAL:
            kinds.append(node.kind)
        index = node.inputs[0]
    return tuple(reversed(kinds)), index
