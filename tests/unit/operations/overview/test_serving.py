"""Why a node has no driver: what its DaemonSet says of the node."""

import json
from typing import Any

import pytest

from dra_driver.kube.api.codec import decode
from dra_driver.kube.objects.apps import DaemonSet
from dra_driver.kube.objects.core import Node
from dra_driver.operations.overview.serving import serving, unserved
from tests.builders.overview import daemon_set
from tests.golden import golden

Object = dict[str, Any]

LABELS = {"kubernetes.io/hostname": "node-1", "eks.amazonaws.com/compute-type": "hybrid"}
NOT_HYBRID = {"key": "eks.amazonaws.com/compute-type", "operator": "NotIn", "values": ["hybrid", "fargate", "auto"]}
DEDICATED = {"key": "dedicated", "value": "ml", "effect": "NoExecute"}
PRESSURE = {"key": "node.kubernetes.io/memory-pressure", "effect": "NoSchedule"}


def affinity(*terms: list[Object]) -> Object:
    """A required node affinity of these terms."""
    selector = {"nodeSelectorTerms": [{"matchExpressions": requirements} for requirements in terms]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": selector}}}


def of(kind: Any, item: Object) -> Any:
    """An object as the API server sends it."""
    return decode(json.dumps(item).encode(), kind, "an object")


@pytest.mark.parametrize(
    "pods",
    [
        pytest.param([affinity([NOT_HYBRID])], id="affinity"),
        pytest.param([affinity([{"key": "x", "operator": "Of"}])], id="an affinity that cannot be parsed"),
        pytest.param([{"nodeSelector": {"neuron": "yes"}}], id="selector"),
        pytest.param([{"tolerations": [{"key": "other", "operator": "Exists"}]}], id="taint"),
        pytest.param([{"tolerations": [{"operator": "Exists"}]}], id="the node is selected"),
        pytest.param([{"tolerations": [{"key": "dedicated", "operator": "Exists"}]}], id="its own taint is tolerated"),
        pytest.param([{"nodeSelector": {"a": "b"}}, {"nodeSelector": {"c": "d"}}], id="two"),
        pytest.param([{"nodeSelector": {"a": "b"}}, {"tolerations": [{"operator": "Exists"}]}], id="one of two"),
        pytest.param([], id="none"),
        pytest.param(None, id="not readable"),
    ],
)
def test_a_node_without_a_driver_is_compared_with_the_daemon_set(pods: list[Object] | None) -> None:
    # Taints of the node itself keep no DaemonSet off.
    spec = {"unschedulable": True, "taints": [DEDICATED, PRESSURE]}
    node = of(Node, {"metadata": {"name": "node-1", "labels": LABELS}, "spec": spec})
    sets = None if pods is None else [of(DaemonSet, daemon_set(f"d{place}", pod)) for place, pod in enumerate(pods)]
    found = serving(node, False, [], sets)
    golden([found.word, found.problem, found.remedy])


def test_a_wrong_instance_type_hides_no_node_that_a_driver_has_served() -> None:
    label, condition = {"node.kubernetes.io/instance-type": "m5.large"}, {"type": "NeuronHealth", "status": "Unknown"}
    by_type = affinity([{"key": next(iter(label)), "operator": "In", "values": ["trn2.48xlarge"]}])
    nodes = [
        of(Node, {"metadata": {"name": name, "labels": label}, "status": {"conditions": conditions}})
        for name, conditions in (("node-1", [condition]), ("web-1", []))
    ]
    texts = unserved(nodes, (), {}, [of(DaemonSet, daemon_set("d", by_type))])
    assert list(texts) == ["node-1"]
    golden(texts["node-1"])
