"""What is said of devices that cannot be had, of nodes and clusters, and of what would help, word by word."""

from __future__ import annotations

import pytest

from dra_driver.simulator.cluster import merge
from dra_driver.simulator.emulated_nodes import emulated
from dra_driver.simulator.explain import explanations, text
from dra_driver.simulator.explain.values import Holder
from dra_driver.simulator.manifests import read_manifests
from tests.builders.allocator import counters, device, offered
from tests.builders.explain import (
    ATTRIBUTES,
    BOTH,
    NEURON,
    NODES,
    ONE,
    TYPE,
    claim,
    explained,
    group,
    holder,
    of_devices,
    other,
    plain_request,
    published,
    said,
    wanted,
)
from tests.golden import golden


def test_taints_and_what_tolerates_them() -> None:
    taint = {"key": "broken", "value": "yes", "effect": "NoSchedule"}
    found = explained([claim(plain_request())], other(device("d0", taints=[taint])))
    golden(said(found).sentence)
    golden(of_devices(found))
    golden(found.remedies)


HBM, SRAM = (
    {"key": f"health.neuron.aws.com/{part}-uncorrectable", "value": "unhealthy", "effect": "NoSchedule"}
    for part in ("hbm", "sram")
)


def test_a_taint_of_the_driver_says_what_is_wrong_with_the_chip_and_what_mends_it() -> None:
    found = explained([claim(plain_request())], other(device("d0", taints=[HBM])))
    golden(of_devices(found))
    golden(found.remedies)


def test_a_taint_of_an_administrators_rule_names_the_rule() -> None:
    rule = {
        "metadata": {"name": "bench-is-open"},
        "spec": {"deviceSelector": {"device": "d0"}, "taint": {"key": "example.com/repair", "effect": "NoExecute"}},
    }
    found = explained([claim(plain_request())], other(device("d0")), taint_rules=[rule])
    golden(of_devices(found))
    golden(found.remedies)


def test_all_taints_of_a_device_have_to_be_tolerated_together() -> None:
    found = explained([claim(plain_request())], other(device("d0", taints=[HBM, SRAM])))
    (remedy,) = found.remedies
    golden(remedy)


def test_a_key_like_a_faults_on_anothers_device_is_only_a_key() -> None:
    taint = {"key": "example.com/hbm-uncorrectable", "value": "yes", "effect": "NoSchedule"}
    found = explained([claim(plain_request())], other(device("d0", taints=[taint])))
    assert "(" not in of_devices(found)[0]
    golden(found.remedies)


@pytest.mark.parametrize("why", ["partitions", "device-plugin"])
def test_a_device_that_is_only_kept_is_called_so_and_not_to_be_tolerated(why: str) -> None:
    kept = {"key": "neuron.aws.com/retired", "value": why, "effect": "NoSchedule"}
    found = explained([claim(plain_request())], other(device("d0", taints=[kept])))
    (sentence,) = of_devices(found)
    golden(sentence)
    assert not any("tolerate" in remedy for remedy in found.remedies)


def test_a_device_of_a_workloads_node_is_called_so_and_not_to_be_tolerated() -> None:
    uid = "b2b1e5a0-0000-4000-8000-00000000000a"
    mark = {"key": "neuron.aws.com/ultraserver-workload", "value": uid, "effect": "NoSchedule"}
    found = explained([claim(plain_request())], other(device("d0", taints=[mark])))
    (sentence,) = of_devices(found)
    golden(sentence)
    assert not any("tolerate" in remedy for remedy in found.remedies)


def test_counters_that_are_used_up() -> None:
    both = published("node-0", "trn2u.48xlarge", "chip.node")
    whole = f"{ATTRIBUTES}.resourceType == 'neuron_node'"
    found = explained([claim(wanted("n", 1, whole))], both, held=[holder("h", "node-0", 3)])
    golden(of_devices(found)[0])
    assert found.holders == (Holder("default/h", ("neuron-device-3",)),)
    golden(found.remedies[0])


def test_devices_that_fit_one_by_one_but_share_counters() -> None:
    made = [device(f"d{i}", {"set": {"units": 2}}) for i in range(3)]
    slices = [
        counters({"set": {"units": 5}}, nodeName="node-0", slices=2),
        offered(*made, nodeName="node-0", name="x", slices=2),
    ]
    found = explained([claim(plain_request(3))], slices)
    assert said(found).short == 1
    golden(said(found).sentence)


def test_capacity_that_is_not_there_or_not_left() -> None:
    shared = device("d0", capacity={"memory": {"value": "8Gi"}}, allowMultipleAllocations=True)
    wish = plain_request(capacity={"requests": {"memory": "9Gi"}})
    golden(of_devices(explained([claim(wish)], other(shared))))
    wish = plain_request(capacity={"requests": {"cores": "1"}})
    golden(of_devices(explained([claim(wish)], other(shared))))
    policy = {"default": "1Gi", "validValues": ["1Gi", "2Gi"]}
    strict = device("d0", capacity={"memory": {"value": "8Gi", "requestPolicy": policy}}, allowMultipleAllocations=True)
    wish = plain_request(capacity={"requests": {"memory": "3Gi"}})
    golden(of_devices(explained([claim(wish)], other(strict))))


def test_devices_for_other_nodes() -> None:
    made = [device("d0", nodeName="node-0"), device("d1", nodeName="elsewhere")]
    slices = [offered(*made, perDeviceNodeSelection=True)]
    golden(of_devices(explained([claim(plain_request(2))], slices)))


def test_nodes_without_drivers_and_with_drivers_without_devices() -> None:
    found = explained([claim(wanted())], other(), nodes=("node-0", "cpu"))
    assert said(found).step == "unpublished"
    golden(said(found).sentence)
    golden(said(found, "cpu").sentence)
    assert (found.nearest, found.remedies) == ("", ())


def test_pools_that_are_not_ready() -> None:
    found = explained([claim(plain_request())], other(device("d0"), slices=2))
    assert said(found).step == "pools"
    golden(said(found).sentence)
    found = explained([claim(plain_request())], other(device("d0"), device("d0")))
    golden(said(found).sentence)


def test_a_pool_that_is_not_ready_beside_one_that_is() -> None:
    slices = [*other(device("d0"), slices=2), *other(device("d0"), pool="whole", name="whole")]
    found = explained([claim(plain_request(2))], slices)
    golden(said(found).sentence)
    golden(text(found).splitlines()[3])


def test_all_devices_of_a_pool_that_is_not_ready_is_an_error() -> None:
    found = explained([claim(wanted("all", 1, allocationMode="All"))], other(device("d0"), slices=2))
    assert said(found).step == "error"
    golden(said(found).sentence)


def test_nodes_that_the_pod_does_not_go_to() -> None:
    found = explained([claim(wanted())], BOTH, nodes=NODES, excluded={"node-0": "the pod is for node x"})
    assert found.node == "node-1"
    assert said(found).step == "pod"
    golden(said(found).sentence)


def test_what_is_allocated_already_is_told_and_not_asked_for_again() -> None:
    held = holder("c", "node-0", 4, 5)
    found = explained([held], ONE, held=[held])
    golden(found.verdict)
    selector = {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}]
    }
    held["status"]["allocation"]["nodeSelector"] = selector
    found = explained([held, claim(wanted())], BOTH, nodes=NODES, held=[held])
    golden(said(found).sentence)
    assert found.node == "node-1"
    assert [len(item.devices) for item in found.placed] == [2, 1]


@pytest.mark.parametrize(("nodes", "verdict"), [((), "fits nowhere: there is no node"), (("n",), "the only node")])
def test_clusters_without_nodes_and_with_one(nodes: tuple[str, ...], verdict: str) -> None:
    golden(explained([claim(wanted())], ONE, nodes=nodes).verdict)


def test_the_nearest_miss_of_a_cluster() -> None:
    held = [holder("a", "node-0", 0, 1, 4, 8, 12, 13), holder("b", "node-1", 3, 7, 8, 9, 12, 13)]
    found = explained([claim(wanted("n", 4), constraints=[group(4)])], BOTH, nodes=("cpu", *NODES), held=held)
    golden(found.nearest)
    golden(text(found))


def test_nothing_small_helps() -> None:
    found = explained([claim(wanted("n", 1, "false", f"{ATTRIBUTES}.deviceId < 0"))], ONE, classes=[NEURON])
    golden(found.remedies)
    held = [holder("a", "node-0", 0), holder("b", "node-0", 1), holder("c", "node-0", 2)]
    every = wanted("all", 1, allocationMode="All")
    golden(explained([claim(every)], ONE, held=held).remedies)


def test_several_holders_of_which_one_has_to_end() -> None:
    held = [holder(name, "node-0", chip) for name, chip in (("a", 0), ("b", 4), ("c", 8), ("d", 12))]
    found = explained([claim(wanted("n", 4), constraints=[group(4)])], ONE, held=held)
    golden(found.remedies[1])


def test_a_clause_in_the_way_is_named_when_the_rest_would_do() -> None:
    found = explained([claim(wanted("n", 1, f"{TYPE} && {ATTRIBUTES}.deviceId > 15"))], ONE)
    golden(found.remedies)


@pytest.mark.parametrize(
    ("expression", "remedy"),
    [
        ("device.attributes['neuron.aws.com'].instanceType == 'trn2.48xlrge'", "write trn2.48xlarge in place of"),
        ("device.attributes['neuron.aws.com'].instancetype == 'trn2.48xlarge'", "write instanceType in place of"),
        ("device.attributes['neuron.aws.com'].instanceType == 'trn1.32xlarge'", ""),
        ("device.attributes['neuron.aws.com'].resourceType == 'neuron_node'", ""),
    ],
)
def test_a_word_that_is_nearly_right_is_named_and_one_that_means_something_else_is_not(
    expression: str, remedy: str
) -> None:
    cluster = emulated([("trn2.48xlarge", 1)])
    text = f"""
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {{name: c}}
spec:
  devices:
    requests:
    - name: r
      exactly:
        deviceClassName: neuron.aws.com
        selectors: [{{cel: {{expression: "{expression}"}}}}]
"""
    (found,) = explanations(merge(cluster, read_manifests([("file", text)])), "1.37")
    suggested = [each for each in found.remedies if each.startswith("write ")]
    assert [each.startswith(remedy) for each in suggested] == ([True] if remedy else [])
