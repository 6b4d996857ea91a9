"""Dominators and lightest paths against naive code, on random graphs."""

from hypothesis import given
from hypothesis import strategies as st

from verydeep.analysis.graph import ROOT, Graph


@st.composite
def graphs(draw):
    graph = Graph()
    for index in range(1, draw(st.integers(2, 12))):
        inputs = draw(st.lists(st.integers(0, index - 1), min_size=1, max_size=3))
        graph.add("op", "weight", inputs=[i for i in inputs if i] or (), num_weights=draw(st.integers(0, 2)))
    return graph


def paths(graph, start, end):
    """All paths, `start` left out."""
    if end == start:
        return [[]]
    return [[*path, end] for i in graph.nodes[end].inputs for path in paths(graph, start, i)] if end != ROOT else []


@given(graphs())
def test_dominator_is_the_last_node_on_every_path(graph):
    for node in graph.nodes[1:]:
        common = set.intersection(*(set(path) for path in paths(graph, ROOT, node.index))) - {node.index}
        assert node.dominator == max(common, default=ROOT)
        assert set(graph.dominators(node.index)) == common | {node.index}


@given(graphs())
def test_weights_on_paths(graph):
    for node in graph.nodes[1:]:
        for start in {ROOT, *graph.dominators(node.index)}:
            weights = [sum(graph.nodes[i].num_weights for i in path) for path in paths(graph, start, node.index)]
            assert graph.weights_between(start, node.index) == min(weights)
            assert graph.lightest_path(start, node.index) in paths(graph, start, node.index)
        weights = [sum(graph.nodes[i].num_weights for i in path) for path in paths(graph, ROOT, node.index)]
        assert (node.fewest, node.most) == (min(weights), max(weights))


@given(graphs())
def test_between_is_what_lies_on_some_path(graph):
    for node in graph.nodes[1:]:
        inside = {i for path in paths(graph, node.dominator, node.index) for i in path} - {node.index}
        assert graph.between(node.dominator, node.index) == inside
