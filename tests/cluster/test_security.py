"""How little the running driver may do: its process, its access to the API server, and slices of others."""

from __future__ import annotations

import ipaddress
import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from lab.errors import LabError

from dra_driver.kube.api.client import Transport
from dra_driver.kube.api.errors import ApiError
from tests.cluster.lib.installation import NAMESPACE, SERVICE_ACCOUNT, Installation
from tests.cluster.lib.kube import Kube, Object, eventually

MEGABYTE = 1 << 20
MAX_MEMORY = 60
"""Megabytes of resident memory at rest."""
USER = f"system:serviceaccount:{NAMESPACE}:{SERVICE_ACCOUNT}"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"


def status(driver: Installation, node: str) -> dict[str, str]:
    """The fields of /proc/1/status in the driver's container."""
    lines = driver.exec(node, "cat", "/proc/1/status").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


# The process


def test_the_driver_has_no_capability_cannot_gain_any_and_is_filtered(
    driver: Installation, nodes: Sequence[str]
) -> None:
    for node in nodes:
        found = status(driver, node)
        capabilities = {name: int(found[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}
        assert set(capabilities.values()) == {0}, capabilities
        assert (found["NoNewPrivs"], found["Seccomp"]) == ("1", "2")


def test_the_root_file_system_is_read_only_and_tmp_is_not(driver: Installation, nodes: Sequence[str]) -> None:
    for path in ("/file", "/opt/node/file", "/etc/file"):
        with pytest.raises(LabError, match="Read-only file system"):
            driver.exec(nodes[0], "sh", "-c", f"echo x > {path}")
    driver.exec(nodes[0], "sh", "-c", "echo x > /tmp/file && rm /tmp/file")


def test_of_the_host_only_the_directories_of_plugins_and_cdi_can_be_written(
    driver: Installation, nodes: Sequence[str]
) -> None:
    mounts = [line.split() for line in driver.exec(nodes[0], "cat", "/proc/1/mounts").splitlines()]
    writable = {fields[1] for fields in mounts if "rw" in fields[3].split(",")}
    # The container's own: kernel interfaces, the directory that holds the read-only control groups of version 1, and
    # files that the runtime wrote for it.
    own = {path for path in writable if path.startswith(("/proc", "/dev"))} | {
        "/sys/fs/cgroup",
        "/etc/hosts",
        "/etc/hostname",
        "/etc/resolv.conf",
    }
    assert writable - own == {
        "/var/lib/kubelet/plugins/neuron.aws.com",
        "/var/lib/kubelet/plugins_registry",
        "/run/cdi",
        "/tmp",
    }


def test_the_driver_is_in_the_pods_network_and_opens_one_port_on_its_address(
    driver: Installation, nodes: Sequence[str]
) -> None:
    for node in nodes:
        found = driver.pod(node)
        assert found["status"]["podIP"] != found["status"]["hostIP"]
        assert not [key for key in ("hostNetwork", "hostPID", "hostIPC") if found["spec"].get(key)]
        tables = driver.exec(node, "cat", "/proc/net/tcp", "/proc/net/tcp6")
        assert listening(tables) == {(found["status"]["podIP"], 51515)}


def listening(tables: str) -> set[tuple[str, int]]:
    """Addresses and ports of the listening sockets in /proc/net/tcp and tcp6."""
    return {_end(fields[1]) for fields in _sockets(tables, "0A")}


def connected(tables: str) -> set[int]:
    """Ports of others that have connections from here, by the same tables."""
    own = {port for _, port in listening(tables)}
    return {_end(fields[2])[1] for fields in _sockets(tables, "01") if _end(fields[1])[1] not in own}


def _sockets(tables: str, state: str) -> list[list[str]]:
    return [fields for line in tables.splitlines() if len(fields := line.split()) > 3 and fields[3] == state]


def _end(text: str) -> tuple[str, int]:
    """An address and its port."""
    address, port = text.split(":")
    words = [bytes.fromhex(address[start : start + 8])[::-1] for start in range(0, len(address), 8)]
    ip = ipaddress.ip_address(b"".join(words))
    mapped = getattr(ip, "ipv4_mapped", None)
    return str(mapped or ip), int(port, 16)


def test_nothing_privileged_is_asked_for(driver: Installation, nodes: Sequence[str]) -> None:
    spec = driver.pod(nodes[0])["spec"]
    (container,) = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "privileged": False,
        "readOnlyRootFilesystem": True,
    }
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


def test_resident_memory_at_rest_is_small(driver: Installation, nodes: Sequence[str], figures: list[str]) -> None:
    sizes = [int(status(driver, node)["VmRSS"].removesuffix(" kB")) * 1024 / MEGABYTE for node in nodes]
    figures.append("resident memory of the driver, MiB: " + ", ".join(f"{size:.1f}" for size in sizes))
    assert max(sizes) <= MAX_MEMORY


# What RBAC allows


def rules(kube: Kube, user: str) -> set[tuple[str, str, str, str]]:
    """All that a service account may do, as verb, API group, resource and name."""
    spec = {"namespace": "kube-system"}
    asked = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": spec}
    groups = [f"--as-group={group}" for group in ("system:serviceaccounts", "system:authenticated")]
    command = ("create", "--validate=false", "-o", "json", "-f", "-", f"--as={user}", *groups)
    review = kube.kubectl(*command, stdin=json.dumps(asked))
    return {
        (verb, group, resource, name)
        for rule in json.loads(review)["status"]["resourceRules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames") or [""]
    }


def test_the_service_account_may_do_exactly_what_the_driver_needs(driver: Installation) -> None:
    """Nothing about pods, secrets and config maps in any namespace; of claims, no write but to the status."""
    anybody = rules(driver.kube, "system:serviceaccount:default:default")
    needs = {
        ("", "nodes"): ("get", "list", "watch", "patch"),
        ("", "nodes/status"): ("patch",),
        ("resource.k8s.io", "resourceclaims"): ("get", "list"),
        ("resource.k8s.io", "resourceclaims/status"): ("patch",),
        ("resource.k8s.io", "resourceslices"): ("get", "list", "watch", "create", "update", "delete"),
    }
    expected = {(verb, group, resource, "") for (group, resource), verbs in needs.items() for verb in verbs}
    expected.add(("associated-node:patch", "resource.k8s.io", "resourceclaims/driver", "neuron.aws.com"))
    assert rules(driver.kube, USER) - anybody == expected


@pytest.mark.parametrize(
    ("verb", "what"),
    [
        ("get", "secrets"),
        ("create", "pods"),
        ("update", "nodes"),
        ("create", "nodes"),
        ("update", "nodes/status"),
        ("update", "resourceclaims"),
        ("update", "resourceclaims/status"),
        ("deletecollection", "resourceslices"),
        ("create", "serviceaccounts/token"),
    ],
)
def test_what_a_taken_over_driver_would_want_is_refused(driver: Installation, verb: str, what: str) -> None:
    answer = driver.kube.kubectl("auth", "can-i", verb, what, "--all-namespaces", f"--as={USER}", check=False)
    assert answer.strip() == "no"


# Whose slices it may write

ClientOf = Callable[[str], Transport]


@pytest.fixture
def client_with(driver: Installation, tmp_path: Path) -> ClientOf:
    """Make a client of the API server that has nothing but a token."""
    config = json.loads(driver.kube.kubectl("config", "view", "--raw", "--minify", "--flatten", "-o", "json"))

    def make(token: str) -> Transport:
        config["users"][0]["user"] = {"token": token}
        path = tmp_path / "kubeconfig"
        path.write_text(json.dumps(config))
        path.chmod(0o600)
        return Transport.from_kubeconfig(str(path))

    return make


@pytest.fixture
def driver_client(driver: Installation, nodes: Sequence[str], client_with: ClientOf) -> Transport:
    """The API server as the driver of the first node sees it: with that pod's own token."""
    return client_with(driver.exec(nodes[0], "cat", "/var/run/secrets/kubernetes.io/serviceaccount/token"))


def new_slice(node: str, *, pool: str = "", driver: str = "neuron.aws.com", **spec: object) -> Object:
    """A slice as the driver writes it, without devices; below the pool's generation, so that nobody would use it."""
    where = {} if "allNodes" in spec else {"nodeName": node}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"generateName": "test-"},
        "spec": {
            "driver": driver,
            "pool": {"name": pool or node, "generation": 0, "resourceSliceCount": 1},
            **where,
            **spec,
        },
    }


OWNER: Object = {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "x"}
HOLDS: tuple[Object, ...] = (
    {"finalizers": ["example.com/hold"]},
    {"labels": {"example.com/instance": "x"}},
    {"ownerReferences": [{**OWNER, "name": "node-2"}]},
    {"ownerReferences": [{**OWNER, "kind": "Namespace"}]},
    {"ownerReferences": [{**OWNER, "apiVersion": "example.com/v1"}]},
    {"ownerReferences": [{**OWNER, "blockOwnerDeletion": True}]},
)
"""Metadata that keeps a slice from being deleted, or something else, or makes it a part of another's."""


def denied(client: Transport, method: str, path: str, body: Object | None = None) -> str:
    """The text of a refusal with status 403."""
    with pytest.raises(ApiError) as caught:
        client.request(method, path, body=body)
    assert caught.value.status == 403, str(caught.value)
    return caught.value.message


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"node": "node-2"}, 'may write only ResourceSlices with spec.nodeName "node-1"'),
        ({"node": "node-1", "allNodes": True}, 'may write only ResourceSlices with spec.nodeName "node-1"'),
        ({"node": "node-1", "pool": "node-2"}, 'may write only to the pool "node-1"'),
        ({"node": "node-1", "pool": "node-10"}, 'may write only to the pool "node-1"'),
        ({"node": "node-1", "driver": "gpu.example.com"}, "only ResourceSlices of the driver neuron.aws.com"),
    ],
    ids=lambda value: " ".join(f"{key}={item}" for key, item in value.items()) if isinstance(value, dict) else "",
)
def test_a_driver_cannot_create_slices_of_others(
    lab: object, driver_client: Transport, change: dict[str, str], text: str
) -> None:
    assert text in denied(driver_client, "POST", SLICES, new_slice(**change))


@pytest.mark.kubernetes("1.37", "1.34")
def test_a_kubelet_writes_slices_of_this_driver_to_pools_of_its_node_only(
    driver: Installation, nodes: Sequence[str]
) -> None:
    """One in another pool would hide what that node offers, whatever is in it. kubelet itself only deletes them."""
    own, other = nodes[:2]

    def answer(asked: Object, user: str = f"system:node:{own}", group: str = "system:nodes") -> str:
        command = ("create", "--dry-run=server", "-f", "-", f"--as={user}", f"--as-group={group}")
        done = driver.kube.access.kubectl(*command, stdin=json.dumps(asked), check=False)
        return done.stdout + done.stderr

    for pool in (other, f"{own}0", f"{other}/{own}"):
        assert "only to the pool of its own name" in answer(new_slice(own, pool=pool))
    for asked in (new_slice(own), new_slice(own, pool=f"{own}/cores"), new_slice(own, pool="x", driver="example.com")):
        assert "created" in answer(asked)
    assert "created" in answer(new_slice(own, pool="x"), "admin", "system:masters")


@pytest.fixture
def neighbour(driver: Installation, nodes: Sequence[str], client_with: ClientOf) -> Iterator[Transport]:
    """The API server as another DRA driver on the first node sees it, whose rights on slices RBAC alone bounds."""
    kube, name = driver.kube, f"neighbour-{secrets.token_hex(3)}"
    kube.kubectl("create", "serviceaccount", name, "--namespace=default")
    rule = ("--verb=create,update,delete", "--resource=resourceslices.resource.k8s.io")
    kube.kubectl("create", "clusterrole", name, *rule)
    kube.kubectl("create", "clusterrolebinding", name, f"--clusterrole={name}", f"--serviceaccount=default:{name}")
    bound = ("--bound-object-kind=Node", f"--bound-object-name={nodes[0]}")
    try:
        yield client_with(kube.kubectl("create", "token", name, "--namespace=default", *bound).strip())
    finally:
        kube.kubectl("delete", f"clusterrolebinding/{name}", f"clusterrole/{name}")
        kube.kubectl("delete", "serviceaccount", name, "--namespace=default")


@pytest.mark.kubernetes("1.37", "1.34")
def test_the_token_of_another_driver_writes_no_slices_of_this_one_for_other_nodes(
    driver: Installation, neighbour: Transport, nodes: Sequence[str]
) -> None:
    """Whoever is root on a node has the tokens of all its pods."""
    own, other = nodes[:2]

    def create(asked: Object) -> None:
        neighbour.request("POST", SLICES, query=(("dryRun", "All"),), body=asked)

    assert "only to the pool of its own name" in denied(neighbour, "POST", SLICES, new_slice(own, pool=other))
    assert f'only with spec.nodeName "{own}"' in denied(neighbour, "POST", SLICES, new_slice(other))
    (theirs,) = driver.kube.slices(other)
    path = f"{SLICES}/{theirs['metadata']['name']}"
    fewer = theirs | {"spec": theirs["spec"] | {"devices": theirs["spec"]["devices"][:1]}}
    assert f'only with spec.nodeName "{own}"' in denied(neighbour, "PUT", path, fewer)
    newer = {"annotations": {"neuron.aws.com/published-by": "boot/99999999999/x"}}
    for metadata in (newer, {"labels": {"a": "b"}}, {"finalizers": ["example.com/x"]}, {"ownerReferences": [OWNER]}):
        changed = theirs | {"metadata": theirs["metadata"] | metadata}
        assert f'only with spec.nodeName "{own}"' in denied(neighbour, "PUT", path, changed)
    create(new_slice(own))
    create(new_slice(other, driver="example.com"))
    create(new_slice(own, pool="x", driver="example.com"))
    neighbour.request("PUT", path, query=(("dryRun", "All"),), body=theirs)  # as whoever migrates storage does


@pytest.mark.parametrize("metadata", HOLDS, ids=json.dumps)
def test_a_driver_gives_its_slices_nothing_that_holds_them_or_others(
    driver: Installation, driver_client: Transport, nodes: Sequence[str], metadata: Object
) -> None:
    """Not to new ones, and not to those there are."""
    asked = new_slice(nodes[0])
    text = 'no finalizer, no label and no owner but the Node "node-1"'
    assert text in denied(driver_client, "POST", SLICES, asked | {"metadata": asked["metadata"] | metadata})
    (own,) = driver.kube.slices(nodes[0])
    changed = own | {"metadata": own["metadata"] | metadata}
    assert text in denied(driver_client, "PUT", f"{SLICES}/{own['metadata']['name']}", changed)


def test_a_driver_annotates_its_slices_with_their_writer_only(
    driver: Installation, driver_client: Transport, nodes: Sequence[str]
) -> None:
    asked = new_slice(nodes[0])
    noted = asked["metadata"] | {"annotations": {"example.com/note": "x"}}
    text = "no annotation of a slice but neuron.aws.com/published-by"
    assert text in denied(driver_client, "POST", SLICES, asked | {"metadata": noted})


REPAIR_SECONDS = 60
"""Until the driver has put back what somebody has changed again and again: it waits up to 30 s then."""


def test_what_an_administrator_has_put_on_a_slice_hinders_no_driver(
    driver: Installation, driver_client: Transport, nodes: Sequence[str]
) -> None:
    """Finalizer, label and annotation stay, and a driver with such a slice still changes it, but takes none away."""
    kube, node = driver.kube, nodes[0]
    (own,) = kube.slices(node)
    path = f"{SLICES}/{own['metadata']['name']}"
    put = {"finalizers": ["example.com/hold"], "labels": {"example.com/a": "b"}, "annotations": {"example.com/c": "d"}}
    kube.kubectl("patch", "resourceslice", own["metadata"]["name"], "--type=merge", "-p", json.dumps({"metadata": put}))
    try:
        (own,) = kube.slices(node)
        fewer = own | {"spec": own["spec"] | {"devices": own["spec"]["devices"][:1]}}
        driver_client.request("PUT", path, body=fewer)

        def restored() -> bool:
            (found,) = kube.slices(node)
            return bool(found["spec"]["devices"] == own["spec"]["devices"])

        eventually("the devices to be back", restored, REPAIR_SECONDS)
        (now,) = kube.slices(node)
        assert (now["metadata"]["finalizers"], now["metadata"]["labels"]) == (put["finalizers"], put["labels"])
        without = now | {"metadata": now["metadata"] | {"finalizers": []}}
        assert "no finalizer" in denied(driver_client, "PUT", path, without)
    finally:
        taken = {"finalizers": None, "labels": None, "annotations": {"example.com/c": None}}
        kube.kubectl(
            "patch", "resourceslice", own["metadata"]["name"], "--type=merge", "-p", json.dumps({"metadata": taken})
        )


def test_a_driver_can_neither_change_nor_delete_the_slices_of_another_node(
    driver: Installation, driver_client: Transport, nodes: Sequence[str]
) -> None:
    (other,) = driver.kube.slices(nodes[1])
    path = f"{SLICES}/{other['metadata']['name']}"
    fewer = other | {"spec": other["spec"] | {"devices": other["spec"]["devices"][:1]}}
    for method, body in (("PUT", fewer), ("DELETE", None)):
        assert f'with spec.nodeName "{nodes[0]}"' in denied(driver_client, method, path, body)
    assert driver.kube.slices(nodes[1]) == [other]


def test_a_driver_can_create_change_and_delete_the_slices_of_its_own_node(
    driver: Installation, driver_client: Transport, nodes: Sequence[str]
) -> None:
    """And the driver that really runs there puts everything back."""
    kube, node = driver.kube, nodes[0]
    (before,) = kube.slices(node)

    def restored() -> bool:
        found = kube.slices(node)
        return len(found) == 1 and found[0]["spec"]["devices"] == before["spec"]["devices"]

    driver_client.request("POST", SLICES, body=new_slice(node))
    eventually("the foreign slice to be removed", restored, REPAIR_SECONDS)
    (own,) = kube.slices(node)
    fewer = own | {"spec": own["spec"] | {"devices": own["spec"]["devices"][:1]}}
    driver_client.request("PUT", f"{SLICES}/{own['metadata']['name']}", body=fewer)
    eventually("the devices to be back", restored, REPAIR_SECONDS)
    (own,) = kube.slices(node)
    driver_client.request("DELETE", f"{SLICES}/{own['metadata']['name']}")
    eventually("the slice to be back", restored, REPAIR_SECONDS)


def test_a_token_of_the_service_account_without_a_node_can_write_no_slices(
    driver: Installation, nodes: Sequence[str], client_with: ClientOf
) -> None:
    token = driver.kube.kubectl("--namespace", NAMESPACE, "create", "token", SERVICE_ACCOUNT).strip()
    (existing,) = driver.kube.slices(nodes[0])
    client = client_with(token)
    for method, path, body in (
        ("POST", SLICES, new_slice(nodes[0])),
        ("DELETE", f"{SLICES}/{existing['metadata']['name']}", None),
    ):
        assert "not bound to" in denied(client, method, path, body)


# What of Nodes it may write

MODE = "neuron.amazonaws.com/ultraserver-mode"
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"


def labels_of(driver: Installation, node: str) -> dict[str, str]:
    found = driver.kube.get("nodes", node)
    assert found is not None
    labels: dict[str, str] = found["metadata"]["labels"]
    return labels


def labelled(client: Transport, node: str, labels: dict[str, str]) -> Object:
    """Apply labels as the driver does; gives the Node as stored."""
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "labels": labels}}
    query = [("fieldManager", "test"), ("force", "true")]
    answer = client.request("PATCH", f"/api/v1/nodes/{node}", query=query, body=body, content_type=APPLY)
    stored: Object = json.loads(answer.body)
    return stored


def test_a_driver_can_set_and_remove_the_ultraserver_labels_of_its_own_node(
    driver: Installation, driver_client: Transport, nodes: Sequence[str]
) -> None:
    before = labels_of(driver, nodes[0])
    try:
        stored = labelled(driver_client, nodes[0], {MODE: "1_2_4"})
        assert stored["metadata"]["labels"] == before | {MODE: "1_2_4"}
    finally:
        stored = labelled(driver_client, nodes[0], {})
    assert stored["metadata"]["labels"] == before


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"labels": {"example.com/zone": "x"}}},
        {"metadata": {"labels": {"kubernetes.io/hostname": None}}},
        {"metadata": {"labels": {"kubernetes.io/hostname": "node-2"}}},
        {"metadata": {"labels": {"neuron.amazonaws.com/ultraserver-server-id-8": "x"}}},
        {"metadata": {"annotations": {"example.com/note": "x"}}},
        {"metadata": {"finalizers": ["example.com/hold"]}},
        {"metadata": {"ownerReferences": []}, "spec": {"unschedulable": True}},
        {"spec": {"taints": [{"key": "example.com/away", "effect": "NoExecute"}]}},
        {"metadata": {"labels": {MODE: "1"}}, "spec": {"unschedulable": True}},
    ],
    ids=json.dumps,
)
def test_a_driver_can_change_nothing_else_of_its_node(
    driver: Installation, driver_client: Transport, nodes: Sequence[str], change: Object
) -> None:
    with pytest.raises(ApiError) as caught:
        driver_client.request("PATCH", f"/api/v1/nodes/{nodes[0]}", body=change, content_type=MERGE)
    assert caught.value.status == 403
    assert "service account may" in caught.value.message


def test_a_driver_cannot_label_another_node(
    driver: Installation, driver_client: Transport, nodes: Sequence[str]
) -> None:
    before = labels_of(driver, nodes[1])
    with pytest.raises(ApiError, match="403") as caught:
        labelled(driver_client, nodes[1], {MODE: "1_2_4"})
    assert f'the Node "{nodes[0]}"' in caught.value.message
    assert labels_of(driver, nodes[1]) == before


def test_a_token_of_the_service_account_without_a_node_can_label_no_node(
    driver: Installation, nodes: Sequence[str], client_with: ClientOf
) -> None:
    token = driver.kube.kubectl("--namespace", NAMESPACE, "create", "token", SERVICE_ACCOUNT).strip()
    with pytest.raises(ApiError, match="not bound to"):
        labelled(client_with(token), nodes[0], {MODE: "1_2_4"})


# What of the Node's status it may write

PRESENT = "neuron.amazonaws.com/present"
HEALTH = "NeuronHealth"
KUBELET = "NeuronKubeletUnsupported"
PARTITIONS = "NeuronPartitionsInvalid"


def condition(type_: str = HEALTH, status: str = "False") -> Object:
    moment = "2026-01-01T00:00:00Z"
    times = {"lastHeartbeatTime": moment, "lastTransitionTime": moment}
    return {"type": type_, "status": status, "reason": "Test", "message": "a test", **times}


def stated(client: Transport, node: str, *conditions: Object) -> Object:
    """Apply conditions as the driver does; gives the Node as stored."""
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}, "status": {"conditions": list(conditions)}}
    query = [("fieldManager", "test"), ("force", "true")]
    answer = client.request("PATCH", f"/api/v1/nodes/{node}/status", query=query, body=body, content_type=APPLY)
    stored: Object = json.loads(answer.body)
    return stored


def types(node: Object) -> set[str]:
    return {item["type"] for item in node["status"]["conditions"]}


def test_the_running_driver_says_that_chips_are_there_and_how_they_are(
    driver: Installation, nodes: Sequence[str]
) -> None:
    for node in nodes:
        found = driver.kube.get("nodes", node)
        assert found is not None
        assert found["metadata"]["labels"][PRESENT] == "true"
        (health,) = [item for item in found["status"]["conditions"] if item["type"] == HEALTH]
        assert (health["status"], health["reason"]) == ("False", "NeuronHasNoError")


def test_a_driver_can_write_the_condition_of_its_own_node_and_the_others_stay(
    driver_client: Transport, nodes: Sequence[str]
) -> None:
    """And the driver that really runs there puts its own back."""
    stored = stated(driver_client, nodes[0], condition(status="Unknown"), condition(KUBELET))
    assert {HEALTH, KUBELET, "Ready", "DiskPressure"} <= types(stored)
    assert KUBELET not in types(stated(driver_client, nodes[0], condition(status="Unknown")))

    def restored() -> bool:
        answer = driver_client.request("GET", f"/api/v1/nodes/{nodes[0]}")
        (health,) = [item for item in json.loads(answer.body)["status"]["conditions"] if item["type"] == HEALTH]
        return bool(health["reason"] == "NeuronHasNoError")

    eventually("the condition to be true again", restored, 30)


@pytest.mark.parametrize("type_", ["Ready", "DiskPressure", "AcceleratedHardwareReady"])
def test_a_driver_can_write_no_other_condition(driver_client: Transport, nodes: Sequence[str], type_: str) -> None:
    with pytest.raises(ApiError, match="403") as caught:
        stated(driver_client, nodes[0], condition(type_))
    assert (
        f"{HEALTH}, {KUBELET}, NeuronDevicesHeldBack, NeuronDriverNotLoaded and NeuronPartitionsInvalid"
        in caught.value.message
    )


def test_the_running_driver_says_on_its_node_that_a_label_is_wrong_until_it_is_right(
    driver: Installation, nodes: Sequence[str]
) -> None:
    def message() -> str:
        found = driver.kube.get("nodes", nodes[0])
        assert found is not None
        return "".join(item["message"] for item in found["status"]["conditions"] if item["type"] == PARTITIONS)

    driver.kube.kubectl("label", "node", nodes[0], "neuron.aws.com/partitions=cores")
    try:
        assert "'cores' is not a valid value" in eventually("the condition", message, 30)
    finally:
        driver.kube.kubectl("label", "node", nodes[0], "neuron.aws.com/partitions-")
    eventually("the condition to go", lambda: not message(), 30)


def test_a_driver_cannot_write_the_condition_of_another_node(
    driver: Installation, driver_client: Transport, nodes: Sequence[str]
) -> None:
    with pytest.raises(ApiError, match="403") as caught:
        stated(driver_client, nodes[1], condition(status="True"))
    assert f'the Node "{nodes[0]}"' in caught.value.message


def test_a_token_of_the_service_account_without_a_node_can_write_no_condition(
    driver: Installation, nodes: Sequence[str], client_with: ClientOf
) -> None:
    token = driver.kube.kubectl("--namespace", NAMESPACE, "create", "token", SERVICE_ACCOUNT).strip()
    with pytest.raises(ApiError, match="not bound to"):
        stated(client_with(token), nodes[0], condition())


@pytest.mark.parametrize(
    "change",
    [
        {"status": {"capacity": {"cpu": "1000"}}},
        {"status": {"allocatable": {"neuron.example.com/chips": "16"}}},
        {"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}},
        {"status": {"nodeInfo": {"kubeletVersion": "v1.0.0"}}},
        {"status": {"images": [{"names": ["example.com/image"]}]}},
        {"status": {"conditions": []}},
        {"metadata": {"labels": {PRESENT: None}}},
        {"metadata": {"labels": {"example.com/zone": "x"}}},
        {"metadata": {"annotations": {"example.com/note": "x"}}},
    ],
    ids=json.dumps,
)
def test_a_driver_can_change_nothing_else_through_the_status(
    driver_client: Transport, nodes: Sequence[str], change: Object
) -> None:
    with pytest.raises(ApiError) as caught:
        driver_client.request("PATCH", f"/api/v1/nodes/{nodes[0]}/status", body=change, content_type=MERGE)
    assert caught.value.status == 403
    assert "service account may" in caught.value.message


def test_the_spec_cannot_be_changed_through_the_status(
    driver: Installation, driver_client: Transport, nodes: Sequence[str]
) -> None:
    """The API server ignores the attempt, so the policy sees none."""
    change = {"spec": {"unschedulable": True, "taints": [{"key": "example.com/away", "effect": "NoExecute"}]}}
    before = driver.kube.get("nodes", nodes[0])
    driver_client.request("PATCH", f"/api/v1/nodes/{nodes[0]}/status", body=change, content_type=MERGE)
    after = driver.kube.get("nodes", nodes[0])
    assert before is not None
    assert after is not None
    assert after["spec"] == before["spec"]


# Which Events it may write

REPORTS = "/api/v1/namespaces/default/events"


def report(node: str, *, component: str = "neuron-dra-driver", **fields: object) -> Object:
    """An Event as the driver writes it."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{node}.{secrets.token_hex(8)}", "namespace": "default"},
        "involvedObject": {"kind": "Node", "name": node},
        "reason": "Test",
        "message": "a test",
        "type": "Normal",
        "source": {"component": component, "host": node},
        "reportingComponent": component,
        "count": 1,
        **fields,
    }


def test_a_driver_can_report_on_its_own_node_and_count(driver_client: Transport, nodes: Sequence[str]) -> None:
    made = json.loads(driver_client.request("POST", REPORTS, body=report(nodes[0])).body)
    path = f"{REPORTS}/{made['metadata']['name']}"
    for change, count in (({"count": 2}, 2), ({}, 2)):
        answer = driver_client.request("PATCH", path, body=change, content_type=MERGE)
        assert json.loads(answer.body)["count"] == count
    assert "cannot delete" in denied(driver_client, "DELETE", path)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"involvedObject": {"kind": "Node", "name": "node-2"}}, 'may report only on the Node "node-1"'),
        (
            {"involvedObject": {"kind": "Pod", "name": "node-1", "namespace": "default"}},
            'may report only on the Node "node-1"',
        ),
        (
            {"related": {"kind": "Pod", "name": "other", "namespace": "default"}},
            'may report only on the Node "node-1"',
        ),
        ({"component": "kubelet"}, "only events of the component neuron-dra-driver"),
        ({"source": {"component": "kubelet"}}, "only events of the component neuron-dra-driver"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_a_driver_cannot_report_on_others_nor_as_another(
    lab: object, driver_client: Transport, fields: Object, text: str
) -> None:
    assert text in denied(driver_client, "POST", REPORTS, report("node-1", **fields))


@pytest.mark.parametrize(
    "metadata",
    [
        {"name": "node-2.0123456789abcdef"},
        {"name": "node-1.example.0123456789abcdef"},
        {"name": "node-10.0123456789abcdef"},
        {"name": "node-1.0123456789abcde"},
        {"name": "node-1.0123456789abcdef0"},
        {"name": "node-1.0123456789ABCDEF"},
        {"name": "node-1"},
        {"name": None, "generateName": "node-1."},
        {"name": None, "generateName": "node-2."},
        {"finalizers": ["example.com/hold"]},
        {"ownerReferences": [OWNER]},
    ],
    ids=json.dumps,
)
def test_a_driver_names_its_events_after_its_node_and_nothing_holds_them(
    lab: object, driver_client: Transport, metadata: Object
) -> None:
    asked = report("node-1")
    text = denied(driver_client, "POST", REPORTS, asked | {"metadata": asked["metadata"] | metadata})
    assert 'named "node-1." and 16 hexadecimal digits, without finalizers and owners' in text


def test_a_driver_cannot_change_what_others_reported_on_its_node(
    driver: Installation, driver_client: Transport, nodes: Sequence[str]
) -> None:
    text = json.dumps(report(nodes[0], component="kubelet"))
    name = driver.kube.kubectl("create", "-o", "name", "-f", "-", stdin=text).strip().rpartition("/")[2]
    for change in ({"message": "x"}, {"source": {"component": "neuron-dra-driver"}}):
        with pytest.raises(ApiError, match="403") as caught:
            driver_client.request("PATCH", f"{REPORTS}/{name}", body=change, content_type=MERGE)
        assert "component neuron-dra-driver" in caught.value.message


def test_a_driver_cannot_report_in_other_namespaces(driver_client: Transport, nodes: Sequence[str]) -> None:
    path = REPORTS.replace("default", "kube-system")
    body = report(nodes[0])
    body["metadata"]["namespace"] = "kube-system"
    assert "cannot create resource" in denied(driver_client, "POST", path, body)


@pytest.mark.kubernetes("1.33")
def test_the_policy_holds_for_the_older_api_versions_too(
    driver: Installation, driver_client: Transport, nodes: Sequence[str]
) -> None:
    asked = new_slice(nodes[1]) | {"apiVersion": "resource.k8s.io/v1beta1"}
    text = denied(driver_client, "POST", SLICES.replace("/v1/", "/v1beta1/"), asked)
    assert f'with spec.nodeName "{nodes[0]}"' in text
