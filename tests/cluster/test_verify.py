"""verify-host on real nodes: by the installer's Job, and in a container that was given chips of an emulated host.

No node has Neuron hardware, so the Job finds an emulated host in a directory of its own, or finds the machine without
chips through the read-only mounts that it would have on a real node.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.neuron.emulation.writer import host_writer
from dra_driver.neuron.host.discover import discover
from dra_driver.operations.verification.collect import collect
from dra_driver.operations.verification.replay import files_of
from dra_driver.operations.verification.report import document, read
from tests.cluster.lib.installation import EMULATED, NAMESPACE, Installation
from tests.cluster.lib.kube import Object, eventually
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.objects import container, pod, request, template

pytestmark = pytest.mark.nightly

OPENABLE, FORBIDDEN = "1:3", "1:11"
"""The null device, which stands for emulated chips, and one that no container may open: the kernel's log."""


def verify(installation: Installation, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``install-dra-driver.sh --verify`` in a directory; a namespace that it made is gone when this returns."""
    kube = installation.kube
    there = kube.get("namespaces", NAMESPACE) is not None
    done = installation.run("--verify", *arguments, installation.image, check=False, directory=directory)
    listing = (f"--namespace={NAMESPACE}", "get", "jobs", "-o", "name")
    eventually("the Jobs to be gone", lambda: not kube.kubectl(*listing, check=False), 60)
    if not there:
        eventually("the namespace to be gone", lambda: kube.get("namespaces", NAMESPACE) is None, 90)
    return done


def verdicts(report: Any) -> dict[str, str]:
    """Code of each line to its verdict."""
    return {line["code"]: line["verdict"] for line in report["items"]}


def test_the_job_finds_an_emulated_host_and_a_real_kubelet_as_assumed(
    installation: Installation, tmp_path: Path
) -> None:
    done = verify(installation, tmp_path, "--emulate", EMULATED)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Emulated host: {EMULATED}, 16 chips" in done.stdout
    assert "0 differs" in done.stdout

    data = (tmp_path / f"verify-{EMULATED}.json").read_bytes()
    found = verdicts(json.loads(data))
    for code in (
        "links-fabric",
        "efa-addresses",
        "ecc-counters",
        "kubelet-directories",
        "kubelet-sockets",
        "runtime-cdi",
    ):
        assert found[code] == "ok"

    host_writer(tmp_path / "again").write(files_of(read(data)))
    assert len(discover(tmp_path / "again").devices) == 16
    again = verdicts(document(collect(tmp_path / "again")))
    assert {code for code in found if found[code] != again[code]} == {"runtime-cdi", "runtime-cdi-variables"}


def test_a_machine_without_chips_is_no_neuron_host(installation: Installation, tmp_path: Path) -> None:
    done = verify(installation, tmp_path)
    assert done.returncode == 1
    assert "some lines differ" in done.stderr
    found = verdicts(json.loads((tmp_path / f"verify-{EMULATED}.json").read_text()))
    assert found["kernel-driver-version"] == "differs"
    assert found["chip-directories"] == "not checked"
    assert found["kubelet-directories"] == "ok"


def test_the_jobs_pod_can_read_and_nothing_else(namespace: Namespace, installation: Installation) -> None:
    rendered = installation.run("--verify", "--dry-run", installation.image).stdout
    spec: Object = yaml.safe_load(rendered)["spec"]["template"]["spec"]
    del spec["affinity"]
    spec["containers"] = [spec["containers"][0] | {"command": ["sleep", "600"], "args": []}]
    namespace.kubectl(
        "label", "namespace", namespace.name, "pod-security.kubernetes.io/enforce=privileged", "--overwrite"
    )
    namespace.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "looker"}, "spec": spec})
    namespace.wait_ready("looker")

    status = dict(line.split(":", 1) for line in namespace.exec("looker", "cat /proc/1/status").splitlines())
    assert {int(status[key], 16) for key in ("CapPrm", "CapEff", "CapBnd")} == {0}
    assert status["NoNewPrivs"].strip() == "1"
    mounts = [line.split() for line in namespace.exec("looker", "cat /proc/1/mounts").splitlines()]
    hosts = {fields[1]: fields[3].split(",") for fields in mounts if fields[1].startswith("/host/")}
    assert len(hosts) >= 8
    assert {path for path, options in hosts.items() if "rw" in options} == set()
    assert namespace.exec("looker", "ls /var/run/secrets/kubernetes.io 2>/dev/null || true") == ""
    assert namespace.exec("looker", "touch /host/opt/mark 2>/dev/null || echo refused").strip() == "refused"


HOST = f"""
set -e
dra-driver emulate-host --instance-type inf1.6xlarge --missing 2,3 /host
cd /host/sys/devices/virtual/neuron_device
rm neuron0/dev neuron1/dev
echo {OPENABLE} >neuron0/dev
echo {FORBIDDEN} >neuron1/dev
"""
"""A host with two chips, of which the container is given the first."""


def prober(name: str, image: str, claim: str, *, privileged: bool = False) -> Object:
    """A pod with a claim whose container looks what it can open; /host shows it two chips, as /sys would."""
    mounts = [{"name": "host", "mountPath": "/host"}]
    init = {"name": "host", "image": image, "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", HOST]}
    probing = ["dra-driver", "verify-host", "--host-root", "/host", "--probe", "container", "-o", "json"]
    looking = container("main", "neurons", command=probing) | {"image": image, "volumeMounts": mounts}
    if privileged:
        looking["securityContext"] = {"privileged": True}
    made = pod(name, templates={"neurons": claim}, containers=[looking], init=[init | {"volumeMounts": mounts}])
    made["spec"]["volumes"] = [{"name": "host", "emptyDir": {}}]
    return made


def finished(namespace: Namespace, name: str) -> Any:
    """The report that a pod printed, once it has ended."""

    def ended() -> str | None:
        phase = namespace.phase(name)
        return phase if phase in ("Succeeded", "Failed") else None

    eventually(f"pod {name} to end", ended, 60)
    return json.loads(namespace.kubectl("logs", name))


@pytest.mark.usefixtures("driver")
def test_a_container_opens_its_chips_and_no_others(namespace: Namespace, driver_image: str) -> None:
    namespace.apply(template("one", request(count=1)), prober("prober", driver_image, "one"))
    found = finished(namespace, "prober")
    lines = verdicts(found)
    assert (lines["container-opens-own"], lines["container-opens-no-other"]) == ("ok", "ok"), found["items"]
    view = found["evidence"]["container"]
    assert (view["nodes"], view["opened"]) == ({"0": OPENABLE}, {"0": "ok"})
    assert view["others"] == {"1": "Operation not permitted"}


@pytest.mark.usefixtures("driver")
def test_a_container_that_may_open_everything_is_found_out(namespace: Namespace, driver_image: str) -> None:
    namespace.kubectl(
        "label", "namespace", namespace.name, "pod-security.kubernetes.io/enforce=privileged", "--overwrite"
    )
    namespace.apply(template("one", request(count=1)), prober("prober", driver_image, "one", privileged=True))
    found = finished(namespace, "prober")
    assert verdicts(found)["container-opens-no-other"] == "differs"
    assert found["evidence"]["container"]["others"] == {"1": "ok"}


@pytest.mark.usefixtures("driver")
def test_two_pods_open_one_chip(namespace: Namespace, driver_image: str) -> None:
    """Two pods that share a claim open the same node at a time, each in two processes."""
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "shared"},
        "spec": {"devices": {"requests": [request(count=1)]}},
    }
    namespace.apply(claim)
    for name in ("first", "second"):
        made = prober(name, driver_image, "shared")
        made["spec"]["resourceClaims"] = [{"name": "neurons", "resourceClaimName": "shared"}]
        namespace.apply(made)
    for name in ("first", "second"):
        assert verdicts(finished(namespace, name))["container-opens-own"] == "ok"
