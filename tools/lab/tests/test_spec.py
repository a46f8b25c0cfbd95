"""The specification of a cluster: values, labels and their JSON form."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab import spec
from lab.errors import LabError
from lab.spec import ClusterSpec

NODE_LABELS = st.dictionaries(
    st.from_regex(r"[a-z]{1,8}\.example/[a-zA-Z0-9]{1,10}", fullmatch=True),
    st.from_regex(r"[A-Za-z0-9]{0,10}", fullmatch=True),
    max_size=3,
)


@given(
    nodes=st.integers(0, 100),
    labels=NODE_LABELS,
    gates=st.lists(st.from_regex(r"[A-Za-z]{1,10}=(true|false)", fullmatch=True), max_size=3),
)
def test_a_spec_survives_its_json_form(nodes: int, labels: dict[str, str], gates: list[str]) -> None:
    by_node = {"*": labels, "node-1": labels} if nodes else {"*": labels}
    asked = ClusterSpec(name="a-1", nodes=nodes, labels=by_node, feature_gates=tuple(gates))
    assert spec.decode(spec.encode(asked)) == asked


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"name": "Upper"}, "'Upper'"),
        ({"name": "../up"}, "'../up'"),
        ({"name": "longer-than-12"}, "longer-than-12"),
        ({"nodes": -1}, "-1 nodes"),
        ({"nodes": 101}, "101 nodes"),
        ({"kubernetes": "v1.37"}, "'v1.37'"),
        ({"kubelet": "1.33;reboot"}, "1.33;reboot"),
        ({"feature_gates": ("A",)}, "'A' is not NAME=true"),
        ({"runtime_config": ("api/all=yes",)}, "api/all=yes"),
        ({"labels": {"node-2": {"a": "b"}}}, "node-2"),
        ({"labels": {"*": {"a b": "c"}}}, "a b=c"),
        ({"labels": {"*": {"a": "x,y=z"}}}, "a=x,y=z"),
        ({"node_directories": ("relative",)}, "relative"),
        ({"node_directories": ("/a/../../etc",)}, "/a/../../etc"),
    ],
)
def test_a_value_that_cannot_be_used_is_named_in_the_refusal(values: dict[str, Any], named: str) -> None:
    with pytest.raises(LabError) as refusal:
        ClusterSpec(**values)
    assert named in str(refusal.value)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(LabError, match=r"-1 nodes.*'x'"):
        ClusterSpec(nodes=-1, kubernetes="x")


def test_ultraservers_are_so_many_nodes() -> None:
    assert [spec.nodes_of_ultraservers(text) for text in ("2x4", "1x2", "25x4")] == [8, 2, 100]


@pytest.mark.parametrize("text", ["", "2x3", "0x4", "2X4", "2x", "x4", "8", "2x44", "-1x4", "100x4", "٢x4"])
def test_other_ultraservers_are_refused(text: str) -> None:
    with pytest.raises(LabError, match="two UltraServers of four nodes"):
        spec.nodes_of_ultraservers(text)


def test_labels_are_for_all_nodes_or_for_the_one_before_the_colon() -> None:
    labels = spec.parse_labels(["a=1", "node-2:a=2", "node-2:b.example/c="])
    asked = ClusterSpec(nodes=2, labels=labels)
    assert asked.labels_of("node-1") == {"a": "1"}
    assert asked.labels_of("node-2") == {"a": "2", "b.example/c": ""}


@pytest.mark.parametrize("text", ["", "a", "=b", "node-1:=b", ":a=b"])
def test_a_text_that_is_no_label_is_refused(text: str) -> None:
    with pytest.raises(LabError, match="not a label"):
        spec.parse_labels([text])


def test_a_labels_file_may_have_comments_and_blank_lines() -> None:
    assert spec.parse_labels_file("# all\na=1\n\n  node-1:b=2  \n") == ["a=1", "node-1:b=2"]


@pytest.mark.parametrize(
    ("key", "allowed"),
    [
        ("node.kubernetes.io/instance-type", True),
        ("topology.kubernetes.io/zone", True),
        ("kubelet.kubernetes.io/x", True),
        ("sub.node.kubernetes.io/x", True),
        ("topology.k8s.aws/network-node-layer-1", True),
        ("plain", True),
        ("node-restriction.kubernetes.io/x", False),
        ("kubernetes.io/role", False),
        ("x.k8s.io/y", False),
        ("notnode.kubernetes.io/x", False),
    ],
)
def test_kubelet_may_set_only_the_kubernetes_labels_that_admission_leaves_it(key: str, *, allowed: bool) -> None:
    assert spec.kubelet_may_set(key) is allowed


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", json.dumps({"name": "x", "nodes": "1"})])
def test_a_damaged_description_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        spec.decode(text)


def test_the_kubelet_version_is_the_control_planes_unless_said_otherwise() -> None:
    assert ClusterSpec(kubernetes="1.34.4").kubelet_version == "1.34.4"
    assert ClusterSpec(kubernetes="1.34.4", kubelet="1.33.13").kubelet_version == "1.33.13"
