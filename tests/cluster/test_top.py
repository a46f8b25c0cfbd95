"""``top``, ``health``, ``topology`` and ``report`` on a real cluster: a claim in use, and a chip that fails."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from lab.cluster import Cluster

from dra_driver.neuron.names import VIEWER_ROLE
from dra_driver.neuron.topology.partitions import device_name
from tests.cluster.lib.health import SEEN_SECONDS, SickHost, healthy_host, wait_taints
from tests.cluster.lib.installation import NAMESPACE, Installation
from tests.cluster.lib.kube import Kube, Object, eventually
from tests.cluster.lib.lifecycle import keep_emulated_host
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.objects import claim, pod, request

pytestmark = pytest.mark.nightly

NODE = "node-1"
SECRET = "hunter2-do-not-tell"
READER = VIEWER_ROLE


def run(kubeconfig: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dra_driver", *arguments, "--kubeconfig", str(kubeconfig)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert not check or done.returncode == 0, done.stderr
    return done


def shown(kubeconfig: Path, *arguments: str) -> Any:
    return json.loads(run(kubeconfig, *arguments, "-o", "json").stdout)


def files_of(path: Path) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(path.read_bytes())) as tar:
        content = {entry.name: tar.extractfile(entry) for entry in tar}
        return {name.partition("/")[2]: file.read().decode() for name, file in content.items() if file is not None}


@pytest.fixture
def host(lab: Cluster, installation: Installation) -> SickHost:
    """The emulated host of ``NODE``, healthy."""
    installation.vary("a host whose chips can fail", keep_emulated_host)
    return healthy_host(lab, installation, NODE)


def holder(name: str) -> Object:
    """A pod with a claim, and with secrets where pods have some."""
    found = pod(name, {"neurons": "four"}, node=NODE)
    found["metadata"]["annotations"] = {"example.com/note": SECRET}
    found["spec"]["containers"][0]["env"] = [{"name": "HF_TOKEN", "value": SECRET}]
    return found


def node_of(frame: Any, name: str = NODE) -> Any:
    return next(node for node in frame["items"] if node["node"] == name)


def test_a_claim_in_use_and_a_broken_chip_are_shown_and_reported(
    host: SickHost, lab: Cluster, kube: Kube, namespace: Namespace, tmp_path: Path, figures: list[str]
) -> None:
    index = "device.attributes['neuron.aws.com'].deviceId"
    namespace.apply(
        claim("four", request(count=4, selectors=[f"{index} >= 4 && {index} < 8"])),
        claim("many", request(count=16)),
        holder("train"),
        pod("greedy", {"neurons": "many"}, node=NODE),
    )
    namespace.wait_ready("train")
    host.fail("hbm-uncorrectable@3")
    wait_taints(kube, NODE, {device_name(3): {"hbm-uncorrectable": "NoSchedule"}}, SEEN_SECONDS)
    namespace.wait_event("greedy", "cannot allocate all claims", 60)

    frame = shown(lab.kubeconfig, "top", "-n", namespace.name)
    node, train = node_of(frame), {"namespace": namespace.name, "name": "train"}
    assert node["counts"] == {"total": 16, "free": 11, "allocated": 4, "sick": 1}
    assert [chip["holders"] for chip in node["chips"]][4:8] == [[{"pod": train, "claim": None}]] * 4
    assert node["chips"][3]["faults"][0]["code"] == "hbm-uncorrectable"
    (had,) = frame["holders"]
    assert (had["pod"], had["claim"]["name"], had["indexes"], had["status"]) == (train, "four", [4, 5, 6, 7], "Running")
    (waits,) = frame["pending"]
    assert (waits["pod"]["name"], waits["asks"]) == ("greedy", "16 x neuron.aws.com")
    assert "cannot allocate all claims" in waits["reason"]
    text = run(lab.kubeconfig, "top", "-n", namespace.name).stdout
    assert "...x####........" in text
    figures.append(f"top on {NODE}:\n{text}")

    sick = run(lab.kubeconfig, "health", "--node-name", NODE).stdout
    assert any(line.split()[1:4] == ["neuron3", "unhealthy", "hbm-uncorrectable"] for line in sick.splitlines())
    drawn = run(lab.kubeconfig, "topology", NODE, "--from-cluster").stdout
    assert f"{namespace.name}/four has neuron-device-4" in drawn
    assert "unhealthy device: 3" in drawn

    reported(lab.kubeconfig, namespace.name, tmp_path)
    as_a_reader(lab, kube, namespace, tmp_path)
    host.mend()
    wait_taints(kube, NODE, {}, 60)


def reported(kubeconfig: Path, namespace: str, directory: Path) -> None:
    """The archive has what a bug report needs, and no secret; with names redacted, no name."""
    run(kubeconfig, "report", "--archive", str(directory / "whole.tar.gz"))
    files = files_of(directory / "whole.tar.gz")
    whole = "\n".join([*files, *files.values()])
    assert SECRET not in whole
    assert "Nothing was left" in files["MANIFEST.txt"]
    claims = {item["metadata"]["name"]: item for item in json.loads(files["cluster/resourceclaims.json"])["items"]}
    assert len(claims["four"]["status"]["allocation"]["devices"]["results"]) == 4
    (node,) = [item for item in json.loads(files["cluster/nodes.json"])["items"] if item["metadata"]["name"] == NODE]
    conditions = {entry["type"]: entry for entry in node["status"]["conditions"]}
    assert conditions["NeuronHealth"]["message"] == "neuron3: hbm-uncorrectable"
    assert node["status"]["nodeInfo"]["kubeletVersion"].startswith("v1.")
    events = json.loads(files["cluster/events.json"])["items"]
    assert any(event["involvedObject"]["name"] == "greedy" for event in events)
    logs = [name for name in files if name.startswith(f"logs/{NAMESPACE}/")]
    assert len(logs) >= 2
    assert all(files[name].strip() for name in logs)

    run(kubeconfig, "report", "--redact-names", "--archive", str(directory / "redacted.tar.gz"))
    redacted = files_of(directory / "redacted.tar.gz")
    text = "\n".join([*redacted, *redacted.values()])
    assert [name for name in (namespace, NODE, '"train"', '"greedy"') if name in text] == []


def as_a_reader(lab: Cluster, kube: Kube, namespace: Namespace, directory: Path) -> None:
    """The ClusterRole that the installer brings is enough for all of it; with less, what is left out is told."""
    account: Object = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": READER}}
    binding: Object = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": READER},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": READER},
        "subjects": [{"kind": "ServiceAccount", "name": READER, "namespace": namespace.name}],
    }
    namespace.apply(account)
    kube.apply(binding)
    try:
        token = namespace.kubectl("create", "token", READER).strip()
        kubeconfig = directory / "reader"
        kubeconfig.write_text(reader(lab.kubeconfig, token))
        eventually("the rights", lambda: run(kubeconfig, "top", check=False).returncode == 0, 20)
        run(kubeconfig, "topology", NODE, "--from-cluster")
        run(kubeconfig, "report", "--archive", str(directory / "reader.tar.gz"))
        assert "Nothing was left" in files_of(directory / "reader.tar.gz")["MANIFEST.txt"]
        kube.kubectl("delete", "clusterrolebinding", READER)
        eventually("no rights", lambda: run(kubeconfig, "top", check=False).returncode == 2, 20)
        done = run(kubeconfig, "report", "--archive", str(directory / "none.tar.gz"))
        assert "pods is forbidden" in done.stderr
        assert "pods is forbidden" in files_of(directory / "none.tar.gz")["MANIFEST.txt"]
        with_rights_in_the_namespace(kubeconfig, namespace)
    finally:
        kube.kubectl("delete", "clusterrolebinding", READER, "--ignore-not-found")


def with_rights_in_the_namespace(kubeconfig: Path, namespace: Namespace) -> None:
    """Kubernetes' own ClusterRole ``view`` in one namespace is enough for its pods and claims."""
    namespace.apply(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": READER},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
            "subjects": [{"kind": "ServiceAccount", "name": READER, "namespace": namespace.name}],
        }
    )
    arguments = ("top", "-n", namespace.name, "-o", "json")
    eventually("rights in the namespace", lambda: run(kubeconfig, *arguments, check=False).returncode == 0, 20)
    done = run(kubeconfig, *arguments)
    found = json.loads(done.stdout)
    assert [(row["pod"]["name"], row["indexes"]) for row in found["holders"]] == [("train", [4, 5, 6, 7])]
    assert [row["pod"]["name"] for row in found["pending"]] == ["greedy"]
    assert (found["types"], found["items"]) == (None, [])
    assert "not list nodes" in done.stderr


def reader(admin: Path, token: str) -> str:
    """A kubeconfig for the same server with another user."""
    import yaml

    found = yaml.safe_load(admin.read_text())
    for user in found["users"]:
        user["user"] = {"token": token}
    return yaml.safe_dump(found)
