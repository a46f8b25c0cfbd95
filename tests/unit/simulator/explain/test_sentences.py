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
from tests.golden import golden


def test_a_claim_that_fits_is_told_where_and_what_it_gets() -> None:
    found = explained([claim(wanted("neurons", 4, TYPE), constraints=[group(4)])], BOTH, nodes=NODES)
    assert (found.fits, found.node, found.could) == (True, "node-0", NODES)
    golden(text(found).splitlines())


def test_rows_that_are_short_of_chips_are_told_with_what_they_have() -> None:
    held = [holder("a", "node-0", 0, 4, 5, 8, 12, 13, 14, 15)]
    found = explained([claim(wanted("neurons", 4, TYPE), constraints=[group(4)])], ONE, held=held)
    assert said(found).step == "constraint"
    assert said(found).short == 1
    golden(said(found).sentence)
    golden(of_devices(found))
    shares = said(found).constraints[0].shares
    assert [(share.label, len(share.free), share.short) for share in shares] == [
        ("row 0", 3, 1),
        ("row 2", 3, 1),
        ("row 1", 2, 2),
        ("row 3", 0, 4),
    ]
    golden(found.remedies)


def test_pairs_of_rows_are_called_so() -> None:
    held = [holder("a", "node-0", 0, 9)]
    found = explained([claim(wanted("neurons", 8), constraints=[group(8)])], ONE, held=held)
    golden(said(found).sentence)


def test_groups_without_rows_are_called_by_their_devices() -> None:
    made = [device(f"d{i}", attributes={"group": i // 2}) for i in range(4)]
    found = explained(
        [claim(plain_request(3), constraints=[{"matchAttribute": "a.example/group"}])], other(*made, driver="a.example")
    )
    golden(said(found).sentence)


def test_many_equal_groups_are_counted() -> None:
    made = [device(f"d{i}", attributes={"group": i}) for i in range(9)]
    found = explained([claim(plain_request(2), constraints=[{"matchAttribute": "a.example/group"}])], other(*made))
    golden(said(found).sentence)


def test_distinct_values_are_counted() -> None:
    made = [device(f"d{i}", attributes={"group": i // 2}) for i in range(4)]
    found = explained([claim(plain_request(3), constraints=[{"distinctAttribute": "a.example/group"}])], other(*made))
    golden(said(found).sentence)


def test_an_attribute_that_no_device_has() -> None:
    found = explained([claim(plain_request(2), constraints=[{"matchAttribute": "a.example/x"}])], other(device("d0")))
    golden(said(found).sentence)
    found = explained([claim(plain_request(1), constraints=[{"matchAttribute": "a.example/x"}])], other(device("d0")))
    golden(said(found).sentence)
    golden(of_devices(found))


def test_too_few_free_devices() -> None:
    found = explained([claim(wanted("xl", 16))], ONE, held=[holder("a", "node-0", 3, 5)])
    assert said(found).step == "devices"
    assert said(found).short == 2
    golden(said(found).sentence)
    found = explained([claim(wanted("xl", 17))], ONE)
    golden(said(found).sentence)
    golden(found.remedies[0])


def test_the_first_false_clause_and_what_it_saw() -> None:
    found = explained([claim(wanted("neurons", 1, f"{TYPE} && {ATTRIBUTES}.deviceId > 15 && false"))], ONE)
    golden(said(found).sentence)
    golden(of_devices(found))
    view = said(found).requests[0].groups[0]
    assert view.clause == "device.attributes['neuron.aws.com'].deviceId > 15"
    assert view.saw[0][1] == tuple(str(number) for number in range(16))


def test_each_clause_has_its_devices() -> None:
    found = explained([claim(wanted("neurons", 3, f"{ATTRIBUTES}.deviceId < 4", f"{ATTRIBUTES}.deviceId > 1"))], ONE)
    golden(of_devices(found))


def test_a_class_that_takes_other_drivers_devices() -> None:
    found = explained([claim(wanted("neurons", 1))], other(device("d0")))
    golden(of_devices(found))


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
    golden(found.verdict)
    golden(found.error)
    golden(said(found).sentence)
    golden(of_devices(found))
    golden(found.remedies)


def test_a_class_whose_selector_cannot_be_compiled() -> None:
    broken = {"metadata": {"name": "any"}, "spec": {"selectors": [{"cel": {"expression": "true && device.nope"}}]}}
    found = explained([claim(plain_request())], other(device("d0")), classes=[broken])
    golden(of_devices(found)[0])


def test_a_device_that_no_selector_can_read() -> None:
    wish = plain_request(selectors=[{"cel": {"expression": "true && device.driver == 'x'"}}])
    found = explained([claim(wish)], other(device("d0", attributes={"v": {"version": "one"}})))
    golden(of_devices(found)[0])
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
    golden(found.verdict)


def test_requests_that_only_fit_one_by_one() -> None:
    found = explained([claim(wanted("a", 9), wanted("b", 9))], ONE)
    assert (said(found).step, said(found).short) == ("together", 2)
    golden(said(found).sentence)
    golden(found.remedies[0])


def test_requests_of_several_claims_are_told_apart() -> None:
    found = explained([claim(wanted("a", 9), name="x"), claim(wanted("a", 9), name="y")], ONE)
    golden(said(found).sentence)
    golden(text(found).splitlines())


def test_requests_that_a_constraint_ties_together() -> None:
    found = explained([claim(wanted("a", 3), wanted("b", 2), constraints=[group(4)])], ONE)
    assert said(found).step == "constraint"
    golden(said(found).sentence)


def test_a_constraint_that_does_not_matter_is_not_named() -> None:
    found = explained([claim(wanted("a", 2), wanted("b", 17), constraints=[group(4, "a")])], ONE)
    golden(said(found).sentence)


def test_all_devices() -> None:
    every = wanted("all", 1, allocationMode="All")
    found = explained([claim(every)], ONE, held=[holder("a", "node-0", 3)])
    golden(said(found).sentence)
    assert said(found).short == 1
    none = wanted("all", 1, "false", allocationMode="All")
    golden(said(explained([claim(none)], ONE)).sentence)
    both = published("node-0", "trn2u.48xlarge", "chip.node")
    golden(said(explained([claim(every)], both)).sentence)


def test_sub_requests() -> None:
    ways = [
        {"name": name, "deviceClassName": "neuron.aws.com", "count": count} for name, count in (("b", 18), ("s", 17))
    ]
    found = explained([claim({"name": "r", "firstAvailable": ways})], ONE)
    golden(said(found).sentence)


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
    golden(said(found).sentence)


def test_a_group_that_has_enough_devices_but_not_for_each_request() -> None:
    rows = [wanted(name, 2, f"{ATTRIBUTES}.topology_x == {row}") for name, row in (("a", 0), ("b", 1))]
    found = explained([claim(*rows, constraints=[group(4)])], ONE)
    golden(said(found).sentence)
    assert [share.short for share in said(found).constraints[0].shares] == [2, 2]
