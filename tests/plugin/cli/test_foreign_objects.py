"""What somebody else has stored in a cluster ends no command about it."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from dra_driver.cli.main import main
from dra_driver.kube.api.resources import PAGE_BYTES
from tests.builders.overview import READY, TYPE_LABEL, add_waiting, published
from tests.doubles.apiserver.crowd import NUMBER, Crowd
from tests.doubles.apiserver.server import ApiServer
from tests.doubles.apiserver.store import Object
from tests.golden import golden

pytestmark = pytest.mark.slow

LONG = "1e1002"
NINES = "9" * 400
CLASS: Object = {
    "metadata": {"name": "neuron.aws.com"},
    "spec": {"selectors": [{"cel": {"expression": "device.driver == 'neuron.aws.com'"}}]},
}
ROOM = {"cpu": "192", "memory": "1Ti"}


@pytest.fixture
def server() -> ApiServer:
    """Nodes with free chips that say how much CPU and memory they have, and a pod that waits for chips."""
    made = ApiServer()
    for name in ("node-1", "node-2"):
        meta = {"name": name, "labels": {TYPE_LABEL: "trn2.48xlarge"}}
        status = {"conditions": [READY], "nodeInfo": {"kubeletVersion": "v1.37.1"}, "allocatable": ROOM}
        made.store.create("nodes", {"metadata": meta, "spec": {}, "status": status})
        for item in published(name):
            made.store.create("resourceslices", item)
    made.store.create("deviceclasses", CLASS)
    add_waiting(made, "victim", "web-0", "0/1 nodes")
    return made


def pod(**spec: Any) -> tuple[str, Object]:
    meta = {"namespace": "evil", "name": "p", "uid": "u"}
    return "pods", {"metadata": meta, "spec": {"containers": [{"name": "a"}], **spec}, "status": {"phase": "Pending"}}


def asking(amount: str) -> Any:
    return {"containers": [{"name": "a", "resources": {"requests": {"cpu": amount, "memory": amount}}}]}


def claim(**request: Any) -> tuple[str, Object]:
    exactly = {"deviceClassName": "neuron.aws.com", "allocationMode": "ExactCount", "count": 1, **request}
    spec = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
    return "resourceclaims", {"metadata": {"namespace": "evil", "name": "c"}, "spec": spec}


def selecting(expression: str) -> tuple[str, Object]:
    return claim(selectors=[{"cel": {"expression": expression}}])


def slice_of(device: Object, **spec: Any) -> tuple[str, Object]:
    pool = {"name": "evil", "generation": 1, "resourceSliceCount": 1}
    inside = {
        "driver": "neuron.aws.com",
        "nodeName": "evil",
        "pool": pool,
        "devices": [{"name": "d", **device}],
        **spec,
    }
    return "resourceslices", {"metadata": {"name": "evil"}, "spec": inside}


def node(**status: Any) -> tuple[str, Object]:
    return "nodes", {
        "metadata": {"name": "evil", "labels": {TYPE_LABEL: "trn2.48xlarge"}},
        "spec": {},
        "status": status,
    }


CLAIMING: Object = {"resourceClaims": [{"name": "c", "resourceClaimName": "c"}]}
COUNTERS = {"c": {"value": LONG}}
POLICY = {"default": LONG, "validRange": {"min": LONG, "step": LONG}}
OBJECTS: dict[str, list[tuple[str, Object]]] = {
    "pod that waits": [pod(**asking(LONG))],
    "pod on a node": [pod(**asking(LONG), nodeName="node-1")],
    "pod of more than a float has": [
        pod(**asking("1e900"), nodeName="node-1"),
        ("pods", {"metadata": {"namespace": "evil", "name": "q", "uid": "q"}, "spec": {**CLAIMING, **asking("1")}}),
        claim(),
    ],
    "limit of chips": [
        pod(containers=[{"name": "a", "resources": {"limits": {"aws.amazon.com/neuron": LONG}}}]),
    ],
    "overhead": [pod(overhead={"cpu": LONG})],
    "node": [node(capacity={"cpu": LONG}, allocatable={"cpu": LONG, "aws.amazon.com/neuron": LONG})],
    "capacity that a claim requests": [
        slice_of({"allowMultipleAllocations": True, "capacity": {"memory": {"value": LONG, "requestPolicy": POLICY}}}),
        node(conditions=[READY]),
        claim(capacity={"requests": {"memory": LONG}}),
    ],
    "counters": [
        slice_of(
            {"consumesCounters": [{"counterSet": "s", "counters": COUNTERS}]},
            sharedCounters=[{"name": "s", "counters": COUNTERS}],
        ),
        node(conditions=[READY]),
    ],
    "selector of a quantity that no float has": [selecting(f"quantity('{NINES}').asApproximateFloat() > 1.0")],
    "selector of a capacity that no float has": [
        slice_of({"capacity": {"memory": {"value": NINES}}}),
        selecting("device.capacity['neuron.aws.com'].memory.asApproximateFloat() > 1.0"),
    ],
}
COMMANDS = {
    "explain": ["explain", "web-0", "-n", "victim"],
    "explain all": ["explain", "-A"],
    "simulate": ["simulate", "--from-cluster", "-A"],
    "select": ["select", "true", "--from-cluster"],
    "topology": ["topology", "--from-cluster", "node-1"],
    "top": ["top", "--once"],
    "health": ["health"],
    "check-unused": ["check-unused"],
}


@pytest.mark.parametrize("objects", OBJECTS.values(), ids=OBJECTS)
def test_a_quantity_larger_than_any_node_has_ends_no_command(
    server: ApiServer, objects: list[tuple[str, Object]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind, item in objects:
        server.store.create(kind, item)
    with server:
        access = ["--kubeconfig", str(server.kubeconfig(tmp_path / "kubeconfig"))]
        statuses = {name: main([*command, *access]) for name, command in COMMANDS.items()}
    assert set(statuses.values()) <= {0, 1}, (statuses, capsys.readouterr().err)


UNREADABLE: dict[str, tuple[str, Object]] = {
    "Pod that cannot be read: evil/p": pod(tolerations=[{"key": 1}]),
    "ResourceClaim that cannot be read: evil/c": claim(count="two"),
    "Node that cannot be read: evil": node(images=[{"names": [1]}]),
    "ResourceSlice that cannot be read: evil": slice_of({"name": 1}),
}


@pytest.mark.parametrize("note", UNREADABLE)
def test_an_object_that_cannot_be_read_is_named_and_left_out(
    server: ApiServer, note: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.store.create(*UNREADABLE[note])
    with server:
        access = ["--kubeconfig", str(server.kubeconfig(tmp_path / "kubeconfig"))]
        for command in ("explain", "explain all", "simulate"):
            assert main([*COMMANDS[command], *access]) != 2
            out, err = capsys.readouterr()
            assert note in " ".join(out.split())
            golden(err)


def test_a_pod_with_an_entry_of_no_claim_is_named_and_left_out(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.store.create(*pod(resourceClaims=[{"name": "c"}]))
    with server:
        assert main(["explain", "-A", "--kubeconfig", str(server.kubeconfig(tmp_path / "kubeconfig"))]) == 1
    assert "Pod that cannot be read: evil/p" in " ".join(capsys.readouterr().out.split())


LARGE: Object = {"name": "a", "env": [{"name": f"VARIABLE_{place}", "value": "x"} for place in range(6000)]}


@pytest.mark.parametrize("phase", ["Failed", "Pending"])
def test_large_pods_cost_no_more_than_their_json(server: ApiServer, phase: str, tmp_path: Path) -> None:
    meta = {"namespace": "evil", "name": f"p-{NUMBER}", "uid": f"u-{NUMBER}"}
    item = {"metadata": meta, "spec": {"containers": [LARGE], **CLAIMING}, "status": {"phase": phase}}
    size = 100 * len(json.dumps(item))
    server.crowds.append(Crowd("pods", 100, item))
    with server:
        access = ["--kubeconfig", str(server.kubeconfig(tmp_path / "kubeconfig"))]
        tracemalloc.start()
        try:
            assert main([*COMMANDS["explain"], *access]) == 1  # the scheduler has found no node for it
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    # Beside the pods there are a page of them and the test API server's copies of it.
    assert peak < size + 12 * PAGE_BYTES, peak


def test_the_author_of_a_file_is_told_where_the_quantity_stands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n"
        "  - {name: a, resources: {requests: {cpu: 1e1002}}}\n"
    )
    assert main(["simulate", str(file), "--instance-type", "trn2.48xlarge"]) == 2
    said = capsys.readouterr().err
    assert "pod.yaml:6: Pod default/p: spec.containers[0].resources.requests.cpu: " in said
    assert "more than 1000 digits are not simulated" in said
