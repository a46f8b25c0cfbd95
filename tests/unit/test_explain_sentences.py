"""What is said of a node, a device, a clause and a constraint, word by word."""

from __future__ import annotations

from typing import Any

import pytest

from dra_driver.simulator.explain import Explanation, text
from dra_driver.simulator.explain.values import Diagnosis
from tests.allocatorworld import counters, device, offered
from tests.explainworld import ATTRIBUTES, NEURON, claim, explained, group, holder, published, wanted

NODES = ("node-0", "node-1")
BOTH = [*published("node-0"), *published("node-1")]
ONE = published("node-0")
TYPE = f"{ATTRIBUTES}.instanceType == 'trn2.48xlarge'"


def said(found: Explanation, node: str = "node-0") -> Diagnosis:
    return next(item.diagnosis for item in found.nodes if node in item.nodes)


def of_devices(found: Explanation, node: str = "node-0") -> list[str]:
    return [item.sentence for view in said(found, node).requests for item in view.groups]


def other(*devices: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    return [offered(*devices, nodeName="node-0", **fields)]


def plain_request(count: int = 1, **fields: Any) -> dict[str, Any]:
    return {"name": "r", "exactly": {"deviceClassName": "any", "count": count, **fields}}


def test_a_claim_that_fits_is_told_where_and_what_it_gets() -> None:
    found = explained([claim(wanted("neurons", 4, TYPE), constraints=[group(4)])], BOTH, nodes=NODES)
    assert (found.fits, found.node, found.could) == (True, "node-0", NODES)
    assert text(found).splitlines() == [
        "Pod default/p fits: it gets its devices on node node-0; 1 other node would do as well.",
        "  claim default/c, request neurons: neuron-device-0 to 3 of pool neuron.aws.com/node-0",
        "",
        "2 nodes (node-0 and node-1): the claims fit.",
    ]


def test_rows_that_are_short_of_chips_are_told_with_what_they_have() -> None:
    held = [holder("a", "node-0", 0, 4, 5, 8, 12, 13, 14, 15)]
    found = explained([claim(wanted("neurons", 4, TYPE), constraints=[group(4)])], ONE, held=held)
    assert said(found).step == "constraint"
    assert said(found).short == 1
    assert said(found).sentence == (
        "request neurons needs 4 devices with the same resource.aws.com/devicegroup4_id, and rows 0 and 2 have 3 free "
        "each; row 1 has 2 free; row 3 has none free"
    )
    assert of_devices(found) == [
        "8 of 16 devices (neuron-device-1 to 3, 6, 7 and 9 to 11) are free and match",
        "8 of 16 devices (neuron-device-0, 4, 5, 8 and 12 to 15) would match, but are in use",
    ]
    shares = said(found).constraints[0].shares
    assert [(share.label, len(share.free), share.short) for share in shares] == [
        ("row 0", 3, 1),
        ("row 2", 3, 1),
        ("row 1", 2, 2),
        ("row 3", 0, 4),
    ]
    assert found.remedies == (
        "ask for 3 instead of 4 devices in request neurons: node node-0 has them",
        "wait: node node-0 has room when this claim ends: default/a (has neuron-device-0, 4, 5, 8 and 12 to 15)",
        (
            "leave out the constraint on resource.aws.com/devicegroup4_id if the devices need not have the same "
            "values: node node-0 has enough of them"
        ),
    )


def test_pairs_of_rows_are_called_so() -> None:
    held = [holder("a", "node-0", 0, 9)]
    found = explained([claim(wanted("neurons", 8), constraints=[group(8)])], ONE, held=held)
    assert said(found).sentence.endswith("devicegroup8_id, and rows 0 and 1, rows 2 and 3 have 7 free each")


def test_groups_without_rows_are_called_by_their_devices() -> None:
    made = [device(f"d{i}", attributes={"group": i // 2}) for i in range(4)]
    found = explained(
        [claim(plain_request(3), constraints=[{"matchAttribute": "a.example/group"}])], other(*made, driver="a.example")
    )
    assert said(found).sentence == (
        "request r needs 3 devices with the same a.example/group, and d0 and 1 (group 0), d2 and 3 (group 1) have "
        "2 free each"
    )


def test_many_equal_groups_are_counted() -> None:
    made = [device(f"d{i}", attributes={"group": i}) for i in range(9)]
    found = explained([claim(plain_request(2), constraints=[{"matchAttribute": "a.example/group"}])], other(*made))
    assert said(found).sentence.endswith("and 9 groups have 1 free each")


def test_distinct_values_are_counted() -> None:
    made = [device(f"d{i}", attributes={"group": i // 2}) for i in range(4)]
    found = explained([claim(plain_request(3), constraints=[{"distinctAttribute": "a.example/group"}])], other(*made))
    assert said(found).sentence == (
        "request r needs 3 devices with different a.example/group, and the free ones have 2 different values"
    )


def test_an_attribute_that_no_device_has() -> None:
    found = explained([claim(plain_request(2), constraints=[{"matchAttribute": "a.example/x"}])], other(device("d0")))
    assert said(found).sentence == "request r needs 2 devices, and only 1 matches"
    found = explained([claim(plain_request(1), constraints=[{"matchAttribute": "a.example/x"}])], other(device("d0")))
    assert said(found).sentence == (
        "request r needs 1 device with the same a.example/x, and no device that matches has that attribute"
    )
    assert of_devices(found) == ["the only device would match, but: it has no attribute a.example/x"]


def test_too_few_free_devices() -> None:
    found = explained([claim(wanted("xl", 16))], ONE, held=[holder("a", "node-0", 3, 5)])
    assert said(found).step == "devices"
    assert said(found).short == 2
    assert said(found).sentence == "request xl needs 16 devices, and 14 of the 16 that match are free"
    found = explained([claim(wanted("xl", 17))], ONE)
    assert said(found).sentence == "request xl needs 17 devices, and only 16 match"
    assert found.remedies[0] == "ask for 16 instead of 17 devices in request xl: node node-0 has them"


def test_the_first_false_clause_and_what_it_saw() -> None:
    found = explained([claim(wanted("neurons", 1, f"{TYPE} && {ATTRIBUTES}.deviceId > 15 && false"))], ONE)
    assert said(found).sentence == "request neurons needs 1 device, and none of 16 matches"
    assert of_devices(found) == [
        (
            "all 16 devices do not match: `device.attributes['neuron.aws.com'].deviceId > 15` is false, as "
            'device.attributes["neuron.aws.com"].deviceId is 0 to 15 (selector 1 of the request)'
        )
    ]
    view = said(found).requests[0].groups[0]
    assert view.clause == "device.attributes['neuron.aws.com'].deviceId > 15"
    assert view.saw[0][1] == tuple(str(number) for number in range(16))


def test_each_clause_has_its_devices() -> None:
    found = explained([claim(wanted("neurons", 3, f"{ATTRIBUTES}.deviceId < 4", f"{ATTRIBUTES}.deviceId > 1"))], ONE)
    assert of_devices(found) == [
        "2 of 16 devices (neuron-device-2 and 3) are free and match",
        (
            "2 of 16 devices (neuron-device-0 and 1) do not match: `device.attributes['neuron.aws.com'].deviceId > 1` "
            'is false, as device.attributes["neuron.aws.com"].deviceId is 0 or 1 (selector 2 of the request)'
        ),
        (
            "12 of 16 devices (neuron-device-4 to 15) do not match: `device.attributes['neuron.aws.com'].deviceId < 4` "
            'is false, as device.attributes["neuron.aws.com"].deviceId is 4 to 15 (selector 1 of the request)'
        ),
    ]


def test_a_class_that_takes_other_drivers_devices() -> None:
    found = explained([claim(wanted("neurons", 1))], other(device("d0")))
    assert of_devices(found) == [
        (
            "the only device does not match: `device.driver == 'neuron.aws.com'` is false, as device.driver is "
            "'a.example' (selector 1 of class neuron.aws.com)"
        )
    ]


def test_values_of_every_kind_are_shown() -> None:
    made = device("d0", attributes={"b": True, "v": {"version": "1.2.3"}}, capacity={"memory": {"value": "8Gi"}})
    clause = (
        "!(device.attributes['a.example'].b && device.attributes['a.example'].v.isGreaterThan(semver('1.0.0')) && "
        "device.capacity['a.example'].memory.isGreaterThan(quantity('1Gi')) && "
        "device.attributes['a.example'].?x.orValue(1) == 1)"
    )
    found = explained([claim(plain_request(selectors=[{"cel": {"expression": clause}}]))], other(made))
    assert dict(said(found).requests[0].groups[0].saw) == {
        'device.attributes["a.example"].b': ("true",),
        'device.attributes["a.example"].v': ("1.2.3",),
        'device.capacity["a.example"].memory': ("8Gi",),
        'device.attributes["a.example"].x': ("missing",),
    }


def test_a_clause_that_fails_ends_the_scheduling_everywhere() -> None:
    found = explained([claim(wanted("neurons", 1, f"{TYPE} && {ATTRIBUTES}.nope == 3"))], BOTH, nodes=NODES)
    assert not found.fits
    assert found.verdict == (
        "pod default/p fits nowhere: an error on node node-0 ends its scheduling, so that no other node is taken either"
    )
    assert found.error.endswith("CEL runtime error: no such key: nope")
    assert said(found).sentence == f"a selector fails here: {found.error}"
    assert of_devices(found) == [
        (
            "on all 16 devices `device.attributes['neuron.aws.com'].nope == 3` fails (CEL runtime error: no such key: "
            'nope), as device.attributes["neuron.aws.com"].nope is missing (selector 1 of the request)'
        )
    ]
    assert found.remedies == (
        (
            'put `has(device.attributes["neuron.aws.com"].nope)` and && before the expression: it is then false where '
            "it fails now"
        ),
    )


def test_a_class_whose_selector_cannot_be_compiled() -> None:
    broken = {"metadata": {"name": "any"}, "spec": {"selectors": [{"cel": {"expression": "true && device.nope"}}]}}
    found = explained([claim(plain_request())], other(device("d0")), classes=[broken])
    assert of_devices(found)[0].startswith("on the only device `device.nope` fails (CEL compile error: ")
    assert of_devices(found)[0].endswith("(selector 1 of class any)")


def test_a_device_that_no_selector_can_read() -> None:
    wish = plain_request(selectors=[{"cel": {"expression": "true && device.driver == 'x'"}}])
    found = explained([claim(wish)], other(device("d0", attributes={"v": {"version": "one"}})))
    assert of_devices(found)[0].startswith(
        "on the only device `true && device.driver == 'x'` fails (CEL runtime error: attribute v: parse semantic "
    )
    assert found.remedies == ()


def test_nothing_that_others_wrote_drives_the_terminal() -> None:
    made = device("d0", attributes={"text": "\x1b[2J\r\u202e"})
    wish = plain_request(selectors=[{"cel": {"expression": "device.attributes['a.example'].text == '\x1b\u2028'"}}])
    written = text(explained([claim(wish)], other(made)))
    assert "\\x1b[2J\\r\\u202e" in written
    assert all(line.isprintable() for line in written.split("\n"))


def test_a_class_that_does_not_exist() -> None:
    found = explained([claim(wanted())], ONE, classes=[])
    assert (found.fits, found.nodes) == (False, ())
    assert found.verdict == (
        "pod default/p fits on no node: claim default/c, request neurons: could not retrieve device class "
        "neuron.aws.com: not found; apply the DeviceClass, or name one that exists"
    )


def test_requests_that_only_fit_one_by_one() -> None:
    found = explained([claim(wanted("a", 9), wanted("b", 9))], ONE)
    assert (said(found).step, said(found).short) == ("together", 2)
    assert said(found).sentence == (
        "requests a and b can each be satisfied, but not together: free and matching are 16 for a and 16 for b"
    )
    assert found.remedies[0] == "ask for 7 instead of 9 devices in request a: node node-0 has them"


def test_requests_of_several_claims_are_told_apart() -> None:
    found = explained([claim(wanted("a", 9), name="x"), claim(wanted("a", 9), name="y")], ONE)
    assert said(found).sentence.startswith("requests a (claim default/x) and a (claim default/y) can each be")
    assert "  - Request a of claim default/y: all 16 devices are free and match." in text(found).splitlines()


def test_requests_that_a_constraint_ties_together() -> None:
    found = explained([claim(wanted("a", 3), wanted("b", 2), constraints=[group(4)])], ONE)
    assert said(found).step == "constraint"
    assert said(found).sentence == (
        "requests a and b need 5 devices with the same resource.aws.com/devicegroup4_id, and rows 0, 1, 2 and 3 have "
        "4 free each"
    )


def test_a_constraint_that_does_not_matter_is_not_named() -> None:
    found = explained([claim(wanted("a", 2), wanted("b", 17), constraints=[group(4, "a")])], ONE)
    assert said(found).sentence == "request b needs 17 devices, and only 16 match"


def test_all_devices() -> None:
    every = wanted("all", 1, allocationMode="All")
    found = explained([claim(every)], ONE, held=[holder("a", "node-0", 3)])
    assert (said(found).sentence, said(found).short) == (
        "request all asks for all 16 devices that match, and 1 of them cannot be had",
        1,
    )
    none = wanted("all", 1, "false", allocationMode="All")
    assert said(explained([claim(none)], ONE)).sentence == (
        "request all asks for all devices that match, and none of 16 does"
    )
    both = published("node-0", "trn2u.48xlarge", "both")
    assert said(explained([claim(every)], both)).sentence == (
        "request all asks for all 17 devices that match, which exclude each other"
    )


def test_sub_requests() -> None:
    ways = [
        {"name": name, "deviceClassName": "neuron.aws.com", "count": count} for name, count in (("b", 18), ("s", 17))
    ]
    found = explained([claim({"name": "r", "firstAvailable": ways})], ONE)
    assert said(found).sentence == (
        "request r has no sub-request that can be satisfied: sub-request r/b needs 18 devices, and only 16 match; "
        "sub-request r/s needs 17 devices, and only 16 match"
    )


def test_sub_requests_with_a_constraint() -> None:
    ways = [
        {"name": "b", "deviceClassName": "neuron.aws.com", "count": 5},
        {
            "name": "s",
            "deviceClassName": "neuron.aws.com",
            "count": 4,
            "selectors": [{"cel": {"expression": f"{ATTRIBUTES}.deviceId > 13"}}],
        },
    ]
    found = explained([claim({"name": "r", "firstAvailable": ways}, constraints=[group(4)])], ONE)
    assert said(found).sentence == (
        "request r has no sub-request that can be satisfied: sub-request r/b needs 5 devices with the same "
        "resource.aws.com/devicegroup4_id, and rows 0, 1, 2 and 3 have 4 free each; sub-request r/s needs 4 devices, "
        "and only 2 match"
    )


def test_a_group_that_has_enough_devices_but_not_for_each_request() -> None:
    rows = [wanted(name, 2, f"{ATTRIBUTES}.topology_x == {row}") for name, row in (("a", 0), ("b", 1))]
    found = explained([claim(*rows, constraints=[group(4)])], ONE)
    assert said(found).sentence == (
        "requests a and b need 4 devices with the same resource.aws.com/devicegroup4_id, and rows 0 and 1 have 4 free "
        "each; no group has enough for everything together"
    )
    assert [share.short for share in said(found).constraints[0].shares] == [2, 2]


def test_taints_and_what_tolerates_them() -> None:
    taint = {"key": "broken", "value": "yes", "effect": "NoSchedule"}
    found = explained([claim(plain_request())], other(device("d0", taints=[taint])))
    assert said(found).sentence == "request r needs 1 device, and none of the 1 that match is free"
    assert of_devices(found) == [
        "the only device would match, but: it has the taint broken=yes:NoSchedule, which is not tolerated"
    ]
    assert found.remedies == ("tolerate the taint broken:NoSchedule in request r: node node-0 then does",)


def test_counters_that_are_used_up() -> None:
    both = published("node-0", "trn2u.48xlarge", "both")
    whole = f"{ATTRIBUTES}.resourceType == 'neuron_node'"
    found = explained([claim(wanted("n", 1, whole))], both, held=[holder("h", "node-0", 3)])
    assert of_devices(found)[-1] == (
        "1 of 17 devices (neuron-node) would match, but: the shared counters that it consumes are used up by devices "
        "in use"
    )
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
