"""What is said of requests, clauses and constraints, word by word."""

from __future__ import annotations

from dra_driver.simulator.explain import text
from tests.builders.allocator import device
from tests.builders.explain import (
    ATTRIBUTES,
    BOTH,
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
