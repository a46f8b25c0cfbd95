"""What a node's driver would refuse is not called fitting: simulate, explain and plan say the same, with status 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dra_driver.cli.main import main
from tests.builders.documents import document as parsed
from tests.builders.yamlfiles import as_yaml
from tests.golden import golden

Json = dict[str, Any]
DRA = "resource.k8s.io/v1"
CHIP, NODE, CORE = "neuron.aws.com", "node.neuron.aws.com", "core.neuron.aws.com"


def config(kind: str = "NeuronConfig", *requests: str, **parameters: Any) -> Json:
    parameters = {"apiVersion": "neuron.aws.com/v1", "kind": kind, **parameters}
    return {"requests": list(requests), "opaque": {"driver": "neuron.aws.com", "parameters": parameters}}


def claim(*config: Json, requests: dict[str, str] | None = None, count: int = 1) -> Json:
    wanted = [
        {"name": name, "exactly": {"deviceClassName": of, "count": count}}
        for name, of in (requests or {"neurons": CHIP}).items()
    ]
    spec = {"devices": {"requests": wanted, "config": list(config)}}
    return {"apiVersion": DRA, "kind": "ResourceClaim", "metadata": {"name": "train"}, "spec": spec}


POD: Json = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "train"},
    "spec": {
        "containers": [{"name": "main", "image": "x", "resources": {"claims": [{"name": "neurons"}]}}],
        "resourceClaims": [{"name": "neurons", "resourceClaimName": "train"}],
    },
}
SELECTOR = {"cel": {"expression": "device.driver == 'neuron.aws.com'"}}
CLASS: Json = {
    "apiVersion": DRA,
    "kind": "DeviceClass",
    "metadata": {"name": "any.example"},
    "spec": {"selectors": [SELECTOR]},
}
WITH_PARAMETERS: Json = {
    **CLASS,
    "metadata": {"name": "own.example"},
    "spec": {"selectors": [SELECTOR], "config": [{"opaque": config(logicalNeuronCore=0)["opaque"]}]},
}
TRN2, ULTRA = ("--instance-type", "trn2.48xlarge"), ("--instance-type", "trn2u.48xlarge")
CASES: dict[str, tuple[tuple[str, ...], tuple[Json, ...]]] = {
    "a size that there is not": (TRN2, (claim(config(logicalNeuronCore=3)),)),
    "a misspelt field": (TRN2, (claim(config(logicalNeuronCores=1)),)),
    "a value of another type": (TRN2, (claim(config(logicalNeuronCore="1")),)),
    "an unknown kind": (TRN2, (claim(config("NeuronConfiguration")),)),
    "an unknown version": (TRN2, (claim(config(apiVersion="neuron.aws.com/v2", logicalNeuronCore=1)),)),
    "parameters of the class": (TRN2, (claim(requests={"neurons": "own.example"}), WITH_PARAMETERS)),
    "a size on chips that have none": (
        ("--instance-type", "trn1.32xlarge"),
        (claim(config(logicalNeuronCore=1)),),
    ),
    "a container with two sizes": (
        TRN2,
        (
            claim(
                config("NeuronConfig", "a", logicalNeuronCore=1),
                config("NeuronConfig", "b", logicalNeuronCore=2),
                requests={"a": CHIP, "b": CHIP},
            ),
        ),
    ),
    "an UltraServer mode that there is not": (
        ULTRA,
        (claim(config("UltraServerConfig", ultraserverMode=8), requests={"neurons": NODE}),),
    ),
    "an UltraServer mode without UltraServer": (
        (*TRN2, "--partitions", "node"),
        (claim(config("UltraServerConfig", ultraserverMode=4), requests={"neurons": NODE}),),
    ),
    "an UltraServer mode for a chip": (
        (*ULTRA, "--partitions", "chip"),
        (claim(config("UltraServerConfig", ultraserverMode=4)),),
    ),
    "a larger mode than the server has": (
        (*ULTRA, "--emulated-ultraservers", "1x2"),
        (claim(config("UltraServerConfig", ultraserverMode=4), requests={"neurons": NODE}),),
    ),
    "hardware of which the driver knows nothing": (
        ("--objects", "UNKNOWN"),
        (claim(config(logicalNeuronCore=3), requests={"neurons": "any.example"}), CLASS),
    ),
}
UNKNOWN: Json = {
    "apiVersion": DRA,
    "kind": "ResourceSlice",
    "metadata": {"name": "s"},
    "spec": {
        "driver": "neuron.aws.com",
        "nodeName": "n",
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "neuron-device-0", "attributes": {"instanceType": {"string": "trn9.metal"}}}],
    },
}


class Shell:
    """Runs commands in a directory with the files of a case."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.err = ""

    def __call__(self, *arguments: str) -> tuple[int, str]:
        status = main(arguments)
        said = self._capsys.readouterr()
        self.err = said.err
        return status, said.out


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    monkeypatch.chdir(tmp_path)
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}
    Path("UNKNOWN").write_text(as_yaml(*[node, UNKNOWN]))
    return Shell(capsys)


@pytest.mark.parametrize("case", CASES)
def test_simulate_explain_and_plan_refuse_what_the_driver_would_refuse(case: str, shell: Shell) -> None:
    options, objects = CASES[case]
    Path("FILE").write_text(as_yaml(*[*objects, POD]))

    status, out = shell("simulate", "FILE", *options, "-o", "json")
    found = parsed(out)
    (row,) = found["claims"]
    assert (status, found["summary"]["result"], found["summary"]["refusedClaims"]) == (1, "refused", 1)
    reason = row["refusal"]
    assert reason in shell.err

    status, out = shell("explain", "FILE", *options, "-o", "json")
    (explained,) = parsed(out)["items"]
    assert (status, explained["fits"], explained["couldGoTo"]) == (1, False, [])
    assert explained["refusals"] == [{"claim": {"namespace": "default", "name": "train"}, "reason": reason}]
    assert "fits, but the driver will refuse it" in explained["message"]

    status, out = shell("simulate", "FILE", *options, "-o", "yaml")
    assert status == 1
    assert reason in shell.err
    Path("ALLOCATED").write_text(out)
    # It knows the type alone.
    if options[0] == "--instance-type" and "--emulated-ultraservers" not in options:
        status, _ = shell("plan", "-f", "ALLOCATED", *options[:2])
        assert status == 1
        assert reason in shell.err

    # On the cluster, where the pod hangs.
    Path("CLASSES").write_text(as_yaml(*[CLASS, *objects[1:]]))
    status, out = shell("explain", "--objects", "ALLOCATED", "--objects", "CLASSES", *options, "-o", "json")
    (explained,) = parsed(out)["items"]
    assert (status, explained["fits"], explained["refusals"][0]["reason"]) == (1, False, reason)
    golden(reason)


@pytest.mark.parametrize("command", ["simulate", "explain"])
def test_a_claim_without_pod_is_refused_as_well(command: str, shell: Shell) -> None:
    Path("FILE").write_text(as_yaml(claim(config(logicalNeuronCore=3))))
    status, out = shell(command, "FILE", *TRN2)
    assert status == 1
    assert "expected 1 or 2, got 3" in out


def test_a_claim_that_the_cluster_has_for_another_driver_s_device_is_refused(shell: Shell) -> None:
    result = {"request": "neurons", "driver": "neuron.aws.com", "pool": "node-1", "device": "neurondevice0"}
    allocated = claim() | {"status": {"allocation": {"devices": {"results": [result]}}}}
    Path("FILE").write_text(as_yaml(*[allocated, POD]))
    status, out = shell("explain", "--objects", "FILE", *TRN2)
    golden(f"exit status {status}\n{out}")


@pytest.mark.parametrize("command", ["simulate", "explain"])
def test_what_is_said_of_a_refused_pod(command: str, shell: Shell) -> None:
    other = ("--instance-type", "trn1.32xlarge")
    Path("FILE").write_text(as_yaml(*[claim(config(logicalNeuronCore=1)), POD]))
    status, out = shell(command, "FILE", "--instance-type", "trn1.2xlarge", *other, "--instance-type", "trn2.3xlarge")
    golden(f"exit status {status}\n{out}")
