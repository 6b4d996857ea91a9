"""The computation of one forward pass as a graph of integers: what was made of what, and what every path passes.

`record` grows it, `addition` finds the residual additions in it, the rules ask it. It holds no tensor.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from verydeep.analysis.operation import Kind

ROOT = 0  # stands before all inputs


@dataclass(frozen=True, slots=True)
class Node:
    """One result of one operation.

    Args:    index: its place in the graph; inputs come before it
             name, kind: of the operation
             site: the module, or the module and the operation, for people
             inputs: the nodes that it was made of, those that do not carry the signal left aside where others do
             dominator: the last node that every path from the input to this one passes
             level: dominators before it
             parameters: names of those that were operands
             num_weights: weighted layers in it: 1 for a convolution, 0 for an addition
             fewest, most: weighted layers on the shortest and the longest path to it, its own included
             number: the constant factor of a scale, if it is one number
             shape: of the result
             floating: whether the result is of floating point
             carries: whether it carries the signal: it comes from the images, or has passed a weight
             module: the innermost module
    """

    index: int
    name: str
    kind: Kind
    site: str
    inputs: tuple[int, ...]
    dominator: int
    level: int
    parameters: tuple[str, ...] = ()
    num_weights: int = 0
    fewest: int = 0
    most: int = 0
    number: float | None = None
    shape: tuple[int, ...] = ()
    floating: bool = True
    carries: bool = False
    module: str = ""


@dataclass
class Graph:
    """Nodes in the order in which they were made; node 0 stands before all inputs.

    `outputs` are the model's; `strangers` the sites that use trainable tensors which are no parameters of the model.

    >>> graph = Graph()
    >>> x = graph.add("input", "input", inputs=())
    >>> f = graph.add("linear", "weight", inputs=(x,), num_weights=1)
    >>> y = graph.add("add", "add", inputs=(x, f))
    >>> graph.nodes[y].dominator == x, graph.nodes[y].fewest, graph.nodes[y].most
    (True, 0, 1)
    """

    nodes: list[Node] = field(default_factory=lambda: [Node(ROOT, "root", "input", "", (), ROOT, 0)])
    users: list[list[int]] = field(default_factory=lambda: [[]])
    outputs: list[int] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)

    def add(self, name: str, kind: Kind, *, inputs: Sequence[int], num_weights: int = 0, **facts: object) -> int:
        """A new node; its index.

        An attention mask is no path of the signal: where some operands carry it, the others are left aside.
        """
        given = tuple(dict.fromkeys(inputs)) or (ROOT,)
        inputs = tuple(i for i in given if self.nodes[i].carries) or given
        dominator = inputs[0]
        for other in inputs[1:]:
            dominator = self.common_dominator(dominator, other)
        node = Node(
            len(self.nodes),
            name,
            kind,
            inputs=inputs,
            dominator=dominator,
            level=self.nodes[dominator].level + 1,
            num_weights=num_weights,
            fewest=min(self.nodes[i].fewest for i in inputs) + num_weights,
            most=max(self.nodes[i].most for i in inputs) + num_weights,
            **{"site": name, **facts},  # type: ignore[arg-type]
        )
        self.nodes.append(node)
        self.users.append([])
        for i in inputs:
            self.users[i].append(node.index)
        return node.index

    def common_dominator(self, a: int, b: int) -> int:
        """The last node that every path to `a` and every path to `b` passes; one of them, if it passes itself."""
        while a != b:
            if self.nodes[a].level >= self.nodes[b].level:
                a = self.nodes[a].dominator
            else:
                b = self.nodes[b].dominator
        return a

    def dominators(self, index: int) -> list[int]:
        """The nodes that every path to `index` passes, the input's side first, itself last, ROOT left out."""
        chain = []
        while index != ROOT:
            chain.append(index)
            index = self.nodes[index].dominator
        return chain[::-1]

    def between(self, start: int, end: int) -> set[int]:
        """The nodes on the paths from `start` to `end`, both ends left out; `start` must dominate `end`."""
        seen: set[int] = set()
        stack = [i for i in self.nodes[end].inputs if i != start] if end != start else []
        while stack:
            index = stack.pop()
            if index not in seen and index != start:
                seen.add(index)
                stack.extend(i for i in self.nodes[index].inputs if i != start)
        return seen

    def lightest_path(self, start: int, end: int) -> list[int]:
        """The path with the fewest weights from `start` (left out) to `end`; of such, that with the fewest nodes.

        `start` must dominate `end`. Dijkstra's algorithm, backwards.
        """
        best: dict[int, tuple[int, int]] = {}
        queue = [(self.nodes[end].num_weights if end != start else 0, 0, end, -1)]
        after: dict[int, int] = {}
        while queue:
            weights, length, index, came = heapq.heappop(queue)
            if index in best:
                continue
            best[index] = (weights, length)
            after[index] = came
            if index == start:
                break
            for i in self.nodes[index].inputs:
                if i not in best and i >= start:
                    cost = 0 if i == start else self.nodes[i].num_weights
                    heapq.heappush(queue, (weights + cost, length + 1, i, index))
        path, index = [], after.get(start, -1)
        while index != -1:
            path.append(index)
            index = after[index]
        return path

    def weights_between(self, start: int, end: int) -> int:
        """The fewest weights on a path from `start` to `end`, that of `end` included, that of `start` not."""
        return sum(self.nodes[i].num_weights for i in self.lightest_path(start, end))

    def reaching_output(self) -> set[int]:
        """The nodes that an output depends on."""
        seen: set[int] = set()
        stack = list(self.outputs)
        while stack:
            index = stack.pop()
            if index not in seen:
                seen.add(index)
                stack.extend(self.nodes[index].inputs)
        return seen

    def of_kind(self, *kinds: Kind) -> Iterator[Node]:
        """The nodes of these kinds, in running order."""
        return (node for node in self.nodes if node.kind in kinds and node.index != ROOT)
