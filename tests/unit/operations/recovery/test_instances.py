"""Whose machine a node names: no node that names its own is refused, and none that names another's gets through."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.operations.recovery.instances import Hostnames, contradiction, doubts
from tests.golden import golden

DOMAINS = ("", ".ec2.internal", ".us-west-2.compute.internal", ".corp.example")
BY_IP, BY_ID, OWN = "by its address", "by the instance", "by its administrator"


def instance_id(number: int) -> str:
    return f"i-{number:017x}"


def node_name(number: int, kind: str, domain: str) -> str:
    return {BY_IP: f"ip-10-0-{number}-7", BY_ID: instance_id(number), OWN: f"trainer-{number}"}[kind] + domain


def hostnames(number: int, resource_names: bool, domain: str) -> Hostnames:
    """As EC2 tells them; the domain is that of the VPC now."""
    host = instance_id(number) if resource_names else f"ip-10-0-{number}-7"
    # The second interface, and addresses of pods on the first one.
    return Hostnames(instance_id(number), host + domain, frozenset(f"10.0.{number}.{last}" for last in (7, 8, 9)))


def provider_id(number: int) -> str:
    return f"aws:///us-west-2a/{instance_id(number)}"


NAMES = st.tuples(st.sampled_from((BY_IP, BY_ID, OWN)), st.sampled_from(DOMAINS))
CLUSTERS = st.lists(NAMES, min_size=2, max_size=6).map(
    lambda found: [node_name(number, kind, domain) for number, (kind, domain) in enumerate(found)]
)


@given(CLUSTERS, st.booleans(), st.sampled_from(DOMAINS))
def test_no_node_that_names_its_own_instance_is_refused(names: list[str], resource_names: bool, domain: str) -> None:
    assert doubts({name: provider_id(number) for number, name in enumerate(names)}) == {}
    for number, name in enumerate(names):
        assert contradiction(name, hostnames(number, resource_names, domain), names) == ""


@given(CLUSTERS, st.sampled_from(DOMAINS), st.sampled_from(["us-west-2a/", "us-west-2b/", "x/y/", "us-west-2a/I-0/"]))
def test_two_nodes_that_name_one_instance_are_both_doubted(names: list[str], domain: str, path: str) -> None:
    ids = {name: provider_id(number) for number, name in enumerate(names)}
    ids["evil" + domain] = f"aws:///{path}{instance_id(0)}"
    assert doubts(ids).keys() == {"evil" + domain, names[0]}


@given(CLUSTERS, st.booleans(), st.sampled_from(DOMAINS), st.data())
def test_an_instance_without_a_node_is_nobodys_whose_name_is_ec2s(
    names: list[str], resource_names: bool, domain: str, data: st.DataObject
) -> None:
    """The node of it was deleted, or it is none of the cluster's; an administrator's names say nothing of instances."""
    liar = data.draw(st.sampled_from(names))
    text = contradiction(liar, hostnames(len(names), resource_names, domain), names)
    assert bool(text) == (not liar.startswith("trainer"))


@given(CLUSTERS, st.booleans(), st.sampled_from(DOMAINS), st.data())
def test_an_instance_that_has_the_name_of_another_node_is_that_nodes(
    names: list[str], resource_names: bool, domain: str, data: st.DataObject
) -> None:
    """Also where that node names no instance itself."""
    kind = BY_ID if resource_names else BY_IP
    victim = node_name(99, kind, data.draw(st.sampled_from(DOMAINS)))
    liar = data.draw(st.sampled_from(names))
    assert contradiction(liar, hostnames(99, resource_names, domain), [*names, victim])
    if resource_names:
        assert liar in doubts(dict.fromkeys([*names, victim], "") | {liar: provider_id(99)})


def test_an_instance_that_has_ended_is_called_nothing_and_contradicts_only_by_its_id() -> None:
    ended = Hostnames(instance_id(1))
    assert contradiction("ip-10-0-1-7.ec2.internal", ended, ["ip-10-0-1-7.ec2.internal"]) == ""
    assert contradiction(f"{instance_id(2)}.ec2.internal", ended, [])


@pytest.mark.parametrize(
    "text", ["gce://project/zone/name", "azure:///a/virtualMachineScaleSets/b/virtualMachines/0", "kind://docker/a/b"]
)
def test_other_clouds_are_compared_as_a_whole(text: str) -> None:
    assert doubts({"a": text, "b": text + "1", "c": ""}) == {}
    assert doubts({"a": text, "b": text.upper(), "c": ""}).keys() == {"a", "b"}
    assert doubts({instance_id(1): text}) == {}


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), st.text(max_size=600)))
def test_no_text_breaks_the_comparison(ids: dict[str, str]) -> None:
    assert {name for name, text in ids.items() if not text.isprintable() or len(text) > 512} <= doubts(ids).keys()


def test_why_a_machine_is_doubted() -> None:
    ids = {"victim": provider_id(1), "evil": provider_id(1), instance_id(3): provider_id(4), "long": "x" * 513}
    by_ec2 = [
        contradiction("ip-10-0-5-7.ec2.internal", hostnames(6, False, ".ec2.internal"), []),
        contradiction("evil", hostnames(6, False, ".ec2.internal"), ["ip-10-0-6-7.ec2.internal"]),
    ]
    golden([*(f"{name}: {text}" for name, text in doubts(ids).items()), *by_ec2])
