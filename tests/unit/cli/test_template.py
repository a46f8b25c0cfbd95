"""``dra-driver template`` as a user sees it; that it says what a live node publishes is in ``tests/plugin/cli``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.cli.main import main
from dra_driver.cli.template import SHARED_ATTRIBUTES
from dra_driver.driver.resourceslices.attributes import ATTRIBUTES
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES
from tests.golden import golden


def template(capsys: pytest.CaptureFixture[str], consumer: str, instance_type: str, *options: str) -> Any:
    """What the command prints, parsed."""
    assert main(["template", "--instance-type", instance_type, "--for", consumer, *options]) == 0
    return yaml.safe_load(capsys.readouterr().out)


def devices(slices: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {device["name"]: device for item in slices for device in item.get("devices", ())}


def test_karpenter_reads_json_with_the_keys_of_its_kwok_provider(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["template", "--instance-type", "trn2.48xlarge", "--instance-type", "inf2.xlarge", "--for", "karpenter"])
        == 0
    )
    types = json.loads(capsys.readouterr().out)

    assert [item["name"] for item in types] == ["trn2.48xlarge", "inf2.xlarge"]
    assert types[0]["resources"] == {"pods": "110", "cpu": "192", "memory": "2048Gi"}
    assert types[0].keys() == {
        *("name", "offerings", "architecture", "operatingSystems", "resources"),  # the kwok provider's
        "dynamicResources",  # of Karpenter's core
    }
    (slice_,) = types[0]["dynamicResources"]["resourceSliceTemplates"]
    assert (slice_["driver"], slice_["pool"], len(slice_["devices"])) == (
        "neuron.aws.com",
        {"name": "trn2.48xlarge"},
        16,
    )
    assert slice_.keys() == {"driver", "pool", "devices"}


def test_karpenter_gets_what_overlapping_devices_share_apart_from_the_devices(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Karpenter ignores the devices of a template that has both."""
    (entry,) = template(capsys, "karpenter", "trn2.48xlarge", "--partitions", "chip.core")
    counters, *rest = entry["dynamicResources"]["resourceSliceTemplates"]

    assert "devices" not in counters
    assert counters["sharedCounters"][0]["counters"]["chip-15"] == {"value": "8"}
    made = devices(rest)
    assert len(made) == 16 + 64
    assert made["neuron-device-3"]["consumesCounters"] == [
        {"counterSet": "chips", "counters": {"chip-3": {"value": "8"}}}
    ]


@pytest.mark.parametrize("consumer", ["karpenter", "cluster-autoscaler"])
def test_ids_that_only_a_real_server_has_are_in_no_template(consumer: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = template(capsys, consumer, "trn2u.48xlarge", "--partitions", "chip.node")
    text = json.dumps(found)

    assert "1a2b3c4d5e6f7081" not in text
    assert "ultraserverModes" in text
    assert "neuron.amazonaws.com/ultraserver-server-id-4" not in text


def test_karpenter_is_told_what_all_devices_of_a_node_will_share(capsys: pytest.CaptureFixture[str]) -> None:
    (server,) = template(capsys, "karpenter", "trn2u.48xlarge", "--partitions", "chip")
    bindings = {item["attribute"]: item["devices"] for item in server["dynamicResources"]["attributeBindings"]}

    assert bindings.keys() == {f"neuron.aws.com/{name}" for name in SHARED_ATTRIBUTES}
    assert bindings["neuron.aws.com/networkNodeLayer3"] == [
        {"driver": "neuron.aws.com", "pool": "trn2u.48xlarge", "device": f"neuron-device-{number}"}
        for number in range(16)
    ]
    (single,) = template(capsys, "karpenter", "trn2.48xlarge")
    names = {item["attribute"] for item in single["dynamicResources"]["attributeBindings"]}
    assert names == {f"neuron.aws.com/networkNodeLayer{layer}" for layer in (1, 2, 3)}


def test_one_device_shares_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Karpenter ignores bindings of fewer than two devices."""
    (entry,) = template(capsys, "karpenter", "trn1.2xlarge")
    assert entry["dynamicResources"]["attributeBindings"] == []


def test_every_attribute_that_depends_on_the_node_is_known_to_do_so() -> None:
    """Values that come from labels of the Node or from the election of an UltraServer, and no others."""
    told_by_the_node = ("networkNodeLayer", "capacityBlock", "ultraserverServerId", "ultraserverNodeId")
    assert set(SHARED_ATTRIBUTES) == {row.name for row in ATTRIBUTES if row.name.startswith(told_by_the_node)}


def test_what_kwok_is_given_can_be_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["template", "--instance-type", "trn2.48xlarge", "--for", "kwok"]) == 0
    nodes = tmp_path / "nodes.yaml"
    nodes.write_text(capsys.readouterr().out)
    node = next(yaml.safe_load_all(nodes.read_text()))["items"][0]
    assert node["metadata"]["annotations"] == {"kwok.x-k8s.io/node": "fake"}

    example = str(Path(__file__).parents[3] / "examples/specs/all-devices.yaml")
    classes = str(Path(__file__).parents[3] / "deploy/deviceclasses.yaml")
    assert main(["simulate", "--objects", str(nodes), "--objects", classes, example]) == 0
    assert "kwok-trn2-48xlarge" in capsys.readouterr().out


def test_the_kernel_driver_of_the_image_can_be_said(capsys: pytest.CaptureFixture[str]) -> None:
    found = template(capsys, "cluster-autoscaler", "trn1.2xlarge", "--emulated-driver-version", "2.22.2.0")
    (device,) = found["items"][1]["spec"]["devices"]
    assert device["attributes"]["neuronDriverVersion"] == {"string": "2.22.2.0"}


def test_resources_can_be_added_and_changed(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--resource", "memory=1900Gi", "--resource", "hugepages-2Mi=10Gi")
    node = template(capsys, "kwok", "trn2.48xlarge", *options)["items"][0]
    assert node["status"]["allocatable"] == {
        "pods": "110",
        "cpu": "192",
        "memory": "1900Gi",
        "hugepages-2Mi": "10Gi",
    }


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["trn9", "--for", "kwok"], 2),
        (["trn2.48xlarge", "--for", "kwok", "--partitions", "chips"], 2),
        (["trn2.48xlarge", "--for", "kwok", "--resource", "cpu"], 2),
        (["trn2.48xlarge", "--for", "kwok", "--resource", "cpu=many"], 2),
        (["trn2.48xlarge", "--for", "kwok", "--emulated-driver-version", "new"], 2),
        (["trn3.48xlarge", "--for", "karpenter"], 1),
    ],
)
def test_what_cannot_be_described_is_refused(
    arguments: list[str], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["template", "--instance-type", *arguments]) == status
    golden(capsys.readouterr().err)


def test_a_type_whose_size_is_not_public_needs_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert "trn3.48xlarge" in INSTANCE_TYPES
    options = ("--resource", "cpu=192", "--resource", "memory=2Ti")
    (entry,) = template(capsys, "karpenter", "trn3.48xlarge", *options)
    assert entry["resources"] == {"pods": "110", "cpu": "192", "memory": "2Ti"}
