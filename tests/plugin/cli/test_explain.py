"""``dra-driver explain`` against an API server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.cli.main import kubectl_main, main
from tests.builders.documents import document as parsed
from tests.builders.overview import (
    CRASH_LOOP,
    CRASHED,
    TYPE_LABEL,
    add_holder,
    add_plugin_node,
    daemon_set,
    driver_pod,
    of_device_plugin,
    taint,
)
from tests.doubles.apiserver.server import ApiServer
from tests.doubles.apiserver.store import Object
from tests.golden import golden
from tests.paths import SPECS

pytestmark = pytest.mark.slow

EXAMPLE = SPECS / "1x4-connected-devices.yaml"
CLASS: Object = {"metadata": {"name": "neuron.aws.com"}, "spec": {"selectors": [{"cel": {"expression": "true"}}]}}


def claim_of(count: int, constraint: str = "") -> Object:
    constraints = [{"matchAttribute": constraint}] if constraint else []
    request = {"name": "r", "exactly": {"deviceClassName": "neuron.aws.com", "count": count}}
    return {"devices": {"requests": [request], "constraints": constraints}}


@pytest.fixture
def server(capsys: pytest.CaptureFixture[str]) -> ApiServer:
    """One node, of each row of which a chip is in use; a pod that waits for a row, and one that nobody can help."""
    made = ApiServer()
    made.add_node("node-a")
    assert main(["slices", "--instance-type", "trn2.48xlarge", "--node-name", "node-a", "-o", "json"]) == 0
    for place, item in enumerate(json.loads(capsys.readouterr().out)["items"]):
        made.store.create("resourceslices", {**item, "metadata": {"name": f"node-a-{place}"}})
    made.store.create("deviceclasses", CLASS)
    made.add_claim("default", "used", devices=[("r", f"neuron-device-{i}") for i in (0, 4, 8, 12)], node="node-a")
    template = {"metadata": {"name": "row", "namespace": "shop"}, "spec": {"spec": claim_of(4, ROW)}}
    made.store.create("resourceclaimtemplates", template)
    entry = {"name": "chips", "resourceClaimTemplateName": "row"}
    waits = {"metadata": {"name": "web-0", "namespace": "shop"}, "spec": {"resourceClaims": [entry]}}
    statuses = [{"name": "chips", "resourceClaimName": "web-0-chips"}]
    made.store.create("pods", {**waits, "status": {"conditions": [UNSCHEDULABLE], "resourceClaimStatuses": statuses}})
    own = {"name": "web-0-chips", "namespace": "shop"}
    made.store.create("resourceclaims", {"metadata": own, "spec": claim_of(4, ROW)})
    lost = {"name": "chips", "resourceClaimTemplateName": "nowhere"}
    made.store.create("pods", {"metadata": {"name": "lost", "namespace": "shop"}, "spec": {"resourceClaims": [lost]}})
    made.store.create("resourceclaims", {"metadata": {"name": "pair", "namespace": "shop"}, "spec": claim_of(2)})
    return made


ROW = "resource.aws.com/devicegroup4_id"
UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/1 nodes are available: 1 cannot allocate all claims.",
    "lastTransitionTime": "2026-01-01T00:00:05Z",
}


def explained(server: ApiServer, directory: Path, *arguments: str) -> int:
    kubeconfig = server.kubeconfig(directory / "kubeconfig")
    return main(["explain", *arguments, "--kubeconfig", str(kubeconfig)])


def test_a_pod_that_waits(server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with server:
        assert explained(server, tmp_path, "pod/web-0", "-n", "shop") == 1
    out = capsys.readouterr().out
    golden(out)
    assert all(request.method == "GET" for request in server.requests), "nothing is changed"


@pytest.mark.parametrize("named", [True, False])
def test_a_pod_of_a_higher_priority_than_those_who_have_the_devices(
    named: bool, server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, chip, priority in (("batch", 1, 10), ("other", 2, 2000)):
        add_holder(server, "default", name, "node-a", [f"neuron-device-{chip}"])
        holder = server.store.get("pods", f"default/{name}")
        holder["spec"]["priority"] = priority
        server.store.update("pods", f"default/{name}", holder)
    waits = server.store.get("pods", "shop/web-0")
    waits["spec"]["priority"] = 1000
    server.store.update("pods", "shop/web-0", waits)
    asked = ["pod/web-0", "-n", "shop"] if named else ["-A"]
    with server:
        assert explained(server, tmp_path, *asked, "-o", "json") == 1
        (item,) = (item for item in parsed(capsys.readouterr().out)["items"] if item["subject"] == "pod shop/web-0")
        assert [each["code"] for each in item["findings"]] == ["Unschedulable", "LowerPriority"]
        golden((item["findings"][1]["message"], item["findings"][1]["remedy"]))
        assert explained(server, tmp_path, *asked) == 1
    assert f"  - {item['findings'][1]['remedy'].capitalize()[:30]}" in capsys.readouterr().out


def test_events_that_the_scheduler_writes_have_no_first_and_no_last_time(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uid = server.store.get("pods", "shop/web-0")["metadata"]["uid"]
    event = {
        "metadata": {"namespace": "shop", "name": "web-0.1"},
        "involvedObject": {"kind": "Pod", "namespace": "shop", "name": "web-0", "uid": uid},
        "type": "Warning",
        "reason": "FailedScheduling",
        "message": "0/1 nodes are available",
        "eventTime": "2026-03-01T10:03:00.000000Z",
        "firstTimestamp": None,
        "lastTimestamp": None,
    }
    server.store.create("events", event)
    with server:
        assert explained(server, tmp_path, "pod/web-0", "-n", "shop") == 1
    assert capsys.readouterr().err == ""


def test_a_claim_that_waits(server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with server:
        assert explained(server, tmp_path, "claim/pair", "-n", "shop") == 0
    out = capsys.readouterr().out
    golden(out)


def test_a_claim_that_several_others_have_to_make_room_for(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, chip in (("one", 1), ("two", 2)):
        server.add_claim("default", name, devices=[("r", f"neuron-device-{chip}")], node="node-a")
    index = "device.attributes['neuron.aws.com'].deviceId"
    for name, selector in (("all", "true"), ("most", f"{index} != 2")):
        spec = claim_of(16 if name == "all" else 15)
        spec["devices"]["requests"][0]["exactly"]["selectors"] = [{"cel": {"expression": selector}}]
        server.store.create("resourceclaims", {"metadata": {"name": name, "namespace": "shop"}, "spec": spec})
    with server:
        for name in ("all", "most"):
            assert explained(server, tmp_path, f"claim/{name}", "-n", "shop") == 1
            golden(next(line for line in capsys.readouterr().out.splitlines() if "Wait:" in line))


def test_a_claim_that_has_its_devices(server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with server:
        assert explained(server, tmp_path, "claim/used") == 0
    golden(capsys.readouterr().out)


def test_a_pod_whose_template_is_not_there(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with server:
        assert explained(server, tmp_path, "pod/lost", "-n", "shop", "-o", "json") == 1
        golden(parsed(capsys.readouterr().out)["items"][0]["remedies"])
        assert explained(server, tmp_path, "pod/lost", "-n", "shop") == 1
    golden(capsys.readouterr().out)


def test_a_pod_that_is_not_there(server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with server:
        assert explained(server, tmp_path, "pod/web-0") == 2
    golden(capsys.readouterr().err)


def test_a_file_beside_what_the_cluster_has(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with server:
        assert explained(server, tmp_path, str(EXAMPLE), "--from-cluster") == 1
    out = capsys.readouterr().out
    golden(out)


@pytest.mark.parametrize(("version", "meant"), [("v1.34.2", "1.36"), ("v1.36.3", "1.36"), ("v1.38.0", "1.37")])
def test_the_nearest_release_is_meant(
    version: str, meant: str, server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.git_version = version
    with server:
        explained(server, tmp_path, "claim/pair", "-n", "shop", "-o", "json")
    document = parsed(capsys.readouterr().out)
    assert document["kubernetes"] == meant
    assert any("is simulated" in note for note in document["notConsidered"]) == (version != "v1.36.3")
    names = [trap["name"] for trap in document["items"][0]["traps"]]
    assert ("old-server" in names) == (version == "v1.34.2")


def test_a_cluster_that_does_not_answer(server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with server:
        pass
    assert explained(server, tmp_path, "pod/web-0") == 2
    assert capsys.readouterr().err.startswith("error: ")


@pytest.fixture
def contexts(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """$KUBECONFIG with the context ``shop`` of that namespace, and a current one of a server that is not there."""
    with server:
        content = yaml.safe_load(server.kubeconfig(tmp_path / "one").read_text())
    content["clusters"].append({"name": "gone", "cluster": {"server": "http://127.0.0.1:9"}})
    content["contexts"] = [
        {"name": "shop", "context": {"cluster": "test", "user": "test", "namespace": "shop"}},
        {"name": "gone", "context": {"cluster": "gone", "user": "test"}},
    ]
    content["current-context"] = "gone"
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(content))
    monkeypatch.setenv("KUBECONFIG", str(file))
    return file


def test_a_context_selects_server_and_namespace(
    server: ApiServer, contexts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "web-0"]) == 2
    assert "127.0.0.1:9" in capsys.readouterr().err
    with server:
        assert main(["explain", "web-0", "--context", "shop"]) == 1
    golden(capsys.readouterr().out)
    assert contexts.exists()


@pytest.mark.usefixtures("contexts")
def test_a_context_that_is_not_there_is_bad_input(server: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    with server:
        assert main(["explain", "pod/web-0", "--context", "nowhere"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    golden(said.err)


def test_kubectl_neuron_explains_a_pod_of_the_current_context(
    server: ApiServer, contexts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    contexts.write_text(contexts.read_text().replace("current-context: gone", "current-context: shop"))
    with server:
        assert kubectl_main(["explain", "web-0"]) == 1
        by_plugin = capsys.readouterr()
        assert main(["explain", "pod/web-0", "-n", "shop"]) == 1
    assert by_plugin == capsys.readouterr()
    golden(by_plugin.out)


def test_without_names_what_waits_in_the_namespace_is_explained(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with server:
        assert explained(server, tmp_path) == 0
        golden(capsys.readouterr().out)
        for more in (["-n", "shop"], ["-A"]):
            assert explained(server, tmp_path, *more) == 1
            golden(capsys.readouterr().out)


# Pods that do not exist, because the API server refuses them

QUOTA = 'Error creating: pods "{}" is forbidden: exceeded quota: few, requested: pods=1, used: pods=2, limited: pods=2'
LIMIT = (
    'create Pod {} in StatefulSet {} failed error: pods "{}" is forbidden: '
    "maximum cpu usage per Pod is 1, but limit is 4"
)
SECURITY = 'Error creating: pods "{}" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true'


def add_refused(
    server: ApiServer, kind: str, name: str, message: str, *, claims: bool = True, made: int = 1, **about: object
) -> None:
    """A workload that lacks a pod, and its controller's Event."""
    pod: Object = {"containers": [{"name": "main"}]}
    pod |= {"resourceClaims": [{"name": "n", "resourceClaimTemplateName": "row"}]} if claims else {}
    wanted = {"parallelism" if kind == "Job" else "replicas": 2}
    meta = {"namespace": "shop", "name": name, "uid": f"uid-of-{name}", **about}
    status = {"active" if kind == "Job" else "replicas": made}
    workload = {"metadata": meta, "spec": {**wanted, "template": {"spec": pod}}, "status": status}
    server.store.create(f"{kind.lower()}s", workload)
    event = {
        "metadata": {"namespace": "shop", "name": f"{name}.1"},
        "involvedObject": {"kind": kind, "namespace": "shop", "name": name, "uid": meta["uid"]},
        "type": "Warning",
        "reason": "FailedCreate",
        "message": message,
        "lastTimestamp": "2026-03-01T10:00:00Z",
    }
    server.store.create("events", event)


@pytest.fixture
def refusing(server: ApiServer) -> ApiServer:
    """Workloads in the namespace shop that lack pods, and some that only did, or never wanted devices."""
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "api", "uid": "d", "controller": True}
    add_refused(server, "Job", "train", QUOTA.format("train-7x"))
    add_refused(server, "StatefulSet", "db", LIMIT.format("db-0", "db", "db-0"))
    add_refused(server, "ReplicaSet", "api-5d", SECURITY.format("api-5d-x"), ownerReferences=[owner])
    add_refused(server, "Job", "whole-again", QUOTA.format("whole-again-1"), made=2)
    add_refused(server, "Job", "of-no-devices", QUOTA.format("of-no-devices-1"), claims=False)
    add_refused(server, "Job", "hostile", f"\x1b[2J{'x' * 4000}\n{{node}}")
    return server


def test_pods_that_the_api_server_refuses_are_told_by_their_workload(
    refusing: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with refusing:
        assert explained(refusing, tmp_path, "-n", "shop") == 1
        golden("\n".join(line for line in capsys.readouterr().out.splitlines() if "web-0" not in line))
        assert explained(refusing, tmp_path, "-n", "shop", "-o", "json") == 1
        items = {item["subject"]: item for item in parsed(capsys.readouterr().out)["items"]}
    assert {"Job shop/train", "StatefulSet shop/db", "Deployment shop/api", "Job shop/hostile"} <= items.keys()
    assert not items.keys() & {"Job shop/whole-again", "Job shop/of-no-devices"}
    assert len(items["Job shop/hostile"]["findings"][0]["message"]) < 1000
    firsts = {name: item["findings"][0] for name, item in sorted(items.items()) if item["findings"]}
    golden(f"{name}: {first['code']}: {first['message'][:200]}" for name, first in firsts.items())


@pytest.mark.parametrize("name", ["train", "db-0", "api", "of-no-devices"])
def test_a_pod_or_workload_that_is_named_and_has_no_pod_is_told_why(
    name: str, refusing: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with refusing:
        assert explained(refusing, tmp_path, name, "-n", "shop") == (2 if name == "of-no-devices" else 1)
    golden("".join(capsys.readouterr()))


@pytest.mark.parametrize("how", [[], ["-f"]], ids=["positional", "-f"])
def test_objects_without_a_namespace_are_in_the_one_that_is_given(
    how: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "-n", "team", "--instance-type", "trn2.48xlarge", *how, str(EXAMPLE)]) == 0
    assert capsys.readouterr().out.startswith("Pod team/pod0 fits")


def test_a_node_that_offers_nothing_because_of_its_kubelet_says_so(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = server.store.get("nodes", "node-a")
    version = {"nodeInfo": {"kubeletVersion": "v1.34.1-eks-113cf36"}}
    server.store.update("nodes", "node-a", {**found, "status": {**found["status"], **version}})
    for item in server.slices():
        spec = {**item["spec"], "devices": []}
        server.store.update("resourceslices", item["metadata"]["name"], {**item, "spec": spec})
    with server:
        assert explained(server, tmp_path, "pod/web-0", "-n", "shop") == 1
    golden(capsys.readouterr().out)


# Pods that have a node

CREATING: dict[str, Any] = {
    "containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "ContainerCreating"}}}]
}
REFUSED = (
    "Failed to prepare dynamic resources: NodePrepareResources failed for ResourceClaim p-neurons: NeuronConfig: "
    "logicalNeuronCore: expected 1 or 2, got 3"
)


@pytest.fixture
def bound(server: ApiServer) -> ApiServer:
    """The same node with a driver that is well, and nothing that waits."""
    server.store.delete("pods", "shop/web-0")
    server.store.delete("pods", "shop/lost")
    found = server.store.get("nodes", "node-a")
    labels = {**(found["metadata"].get("labels") or {}), TYPE_LABEL: "trn2.48xlarge"}
    managed = [{"manager": "kubelet", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1"}]
    managed[0] |= {"time": "2026-03-01T10:00:00Z", "subresource": "status"}
    meta = {**found["metadata"], "labels": labels, "managedFields": managed}
    server.store.update("nodes", "node-a", {**found, "metadata": meta})
    server.store.create("pods", driver_pod("node-a"))
    return server


def without_driver(server: ApiServer, pod: Object | None) -> None:
    server.store.delete("pods", "neuron-dra-driver/driver-node-a")
    server.wipe_slices("node-a")
    if pod is not None:
        server.store.create("pods", pod)


def add_refusal(server: ApiServer, uid: str) -> None:
    event = {
        "metadata": {"namespace": "shop", "name": "p.1"},
        "involvedObject": {"kind": "Pod", "namespace": "shop", "name": "p", "uid": uid},
        "type": "Warning",
        "reason": "FailedPrepareDynamicResources",
        "message": REFUSED,
        "lastTimestamp": "2026-03-01T10:03:00Z",
    }
    server.store.create("events", event)


def add_word(server: ApiServer, *conditions: tuple[str, str, str, str], devices: tuple[int, ...] = (1, 2)) -> None:
    """What the claim of the pod says of its devices."""
    keys = ("type", "status", "reason", "message")
    told = [dict(zip(keys, each, strict=True)) | {"lastTransitionTime": "2026-03-01T10:02:00Z"} for each in conditions]
    entries = [
        {"driver": "neuron.aws.com", "pool": "node-a", "device": f"neuron-device-{index}", "conditions": told}
        for index in devices
    ]
    stored = server.store.get("resourceclaims", "shop/p-neurons")
    stored["status"]["devices"] = [*stored["status"].get("devices", []), *entries]
    server.store.update("resourceclaims", "shop/p-neurons", stored)


WELL = ("Healthy", "True", "Healthy", "")
SICK = ("Healthy", "False", "Unhealthy", "neuron1: hbm-uncorrectable")
SAID: dict[str, tuple[int, bool, list[tuple[tuple[str, str, str, str], ...]]]] = {
    "ready": (
        0,
        False,
        [(("Ready", "True", "Prepared", f"chip {index} as /dev/neuron{index - 1}"), WELL) for index in (1, 2)],
    ),
    "refused, as the Event says": (
        1,
        True,
        [(("Ready", "False", "InvalidParameters", REFUSED.partition("p-neurons: ")[2]), WELL)] * 2,
    ),
    "refused, and the Event says something else": (1, True, [(("Ready", "False", "DeviceInUse", "in use"),)] * 2),
    "refused, and there is no Event": (1, False, [(("Ready", "False", "DeviceInUse", "in use\n\x1b[2J"),)] * 2),
    "sick, and the slices say nothing": (1, False, [(SICK,), (WELL,)]),
}


@pytest.mark.parametrize("case", SAID)
def test_a_pods_claim_says_what_it_got_or_why_not(
    case: str, bound: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, event, words = SAID[case]
    phase, more = ("Pending", CREATING) if case.startswith("refused") else ("Running", {})
    add_holder(bound, "shop", "p", "node-a", ["neuron-device-1", "neuron-device-2"], phase, meta={"uid": "u"}, **more)
    for index, conditions in enumerate(words, 1):
        add_word(bound, *conditions, devices=(index,))
    add_word(bound, SICK, devices=(9,))  # which it does not have
    if event:
        add_refusal(bound, bound.store.get("pods", "shop/p")["metadata"]["uid"])
    with bound:
        assert explained(bound, tmp_path, "pod/p", "-n", "shop") == status
        out = capsys.readouterr().out
        assert explained(bound, tmp_path, "pod/p", "-n", "shop", "-o", "json") == status
    (found,) = parsed(capsys.readouterr().out)["items"]
    assert len(found["allocations"][0]["claimSays"]) == len({tuple(item) for item in words})
    golden(out)


def test_objects_say_the_same(bound: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_holder(bound, "shop", "p", "node-a", ["neuron-device-1", "neuron-device-2"])
    add_word(bound, ("Ready", "False", "DeviceInUse", "in use"), WELL)
    stored = bound.store.get("resourceclaims", "shop/p-neurons")
    other = {"driver": "nic.example.com", "pool": "node-a", "device": "nic-0", "networkData": {"ips": ["10.0.0.1/8"]}}
    stored["status"]["devices"].append({**other, "data": [{"any": None}]})
    kinds = {"Node": "nodes", "Pod": "pods", "ResourceSlice": "resourceslices", "DeviceClass": "deviceclasses"}
    items: list[Object] = []
    for kind, plural in kinds.items():
        version = "v1" if kind in ("Node", "Pod") else "resource.k8s.io/v1"
        items += [{"apiVersion": version, "kind": kind, **item} for item in bound.store.list(plural)[0]]
    items.append({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", **stored})
    file = tmp_path / "objects.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    assert main(["explain", "pod/p", "-n", "shop", "--objects", str(file)]) == 1
    golden(capsys.readouterr().out)


CRASHING = driver_pod("node-a", state=CRASH_LOOP, last=CRASHED, ready=False)
EVICTED = driver_pod("node-a", ready=False, phase="Failed", reason="Evicted", message="low on memory")


@pytest.mark.parametrize(
    ("case", "status"),
    [
        ("runs", 0),
        ("starts", 0),
        ("refused", 1),
        ("no driver", 1),
        ("crash loop", 1),
        ("evicted", 1),
        ("ends", 0),
        ("ends without a driver", 1),
        ("ends where the driver is left out", 1),
        ("sick chip", 1),
        ("image", 1),
        ("succeeded", 0),
        ("failed", 1),
    ],
)
def test_a_pod_on_a_node_says_why_it_does_not_run_or_end_there(
    case: str, status: int, bound: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = {"reason": "ErrImagePull", "message": "manifest unknown"}
    found: tuple[str, dict[str, Any]] = {
        "starts": ("Pending", CREATING),
        "refused": ("Pending", CREATING),
        "no driver": ("Pending", CREATING),
        "crash loop": ("Pending", CREATING),
        "evicted": ("Pending", CREATING),
        "image": ("Pending", {"containerStatuses": [{"name": "main", "state": {"waiting": image}}]}),
        "succeeded": ("Succeeded", {}),
        "failed": ("Failed", {"reason": "UnexpectedAdmissionError", "message": "no room"}),
    }.get(case, ("Running", {}))
    phase, more = found
    meta = {"uid": "u-1"} | ({"deletionTimestamp": "2026-03-01T10:05:00Z"} if case.startswith("ends") else {})
    add_holder(bound, "shop", "p", "node-a", ["neuron-device-1", "neuron-device-2"], phase, meta=meta, **more)
    if case == "refused":
        add_refusal(bound, bound.store.get("pods", "shop/p")["metadata"]["uid"])
    elif case in ("no driver", "ends without a driver"):
        without_driver(bound, None)
    elif case == "ends where the driver is left out":
        without_driver(bound, None)
        add_word(bound, ("Ready", "True", "Prepared", "as before"), WELL)
        bound.store.create("daemonsets", daemon_set("neuron-dra-driver-kubelet-plugin", {"nodeSelector": {"a": "b"}}))
    elif case in ("crash loop", "evicted"):
        without_driver(bound, CRASHING if case == "crash loop" else EVICTED)
    elif case == "sick chip":
        (item,) = bound.slices()
        item["spec"]["devices"][2]["taints"] = [taint("hbm-uncorrectable")]
        bound.store.update("resourceslices", item["metadata"]["name"], item)
    with bound:
        assert explained(bound, tmp_path, "pod/p", "-n", "shop") == status
    golden(capsys.readouterr().out)


@pytest.mark.parametrize("left_out", [False, True], ids=["crash loop", "left out"])
def test_a_pod_that_waits_is_told_why_the_nodes_offer_nothing(
    left_out: bool, server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.wipe_slices("node-a")
    if left_out:
        node = server.store.get("nodes", "node-a")
        node["metadata"]["labels"] = {**node["metadata"].get("labels", {}), TYPE_LABEL: "trn2.48xlarge"}
        server.store.update("nodes", "node-a", node)
        server.store.create("daemonsets", daemon_set("driver", {"nodeSelector": {"a": "b"}}))
    else:
        server.store.create("pods", CRASHING)
    with server:
        assert explained(server, tmp_path, "pod/web-0", "-n", "shop") == 1
    golden(capsys.readouterr().out)


def test_a_node_of_a_device_plugin_is_not_said_to_offer_nothing(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_plugin_node(server, "old-1")
    server.store.create("pods", of_device_plugin(driver_pod("old-1")))
    with server:
        assert explained(server, tmp_path, "pod/web-0", "-n", "shop") == 1
    out = capsys.readouterr().out
    golden("\n".join(line for line in out.splitlines() if "old-1" in line))


def test_a_pod_that_has_ended_is_told_in_json_too(
    bound: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_holder(bound, "shop", "p", "node-a", ["neuron-device-1"], "Failed", reason="UnexpectedAdmissionError")
    with bound:
        assert explained(bound, tmp_path, "pod/p", "-n", "shop", "-o", "json") == 1
    (found,) = parsed(capsys.readouterr().out)["items"]
    assert (found["subject"], found["fits"]) == ("pod shop/p", False)
    golden(found["message"])


# Users with rights in one namespace


def test_with_devices_and_one_namespace_a_pod_is_explained_by_what_can_be_read(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forbid(server, "nodes")
    with server:
        assert explained(server, tmp_path, "pod/web-0", "-n", "shop") == 1
        golden(capsys.readouterr().out)
        assert explained(server, tmp_path, "pod/web-0", "-n", "shop", "-o", "json") == 1
        golden(parsed(capsys.readouterr().out)["items"][0]["remedies"])
        assert explained(server, tmp_path, "pod/web-0", "-A") == 2


def test_without_rights_the_pod_is_explained_by_what_the_cluster_says_and_the_way_without_rights_is_named(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forbid(server, "nodes|resourceslices|deviceclasses")
    with server:
        assert explained(server, tmp_path, "pod/web-0", "-n", "shop") == 1
    out, err = capsys.readouterr()
    golden(out)
    golden(err)


def test_a_pod_on_a_node_is_explained_without_rights_on_nodes(
    bound: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_holder(bound, "shop", "p", "node-a", ["neuron-device-1"], "Pending", meta={"uid": "u-1"}, **CREATING)
    add_refusal(bound, bound.store.get("pods", "shop/p")["metadata"]["uid"])
    forbid(bound, "nodes")
    with bound:
        assert explained(bound, tmp_path, "pod/p", "-n", "shop") == 1
    golden(capsys.readouterr().out)


def test_a_claim_that_may_not_be_read_is_not_gone(
    bound: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_holder(bound, "shop", "p", "node-a", ["neuron-device-1"], meta={"uid": "u-1"})
    bound.fail(403, 10**6, path=r"/resourceclaims(/[^/]+)?$", message="that is forbidden")
    with bound:
        assert explained(bound, tmp_path, "pod/p", "-n", "shop") == 2
    out, err = capsys.readouterr()
    assert (out, "does not exist" in err) == ("", False)


def test_a_node_that_is_not_ready_is_told_without_slices_too(
    bound: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_holder(bound, "shop", "p", "node-a", ["neuron-device-1"], meta={"uid": "u-1"})
    node = bound.store.get("nodes", "node-a")
    ready = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "Kubelet is silent."}
    bound.store.update("nodes", "node-a", {**node, "status": {**node["status"], "conditions": [ready]}})
    forbid(bound, "resourceslices")
    with bound:
        assert explained(bound, tmp_path, "pod/p", "-n", "shop") == 1
    assert "Node node-a is not ready: Kubelet is silent" in capsys.readouterr().out


def forbid(server: ApiServer, cluster: str) -> None:
    """Answer as to a user who may read the objects of namespaces, and no kinds of the cluster that are named."""
    server.fail(403, 10**6, path=rf"/({cluster})(/[^/]+)?$", message="that is forbidden")
    kinds = "pods|resourceclaims|resourceclaimtemplates"
    server.fail(403, 10**6, path=rf"/(v1|v1beta2|v1beta1)/({kinds})$", message="that is forbidden")
