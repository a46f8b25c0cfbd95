"""What keeps a pod off a node is told, however the affinity is written."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dra_driver.kube.node_affinity import selects, unselected, untolerated
from dra_driver.kube.objects.core import (
    Node,
    NodeMeta,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    NodeSpec,
    Taint,
)
from tests.golden import golden

KEYS = st.sampled_from(["a", "metadata.name"])
VALUES = st.sampled_from(["1", "2"])
EXPRESSIONS = st.one_of(
    st.builds(NodeSelectorRequirement, KEYS, st.sampled_from(["In", "NotIn"]), st.tuples(VALUES)),
    st.builds(NodeSelectorRequirement, KEYS, st.sampled_from(["Exists", "DoesNotExist"])),
    st.builds(NodeSelectorRequirement, KEYS, st.sampled_from(["Gt", "Lt"]), st.tuples(VALUES)),
)
FIELDS = st.builds(NodeSelectorRequirement, KEYS, st.sampled_from(["In", "NotIn"]), st.tuples(VALUES))
TERMS = st.builds(
    NodeSelectorTerm, st.lists(EXPRESSIONS, max_size=2).map(tuple), st.lists(FIELDS, max_size=2).map(tuple)
)
SAME = NodeSelectorRequirement("metadata.name", "In", ("1",))


@given(st.lists(TERMS, max_size=3), st.dictionaries(KEYS, VALUES))
@example([NodeSelectorTerm((SAME,), (SAME,))], {"metadata.name": "1"})  # a label may have the name of the field
def test_where_no_term_matches_the_first_requirement_of_each_that_is_not_met_is_named(
    terms: list[NodeSelectorTerm], labels: dict[str, str]
) -> None:
    node, affinity = Node(NodeMeta(name="2", labels=labels)), NodeSelector(tuple(terms))
    text = unselected(node, {}, affinity)
    assert bool(text) != selects(affinity, "2", labels)
    some = [term for term in terms if term.match_expressions or term.match_fields]
    assert text.count(", which ") == (len(some) if text else 0)


@pytest.mark.parametrize(
    ("key", "of_node"),
    [("node.kubernetes.io/disk-pressure", True), ("node.kubernetes.io/not-ready", True), ("team", False)],
)
def test_a_taint_that_a_nodes_condition_has_put_there_is_no_matter_of_tolerations(key: str, of_node: bool) -> None:
    node = Node(NodeMeta(name="n"), NodeSpec(taints=(Taint(key, "", "NoSchedule"),)))
    text = untolerated(node, ())
    assert ("kubectl describe node n" in text) is of_node
    golden(text)
