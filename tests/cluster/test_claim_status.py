"""What claims say of the devices that they got, and who may say it."""

from __future__ import annotations

import json
import re
import ssl
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from lab.cluster import Cluster
from lab.layout import SCHEDULER_PORT

from dra_driver.driver.claims.status_writer import MANAGER
from dra_driver.kube.api.client import Transport
from dra_driver.kube.api.errors import ApiError
from tests.cluster.lib.health import SEEN_SECONDS, SickHost
from tests.cluster.lib.installation import NAMESPACE, SERVICE_ACCOUNT, Installation
from tests.cluster.lib.kube import Kube, Object, eventually, steadily
from tests.cluster.lib.lifecycle import emulated_root
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.objects import DRIVER, claim, config, neuron_config, pod, request, template

pytestmark = [pytest.mark.nightly, pytest.mark.kubernetes("1.37", "1.36", "1.34")]

NODE, ELSEWHERE = "node-1", "node-2"
WITHIN = 10.0
OTHER = "nic.example.com"
RIGHT = "neuron-dra-driver-claim-status"
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
READY = {
    "type": "Ready",
    "status": "True",
    "reason": "Test",
    "message": "",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}


def entries(found: Object | None) -> list[Object]:
    devices: list[Object] = (found or {}).get("status", {}).get("devices", [])
    return devices


def condition(entry: Object, type_: str) -> tuple[str, str]:
    (found,) = [item for item in entry["conditions"] if item["type"] == type_]
    return found["status"], found["reason"]


def wait_condition(namespace: Namespace, name: str, type_: str, wanted: tuple[str, str], within: float) -> Object:
    def probe() -> Object | None:
        found = entries(namespace.claim(name))
        return found[0] if found and condition(found[0], type_) == wanted else None

    return eventually(f"claim {name} to say {type_} {wanted}", probe, within)


def test_each_pods_claim_says_which_chip_it_got_and_no_two_the_same(
    driver: Installation, namespace: Namespace, kube: Kube
) -> None:
    pods = [f"pod-{number}" for number in range(4)]
    namespace.apply(
        template("one", request(), configs=[config(neuron_config(1))]),
        *(pod(name, templates={"neurons": "one"}, node=NODE) for name in pods),
    )
    namespace.wait_ready(*pods)
    chips = []
    for name in pods:
        claim_name = namespace.claim_of(name)["metadata"]["name"]
        entry = wait_condition(namespace, claim_name, "Ready", ("True", "Prepared"), WITHIN)
        found = namespace.claim_of(name)
        (allocated,) = namespace.allocated(found)
        assert (entry["driver"], entry["pool"], entry["device"]) == (DRIVER, NODE, allocated.device)
        assert condition(entry, "Healthy") == ("True", "Healthy")
        (chip,) = entry["data"]["chips"]
        assert (chip["index"], chip["path"]) == (allocated.chip, "/dev/neuron0")
        assert chip["cores"] == list(range(8))
        assert entry["data"]["logicalCoreSize"] == 1
        assert [file.path for file in namespace.device_files(name)] == [chip["path"]]
        chips.append(chip["index"])
        assert MANAGER in {item["manager"] for item in found["metadata"]["managedFields"]}
    assert len(set(chips)) == len(pods)


def test_a_refused_claim_says_why(lenient_driver: Installation, namespace: Namespace) -> None:
    namespace.apply(
        claim("wrong", request(), configs=[config(neuron_config(7))]),
        pod("waiting", {"neurons": "wrong"}, node=NODE),
    )
    entry = wait_condition(namespace, "wrong", "Ready", ("False", "InvalidParameters"), 60)
    (ready,) = [item for item in entry["conditions"] if item["type"] == "Ready"]
    assert "logicalNeuronCore" in ready["message"]
    assert "data" not in entry
    assert namespace.phase("waiting") == "Pending"


def test_a_sick_chip_is_told_in_its_claim_until_it_is_well(
    driver: Installation, lab: Cluster, namespace: Namespace
) -> None:
    third = request(selectors=[f"device.attributes['{DRIVER}'].deviceId == 3"])
    namespace.apply(claim("third", third), pod("holder", {"neurons": "third"}, node=NODE))
    namespace.wait_ready("holder")
    wait_condition(namespace, "third", "Healthy", ("True", "Healthy"), WITHIN)
    host = SickHost(emulated_root(lab, driver, NODE))
    host.fail("sram-uncorrectable@3")
    try:
        entry = wait_condition(namespace, "third", "Healthy", ("False", "Unhealthy"), SEEN_SECONDS)
    finally:
        host.mend()
    assert condition(entry, "Ready") == ("True", "Prepared")
    assert entry["data"]["chips"][0]["index"] == 3
    wait_condition(namespace, "third", "Healthy", ("True", "Healthy"), 2 * SEEN_SECONDS)


def test_entries_go_with_the_allocation(driver: Installation, namespace: Namespace) -> None:
    namespace.apply(claim("kept", request()), pod("first", {"neurons": "kept"}, node=NODE))
    namespace.wait_ready("first")
    wait_condition(namespace, "kept", "Ready", ("True", "Prepared"), WITHIN)
    namespace.delete_pod("first")
    eventually("the entries to be gone", lambda: not entries(namespace.claim("kept")), 30)


def test_what_is_said_in_a_claim_wakes_no_pod_that_waits(
    driver: Installation, driver_client: Transport, namespace: Namespace, lab: Cluster
) -> None:
    """kube-scheduler looks at a pod again when its own claim changes, or chips become free; for nothing else here."""
    namespace.apply(claim("held", request()), pod("holder", {"neurons": "held"}, node=NODE))
    namespace.wait_ready("holder")
    wait_condition(namespace, "held", "Ready", ("True", "Prepared"), WITHIN)
    namespace.apply(claim("never", request(selectors=["false"])), pod("waiting", {"neurons": "never"}))
    before = _settled(lab)
    held = namespace.claim("held")
    assert held is not None
    (entry,) = entries(held)
    for number in range(20):
        _apply(driver_client, held, {**entry, "data": {"number": number}})
    steadily("the pod to be left alone", lambda: _looks(lab) == before, during=2)
    namespace.delete_pod("holder")
    eventually("it to be looked at again", lambda: _looks(lab)[0] > before[0], 30)


def _looks(lab: Cluster) -> tuple[float, float]:
    """How often kube-scheduler found no node for a pod, and had one look again because of a claim, by its metrics."""
    context = ssl.create_default_context(cafile=None)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it made its certificate itself
    context.load_cert_chain(lab.layout.pki / "admin.crt", lab.layout.pki / "admin.key")
    with urllib.request.urlopen(f"https://127.0.0.1:{SCHEDULER_PORT}/metrics", context=context) as answer:
        found = answer.read().decode()
    of = (r"schedule_attempts_total\{.*result=\"unschedulable\"", r"queue_incoming_pods_total\{event=\"ResourceClaim")
    tried, woken = (sum(map(float, re.findall(rf"(?m)^scheduler_{what}.*\}} (\S+)$", found))) for what in of)
    return tried, woken


def _settled(lab: Cluster) -> tuple[float, float]:
    """The same once the scheduler has come to rest."""
    seen = [(0.0, 0.0)]

    def at_rest() -> bool:
        seen.append(_looks(lab))
        return seen[-1][0] > 0 and len(seen) > 6 and len(set(seen[-6:])) == 1

    eventually("the scheduler to come to rest", at_rest, 40, every=0.5)
    return seen[-1]


# Who may write them


@pytest.fixture
def driver_client(driver: Installation, tmp_path: Path) -> Transport:
    """The API server as the driver of ``NODE`` sees it."""
    return _client(driver, tmp_path, driver.exec(NODE, "cat", "/var/run/secrets/kubernetes.io/serviceaccount/token"))


def _client(driver: Installation, directory: Path, token: str) -> Transport:
    config = json.loads(driver.kube.kubectl("config", "view", "--raw", "--minify", "--flatten", "-o", "json"))
    config["users"][0]["user"] = {"token": token}
    path = directory / "kubeconfig"
    path.write_text(json.dumps(config))
    path.chmod(0o600)
    return Transport.from_kubeconfig(str(path))


def _allocated(namespace: Namespace, name: str, node: str) -> Object:
    """A claim with a device of each of two drivers on a node; nobody uses it."""
    namespace.apply(claim(name, request("chip"), request("nic")))
    results = [
        {"request": "chip", "driver": DRIVER, "pool": node, "device": "neuron-device-99"},
        {"request": "nic", "driver": OTHER, "pool": node, "device": "nic-0"},
    ]
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    allocation = {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": [term]}}
    change = json.dumps({"status": {"allocation": allocation}})
    namespace.kubectl("patch", "resourceclaim", name, "--subresource=status", "--type=merge", "-p", change)
    found = namespace.claim(name)
    assert found is not None
    return found


def _entry(driver: str, node: str, device: str) -> Object:
    return {"driver": driver, "pool": node, "device": device, "conditions": [READY]}


def _apply(client: Transport, to: Object, *devices: Object) -> None:
    meta = to["metadata"]
    path = f"/apis/resource.k8s.io/v1/namespaces/{meta['namespace']}/resourceclaims/{meta['name']}/status"
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": meta["name"], "uid": meta["uid"]},
        "status": {"devices": list(devices)},
    }
    query = [("fieldManager", "test"), ("force", "true")]
    client.request("PATCH", path, query=query, body=body, content_type=APPLY)


def _merge(client: Transport, to: Object, change: Object, subresource: str = "/status") -> None:
    meta = to["metadata"]
    path = f"/apis/resource.k8s.io/v1/namespaces/{meta['namespace']}/resourceclaims/{meta['name']}{subresource}"
    client.request("PATCH", path, body=change, content_type=MERGE)


def _refused(write: Callable[[], None]) -> None:
    """By RBAC or a policy (403), or by the API server's own check of entries (422, from Kubernetes 1.36 on)."""
    with pytest.raises(ApiError) as caught:
        write()
    assert caught.value.status in (403, 422), str(caught.value)
    assert re.search("(?i)forbidden|denied", caught.value.message), str(caught.value)


def test_a_driver_writes_and_removes_entries_of_its_own_devices(
    driver_client: Transport, namespace: Namespace, lab: object
) -> None:
    own = _allocated(namespace, "own", NODE)
    _apply(driver_client, own, _entry(DRIVER, NODE, "neuron-device-99"))
    assert [entry["driver"] for entry in entries(namespace.claim("own"))] == [DRIVER]
    _apply(driver_client, own)
    assert not entries(namespace.claim("own"))


def test_a_driver_writes_nothing_else_of_a_claim(driver_client: Transport, namespace: Namespace, lab: object) -> None:
    own, foreign = _allocated(namespace, "own", NODE), _allocated(namespace, "foreign", ELSEWHERE)
    user = {"resource": "pods", "name": "x", "uid": "x"}

    _refused(lambda: _apply(driver_client, own, _entry(OTHER, NODE, "nic-0")))
    _refused(lambda: _apply(driver_client, foreign, _entry(DRIVER, ELSEWHERE, "neuron-device-99")))
    _refused(lambda: _apply(driver_client, foreign))
    _refused(lambda: _merge(driver_client, own, {"status": {"allocation": None}}))
    _refused(lambda: _merge(driver_client, own, {"status": {"reservedFor": [user]}}))
    _refused(lambda: _merge(driver_client, own, {"metadata": {"labels": {"a": "b"}}}, ""))
    assert namespace.claim("own") == own
    assert namespace.claim("foreign") == foreign


def test_a_token_without_a_node_writes_no_claim(
    driver: Installation, namespace: Namespace, tmp_path: Path, lab: object, nodes: Sequence[str]
) -> None:
    token = driver.kube.kubectl("--namespace", NAMESPACE, "create", "token", SERVICE_ACCOUNT).strip()
    own = _allocated(namespace, "own", nodes[0])
    client = _client(driver, tmp_path, token)
    _refused(lambda: _apply(client, own, _entry(DRIVER, NODE, "neuron-device-99")))


def test_without_the_right_pods_run_and_their_claims_say_it_as_soon_as_it_is_given(
    driver: Installation, namespace: Namespace, kube: Kube, lab: object
) -> None:
    binding = kube.get("clusterrolebindings", RIGHT)
    assert binding is not None
    text = "status.devices cannot be written"
    told = driver.logs(NODE).count(text)
    kube.delete("clusterrolebindings", RIGHT)
    try:
        namespace.apply(claim("silent", request()), pod("holder", {"neurons": "silent"}, node=NODE))
        namespace.wait_ready("holder")
        eventually("the log to say so", lambda: driver.logs(NODE).count(text) == told + 1, 30)
        assert not entries(namespace.claim("silent"))
    finally:
        kept = {
            key: binding["metadata"][key] for key in ("name", "labels", "annotations") if key in binding["metadata"]
        }
        kube.create("clusterrolebindings", {**binding, "metadata": kept})
    wait_condition(namespace, "silent", "Ready", ("True", "Prepared"), 150)


def test_the_api_server_finds_no_fault_with_the_policy(driver: Installation, kube: Kube, lab: object) -> None:
    def checked() -> Object | None:
        found = kube.get("validatingadmissionpolicies", "neuron-dra-driver-own-claims")
        return found if found and "typeChecking" in found.get("status", {}) else None

    found = eventually("the policy to be checked", checked, 30)
    assert not found["status"]["typeChecking"].get("expressionWarnings")
