"""What recovery knows of a Node, and the patches that it writes."""

from __future__ import annotations

import copy
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.kube.objects.core import MAX_NODE_TAINTS, PartialNode
from dra_driver.kube.objects.meta import MAX_SECONDS, timestamp
from dra_driver.neuron.names import SERVER_2, SERVER_4, SERVER_MODE
from dra_driver.operations.recovery.instances import Instance, instance_of
from dra_driver.operations.recovery.nodes import (
    MARK,
    REQUEST,
    TAINT,
    Mark,
    NeuronNode,
    Sightings,
    clearing,
    decode_mark,
    encode_mark,
    marking,
    view,
)
from dra_driver.util.errors import DriverError
from tests.builders.recovery import LONG_AGO, conditions
from tests.doubles.apiserver.core_objects import merged
from tests.golden import golden, golden_error

NOW = LONG_AGO + 1000
STALLED = "NeuronHasError_HEARTBEAT_STALLED"


def node(found: Any = None, labels: Any = None, spec: Any = None, **metadata: Any) -> PartialNode:
    meta = {"name": "a", "uid": "u", "resourceVersion": "7", "labels": labels or {}} | metadata
    status = {"conditions": conditions() if found is None else found}
    return msgspec.convert({"metadata": meta, "spec": spec or {}, "status": status}, PartialNode)


def seen(*arguments: Any, sightings: Sightings | None = None, now: float = NOW, **more: Any) -> NeuronNode:
    found = view(node(*arguments, **more), sightings or Sightings(), now)
    assert found is not None
    return found


def test_a_node_without_neuron_devices_is_none_of_our_business() -> None:
    assert view(node([{"type": "Ready", "status": "True"}]), Sightings(), NOW) is None
    assert view(node([], {"neuron.amazonaws.com/present": "true"}), Sightings(), NOW) is not None


def test_faults_and_chips_are_those_of_the_condition_since_they_were_seen() -> None:
    found = seen(conditions(STALLED, "neuron5: heartbeat-stalled; neuron7: heartbeat-stalled", LONG_AGO))
    assert found.verdict == "sick"
    assert found.faults == {"heartbeat-stalled": NOW}
    assert found.chips == {"heartbeat-stalled": (5, 7)}


def test_the_detector_of_aws_names_no_chip_and_rests_on_the_kernel_log() -> None:
    found = seen(conditions("NeuronHasError_SRAM_UNCORRECTABLE_ERROR", "NEURON_HW_ERR=SRAM_UNCORRECTABLE_ERROR ..."))
    assert (dict(found.faults), dict(found.chips)) == ({"log-sram": NOW}, {"log-sram": ()})


def test_a_fault_that_joins_others_counts_from_when_it_was_seen() -> None:
    sightings = Sightings()
    seen(conditions(STALLED, "neuron5: heartbeat-stalled"), sightings=sightings)
    sightings.looked({"u"})
    both = conditions(STALLED, "neuron5: heartbeat-stalled, device-lost")
    found = seen(both, sightings=sightings, now=NOW + 60)
    assert found.faults == {"heartbeat-stalled": NOW, "device-lost": NOW + 60}


def test_a_fault_that_only_degrades_counts_from_when_it_was_seen_and_the_node_is_well() -> None:
    health = {"type": "NeuronHealth", "status": "False", "reason": "NeuronHasNoError"}
    health |= {"message": "neuron1: server-link-lost", "lastTransitionTime": timestamp(LONG_AGO)}
    found = seen([{"type": "Ready", "status": "True"}, health])
    assert (found.verdict, dict(found.faults)) == ("well", {"server-link-lost": NOW})


@pytest.mark.parametrize("since", [0, 1, NOW + 10**6, MAX_SECONDS])
def test_what_was_begun_counts_from_the_time_in_its_mark_but_never_from_the_future(since: int) -> None:
    sick = conditions(STALLED, "neuron5: heartbeat-stalled, device-lost")
    notes = {MARK: encode_mark(Mark("heartbeat-stalled", "a", 2, since=1)).replace('"since":1', f'"since":{since:.0f}')}
    expected = {"heartbeat-stalled": min(since, NOW), "device-lost": NOW}
    assert seen(sick, annotations=notes).faults == expected
    of_another = {MARK: encode_mark(Mark("heartbeat-stalled", "b", 2, since=1))}
    assert seen(sick, annotations=of_another).faults == {"heartbeat-stalled": NOW, "device-lost": NOW}


@pytest.mark.parametrize(("mode", "linked"), [("1_2_4", True), ("1_2", False), ("14", False), ("", False)])
def test_a_node_is_linked_with_its_server_if_its_modes_say_so(mode: str, linked: bool) -> None:
    assert seen(labels={SERVER_4: "s", SERVER_MODE: mode}).linked is linked


@pytest.mark.parametrize(
    ("labels", "unit", "group"),
    [
        ({}, "a", ""),
        ({SERVER_4: "s", SERVER_2: "h"}, f"{SERVER_4}=s", ""),
        ({SERVER_2: "h"}, f"{SERVER_2}=h", ""),
        ({"karpenter.sh/nodepool": "p"}, "a", "karpenter.sh/nodepool=p"),
        ({"eks.amazonaws.com/nodegroup": "g"}, "a", "eks.amazonaws.com/nodegroup=g"),
    ],
)
def test_servers_and_groups_are_known_by_labels(labels: dict[str, str], unit: str, group: str) -> None:
    found = seen(labels=labels)
    assert (found.unit, found.group) == (unit, group)


def test_who_else_repairs_the_node_is_seen() -> None:
    assert seen([*conditions(), {"type": "AcceleratedHardwareReady", "status": "False"}]).agent
    assert not seen([*conditions(), {"type": "AcceleratedHardwareReady", "status": "True"}]).agent
    assert seen(spec={"taints": [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]}).others
    many = [{"key": str(number), "effect": "NoSchedule"} for number in range(MAX_NODE_TAINTS + 1)]
    assert not seen(spec={"taints": many[1:]}).others
    # Who writes one of its taints writes all of them, and does not have them all.
    golden(seen(spec={"taints": many}).others)
    assert seen(deletionTimestamp="2026-01-01T00:00:00Z").deleting


SECONDS = st.integers(0, MAX_SECONDS)
MARKS = st.builds(
    Mark,
    fault=st.text(max_size=20),
    node=st.text(max_size=20),
    began=SECONDS,
    did=st.sampled_from([(), ("cordon",), ("taint", "cordon")]),
    since=SECONDS,
    unit=st.text(max_size=20),
    drained=SECONDS,
    action=st.sampled_from([None, "reboot"]),
    hook_tries=st.integers(0, 1000),
)


@given(MARKS)
def test_a_mark_is_read_as_it_was_written(mark: Mark) -> None:
    assert decode_mark(encode_mark(mark)) == mark


@given(st.text() | st.binary().map(lambda found: found.decode("latin-1")))
def test_no_text_breaks_the_reading_of_marks(text: str) -> None:
    assert decode_mark(text) is None or isinstance(decode_mark(text), Mark)


STRANGE = ("", "{}", "null", '{"fault":"a","node":"b","began":"1"}', '{"fault":"a","x":1}')
FAR = [
    f'{{"fault":"a","node":"b","began":1,"{name}":{number}}}'
    for name in ("drained", "requested", "hookDone", "hookTries", "hookNext", "replaced", "since")
    for number in (-1, 10**15, -(10**400))
]


@pytest.mark.parametrize("text", [*STRANGE, *FAR, FAR[0].replace('"began":1', '"began":-1')])
def test_a_mark_that_is_not_ours_makes_the_node_illegible(text: str) -> None:
    found = seen(annotations={MARK: text})
    assert (found.mark, found.illegible) == (None, True)


TAINTS = st.lists(
    st.fixed_dictionaries(
        {"key": st.sampled_from(["a", "b/c"]), "effect": st.sampled_from(["NoSchedule", "NoExecute"])},
        optional={"value": st.just("x"), "timeAdded": st.just("2026-01-01T00:00:00Z")},
    ),
    max_size=3,
)


@given(TAINTS, st.booleans(), st.sampled_from([("cordon",), ("taint",), ("taint", "cordon")]))
def test_what_was_marked_is_taken_back_to_the_byte(taints: list[Any], tainted_at_all: bool, did: Any) -> None:
    spec = {"taints": taints} if tainted_at_all and taints else {}
    before = {"spec": spec, "metadata": {"annotations": {"other": "x"}}}
    mark = Mark("heartbeat-stalled", "a", 1, did)
    patch = marking(node(spec=spec), mark, request=True)
    assert patch["metadata"]["resourceVersion"] == "7"  # type: ignore[index] # an object
    during = merged(copy.deepcopy(before), {key: value for key, value in patch.items() if key == "spec"})
    during["metadata"]["annotations"] |= {MARK: encode_mark(mark), REQUEST: "r"}
    assert bool(during["spec"].get("unschedulable")) == ("cordon" in did)
    assert any(taint["key"] == TAINT for taint in during["spec"].get("taints", ())) == ("taint" in did)
    back = clearing(node(spec=during["spec"]), mark)
    after = merged(during, {"spec": back.get("spec", {}), "metadata": {"annotations": back["metadata"]["annotations"]}})  # type: ignore[index] # an object
    assert json.dumps(after, sort_keys=True) == json.dumps(before, sort_keys=True)


@pytest.mark.parametrize(
    ("text", "instance"),
    [
        ("aws:///us-east-1a/i-0123456789abcdef0", Instance("us-east-1", "i-0123456789abcdef0")),
        ("aws:///us-gov-west-1b/i-01234567", Instance("us-gov-west-1", "i-01234567")),
        ("aws:///us-west-2-lax-1a/i-0123456789abcdef0", Instance("us-west-2", "i-0123456789abcdef0")),
        ("aws:///ap-southeast-2c/i-0123456789abcdef0", Instance("ap-southeast-2", "i-0123456789abcdef0")),
    ],
)
def test_instance_and_region_are_those_of_the_provider_id(text: str, instance: Instance) -> None:
    assert instance_of(text) == instance


@pytest.mark.parametrize(
    "text",
    [
        "",
        "i-0123456789abcdef0",
        "aws://us-east-1a/i-0123456789abcdef0",
        "aws:///us-east-1a/i-0123456789ABCDEF0",
        "aws:///us-east-1a/i-0123456789abcdef01",
        "aws:///us-east-1a/i-0123456789abcdef0\n",
        "aws:///us-east-1/i-0123456789abcdef0",
        "aws:///evil.example.com/i-0123456789abcdef0",
        "gce://project/zone/name",
    ],
)
def test_any_other_provider_id_is_refused(text: str) -> None:
    with golden_error(DriverError):
        instance_of(text)
