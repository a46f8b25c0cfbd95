"""What commands print about input that they refuse, and about what they leave out: each one in this process."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from dra_driver.cli import daemon, device_plugin, recover
from dra_driver.cli.clusterinput import MAX_OBJECT_BYTES, read_text
from dra_driver.cli.hostinput import found_state_dir
from dra_driver.cli.main import main
from dra_driver.neuron.emulation.writer import EmulationOptions, write_host
from dra_driver.neuron.health.assess import HealthMemory
from dra_driver.neuron.health.clearing import Answer, answer, take
from dra_driver.neuron.health.memory import MemoryFile
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES
from dra_driver.util.errors import UsageError
from tests.builders.yamlfiles import as_yaml
from tests.eventually import eventually
from tests.golden import golden, golden_error

DRA = "resource.k8s.io/v1"
TYPE = "--instance-type=trn2.48xlarge"
ONE = "--instance-type=trn2.3xlarge"
"""With one chip, so that drawings are small."""
Object = dict[str, Any]


def request(count: int = 1, **more: Any) -> Object:
    return {"name": "r", "exactly": {"deviceClassName": "neuron.aws.com", "count": count, **more}}


def claim(name: str = "c", **devices: Any) -> Object:
    spec = {"devices": {"requests": [request()], **devices}}
    return {"apiVersion": DRA, "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}


def template(namespace: str = "default", **devices: Any) -> Object:
    return {
        "apiVersion": DRA,
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "t", "namespace": namespace},
        "spec": {"spec": claim(**devices)["spec"]},
    }


def pod(**spec: Any) -> Object:
    claims = [{"name": "neurons", "resourceClaimTemplateName": "t"}]
    containers = [{"name": "main", "image": "x", "resources": {"claims": [{"name": "neurons"}]}}]
    spec = {"containers": containers, "resourceClaims": claims, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}


def affinity(**term: Any) -> Object:
    terms = {"nodeSelectorTerms": [term]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def devices_of(driver: str) -> Object:
    result = {"request": "r", "driver": driver, "pool": "node-1", "device": "neuron-device-1"}
    return {"allocation": {"devices": {"results": [result]}}}


CASES: dict[str, tuple[tuple[str, ...], tuple[Object, ...]]] = {
    "nodes without a cluster": (("health", "--node-name=node-1"), ()),
    "a host that is not there": (("health", "--host-root=nowhere"), ()),
    "slices of a host that is not there": (("slices", "--host-root=nowhere"), ()),
    "a report of a host that is not there": (("report", "--host-root=nowhere"), ()),
    "a node's name that is none": (("slices", TYPE, "--node-name=Bad Name!"), ()),
    "one of several nodes' names that is none": (("top", "--node-name=n", "--node-name=Bad Name!"), ()),
    "a namespace that is none": (("simulate", ONE, "-n", "a.b", "FILE"), (claim(),)),
    "a zone that is no value of a label": (
        ("template", "--instance-type=trn2.3xlarge", "--for=karpenter", "--zone=a b"),
        (),
    ),
    "a resource that is none": (
        ("template", "--instance-type=trn2.3xlarge", "--for=karpenter", "--resource=a b=1"),
        (),
    ),
    "what is no device": (("health", "clear", "gpu3"), ()),
    "two sources of devices": (("select", "true", TYPE, "-f", "FILE"), (claim(),)),
    "a range that goes down": (("topology", "trn2.48xlarge", "--devices=7-4"), ()),
    "a claim that has no devices yet": (("plan", TYPE, "-f", "FILE"), (claim(),)),
    "claims of other drivers": (
        ("plan", TYPE, "-f", "FILE"),
        (
            {**claim("own"), "status": devices_of("neuron.aws.com")},
            {**claim("other"), "status": devices_of("other.example")},
        ),
    ),
    "both kinds of request": (
        ("simulate", ONE, "FILE"),
        (claim(requests=[{**request(), "firstAvailable": [{"name": "x", "deviceClassName": "neuron.aws.com"}]}]),),
    ),
    "a constraint of no kind": (
        ("simulate", ONE, "FILE"),
        (claim(constraints=[{"requests": ["r"]}]),),
    ),
    "a toleration that is none": (
        ("simulate", ONE, "FILE"),
        (claim(requests=[request(tolerations=[{"key": "a.example/k", "operator": "Sometimes"}])]),),
    ),
    "a list that is none": (("simulate", ONE, "FILE"), ({"apiVersion": "v1", "kind": "List", "items": {}},)),
    "a field of a node that is not known": (
        ("simulate", ONE, "FILE"),
        (pod(affinity=affinity(matchFields=[{"key": "metadata.name", "operator": "Gt", "values": ["1"]}])), template()),
    ),
    "a template of another namespace": (("simulate", ONE, "FILE"), (pod(), template("other"))),
    "templates alone": (("simulate", ONE, "FILE"), (template(),)),
    "volumes": (
        ("simulate", ONE, "FILE"),
        (pod(volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "v"}}]), template()),
    ),
    "an affinity to other nodes": (
        ("simulate", ONE, "FILE"),
        (
            pod(affinity=affinity(matchExpressions=[{"key": "zone", "operator": "In", "values": ["z"]}])),
            template(),
        ),
    ),
    "a group without a place of its own": (
        ("simulate", ONE, "FILE"),
        (
            {
                "apiVersion": "leaderworkerset.x-k8s.io/v1",
                "kind": "LeaderWorkerSet",
                "metadata": {
                    "name": "g",
                    "annotations": {
                        "leaderworkerset.sigs.k8s.io/exclusive-topology": "neuron.amazonaws.com/ultraserver-server-id-2"
                    },
                },
                "spec": {
                    "replicas": 1,
                    "leaderWorkerTemplate": {"size": 2, "workerTemplate": {"spec": pod()["spec"]}},
                },
            },
            template(),
        ),
    ),
    "a pod with a node": (("simulate", ONE, "FILE"), (pod(nodeName="node-1"), template())),
    "parameters that the driver refuses": (
        ("simulate", ONE, "FILE"),
        (
            pod(),
            template(
                config=[
                    {
                        "opaque": {
                            "driver": "neuron.aws.com",
                            "parameters": {
                                "apiVersion": "neuron.aws.com/v1",
                                "kind": "NeuronConfig",
                                "logicalNeuronCore": 7,
                            },
                        }
                    }
                ]
            ),
        ),
    ),
    "a whole node that lacks a chip": (("slices", "--host-root=HOST", "--partitions=node"), ()),
    "a file for the report that cannot be written": (("verify-host", "--host-root=HOST", "--report=nowhere/x"), ()),
    "groups that no node offers": (
        ("explain", TYPE, "--kubernetes=1.36", "FILE"),
        (claim(requests=[{"name": "r", "exactly": {"deviceClassName": "group4.neuron.aws.com"}}]),),
    ),
    "a node that would do less well": (
        ("explain", TYPE, "--instance-type=trn2.3xlarge", "FILE"),
        (
            claim(
                requests=[
                    {
                        "name": "r",
                        "firstAvailable": [
                            {"name": "big", "deviceClassName": "neuron.aws.com", "count": 4},
                            {"name": "small", "deviceClassName": "neuron.aws.com", "count": 1},
                        ],
                    }
                ]
            ),
        ),
    ),
    "a host whose ids are still elected": (
        ("emulate-host", "--instance-type=trn2u.48xlarge", "--busy", "EMULATED"),
        (),
    ),
    "slices without a type": (
        ("topology", "-f", "FILE"),
        (
            {
                "apiVersion": DRA,
                "kind": "ResourceSlice",
                "metadata": {"name": "s"},
                "spec": {
                    "driver": "neuron.aws.com",
                    "nodeName": "n",
                    "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
                    "devices": [{"name": "neuron-device-0"}],
                },
            },
        ),
    ),
    "nothing that waits": (("explain", TYPE, "FILE"), ({"apiVersion": "v1", "kind": "List", "items": []},)),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_printed(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command, objects = CASES[case]
    Path("FILE").write_text(as_yaml(*objects))
    if "--host-root=HOST" in command:
        write_host(tmp_path / "HOST", INSTANCE_TYPES["trn2u.48xlarge"], EmulationOptions())
        (tmp_path / "HOST/dev/neuron3").unlink()
    status = main(list(command))
    said = capsys.readouterr()
    # Device nodes can be made by root alone.
    told = said.out if command[0] in ("simulate", "explain") else "".join(re.findall("UltraServer: .*", said.out))
    golden(f"exit status {status}\n{said.err}{told}")


def test_a_report_of_a_host_is_written_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_host(tmp_path / "host", INSTANCE_TYPES["inf2.24xlarge"], EmulationOptions())
    MemoryFile(found_state_dir(tmp_path / "host")).write(HealthMemory())
    (tmp_path / "host/proc/sys/kernel/random").mkdir(parents=True, exist_ok=True)
    (tmp_path / "host/proc/sys/kernel/random/boot_id").write_text("6aa22853-a073-4fb9-9c8b-15972cd2d951\n")
    command = ["report", "--host-root", str(tmp_path / "host"), "--archive", str(tmp_path / "report.tar.gz")]
    assert main(command) == 0
    golden("\n".join(capsys.readouterr()), "first")
    assert main(command) == 2
    golden(capsys.readouterr().err.splitlines()[-1], "second")


@pytest.mark.parametrize(
    "said",
    [Answer(3, known=False), Answer(3), Answer(3, cleared=("hbm-repairable",)), Answer(3, kept=("hbm-repairable",))],
)
def test_what_the_driver_says_of_clearing(said: Answer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def driver() -> None:
        eventually(lambda: list(tmp_path.glob("*.request")))
        for identity in take(tmp_path):
            answer(tmp_path, identity, said)

    thread = threading.Thread(target=driver)
    thread.start()
    status = main(["health", "clear", "neuron3", "--state-dir", str(tmp_path)])
    thread.join()
    golden(f"exit status {status}\n" + "".join(capsys.readouterr()))


@pytest.mark.parametrize("option", [{"hook": "/nowhere/hook"}, {"policy": "/nowhere/policy"}], ids=["hook", "policy"])
def test_settings_of_recovery_that_cannot_be_used(option: dict[str, str]) -> None:
    settings = daemon.read(recover.Settings, option, {})
    with golden_error(UsageError):
        recover.recovery_settings(settings, act=False, cloudwatch=False)


@pytest.mark.parametrize("start", ["", "x"], ids=["between characters", "within a character"])
def test_a_policy_with_umlauts_that_is_too_long_is_not_cut_and_taken(
    start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("policy.yaml").write_text(f"#{start}{'ä' * 4096}\nmaxAtOnce: 2\n", encoding="utf-8")
    with golden_error(UsageError):
        settings = daemon.read(recover.Settings, {"policy": "policy.yaml"}, {})
        recover.recovery_settings(settings, act=True, cloudwatch=False)


def test_settings_of_the_device_plugin_that_exclude_each_other() -> None:
    given = {"device_numbering": "renumber", "visible_cores_variable": "AWS_NEURON_VISIBLE_DEVICES"}
    with golden_error(UsageError):
        device_plugin.read_settings(given, {})


def test_a_file_that_is_too_large_for_an_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("large").touch()
    os.truncate("large", MAX_OBJECT_BYTES + 1)
    with golden_error(UsageError):
        read_text("large")


@pytest.mark.parametrize("command", ["explain", "simulate"])
def test_nodes_of_many_kinds_are_told_of_in_part(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    selector = {"cel": {"expression": "device.attributes['neuron.aws.com'].instanceType == 'none'"}}
    path = tmp_path / "claim.yaml"
    path.write_text(as_yaml(claim(requests=[request(selectors=[selector])])))
    kinds = [f"--instance-type={name}" for name, kind in INSTANCE_TYPES.items() if kind.devices is not None]
    main([command, *kinds, str(path)])
    parts = ("more groups", "look different")
    golden(line for line in capsys.readouterr().out.splitlines() if any(part in line for part in parts))
