"""No input ends in anything but an answer or an explained error."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_driver.simulator.cluster import merge
from dra_driver.simulator.emulated_nodes import emulated
from dra_driver.simulator.manifests import ManifestError, Manifests, read_manifests, read_stored
from dra_driver.simulator.manifests.fields import KINDS
from dra_driver.simulator.placement import simulate
from dra_driver.util.errors import DriverError
from tests.generators.effort import examples
from tests.golden import golden_error

pytestmark = pytest.mark.slow

NODES = emulated([("trn2.48xlarge", 1)])
SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8)
NAMES = """\
metadata spec name namespace labels devices requests exactly deviceClassName count selectors cel expression constraints
matchAttribute config opaque driver parameters pool generation resourceSliceCount nodeName allNodes attributes capacity
value sharedCounters counters consumesCounters counterSet taints tolerations operator template replicas resourceClaims
resourceClaimName resourceClaimTemplateName containers resources claims status allocation results nodeSelector values
nodeSelectorTerms matchExpressions key affinity leaderWorkerTemplate size int string workerTemplate parallelism ordinals
start firstAvailable allocationMode requestPolicy validRange step"""
FIELDS = st.sampled_from(NAMES.split())
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS | st.sampled_from(["neuron.aws.com", "a.example", "c", "All", "In", "device.driver == ''", "1Gi", "x/y"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS | st.text(max_size=5), inner, max_size=5),
    max_leaves=25,
)


@st.composite
def objects(draw: st.DrawFn) -> dict[str, Any]:
    """Something with the kind of a known object and anything in it."""
    kind = draw(st.sampled_from(sorted(KINDS.values(), key=lambda item: item.name)))
    version = draw(st.sampled_from(kind.versions))
    made = {
        "apiVersion": f"{kind.group}/{version}" if kind.group else version,
        "kind": kind.name,
        "metadata": draw(st.just({"name": "c"}) | VALUES),
        "spec": draw(VALUES),
    }
    return made | draw(st.dictionaries(FIELDS, VALUES, max_size=1))


@pytest.mark.timeout(120)
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(objects(), min_size=1, max_size=3))
def test_any_objects_are_read_or_refused(documents: list[dict[str, Any]]) -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": documents}
    try:
        found = read_manifests([("input", json.dumps(listed))])
        simulate(merge(NODES, found), "1.37")
    except ManifestError as error:
        assert str(error).startswith(("input", "the cluster", "there is"))


@settings(max_examples=examples(100))
@given(st.text(max_size=200) | st.text(alphabet="{}[]:-\n\t &*!|>'\"#ab1.", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = read_manifests([("input", text)])
    except ManifestError as error:
        assert str(error).startswith("input")
    else:
        assert isinstance(found, Manifests)


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(objects())
def test_any_stored_object_is_read_or_refused(document: dict[str, Any]) -> None:
    try:
        simulate(merge(NODES, read_stored([("v1", "List", [document])])), "1.36")
    except DriverError as error:
        assert str(error)


SELECTOR = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]}]}
REQUEST = {
    "deviceClassName": "any",
    "count": 2,
    "selectors": [{"cel": {"expression": "device.attributes['a.example'].size == 3"}}],
    "tolerations": [{"key": "worn", "operator": "Exists", "effect": "NoSchedule"}],
    "capacity": {"requests": {"memory": "1Gi"}},
}
CLAIM: dict[str, Any] = {
    "requests": [
        {"name": "r", "exactly": REQUEST},
        {"name": "s", "firstAvailable": [{"name": "t", "deviceClassName": "any", "allocationMode": "All"}]},
    ],
    "constraints": [{"requests": ["r"], "matchAttribute": "a.example/group"}],
    "config": [{"requests": ["r"], "opaque": {"driver": "a.example", "parameters": {"x": 1}}}],
}
USED = {"request": "r", "driver": "a.example", "pool": "p", "device": "d0", "consumedCapacity": {"memory": "1Gi"}}
DEVICES = [
    {
        "name": f"d{i}",
        "attributes": {"size": {"int": 3}, "group": {"string": "g"}, "v": {"version": "1.2.3"}, "b": {"bool": True}},
        "capacity": {"memory": {"value": "4Gi", "requestPolicy": {"default": "1Gi", "validRange": {"min": "1Gi"}}}},
        "consumesCounters": [{"counterSet": "cs", "counters": {"slots": {"value": "1"}}}],
        "taints": [{"key": "worn", "effect": "NoSchedule"}],
        "allowMultipleAllocations": True,
    }
    for i in range(3)
]
POOL = {"name": "p", "generation": 1, "resourceSliceCount": 2}
COUNTERS = [{"name": "cs", "counters": {"slots": {"value": "2"}}}]
POD = {
    "containers": [
        {"name": "main", "resources": {"claims": [{"name": "mine", "request": "r"}], "requests": {"cpu": 1}}}
    ],
    "resourceClaims": [{"name": "mine", "resourceClaimTemplateName": "t"}],
    "nodeSelector": {"zone": "a"},
    "tolerations": [{"key": "k", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": SELECTOR}},
}
WORLD: list[dict[str, Any]] = [
    {
        "kind": "Node",
        "metadata": {"name": "n", "labels": {"zone": "a"}},
        "spec": {"taints": [{"key": "k", "effect": "NoExecute"}]},
    },
    {"kind": "DeviceClass", "metadata": {"name": "any"}, "spec": {"config": CLAIM["config"][0:0]}},
    {
        "kind": "ResourceSlice",
        "metadata": {"name": "1"},
        "spec": {"driver": "a.example", "pool": POOL, "nodeName": "n", "devices": DEVICES},
    },
    {
        "kind": "ResourceSlice",
        "metadata": {"name": "0"},
        "spec": {"driver": "a.example", "pool": POOL, "nodeSelector": SELECTOR, "sharedCounters": COUNTERS},
    },
    {"kind": "ResourceClaimTemplate", "metadata": {"name": "t"}, "spec": {"spec": {"devices": CLAIM}}},
    {
        "kind": "ResourceClaim",
        "metadata": {"name": "c"},
        "spec": {"devices": CLAIM},
        "status": {"allocation": {"devices": {"results": [USED]}, "nodeSelector": SELECTOR}},
    },
    {"kind": "ResourceClaim", "metadata": {"name": "free"}, "spec": {"devices": CLAIM}},
    {"kind": "Pod", "metadata": {"name": "p"}, "spec": POD},
    {"kind": "StatefulSet", "metadata": {"name": "s"}, "spec": {"replicas": 2, "template": {"spec": POD}}},
]
GROUPS = {"Node": "v1", "Pod": "v1", "StatefulSet": "apps/v1"}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to everything in a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, item in inner for found in places(item, (*path, key)))]


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """The value with something else at a path."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(value[path[0]], path[1:], new)
    return copy


OBJECTS = [{"apiVersion": GROUPS.get(str(item["kind"]), "resource.k8s.io/v1"), **item} for item in WORLD]
PLACES = [path for path in places(OBJECTS) if len(path) > 1]


def test_the_world_that_is_changed_below_is_legal() -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": OBJECTS}
    outcomes = simulate(read_manifests([("input", json.dumps(listed))]), "1.37").outcomes
    assert len(outcomes) == 5


@pytest.mark.timeout(120)
@settings(max_examples=examples(250), suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(PLACES), VALUES, st.sampled_from(["1.36", "1.37"]))
def test_anything_in_place_of_anything_is_answered_or_refused(path: tuple[Any, ...], new: Any, release: str) -> None:
    objects_ = changed(OBJECTS, path, new)
    try:
        listed = {"apiVersion": "v1", "kind": "List", "items": objects_}
        simulate(read_manifests([("input", json.dumps(listed))], release), release)
    except ManifestError as error:
        assert str(error).startswith(("input", "there is")), str(error)
    try:
        simulate(
            read_stored([(item["apiVersion"], item["kind"], [item]) for item in objects_ if isinstance(item, dict)]),
            release,
        )
    except DriverError as error:
        assert str(error)


def test_more_pods_than_any_cluster_has_are_refused_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    template = {"spec": {"containers": [{"name": "main"}], "resourceClaims": [{"name": "c", "resourceClaimName": "c"}]}}
    group = {"size": 100_000, "workerTemplate": template}
    leaders = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "many"},
        "spec": {"replicas": 100_000, "leaderWorkerTemplate": group},
    }
    with golden_error(ManifestError):
        read_manifests([("input", json.dumps(leaders))])
    monkeypatch.setattr("dra_driver.simulator.manifests.read.MAX_PODS", 10)
    group["size"] = 3
    leaders["spec"] = {"replicas": 4, "leaderWorkerTemplate": group}
    with golden_error(ManifestError):
        read_manifests([("input", json.dumps(leaders))])


@pytest.mark.parametrize("opening", ["{", "[", "- ", "? ", "{a: "])
def test_nesting_without_end_is_refused_and_not_the_end_of_the_process(opening: str) -> None:
    """Libyaml's parser has no limit, and what PyYAML builds on it calls itself for each level."""
    code = (
        "import sys\n"
        "from dra_driver.kube.documents import documents\n"
        "from dra_driver.util.errors import DriverError\n"
        "try:\n    list(documents('deep.yaml', sys.argv[1] * 60_000))\n"
        "except DriverError as error:\n    print(error)\n"
    )
    command = [sys.executable, "-c", code, opening]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-500:]
    assert "deep.yaml" in done.stdout
