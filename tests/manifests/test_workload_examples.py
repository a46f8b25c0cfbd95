"""The examples for batch systems, inference servers, monitors and aligned devices: valid, and placed.

The resources' schemas are those of their projects (``tests/data``); the pod specs in them are checked as Pods of
Kubernetes. Their controllers are not run here; JobSet's is in ``tests/cluster/test_efa.py``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from dra_driver.cli.main import main
from dra_driver.driver.deviceclasses import DEVICE_CLASSES
from dra_driver.neuron.emulation.efa import EFA_CLASS
from dra_driver.neuron.health.condition import condition, stopped
from dra_driver.neuron.health.faults import NodeHealth
from tests.manifests.support import EXAMPLES, Object, documents, name_of
from tests.paths import ROOT

BATCH, INFERENCE, KUEUE = (ROOT / "examples" / name for name in ("batch", "inference", "batch/kueue"))
ALIGNED, HEALTH, ULTRASERVER = (ROOT / "examples" / name for name in ("aligned", "health", "ultraserver"))
"""What their pods get, if they have any, is in ``test_alignment.py`` and ``tests/unit/cli/test_simulate.py``."""
CONFIGURATION = KUEUE / "configuration.yaml"
"""A part of Kueue's own configuration; all others are objects to apply."""
FILES = [
    path
    for folder in (BATCH, KUEUE, INFERENCE, ALIGNED, HEALTH, ULTRASERVER)
    for path in sorted(folder.glob("*.yaml"))
    if path != CONFIGURATION
]
WITH_PODS = [path for path in FILES if path.name != "queues.yaml" and path.parent not in (ALIGNED, HEALTH, ULTRASERVER)]
KUEUE_SCHEMAS: Object = json.loads((ROOT / "tests/data/kueue-schemas.json").read_text())
CRDS: Object = json.loads((ROOT / "tests/data/crd-schemas.json").read_text())
NODES = {"jobset-training.yaml": 2, "pytorchjob-training.yaml": 2}
"""trn2.48xlarge that an example needs; one unless said here."""
PODS = {
    "jobset-training.yaml": {16: 2},
    "pytorchjob-training.yaml": {16: 2},
    "raycluster.yaml": {4: 2},
    "job.yaml": {4: 2},
    "shared-claim.yaml": {4: 1},
    "leaderworkerset-vllm.yaml": {4: 2},
    "prefill-decode.yaml": {4: 2},
}
"""By example: claims with so many chips, and how many of them."""


def kind_of(item: Object) -> str:
    return f"{item['apiVersion']} {item['kind']}"


def strict(schema: Any) -> Any:
    """The schema of a CRD, refusing fields that it does not name, as kubectl does."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: strict(item) for name, item in schema.items()}
    open_ended = {"additionalProperties", "x-kubernetes-preserve-unknown-fields", "x-pod-spec"} & made.keys()
    if made.get("type") == "object" and isinstance(made.get("properties"), dict) and not open_ended:
        made["additionalProperties"] = False
    return made


def check(item: Object) -> None:
    """Check an object, and the pods in it, against the schema of its kind."""
    kind = kind_of(item)
    if kind in CRDS:
        jsonschema.validate({key: item[key] for key in item if key != "metadata"}, strict(CRDS[kind]["schema"]))
    elif kind in KUEUE_SCHEMAS:
        jsonschema.validate(item["spec"], KUEUE_SCHEMAS[kind])
        return
    else:
        kubernetes_validate.validate(item, "1.37", strict=True)
    for spec in pod_specs(item):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": spec}
        kubernetes_validate.validate(pod, "1.37", strict=True)


def pod_specs(value: Any) -> Iterator[Object]:
    """All pod specs in an object."""
    if isinstance(value, dict):
        if isinstance(value.get("containers"), list):
            yield value
        else:
            for item in value.values():
                yield from pod_specs(item)
    elif isinstance(value, list):
        for item in value:
            yield from pod_specs(item)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_examples_are_valid_for_the_resources_that_they_name(path: Path) -> None:
    for item in documents(path.read_text()):
        check(item)


def test_a_field_that_a_resource_does_not_have_is_found() -> None:
    """Of the check above: at the top, deep inside, and in a pod."""
    (jobset,) = [item for item in documents((BATCH / "jobset-training.yaml").read_text()) if item["kind"] == "JobSet"]
    check(jobset)
    job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    for holder, field in ((jobset["spec"], "jobs"), (job, "replicas"), (job["template"]["spec"], "resourceClaim")):
        holder[field] = 1
        with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
            check(jobset)
        del holder[field]
    check(jobset)


def test_a_ray_worker_has_as_many_cores_as_its_chips() -> None:
    (cluster,) = [item for item in documents((BATCH / "raycluster.yaml").read_text()) if item["kind"] == "RayCluster"]
    (group,) = cluster["spec"]["workerGroupSpecs"]
    told = json.loads(json.loads(group["rayStartParams"]["resources"]))
    assert told == {"neuron_cores": 4 * 4}
    installed = re.findall(r"ray\[default\]==([0-9.]+)", (BATCH / "raycluster.yaml").read_text())
    assert set(installed) == {cluster["spec"]["rayVersion"]}


@pytest.mark.parametrize("path", WITH_PODS, ids=name_of)
def test_the_pods_of_an_example_get_the_chips_that_it_promises(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    count = NODES.get(path.name, 1)
    assert main(["simulate", str(path), "--instance-type", f"trn2.48xlarge={count}", "-o", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    chips: dict[int, int] = {}
    for claim in answer["claims"]:
        devices = claim["allocation"]["devices"]["results"]
        own = [item for item in devices if item["driver"] == "neuron.aws.com"]
        assert len(devices) - len(own) in {0, len(own)}, "each chip with the EFA device next to it, or none"
        chips[len(own)] = chips.get(len(own), 0) + 1
    assert chips == PODS[path.name]
    assert f"dra-driver simulate {path.relative_to(ROOT)} --instance-type trn2.48xlarge" in path.read_text()


@pytest.mark.parametrize("path", sorted(INFERENCE.glob("*.yaml")), ids=name_of)
def test_what_a_server_downloads_and_compiles_is_kept_in_its_volume(path: Path) -> None:
    containers = [
        entry for item in documents(path.read_text()) for spec in pod_specs(item) for entry in spec["containers"]
    ]
    assert containers
    for container in containers:
        (mount,) = [entry["mountPath"] for entry in container["volumeMounts"] if entry["name"] == "cache"]
        said = {entry["name"]: entry.get("value", "") for entry in container["env"]}
        assert mount == "/cache", "not in the home directory of whoever the image runs as"
        assert all(said[name].startswith(f"{mount}/") for name in ("HF_HOME", "VLLM_CACHE_ROOT"))


def test_all_examples_together_can_be_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(path) for path in (*EXAMPLES, *FILES)]
    # Some ask for kernel drivers and UltraServers that these nodes are not.
    assert main(["simulate", *files, "--instance-type", "trn2.48xlarge=8"]) == 1
    shown = capsys.readouterr().out
    assert re.search(r"^\d+ of \d+ placed$", shown, re.MULTILINE)
    assert "ClusterQueue: 1" in shown


def configuration() -> Object:
    """What Kueue is told of the DeviceClasses."""
    made: Object = yaml.safe_load(CONFIGURATION.read_text())
    return made


def test_kueue_is_told_of_classes_that_exist_each_once() -> None:
    told = configuration()
    jsonschema.validate(told, KUEUE_SCHEMAS[kind_of(told)])
    names = [name for entry in told["resources"]["deviceClassMappings"] for name in entry["deviceClassNames"]]
    assert len(names) == len(set(names))
    assert set(names) <= {row.name for row in DEVICE_CLASSES} | {EFA_CLASS}


def test_the_queue_covers_what_kueue_counts_and_no_more_than_the_hardware_has() -> None:
    objects = {item["kind"]: item for item in documents((KUEUE / "queues.yaml").read_text())}
    (group,) = objects["ClusterQueue"]["spec"]["resourceGroups"]
    (flavor,) = group["flavors"]
    quota = {item["name"]: item["nominalQuota"] for item in flavor["resources"]}
    assert list(quota) == group["coveredResources"]
    counted = {entry["name"] for entry in configuration()["resources"]["deviceClassMappings"]}
    assert set(quota) == counted | {"cpu", "memory"}
    assert flavor["name"] == objects["ResourceFlavor"]["metadata"]["name"]
    assert objects["LocalQueue"]["spec"]["clusterQueue"] == objects["ClusterQueue"]["metadata"]["name"]

    worth = {"chips": 1.0, "groups-of-4": 4.0, "groups-of-8": 8.0, "cores": 0.25}
    chips = sum(quota[f"neuron.aws.com/{name}"] * share for name, share in worth.items())
    assert chips == 4 * 16
    (job,) = [item for item in documents((KUEUE / "job.yaml").read_text()) if item["kind"] == "Job"]
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == objects["LocalQueue"]["metadata"]["name"]


def test_a_node_is_open_to_pods_once_the_driver_has_seen_healthy_chips() -> None:
    """And not before: no condition is written until then, and none of other words has that status."""
    (rule,) = documents((HEALTH / "ready-for-claims.yaml").read_text())
    (required,) = rule["spec"]["conditions"]
    healthy = condition(NodeHealth())
    assert (required["type"], required["requiredStatus"]) == (healthy.type, healthy.status)
    assert stopped(NodeHealth()).status != required["requiredStatus"]
