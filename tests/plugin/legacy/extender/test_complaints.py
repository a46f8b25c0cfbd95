"""What users of the vendor's pair complained about in public, and that it cannot happen here.

Each test is named after the complaint; the tracker and number are those of the report.
"""

from __future__ import annotations

import json

import pytest

from tests.builders.extender import (
    MAPS,
    Extender,
    add_node,
    add_pod,
    annotate,
    cores_in_use,
    end_pod,
    extender,
    ids,
    known_nodes,
    limits,
    notes,
    pod_document,
)
from tests.doubles.apiserver.server import ApiServer
from tests.doubles.apiserver.store import Object
from tests.eventually import eventually

pytestmark = pytest.mark.slow


def test_usage_maps_that_are_all_true_after_an_installation_keep_nothing_from_being_scheduled(
    server: ApiServer,
) -> None:
    """aws-neuron-sdk 1300, operator-for-ai-chips-on-aws 65."""
    full = {MAPS[0]: ",".join(["true"] * 16), MAPS[1]: ",".join(["true"] * 32)}
    add_node(server, "n", metadata={"annotations": full})
    with extender(server) as one:
        assert one.ready().schedule(add_pod(server, "p", limits(16)), known_nodes(one, "n")) == "n"
        server.store.delete("pods", "a/p")
        eventually(lambda: _map(server) == ",".join(["false"] * 16), what="the right map")


def _map(server: ApiServer) -> str:
    return str((server.store.get("nodes", "n")["metadata"].get("annotations") or {}).get(MAPS[0]))


def test_pods_that_end_while_the_extender_is_down_leave_nothing_in_use(server: ApiServer) -> None:
    """aws-neuron-sdk, the warning in deploy/infrastructure/scheduler.rst."""
    add_node(server, "n")
    with extender(server) as one:
        known_nodes(one.ready(), "n")
        for name in ("done", "deleted", "stays"):
            assert one.schedule(add_pod(server, name, limits(4)), ["n"]) == "n"
        eventually(lambda: _map(server).count("true") == 12, what="the map")
    end_pod(server, "done")
    server.store.delete("pods", "a/deleted")
    with extender(server, "two") as two:
        known_nodes(two.ready(), "n", size=8)
        eventually(lambda: _map(server).count("true") == 4, what="the map without them")


def test_annotations_of_the_network_stay(server: ApiServer) -> None:
    """Field notes of ROSA with OVN-Kubernetes: all annotations were written back as they had been read."""
    add_node(server, "n")
    network = {"k8s.ovn.org/pod-networks": '{"default":{}}'}
    with extender(server) as one:
        known_nodes(one.ready(), "n")
        item = add_pod(server, "p", limits(4))
        # The network writes after the scheduler, and the extender, have seen the pod.
        refused = server.fail(503, 100, watch=True)
        server.close_watches()
        eventually(lambda: refused.times < 99, what="the end of both watches")
        annotate(server, "pods", "a/p", **network)
        assert one.bind(item, "n") == ""
        assert notes(server, "p").items() >= network.items()
    for request in server.requests:
        if request.method in ("POST", "PATCH") and "/pods/" in request.path:
            written = request.body["metadata"]["annotations"]
            assert all(key.startswith(("NEURON_", "AWS_NEURON_", "neuron.aws.com/")) for key in written)
            assert set(request.body["metadata"]) <= {"name", "namespace", "uid", "resourceVersion", "annotations"}


def test_filter_survives_whatever_is_missing(server: ApiServer) -> None:
    """aws-neuron-sdk 796: a nil pointer in Filter."""
    add_node(server, "n")
    server.store.create("nodes", {"metadata": {"name": "bare"}})
    with extender(server) as one:
        known_nodes(one.ready(), "n")
        document = pod_document("p", limits(1))
        for drop in ("status", "metadata.annotations", "spec.containers", "spec"):
            broken = json.loads(json.dumps(document))
            where = broken
            *path, last = drop.split(".")
            for part in path:
                where = where[part]
            del where[last]
            assert one.fits(broken, ["n", "bare", "gone"])
        assert one.post("/filter", {"Pod": document})[0] == 400
        assert one.fits(document, ["n", "bare", "gone"]) == ["n"]


def test_a_node_whose_driver_is_missing_is_named_and_comes_back(server: ApiServer) -> None:
    """aws-neuron-sdk 312, aws-cdk 29262."""
    add_node(server, "n", capacity={"aws.amazon.com/neuron": "0", "aws.amazon.com/neuroncore": "0"})
    item = pod_document("p", limits(1))
    with extender(server) as one:
        one.ready()
        eventually(lambda: "no Neuron devices" in one.filter(item, ["n"])["FailedNodes"]["n"], what="the reason")
        with server.store.changed:
            found = server.store.get("nodes", "n")
            found["status"]["capacity"] |= {"aws.amazon.com/neuron": "16", "aws.amazon.com/neuroncore": "32"}
            server.store.update("nodes", "n", found)
        known_nodes(one, "n")


def test_pods_that_follow_each_other_find_the_cores_free_also_on_a_node_that_comes_again(server: ApiServer) -> None:
    """aws-neuron-sdk 1338: with KEDA and Karpenter a new pod got cores that were in use, and the node never healed."""
    add_node(server, "n", "inf2.xlarge")
    ends = [end_pod, lambda server, name: end_pod(server, name, "Failed"), _delete]
    with extender(server) as one:
        known_nodes(one.ready(), "n")
        for number in range(12):
            item = add_pod(server, f"p{number}", limits(cores=1 + number % 2))
            _placed(one, item)
            assert one.fits(pod_document("two", limits(cores=2)), ["n"]) == []
            ends[number % 3](server, f"p{number}")
        last = add_pod(server, "last", limits(1))
        _placed(one, last)
        server.store.delete("nodes", "n")
        _delete(server, "last")
        add_node(server, "n", "inf2.xlarge")
        known_nodes(one, "n")


def _placed(one: Extender, item: Object) -> None:
    eventually(lambda: one.schedule(item, ["n"]) == "n", what="a place")


def _delete(server: ApiServer, name: str) -> None:
    server.store.delete("pods", f"a/{name}")


def test_a_core_is_never_under_two_pods_of_any_kind(server: ApiServer) -> None:
    """aws-neuron-sdk 697: a process cannot bind a core."""
    add_node(server, "n", "inf2.48xlarge")
    with extender(server) as one:
        known_nodes(one.ready(), "n")
        sizes = [limits(cores=3), limits(2), limits(cores=1), limits(cores=1), limits(4), limits(cores=5), limits(1)]
        for number, size in enumerate(sizes):
            one.schedule(add_pod(server, f"p{number}", size), ["n"])
            cores_in_use(server)


@pytest.mark.parametrize("kind", ["inf1.6xlarge", "inf2.48xlarge", "trn1.32xlarge", "trn2.48xlarge"])
def test_ids_are_sorted_and_without_gaps(server: ApiServer, kind: str) -> None:
    """aws-neuron-sdk 110: devices in another order, or not connected, break the runtime."""
    add_node(server, "n", kind)
    with extender(server) as one:
        known_nodes(one.ready(), "n")
        for number, size in enumerate((limits(1), limits(cores=2), limits(1), limits(4), limits(2), limits(3))):
            if one.schedule(add_pod(server, f"p{number}", size), ["n"]):
                found = ids(server, f"p{number}")
                assert found == [*range(found[0], found[0] + len(found))]


def test_cores_are_asked_for_by_their_own_resource_on_nodes_of_any_autoscaler(server: ApiServer) -> None:
    """containers-roadmap 1735, karpenter 3555 and 6510: only whole devices, only some labels."""
    add_node(
        server, "n", "inf2.48xlarge", metadata={"labels": {"node.kubernetes.io/instance-type": "ml.inf2.48xlarge"}}
    )
    with extender(server) as one:
        assert one.ready().schedule(add_pod(server, "p", limits(cores=5)), known_nodes(one, "n")) == "n"
        assert ids(server, "p") == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", ["trn2.3xlarge", "trn9.3xlarge"])
def test_a_type_that_no_list_has_is_scheduled_all_the_same(server: ApiServer, kind: str) -> None:
    """sagemaker-hyperpod-cli 444: a new instance type was missing in a list."""
    counts = {"aws.amazon.com/neuron": "1", "aws.amazon.com/neuroncore": "4"}
    add_node(server, "n", kind, capacity=counts)
    with extender(server) as one:
        known_nodes(one.ready(), "n")
        assert one.schedule(add_pod(server, "p", limits(cores=4)), ["n"]) == "n"
        assert one.fits(pod_document("q", limits(1)), ["n"]) == []


def test_pods_need_no_resource_claims(server: ApiServer) -> None:
    """OpenShift and KServe: types that have no field for claims."""
    add_node(server, "n")
    item = pod_document("p", limits(4))
    assert "resourceClaims" not in json.dumps(item)
    with extender(server) as one:
        known_nodes(one.ready(), "n")
        assert one.schedule(add_pod(server, "p", limits(4)), ["n"]) == "n"
