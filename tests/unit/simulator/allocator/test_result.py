"""The allocation as an object: results, configuration, where it can be used."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.builders.allocator import claim, device, first_of, offered, refusal, request, results, subrequest, world

HERE = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}]}


def opaque(text: str) -> dict[str, Any]:
    return {"opaque": {"driver": "a.example", "parameters": {"text": text}}}


def cls(name: str, *config: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"config": [opaque(text) for text in config]}}


def config(kubernetes: str, classes: list[dict[str, Any]], wanted: dict[str, Any]) -> list[tuple[str, str, list[str]]]:
    """Source, text and requests of each entry."""
    cluster = world(offered(*(device(f"d{i}") for i in range(4))), classes=classes, kubernetes=kubernetes)
    entries = results(cluster, wanted)[0].devices.config
    return [
        (item.source, item.opaque.parameters["text"], list(item.requests))
        for item in entries
        if item.opaque is not None
    ]


def test_the_allocation_reads_as_in_the_status_of_a_claim() -> None:
    cluster = world(offered(device("d0")), classes=[cls("any", "c")])
    tolerations = [{"operator": "Exists", "key": "k"}]
    (result,) = results(cluster, claim(request(tolerations=tolerations)))
    assert msgspec.to_builtins(result, str_keys=True) == {
        "devices": {
            "results": (
                {
                    "request": "r",
                    "driver": "a.example",
                    "pool": "pool",
                    "device": "d0",
                    "tolerations": ({"key": "k", "operator": "Exists"},),
                },
            ),
            "config": ({"source": "FromClass", **opaque("c")},),
        },
        "nodeSelector": {
            "nodeSelectorTerms": (
                {"matchFields": ({"key": "metadata.name", "operator": "In", "values": ("node-1",)},)},
            )
        },
    }


def test_binding_conditions_are_copied() -> None:
    found = device("d", bindingConditions=["ready"], bindingFailureConditions=["broken"])
    (result,) = results(world(offered(found)), claim(request()))
    assert [(item.binding_conditions, item.binding_failure_conditions) for item in result.devices.results] == [
        (("ready",), ("broken",))
    ]


@pytest.mark.parametrize(("kubernetes", "named"), [("1.36", ["x", "y"]), ("1.37", [])])
def test_configuration_of_a_class_comes_once_and_for_all_its_requests(kubernetes: str, named: list[str]) -> None:
    wanted = claim(request("x"), request("y"))
    assert config(kubernetes, [cls("any", "one", "two")], wanted) == [
        ("FromClass", "one", named),
        ("FromClass", "two", named),
    ]


@pytest.mark.parametrize("kubernetes", ["1.36", "1.37"])
def test_classes_come_in_the_order_of_requests_and_before_the_claim(kubernetes: str) -> None:
    wanted = claim(
        request("x", deviceClassName="b"),
        request("y", deviceClassName="a"),
        request("z", deviceClassName="b"),
        config=[{"requests": ["y"], **opaque("claim")}],
    )
    assert config(kubernetes, [cls("a", "A"), cls("b", "B")], wanted) == [
        ("FromClass", "B", ["x", "z"]),
        ("FromClass", "A", ["y"]),
        ("FromClaim", "claim", ["y"]),
    ]


@pytest.mark.parametrize("kubernetes", ["1.36", "1.37"])
def test_configuration_of_a_claim_without_requests_is_for_all(kubernetes: str) -> None:
    assert config(kubernetes, [cls("any")], claim(request("x"), config=[opaque("claim")])) == [
        ("FromClaim", "claim", [])
    ]


@pytest.mark.parametrize(("kubernetes", "times"), [("1.36", 2), ("1.37", 1)])
def test_until_1_36_configuration_comes_once_for_each_request_that_it_names(kubernetes: str, times: int) -> None:
    wanted = claim(request("x"), request("y"), request("z"), config=[{"requests": ["x", "y"], **opaque("claim")}])
    assert config(kubernetes, [cls("any")], wanted) == [("FromClaim", "claim", ["x", "y"])] * times


def test_configuration_of_requests_that_there_are_not_is_left_out() -> None:
    wanted = claim(request("x"), config=[{"requests": ["other"], **opaque("claim")}])
    assert config("1.37", [cls("any")], wanted) == []


@pytest.mark.parametrize(("names", "kept"), [(["r"], True), (["r/second"], True), (["r/first"], False)])
def test_configuration_of_a_subrequest_comes_when_that_is_chosen(names: list[str], kept: bool) -> None:
    wanted = claim(
        first_of("r", subrequest("first", 9, deviceClassName="a"), subrequest("second", deviceClassName="b")),
        request("s", deviceClassName="b"),
        config=[{"requests": names, **opaque("claim")}],
    )
    from_claim = [("FromClaim", "claim", names)] if kept else []
    assert config("1.36", [cls("a", "A"), cls("b", "B")], wanted) == [
        ("FromClass", "B", ["r/second", "s"]),
        *from_claim,
    ]


def selector(*requirements: tuple[str, str]) -> dict[str, Any]:
    return {
        "nodeSelectorTerms": [
            {"matchExpressions": [{"key": key, "operator": "In", "values": [value]} for key, value in requirements]}
        ]
    }


def usable_on(*slices: dict[str, Any], count: int = 1) -> Any:
    (result,) = results(world(*slices), claim(request(count=count)))
    return msgspec.json.decode(msgspec.json.encode(result.node_selector))


def test_devices_of_one_node_bind_the_claim_to_it() -> None:
    assert usable_on(offered(device("a"))) == HERE
    assert usable_on(offered(device("a"), pool="a", allNodes=True), offered(device("b"), pool="b"), count=2) == HERE
    assert usable_on(offered(device("a", nodeName="node-1"), perDeviceNodeSelection=True)) == HERE
    assert usable_on(offered(device("a", bindsToNode=True), allNodes=True)) == HERE


def test_devices_for_all_nodes_can_be_used_anywhere() -> None:
    assert usable_on(offered(device("a"), allNodes=True)) is None
    assert usable_on(offered(device("a", allNodes=True), perDeviceNodeSelection=True)) is None


def test_selectors_of_several_devices_are_joined_and_each_requirement_comes_once() -> None:
    first = offered(device("a"), pool="a", nodeSelector=selector(("region", "here")))
    second = offered(device("b"), device("c"), pool="b", nodeSelector=selector(("region", "here")))
    assert usable_on(first, second, count=3) == selector(("region", "here"))
    third = offered(
        device(
            "b", nodeSelector={"nodeSelectorTerms": [{"matchExpressions": [{"key": "region", "operator": "Exists"}]}]}
        ),
        pool="b",
        perDeviceNodeSelection=True,
    )
    joined = usable_on(first, third, count=2)["nodeSelectorTerms"][0]["matchExpressions"]
    assert [item["operator"] for item in joined] == ["In", "Exists"]


def test_a_selector_of_several_terms_cannot_be_joined() -> None:
    terms = selector(("region", "here"))["nodeSelectorTerms"] * 2
    answer = refusal(world(offered(device("a"), nodeSelector={"nodeSelectorTerms": terms})), claim(request()))
    assert (answer.fatal, "2 terms" in answer.reason) == (True, True)
