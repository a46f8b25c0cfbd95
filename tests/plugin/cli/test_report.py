"""``dra-driver report`` against an API server and an emulated host: what is in the archive, and what never is."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dra_driver.cli.main import main
from dra_driver.driver.claims import files
from dra_driver.driver.claims.model import CheckpointEntry, ChipNode, Plan, PlannedDevice
from dra_driver.neuron.health import memory
from dra_driver.neuron.health.assess import ChipMemory, HealthMemory, Track
from dra_driver.operations.report.cluster import NAMESPACE_BYTES, NODE_BYTES
from tests.builders.claims import uid
from tests.builders.overview import REGISTERS, add_holder, add_neuron_node, add_waiting, taint
from tests.doubles.apiserver.crowd import NUMBER, Crowd
from tests.doubles.apiserver.server import ApiServer
from tests.doubles.apiserver.store import Object
from tests.golden import golden

pytestmark = pytest.mark.slow

SECRET = "hunter2-do-not-tell"
OWN = "neuron-dra-driver"
APP = "neuron-dra-driver-kubelet-plugin"
OWNER = {"kind": "DaemonSet", "name": APP, "controller": True, "apiVersion": "apps/v1", "uid": "d"}
SELECTOR = {"nodeSelectorTerms": [{"matchExpressions": [{"key": SECRET, "operator": "In", "values": [SECRET]}]}]}
HELM = {"meta.helm.sh/release-name": "neuron", "meta.helm.sh/release-namespace": "kube-system"}
SPREAD: Object = {"maxSkew": 1, "topologyKey": SECRET, "whenUnsatisfiable": "DoNotSchedule"}
POLICY = "# by SECRET\nprepare: refuse\n---\n".replace("SECRET", SECRET)
"""The driver takes an empty document for none."""


def spoil(item: Object) -> Object:
    """The object with a secret wherever objects have fields of their own."""
    meta = item["metadata"]
    meta["annotations"] = {**meta.get("annotations", {}), "example.com/note": SECRET, "a": SECRET}
    meta["labels"] = {**meta.get("labels", {}), "example.com/label": SECRET}
    meta["managedFields"] = [{"manager": SECRET, "fieldsV1": {SECRET: {}}}]
    meta["selfLink"] = meta["generateName"] = SECRET
    item["status"] = {**item.get("status", {}), "example": SECRET}
    item["example"] = SECRET
    return item


def container(**more: object) -> Object:
    return {
        "name": "main",
        "image": f"registry.example/{SECRET}:1",
        "command": ["sh", "-c", f"TOKEN={SECRET} run"],
        "args": [f"--password={SECRET}"],
        "env": [{"name": "HF_TOKEN", "value": SECRET}, {"name": SECRET, "value": "x"}],
        "envFrom": [{"secretRef": {"name": SECRET}}],
        "volumeMounts": [{"name": SECRET, "mountPath": f"/{SECRET}"}],
        "livenessProbe": {"httpGet": {"path": f"/?token={SECRET}"}},
        "lifecycle": {"preStop": {"exec": {"command": [SECRET]}}},
        **more,
    }


def spoil_stored(server: ApiServer) -> None:
    """Plant the secret in all that is stored."""
    kinds = ("nodes", "resourceslices", "resourceclaims", "pods", "deviceclasses", "resourceclaimtemplates")
    for kind in (*kinds, "devicetaintrules"):
        for item in server.store.list(kind)[0]:
            meta = item["metadata"]
            key = f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else meta["name"]
            server.store.update(kind, key, spoil(item))
    node = server.store.get("nodes", "node-1")
    node["spec"] |= {"providerID": SECRET, "taints": [{"key": "team", "value": SECRET, "effect": "NoSchedule"}]}
    node["status"]["addresses"] = [{"type": "Hostname", "address": SECRET}]
    node["status"]["images"] = [{"names": [SECRET]}]
    node["status"]["conditions"] += [
        {"type": "Other", "status": "True", "reason": "R", "message": SECRET},
        {"type": "NeuronHealth", "status": "True", "reason": "NeuronHealth", "message": SECRET},
    ]
    server.store.update("nodes", "node-1", node)
    pod = server.store.get("pods", "ml/train-0")
    pod["metadata"]["annotations"] |= {"AWS_NEURON_IDS": SECRET, "neuron.aws.com/allocation": json.dumps({"x": SECRET})}
    pod["spec"] |= {
        "containers": [container()],
        "initContainers": [container(name="init")],
        "volumes": [{"name": "v", "secret": {"secretName": SECRET}}],
        "imagePullSecrets": [{"name": SECRET}],
        "hostname": SECRET,
        "tolerations": [{"key": "team", "value": SECRET}],
        "nodeSelector": {"team": SECRET},
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": SELECTOR}},
        "topologySpreadConstraints": [
            {**SPREAD, "topologyKey": SECRET, "labelSelector": {"matchLabels": {"t": SECRET}}}
        ],
    }
    pod["status"]["message"] = SECRET
    pod["status"]["containerStatuses"] = [
        {"name": "main", "image": SECRET, "state": {"waiting": {"reason": "X", "message": SECRET}}}
    ]
    server.store.update("pods", "ml/train-0", pod)
    claim = server.store.get("resourceclaims", "ml/train-0-neurons")
    own = {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig", "logicalNeuronCore": SECRET, "other": SECRET}
    claim["status"]["allocation"]["devices"]["config"] = [
        {"source": "FromClaim", "opaque": {"driver": "neuron.aws.com", "parameters": {**own, SECRET: 1}}},
        {"source": "FromClaim", "opaque": {"driver": "gpu.example.com", "parameters": {"key": SECRET}}},
    ]
    claim["status"]["allocation"]["nodeSelector"] = SELECTOR
    data = {"chips": [{"index": 4, "path": "/dev/neuron0", "cores": [0, SECRET], SECRET: SECRET}], "x": SECRET}
    devices = [
        {"driver": "neuron.aws.com", "pool": "node-1", "device": "neuron-device-4", "conditions": [REFUSED]},
        {"driver": "gpu.example.com", "pool": "p", "device": "d", "conditions": [{**REFUSED, "message": SECRET}]},
    ]
    claim["status"]["devices"] = [{**entry, "data": data} for entry in devices]
    server.store.update("resourceclaims", "ml/train-0-neurons", claim)
    for kind, name in (("secrets", "s"), ("configmaps", "settings")):
        server.store.create(kind, {"metadata": {"namespace": "ml", "name": name}, "data": {"k": SECRET}})


@pytest.fixture
def server() -> Iterator[ApiServer]:
    """A node with a broken chip, its driver, a pod with a claim, one that waits; and secrets in all of it."""
    with ApiServer() as made:
        add_neuron_node(made, "node-1", taints={"neuron-device-3": [taint("hbm-uncorrectable")]})
        expression = {"cel": {"expression": "device.driver == 'neuron.aws.com'"}}
        made.store.create(
            "deviceclasses", {"metadata": {"name": "neuron.aws.com"}, "spec": {"selectors": [expression]}}
        )
        made.store.create("deviceclasses", {"metadata": {"name": f"gpu-{SECRET}"}, "spec": {}})
        add_holder(made, "ml", "train-0", "node-1", ["neuron-device-4"])
        add_waiting(made, "ml", "big-1", "0/1 nodes are available: 1 cannot allocate all claims.")
        template = {"spec": made.store.get("resourceclaims", "ml/big-1-neurons")["spec"]}
        made.store.create("resourceclaimtemplates", {"metadata": {"namespace": "ml", "name": "t"}, "spec": template})
        made.store.create("pods", {"metadata": {"namespace": "ml", "name": SECRET}, "spec": {}, "status": {}})
        for name, driver in (("repair", "neuron.aws.com"), (f"gpu-{SECRET}", "gpu.example.com")):
            rule = {"deviceSelector": {"driver": driver}, "taint": {"key": "example.com/repair", "effect": "None"}}
            made.store.create("devicetaintrules", {"metadata": {"name": name}, "spec": rule})
        spoil_stored(made)
        labels = {"app": APP}
        env = [
            {"name": "PARTITIONS", "value": "chip.core"},
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "PROXY_PASSWORD", "value": SECRET},
            {"name": "FROM_SECRET", "valueFrom": {"secretKeyRef": {"name": SECRET, "key": "k"}}},
        ]
        own = {
            "name": "plugin",
            "image": "driver:1",
            "args": ["kubelet-plugin", "--v=6", f"--other={SECRET}", SECRET],
            "env": env,
        }
        spec = {"containers": [own], "volumes": [REGISTERS]}
        made.store.create(
            "daemonsets",
            spoil(
                {
                    "metadata": {"namespace": OWN, "name": APP, "labels": labels, "annotations": HELM},
                    "spec": {"template": {"spec": spec}},
                }
            ),
        )
        made.store.create(
            "pods",
            spoil(
                {
                    "metadata": {"namespace": OWN, "name": f"{APP}-x1", "labels": labels, "ownerReferences": [OWNER]},
                    "spec": {"nodeName": "node-1", **spec},
                    "status": {
                        "phase": "Running",
                        "containerStatuses": [{"name": "plugin", "ready": True, "restartCount": 1}],
                    },
                }
            ),
        )
        logs = {
            "plugin": f"prepared claim ml/train-0-neurons on node-1\nAuthorization: Bearer {SECRET}\n",
            "plugin.previous": "ended\n",
        }
        made.store.create("logs", {"metadata": {"namespace": OWN, "name": f"{APP}-x1"}, "data": logs})
        made.store.create("logs", {"metadata": {"namespace": "ml", "name": "train-0"}, "data": {"main": SECRET}})
        policy = {"metadata": {"namespace": OWN, "name": "neuron-dra-driver-health-policy"}}
        made.store.create("configmaps", {**policy, "data": {"health-policy.yaml": POLICY, "other": SECRET}})
        for name, about, reason, message in (
            ("e1", "big-1", "FailedScheduling", "0/1 nodes are available: 1 cannot allocate all claims."),
            ("e2", "train-0", "Failed", f"Failed to pull image {SECRET}"),
            ("e3", "somebody", "FailedScheduling", SECRET),
        ):
            subject = {"kind": "Pod", "namespace": "ml", "name": about}
            event = {"involvedObject": subject, "reason": reason, "message": message}
            made.store.create("events", {"metadata": {"namespace": "ml", "name": name}, **event})
        yield made


Files = dict[str, str]


def files_of(data: bytes) -> Files:
    found = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for entry in tar:
            content = tar.extractfile(entry)
            assert content is not None
            found[entry.name.removeprefix("dra-driver-report/")] = content.read().decode()
    return found


REFUSED = {"type": "Ready", "status": "False", "reason": "NotPrepared", "message": "the disk is full"}


def report(server: ApiServer, directory: Path, *arguments: str) -> Files:
    target = directory / "report.tar.gz"
    kubeconfig = str(server.kubeconfig(directory / "kubeconfig"))
    assert main(["report", "--kubeconfig", kubeconfig, "--archive", str(target), *arguments]) == 0
    assert target.stat().st_mode & 0o777 == 0o600
    return files_of(target.read_bytes())


def items(files: Files, name: str) -> list[Any]:
    found: list[Any] = json.loads(files[f"cluster/{name}.json"])["items"]
    return found


def test_a_secret_that_is_planted_everywhere_is_in_no_file_and_no_name(server: ApiServer, tmp_path: Path) -> None:
    files = report(server, tmp_path)
    assert [name for name in files if SECRET in name] == []
    assert {name: text for name, text in files.items() if SECRET in text} == {}


@pytest.mark.parametrize("name", ["../../../../tmp/owned", "/etc/cron.d/owned", "a/../b", "\x1b[2J", "..", ""])
def test_a_kubelet_names_no_file_of_the_archive(
    server: ApiServer, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for pod in server.store.list("pods")[0]:
        if pod["metadata"]["namespace"] == OWN:
            pod["status"]["containerStatuses"] = [{"name": name, "ready": False, "restartCount": 1}]
            server.store.update("pods", f"{OWN}/{pod['metadata']['name']}", pod)
    files = report(server, tmp_path)
    assert [file for file in files if file.startswith("logs/") or ".." in file] == []
    assert f"a log of {OWN}/" in files["MANIFEST.txt"]
    assert all(line.isprintable() for line in capsys.readouterr().err.split("\n"))


def test_what_a_bug_report_needs_is_there(server: ApiServer, tmp_path: Path) -> None:
    files = report(server, tmp_path)
    log = f"logs/{OWN}/{APP}-x1/plugin"
    assert sorted(files) == [
        "MANIFEST.txt",
        *(f"cluster/{kind}.json" for kind in ("daemonsets", "deployments", "deviceclasses", "devicetaintrules")),
        *(f"cluster/{name}" for name in ("events.json", "explain.txt", "health.txt", "nodes.json", "pods.json")),
        f"cluster/policies/{OWN}/neuron-dra-driver-health-policy.json",
        *(f"cluster/{kind}.json" for kind in ("resourceclaims", "resourceclaimtemplates", "resourceslices")),
        "cluster/top.txt",
        "cluster/version.json",
        f"{log}.log",
        f"{log}.previous.log",
    ]
    (rule,) = items(files, "devicetaintrules")
    assert (rule["metadata"]["name"], rule["spec"]["taint"]["key"]) == ("repair", "example.com/repair")
    (node,) = items(files, "nodes")
    assert node["status"]["nodeInfo"] == {"kubeletVersion": "v1.37.1"}
    devices = {device["name"]: device for item in items(files, "resourceslices") for device in item["spec"]["devices"]}
    assert devices["neuron-device-3"]["taints"][0]["key"] == "health.neuron.aws.com/hbm-uncorrectable"
    assert devices["neuron-device-3"]["attributes"]["instanceType"] == {"string": "trn2.48xlarge"}
    claims = {claim["metadata"]["name"]: claim for claim in items(files, "resourceclaims")}
    assert claims["train-0-neurons"]["status"]["reservedFor"][0]["name"] == "train-0"
    own, other = claims["train-0-neurons"]["status"]["allocation"]["devices"]["config"]
    assert own["opaque"]["parameters"] == {
        "apiVersion": "neuron.aws.com/v1",
        "kind": "NeuronConfig",
        "logicalNeuronCore": "(withheld)",
        "otherFields": 2,
    }
    assert other["opaque"] == {"driver": "gpu.example.com"}
    own, other = claims["train-0-neurons"]["status"]["devices"]
    assert own["conditions"] == [REFUSED]
    assert own["data"] == {"chips": [{"index": 4, "path": "/dev/neuron0", "cores": [0]}]}
    assert (other["conditions"][0]["reason"], "data" in other) == ("NotPrepared", False)
    assert "message" not in other["conditions"][0]
    assert {pod["metadata"]["name"] for pod in items(files, "pods")} == {"train-0", "big-1", f"{APP}-x1"}
    (event,) = items(files, "events")
    golden(event["message"])
    (daemonset,) = items(files, "daemonsets")
    (container_,) = daemonset["spec"]["template"]["spec"]["containers"]
    assert container_["env"] == [
        {"name": "PARTITIONS", "value": "chip.core"},
        {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "PROXY_PASSWORD", "value": "(withheld)"},
        {"name": "FROM_SECRET", "value": "(withheld)"},
    ]
    assert container_["args"] == ["kubelet-plugin", "--v=6", "(withheld)", "(withheld)"]
    assert json.loads(files[f"cluster/policies/{OWN}/neuron-dra-driver-health-policy.json"]) == {"prepare": "refuse"}
    assert "prepared claim ml/train-0-neurons" in files[f"{log}.log"]
    for command in ("top", "health", "explain"):
        golden(files[f"cluster/{command}.txt"].replace(server.url, "SERVER"))
    assert "helm get values neuron -n kube-system" in files["MANIFEST.txt"]


def test_the_manifest_names_every_file_and_why_it_is_there(server: ApiServer, tmp_path: Path) -> None:
    files = report(server, tmp_path)
    for name in files.keys() - {"MANIFEST.txt"}:
        assert f"  {name} (" in files["MANIFEST.txt"]
    golden(files["MANIFEST.txt"])


def test_redacted_names_are_nowhere_and_the_same_everywhere(server: ApiServer, tmp_path: Path) -> None:
    files = report(server, tmp_path, "--redact-names")
    whole = "\n".join([*files, *files.values()])
    for name in ('node-1"', "train-0", "big-1", '"ml"', "ml/"):
        assert name not in whole
    claims = {claim["metadata"]["name"]: claim for claim in items(files, "resourceclaims")}
    (held,) = [claim for claim in claims.values() if claim["status"].get("reservedFor")]
    user, namespace = held["status"]["reservedFor"][0]["name"], held["metadata"]["namespace"]
    pods = {pod["metadata"]["name"] for pod in items(files, "pods") if pod["metadata"]["namespace"] == namespace}
    assert user in pods
    (log,) = [text for name, text in files.items() if name.endswith("plugin.log")]
    node = items(files, "nodes")[0]["metadata"]["name"]
    assert f"prepared claim {namespace}/{held['metadata']['name']} on {node}" in log
    assert items(files, "resourceslices")[0]["spec"]["nodeName"] == node


@pytest.mark.parametrize("kind", ["events", "nodes", "daemonsets", "configmaps", "log", "resourceclaims"])
def test_what_may_not_be_read_is_told_and_the_rest_is_collected(
    kind: str, server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.fail(403, 100, path=rf"/{kind}(/|$)", message=f"{kind} is forbidden: you may not")
    files = report(server, tmp_path)
    assert "you may not" in files["MANIFEST.txt"]
    golden(capsys.readouterr().err)
    assert items(files, "resourceslices")


def test_a_huge_log_keeps_its_newest_lines(server: ApiServer, tmp_path: Path) -> None:
    stored = server.store.get("logs", f"{OWN}/{APP}-x1")
    stored["data"]["plugin"] = "".join(f"{number} {'x' * 990}\n" for number in range(4000))
    server.store.update("logs", f"{OWN}/{APP}-x1", stored)
    log = report(server, tmp_path)[f"logs/{OWN}/{APP}-x1/plugin.log"]
    assert len(log) < 1.1 * (1 << 20)
    first, second, *_, last = log.splitlines()
    assert "were cut off" in first
    assert (len(second), last.split()[0]) == (995, "3999")


def test_a_log_that_somebody_looks_at_drives_no_terminal(server: ApiServer, tmp_path: Path) -> None:
    stored = server.store.get("logs", f"{OWN}/{APP}-x1")
    stored["data"]["plugin"] = "first\n\tsecond \x1b]0;owned\x07\x9b2J\u202e\r\n" + "\x1b" * (2 << 20)
    server.store.update("logs", f"{OWN}/{APP}-x1", stored)
    log = report(server, tmp_path)[f"logs/{OWN}/{APP}-x1/plugin.log"]
    assert all(line.replace("\t", "").isprintable() for line in log.split("\n"))
    assert len(log) < 1.1 * (1 << 20)


@pytest.mark.parametrize("containers", [1, 8])
def test_pods_that_pose_as_the_driver_leave_its_logs_in_the_report(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, containers: int
) -> None:
    monkeypatch.setattr("dra_driver.operations.report.cluster.MAX_LOGS", 4)
    names = [f"c{place}" for place in range(containers)]
    for place in range(8):
        name = f"tenant-{place}"
        labels = {"app": "neuron-scheduler"}
        statuses = [{"name": name, "ready": False, "restartCount": 1} for name in names]
        server.store.create(
            "pods",
            {
                "metadata": {"namespace": "a", "name": name, "labels": labels, "ownerReferences": [OWNER]},
                "spec": {"nodeName": "node-1"},
                "status": {"phase": "Running", "containerStatuses": statuses},
            },
        )
        logs = {f"{container}{run}": "nonsense\n" for container in names for run in ("", ".previous")}
        server.store.create("logs", {"metadata": {"namespace": "a", "name": name}, "data": logs})
    files = report(server, tmp_path)
    logs_of = [name.split("/")[1] for name in files if name.startswith("logs/")]
    assert sorted(logs_of) == ["a", "a", OWN, OWN]
    assert "logs of a/tenant-" in files["MANIFEST.txt"]


def test_named_nodes_narrow_it(server: ApiServer, tmp_path: Path) -> None:
    add_neuron_node(server, "node-2")
    add_holder(server, "ml", "elsewhere", "node-2", ["neuron-device-4"])
    files = report(server, tmp_path, "--node-name", "node-2")
    assert {item["spec"]["nodeName"] for item in items(files, "resourceslices")} == {"node-2"}
    assert not any(name.startswith("logs/") for name in files)
    assert {pod["metadata"]["name"] for pod in items(files, "pods")} == {"elsewhere", "big-1"}


def test_of_many_waiting_pods_the_first_fifty_are_explained_and_the_manifest_says_so(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(50):  # and big-1, that waits already
        add_waiting(server, "ml", f"small-{number:02}", "0/1 nodes are available: 1 cannot allocate all claims.")
    files = report(server, tmp_path)
    assert "and 44 more" in files["cluster/explain.txt"]  # big-1, five by name, and these: fifty
    golden(capsys.readouterr().err)
    server.store.delete("pods", "ml/small-49")
    server.store.delete("resourceclaims", "ml/small-49-neurons")
    (tmp_path / "report.tar.gz").unlink()
    assert "why more pods wait" not in report(server, tmp_path)["MANIFEST.txt"]


@pytest.mark.parametrize("times", [0, 25])
def test_explanations_end_when_their_time_is_over(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    for place in range(10):
        add_waiting(server, "ml", f"more-{place}", "0/1 nodes are available: 1 cannot allocate all claims.")
    left = iter(range(times))
    begun: list[float] = []

    def deadline(seconds: float = 10.0) -> Callable[[], bool]:
        begun.append(seconds)
        return lambda: next(left, None) is not None

    monkeypatch.setattr("dra_driver.cli.searchtime.deadline", deadline)
    files = report(server, tmp_path)
    assert begun == [60.0], "one for all of them"
    assert ("cluster/explain.txt" in files) == (times > 0)
    (line,) = (line for line in files["MANIFEST.txt"].splitlines() if "why more pods wait" in line)
    golden(line)


def test_objects_of_older_servers_have_the_shape_of_the_newest_version(tmp_path: Path) -> None:
    with ApiServer(versions=("v1beta1",)) as made:
        add_neuron_node(made, "node-1", taints={"neuron-device-3": [taint("hbm-uncorrectable")]})
        files = report(made, tmp_path)
    assert json.loads(files["cluster/resourceslices.json"])["apiVersion"] == "resource.k8s.io/v1beta1"
    devices = {device["name"]: device for item in items(files, "resourceslices") for device in item["spec"]["devices"]}
    assert devices["neuron-device-3"]["attributes"]["instanceType"] == {"string": "trn2.48xlarge"}
    assert devices["neuron-device-3"]["taints"][0]["value"] == "unhealthy"


def test_an_archive_is_not_written_over(server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "report.tar.gz").write_text("mine")
    kubeconfig = str(server.kubeconfig(tmp_path / "kubeconfig"))
    arguments = ["report", "--kubeconfig", kubeconfig, "--archive", str(tmp_path / "report.tar.gz")]
    assert main(arguments) == 2
    assert "exists" in capsys.readouterr().err
    assert (tmp_path / "report.tar.gz").read_text() == "mine"


def test_an_unreachable_cluster_is_told_in_the_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ApiServer() as stopped:
        kubeconfig = str(stopped.kubeconfig(tmp_path / "kubeconfig"))
    target = tmp_path / "r.tar.gz"
    assert main(["report", "--kubeconfig", kubeconfig, "--archive", str(target)]) == 1
    golden(capsys.readouterr().err.replace(stopped.url, "SERVER"))
    assert list(files_of(target.read_bytes())) == ["MANIFEST.txt"]


def test_a_node_tells_its_devices_and_what_the_driver_keeps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBELET_PLUGINS_DIRECTORY_PATH", raising=False)
    host = tmp_path / "host"
    assert main(["emulate-host", "--instance-type", "trn2.48xlarge", str(host)]) == 0
    state = host / "var/lib/kubelet/plugins/neuron.aws.com"
    (state / "claims").mkdir(parents=True)
    (state / "claims" / "0c1d.json").write_text(json.dumps({"version": 1, "checksum": "", "entry": {"x": SECRET}}))
    (state / "claims" / f"{SECRET} .json").write_text(SECRET)
    (state / "health").mkdir()
    (state / "health" / "health.json").write_text(SECRET)
    target = tmp_path / "node.tar.gz"
    assert main(["report", "--host-root", str(host), "--archive", str(target)]) == 0
    files = files_of(target.read_bytes())
    assert json.loads(files["node/inventory.json"])["instance_type"] == "trn2.48xlarge"
    assert len(json.loads(files["node/inventory.json"])["devices"]) == 16
    golden(files["MANIFEST.txt"])
    assert SECRET not in "".join([*files, *files.values(), capsys.readouterr().err])


SERIAL = "19fcda00f5ff6eb9"


@pytest.fixture
def used_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host whose driver has prepared a claim and remembers a fault."""
    monkeypatch.delenv("KUBELET_PLUGINS_DIRECTORY_PATH", raising=False)
    host = tmp_path / "host"
    assert main(["emulate-host", "--instance-type", "trn2.48xlarge", str(host)]) == 0
    state = host / "var/lib/kubelet/plugins/neuron.aws.com"
    device = PlannedDevice("neurons", "node-7", "neuron-device-3", (ChipNode(3, 0, 240, 3),), "")
    env = {"NEURON_LOGICAL_NC_CONFIG": "2"}
    plan = Plan("research", "train-chips", uid(1), (device,), env, consumers=("train-0",), pod_claim="chips-of-ours")
    chip = ChipMemory(3, serial=SERIAL, tracks={"hbm-uncorrectable": Track(1_700_000_000, since=1_700_000_000)})
    for path, data in (
        (state / "claims" / f"{uid(1)}.json", files.encoded(CheckpointEntry(plan, "boot-1"))),
        (state / "health" / "health.json", memory.encoded(HealthMemory("boot-1", chips=(chip,)))),
    ):
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
    return host


def report_of_host(host: Path, target: Path, *arguments: str) -> Files:
    assert main(["report", "--host-root", str(host), "--archive", str(target), *arguments]) == 0
    return files_of(target.read_bytes())


def test_a_node_s_journal_and_record_of_health_are_in_its_report(used_host: Path, tmp_path: Path) -> None:
    files = report_of_host(used_host, tmp_path / "node.tar.gz")
    (entry,) = json.loads(files["node/state/claims.json"])["claims"]
    assert (entry["plan"]["name"], entry["plan"]["devices"][0]["device"]) == ("train-chips", "neuron-device-3")
    assert entry["plan"]["env"] == {"NEURON_LOGICAL_NC_CONFIG": "2"}
    (chip,) = json.loads(files["node/state/health.json"])["chips"]
    assert chip["tracks"]["hbm-uncorrectable"]["since"] == 1_700_000_000
    assert {name: text for name, text in files.items() if SERIAL in text} == {}


def test_redacted_names_are_nowhere_in_a_node_s_report(used_host: Path, tmp_path: Path) -> None:
    files = report_of_host(used_host, tmp_path / "node.tar.gz", "--redact-names")
    text = "".join([*files, *files.values()])
    assert [name for name in ("node-7", "research", "train-0", "train-chips", "chips-of-ours") if name in text] == []
    assert "neuron-device-3" in text


def test_large_objects_of_one_namespace_leave_room_for_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = {"resources": {"limits": {"aws.amazon.com/neuron": "1"}}}
    spec = {"nodeName": "node-1", "containers": [{"name": f"c{place}", **limits} for place in range(2600)]}
    with ApiServer() as server:
        add_neuron_node(server, "node-1")
        add_waiting(server, "victim", "web-0", "0/1 nodes")
        server.crowds.append(
            Crowd("pods", 60, {"metadata": {"namespace": "evil", "name": f"p-{NUMBER}"}, "spec": spec})
        )
        files = report(server, tmp_path)
    pods = items(files, "pods")
    assert "web-0" in {item["metadata"]["name"] for item in pods}
    assert len(msgspec.json.encode(pods)) < NAMESPACE_BYTES + (1 << 20)
    golden([line for line in capsys.readouterr().err.splitlines() if "namespace evil" in line])


def slices_of(count: int, node: str | None, name: str = NUMBER, **metadata: object) -> Crowd:
    """Slices of about 280 kB, of a node or of none."""
    attributes = {f"resource.aws.com/{'x' * 24}{number:02}": {"string": "y" * 64} for number in range(16)}
    devices = [{"name": f"neuron-device-{number}", "attributes": attributes} for number in range(128)]
    pool = {"name": node or name, "generation": 1, "resourceSliceCount": count}
    spec = {"driver": "neuron.aws.com", **({"nodeName": node} if node else {"allNodes": True})}
    spec |= {"pool": pool, "devices": devices}
    return Crowd("resourceslices", count, {"metadata": {"name": f"a-{node}-{name}", **metadata}, "spec": spec})


def test_large_slices_of_one_node_leave_room_for_others(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "fabric", "uid": "f", "controller": True}
    server.crowds += [slices_of(20, "evil"), slices_of(8, None, ownerReferences=[owner]), slices_of(1, "node-2")]
    files = report(server, tmp_path)
    slices = items(files, "resourceslices")
    assert {item["spec"].get("nodeName") for item in slices} == {"node-1", "node-2", "evil", None}
    assert 2 * NODE_BYTES < len(msgspec.json.encode(slices)) < 2 * NODE_BYTES + (1 << 19)
    golden([line for line in capsys.readouterr().err.splitlines() if "resourceslices: " in line])


def test_nodes_have_a_bound_together(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_driver.operations.report.cluster.OBJECTS_BYTES", 1 << 20)
    conditions = [{"type": f"C{number}", "status": "True", "reason": "r" * 200} for number in range(2000)]
    status = {"capacity": {"aws.amazon.com/neuron": "16"}, "conditions": conditions}
    node = {"metadata": {"name": f"evil-{NUMBER}"}, "status": status}
    server.crowds += [Crowd("nodes", 10, node), *(slices_of(1, f"evil-{number}") for number in range(6))]
    files = report(server, tmp_path)
    for kind in ("nodes", "resourceslices"):
        assert (1 << 19) < len(msgspec.json.encode(items(files, kind))) < (1 << 20)
    assert "node-1" in {item["metadata"]["name"] for item in items(files, "nodes")}
    golden([line for line in capsys.readouterr().err.splitlines() if "too large" in line])
