"""Convolutions of a traced network take the addition and the ReLU that follow them: see `nn.prediction.JoinedConv2d`.

A sum takes the memory of its other operand where nothing reads that afterwards, as far as the graph tells: only the
operations named here are known to leave their operands as they are, or to give results in memory of their own.
"""

import operator
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import fx, nn

from verydeep.nn.fused import unwatched
from verydeep.nn.prediction import JoinedConv2d, ScaleShift

RELU_FUNCTIONS = (F.relu, F.relu_, torch.relu, torch.relu_)
ADDITIONS = (operator.add, operator.iadd, torch.add)
# What gives its result in memory of its own; what may give it in its operand's
NEW = (nn.Conv2d, ScaleShift, nn.BatchNorm2d, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d,
       operator.add, operator.mul, torch.add, torch.mul, torch.sigmoid, torch.cat,
       F.pad, F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d)  # fmt: skip
SAME = (nn.ReLU, *RELU_FUNCTIONS)


def join_convolutions(traced: fx.GraphModule, convolutions: Mapping[fx.Node, nn.Module]) -> None:
    """Put a JoinedConv2d in the place of each convolution, of the addition and the ReLU after it.

    Args:    traced: in eval mode, without modules that do nothing then; changed
             convolutions: those that are called once, by their calls
    """
    positions = {node: i for i, node in enumerate(traced.graph.nodes)}
    for node, conv in convolutions.items():
        if type(conv) is not nn.Conv2d or len(node.all_input_nodes) != 1 or len(node.args) != 1:
            continue
        added = _addend(traced, node, positions)
        overwrites = added is not None and _is_last_reader(traced, node, added, positions)
        if added is not None and not overwrites and _adds_in_place(node):
            added = None
        if added is not None:
            _take_over(node)
            node.args = (*node.args, added)
        user = only_user(node)
        relu = user is not None and is_relu(traced, user)
        if relu:
            _take_over(node)
        traced.set_submodule(str(node.target), JoinedConv2d(conv, relu=relu, overwrites=overwrites))


def only_user(node: fx.Node) -> fx.Node | None:
    """What alone uses the result of an operation."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def is_relu(traced: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a node is a ReLU that nothing watches."""
    watched = node.op == "call_module" and not unwatched(traced.get_submodule(str(node.target)))
    return _kind(traced, node) in (nn.ReLU, *RELU_FUNCTIONS) and not watched


def _take_over(node: fx.Node) -> None:
    """Let an operation's result stand for that of its only user."""
    (user,) = node.users
    user.replace_all_uses_with(node)
    node.graph.erase_node(user)


def _addend(traced: fx.GraphModule, node: fx.Node, positions: Mapping[fx.Node, int]) -> fx.Node | None:
    """What alone is added to a convolution's result, if it is there before, and the same until it is added."""
    addition = only_user(node)
    if addition is None or addition.target not in ADDITIONS or addition.kwargs:
        return None
    others = [operand for operand in addition.args if operand is not node]
    if len(others) != 1 or not isinstance(others[0], fx.Node):
        return None
    between = node.next
    while between is not addition:
        if _kind(traced, between) not in NEW:
            return None
        between = between.next
    return others[0] if positions[others[0]] < positions[node] else None


def _adds_in_place(node: fx.Node) -> bool:
    """Whether the sum lies where the other operand did, for all to see who hold that."""
    addition = only_user(node)
    return addition is not None and addition.target is operator.iadd and addition.args[0] is not node


def _is_last_reader(traced: fx.GraphModule, node: fx.Node, added: fx.Node, positions: Mapping[fx.Node, int]) -> bool:
    """Whether what is added to a result lies in memory of the network's own that nothing else has still to read."""
    source, addition = _source(traced, added), only_user(node)
    if _kind(traced, source) not in NEW:
        return False
    readers = _readers(traced, source, but=addition)
    return readers is not None and all(positions[reader] < positions[node] for reader in readers)


def _source(traced: fx.GraphModule, node: fx.Node) -> fx.Node:
    """The operation in whose memory a result may lie."""
    while _kind(traced, node) in SAME:
        node = node.all_input_nodes[0]
    return node


def _readers(traced: fx.GraphModule, node: fx.Node, *, but: fx.Node | None) -> list[fx.Node] | None:
    """Every operation on the memory of a result but one; None where that cannot be told."""
    readers: list[fx.Node] = []
    waiting = [node]
    while waiting:
        for user in waiting.pop().users.keys() - {but}:
            kind = _kind(traced, user)
            if kind in SAME:
                waiting.append(user)
            elif kind not in NEW:
                return None
            readers.append(user)
    return readers


def _kind(traced: fx.GraphModule, node: fx.Node) -> object:
    """The class of the module that a node calls, nn.Conv2d for those joined already; or its function."""
    match node.op:
        case "call_module":
            module = traced.get_submodule(str(node.target))
            return nn.Conv2d if type(module) is JoinedConv2d else type(module)
        case "call_method":
            return getattr(torch, str(node.target), None)
    return node.target if node.op == "call_function" else None
