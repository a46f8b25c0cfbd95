"""``dra-driver template`` says what the driver of a live node of the type publishes."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.cli.main import main
from dra_driver.cli.template import SHARED_ATTRIBUTES
from dra_driver.neuron.emulation.writer import EmulationOptions, write_host
from dra_driver.neuron.topology.instance_types import resolve_emulation
from tests.builders.agent import NODE, World, agent_on_host, node
from tests.eventually import eventually

pytestmark = pytest.mark.slow

Object = dict[str, Any]
CASES = [
    ("trn2.48xlarge", ()),
    ("trn2.48xlarge", ("--partitions", "chip.core")),
    ("trn1.32xlarge", ("--partitions", "chip.group")),
    ("inf2.48xlarge", ("--partitions", "node")),
    ("trn2u.48xlarge", ()),
    ("trn2u.48xlarge", ("--partitions", "chip.node")),
]


def published(instance_type: str, options: Sequence[str]) -> tuple[list[Object], Mapping[str, str]]:
    """``spec`` of the slices of a running driver, and the labels of its Node."""
    with tempfile.TemporaryDirectory(prefix="t-") as name, node(Path(name)) as world:
        write_host(world.host, resolve_emulation(instance_type), EmulationOptions())
        with agent_on_host(world, *options) as running:
            running.ready()
            world.node_told()
            eventually(lambda: _complete(world), what="all slices")
            labels: Mapping[str, str] = world.server.store.get("nodes", NODE)["metadata"]["labels"]
            return [item["spec"] for item in world.server.slices()], labels


def _complete(world: World) -> bool:
    slices = world.server.slices()
    return bool(slices) and len(slices) == slices[0]["spec"]["pool"]["resourceSliceCount"]


def template(capsys: pytest.CaptureFixture[str], consumer: str, instance_type: str, options: Sequence[str]) -> Any:
    assert main(["template", "--instance-type", instance_type, "--for", consumer, *options]) == 0
    return yaml.safe_load(capsys.readouterr().out)


def without_what_only_the_node_knows(devices: Sequence[Object]) -> list[Object]:
    """The devices as before the node is there."""
    return [
        {
            **item,
            "attributes": {key: value for key, value in item["attributes"].items() if key not in SHARED_ATTRIBUTES},
        }
        for item in devices
    ]


@pytest.mark.parametrize(
    ("instance_type", "options"), CASES, ids=lambda value: value if isinstance(value, str) else " ".join(value)
)
def test_all_templates_equal_the_slices_of_a_live_node(
    instance_type: str, options: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    live, labels = published(instance_type, options)

    made, *slices = template(capsys, "kwok", instance_type, options)["items"]
    name = made["metadata"]["name"]
    for item, spec in zip(slices, live, strict=True):
        assert item["spec"] == {**spec, "nodeName": name, "pool": {**spec["pool"], "name": name}}
    assert labels.items() <= made["metadata"]["labels"].items()

    before = [{**spec, "devices": without_what_only_the_node_knows(spec.get("devices", ()))} for spec in live]
    _, *slices = template(capsys, "cluster-autoscaler", instance_type, options)["items"]
    assert [item["spec"].get("devices", []) for item in slices] == [spec["devices"] for spec in before]
    assert [item["spec"].get("sharedCounters") for item in slices] == [spec.get("sharedCounters") for spec in live]

    (entry,) = template(capsys, "karpenter", instance_type, options)
    resources = entry["dynamicResources"]
    assert [item.get("devices", []) for item in resources["resourceSliceTemplates"]] == [s["devices"] for s in before]
    # What is said to be shared is, on this node: all its devices that have the attribute have the same value.
    named = {device["name"]: device["attributes"] for spec in live for device in spec.get("devices", ())}
    for binding in resources["attributeBindings"]:
        attribute = binding["attribute"].removeprefix("neuron.aws.com/")
        values = [named[item["device"]].get(attribute) for item in binding["devices"]]
        assert all(value == values[0] for value in values)
        having = {device for device, attributes in named.items() if attribute in attributes}
        assert having <= {item["device"] for item in binding["devices"]}
