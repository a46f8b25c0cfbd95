"""What is said of devices that cannot be had, of nodes and clusters, and of what would help, word by word."""

from __future__ import annotations

import pytest

from dra_driver.simulator.explain import text
from dra_driver.simulator.explain.values import Holder
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


def test_taints_and_what_tolerates_them() -> None:
    taint = {"key": "broken", "value": "yes", "effect": "NoSchedule"}
    found = explained([claim(plain_request())], other(device("d0", taints=[taint])))
    assert said(found).sentence == "request r needs 1 device, and none of the 1 that match is free"
    assert of_devices(found) == [
        "the only device would match, but: it has the taint broken=yes:NoSchedule, which is not tolerated"
    ]
    assert found.remedies == ("tolerate the taint broken:NoSchedule in request r: node node-0 then does",)


HBM, SRAM = (
    {"key": f"health.neuron.aws.com/{part}-uncorrectable", "value": "unhealthy", "effect": "NoSchedule"}
    for part in ("hbm", "sram")
)


def test_a_taint_of_the_driver_says_what_is_wrong_with_the_chip_and_what_mends_it() -> None:
    found = explained([claim(plain_request())], other(device("d0", taints=[HBM])))
    assert of_devices(found) == [
        (
            "the only device would match, but: it has the taint health.neuron.aws.com/hbm-uncorrectable=unhealthy:"
            "NoSchedule (uncorrectable errors in the chip's memory), which is not tolerated"
        )
    ]
    assert found.remedies == (
        (
            "tolerate the taint health.neuron.aws.com/hbm-uncorrectable:NoSchedule in request r: node node-0 then "
            "does; or wait until the chip is well again, or mend it: drain the node and replace the instance"
        ),
    )


def test_a_taint_of_an_administrators_rule_names_the_rule() -> None:
    rule = {
        "metadata": {"name": "bench-is-open"},
        "spec": {"deviceSelector": {"device": "d0"}, "taint": {"key": "example.com/repair", "effect": "NoExecute"}},
    }
    found = explained([claim(plain_request())], other(device("d0")), taint_rules=[rule])
    assert of_devices(found) == [
        (
            "the only device would match, but: it has the taint example.com/repair:NoExecute by DeviceTaintRule "
            "bench-is-open, which is not tolerated"
        )
    ]
    assert found.remedies == (
        (
            "tolerate the taint example.com/repair:NoExecute in request r: node node-0 then does; or delete "
            "DeviceTaintRule bench-is-open once its reason is gone"
        ),
    )


def test_all_taints_of_a_device_have_to_be_tolerated_together() -> None:
    found = explained([claim(plain_request())], other(device("d0", taints=[HBM, SRAM])))
    (remedy,) = found.remedies
    assert remedy.startswith(
        "tolerate the taints health.neuron.aws.com/hbm-uncorrectable:NoSchedule and "
        "health.neuron.aws.com/sram-uncorrectable:NoSchedule in request r: node node-0 then does; or "
    )


def test_a_key_like_a_faults_on_anothers_device_is_only_a_key() -> None:
    taint = {"key": "example.com/hbm-uncorrectable", "value": "yes", "effect": "NoSchedule"}
    found = explained([claim(plain_request())], other(device("d0", taints=[taint])))
    assert "(" not in of_devices(found)[0]
    assert found.remedies == (
        "tolerate the taint example.com/hbm-uncorrectable:NoSchedule in request r: node node-0 then does",
    )


def test_a_device_that_is_only_kept_is_called_so_and_not_to_be_tolerated() -> None:
    kept = {"key": "neuron.aws.com/retired", "value": "cut", "effect": "NoSchedule"}
    found = explained([claim(plain_request())], other(device("d0", taints=[kept])))
    (sentence,) = of_devices(found)
    assert sentence == (
        "the only device would match, but: it has the taint neuron.aws.com/retired=cut:NoSchedule (the node offers no "
        "such devices any more, and keeps those that claims hold), which is not tolerated"
    )
    assert not any("tolerate" in remedy for remedy in found.remedies)


def test_counters_that_are_used_up() -> None:
    both = published("node-0", "trn2u.48xlarge", "both")
    whole = f"{ATTRIBUTES}.resourceType == 'neuron_node'"
    found = explained([claim(wanted("n", 1, whole))], both, held=[holder("h", "node-0", 3)])
    assert of_devices(found)[0] == (
        "1 of 17 devices (neuron-node) would match, but: the shared counters that it consumes are used up by devices "
        "in use: neuron-device-3"
    )
    assert found.holders == (Holder("default/h", ("neuron-device-3",)),)
    assert found.remedies[0] == "wait: node node-0 has room when this claim ends: default/h (has neuron-device-3)"


def test_devices_that_fit_one_by_one_but_share_counters() -> None:
    made = [device(f"d{i}", {"set": {"units": 2}}) for i in range(3)]
    slices = [
        counters({"set": {"units": 5}}, nodeName="node-0", slices=2),
        offered(*made, nodeName="node-0", name="x", slices=2),
    ]
    found = explained([claim(plain_request(3))], slices)
    assert said(found).short == 1
    assert said(found).sentence == "request r needs 3 devices; 3 match and are free, but not 3 of them at the same time"


def test_capacity_that_is_not_there_or_not_left() -> None:
    shared = device("d0", capacity={"memory": {"value": "8Gi"}}, allowMultipleAllocations=True)
    wish = plain_request(capacity={"requests": {"memory": "9Gi"}})
    assert of_devices(explained([claim(wish)], other(shared))) == [
        "the only device would match, but: it has less than 9Gi of capacity memory left"
    ]
    wish = plain_request(capacity={"requests": {"cores": "1"}})
    assert of_devices(explained([claim(wish)], other(shared))) == [
        "the only device would match, but: it has no capacity cores"
    ]
    policy = {"default": "1Gi", "validValues": ["1Gi", "2Gi"]}
    strict = device("d0", capacity={"memory": {"value": "8Gi", "requestPolicy": policy}}, allowMultipleAllocations=True)
    wish = plain_request(capacity={"requests": {"memory": "3Gi"}})
    assert of_devices(explained([claim(wish)], other(strict))) == [
        "the only device would match, but: its policy for capacity memory does not allow 3Gi"
    ]


def test_devices_for_other_nodes() -> None:
    made = [device("d0", nodeName="node-0"), device("d1", nodeName="elsewhere")]
    slices = [offered(*made, perDeviceNodeSelection=True)]
    assert of_devices(explained([claim(plain_request(2))], slices)) == [
        "1 of 2 devices (d0) is free and match",
        "1 of 2 devices (d1) would match, but is for other nodes",
    ]


def test_nodes_without_drivers_and_with_drivers_without_devices() -> None:
    found = explained([claim(wanted())], other(), nodes=("node-0", "cpu"))
    assert (said(found).step, said(found).sentence) == ("unpublished", "a.example publishes no devices there")
    assert said(found, "cpu").sentence == "no driver publishes devices there"
    assert (found.nearest, found.remedies) == ("", ())


def test_pools_that_are_not_ready() -> None:
    found = explained([claim(plain_request())], other(device("d0"), slices=2))
    assert said(found).step == "pools"
    assert said(found).sentence == (
        "no pool of devices is ready: slices of pool a.example/pool are missing, so nothing is taken from it until its "
        "driver has published them all"
    )
    found = explained([claim(plain_request())], other(device("d0"), device("d0")))
    assert said(found).sentence == (
        "no pool of devices is ready: pool a.example/pool contradicts itself (duplicate device name d0), so nothing is "
        "taken from it"
    )


def test_a_pool_that_is_not_ready_beside_one_that_is() -> None:
    slices = [*other(device("d0"), slices=2), *other(device("d0"), pool="whole", name="whole")]
    found = explained([claim(plain_request(2))], slices)
    assert said(found).sentence == "request r needs 2 devices, and only 1 matches"
    assert text(found).splitlines()[3].startswith("  - Slices of pool a.example/pool are missing, so nothing is")


def test_all_devices_of_a_pool_that_is_not_ready_is_an_error() -> None:
    found = explained([claim(wanted("all", 1, allocationMode="All"))], other(device("d0"), slices=2))
    assert said(found).step == "error"
    assert said(found).sentence == (
        "an error ends the search here: claim default/c, request all: asks for all devices, but resource pool "
        "a.example/pool is currently being updated"
    )


def test_nodes_that_the_pod_does_not_go_to() -> None:
    found = explained([claim(wanted())], BOTH, nodes=NODES, excluded={"node-0": "the pod is for node x"})
    assert (found.node, said(found).step, said(found).sentence) == ("node-1", "pod", "the pod is for node x")


def test_what_is_allocated_already_is_told_and_not_asked_for_again() -> None:
    held = holder("c", "node-0", 4, 5)
    found = explained([held], ONE, held=[held])
    assert found.verdict == (
        "pod default/p has its devices already: claim c has node-0/neuron-device-4 and node-0/neuron-device-5"
    )
    selector = {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}]
    }
    held["status"]["allocation"]["nodeSelector"] = selector
    found = explained([held, claim(wanted())], BOTH, nodes=NODES, held=[held])
    assert said(found).sentence == "claim default/c is allocated already, on other nodes"
    assert found.node == "node-1"
    assert [len(item.devices) for item in found.placed] == [2, 1]


@pytest.mark.parametrize(("nodes", "verdict"), [((), "fits nowhere: there is no node"), (("n",), "the only node")])
def test_clusters_without_nodes_and_with_one(nodes: tuple[str, ...], verdict: str) -> None:
    assert verdict in explained([claim(wanted())], ONE, nodes=nodes).verdict


def test_the_nearest_miss_of_a_cluster() -> None:
    held = [holder("a", "node-0", 0, 1, 4, 8, 12, 13), holder("b", "node-1", 3, 7, 8, 9, 12, 13)]
    found = explained([claim(wanted("n", 4), constraints=[group(4)])], BOTH, nodes=("cpu", *NODES), held=held)
    assert found.nearest == (
        "node node-0, 1 device short: request n needs 4 devices with the same resource.aws.com/devicegroup4_id, and "
        "rows 1 and 2 have 3 free each; rows 0 and 3 have 2 free each"
    )
    lines = text(found).splitlines()
    assert lines[0] == "Pod default/p does not fit on any of 3 nodes."
    assert any(line.startswith("Nearest miss: node node-0, 1 device short") for line in lines)


def test_nothing_small_helps() -> None:
    found = explained([claim(wanted("n", 1, "false", f"{ATTRIBUTES}.deviceId < 0"))], ONE, classes=[NEURON])
    assert found.remedies == ("add a node of another kind: none of these would do, not even an empty one",)
    held = [holder("a", "node-0", 0), holder("b", "node-0", 1), holder("c", "node-0", 2)]
    every = wanted("all", 1, allocationMode="All")
    assert explained([claim(every)], ONE, held=held).remedies == (
        "wait until several of the 3 claims with devices of node node-0 have ended",
    )


def test_several_holders_of_which_one_has_to_end() -> None:
    held = [holder(name, "node-0", chip) for name, chip in (("a", 0), ("b", 4), ("c", 8), ("d", 12))]
    found = explained([claim(wanted("n", 4), constraints=[group(4)])], ONE, held=held)
    assert found.remedies[1] == (
        "wait: node node-0 has room when one of these claims ends: default/a (has neuron-device-0), default/b (has "
        "neuron-device-4), default/c (has neuron-device-8) or 1 more"
    )


def test_a_clause_in_the_way_is_named_when_the_rest_would_do() -> None:
    found = explained([claim(wanted("n", 1, f"{TYPE} && {ATTRIBUTES}.deviceId > 15"))], ONE)
    assert found.remedies == (
        (
            "change or leave out `device.attributes['neuron.aws.com'].deviceId > 15` in request n: without it node "
            "node-0 does"
        ),
    )
