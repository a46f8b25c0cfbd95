"""Pods that were written for the device plugin, unchanged, on the DRA driver alone."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from dra_driver.cli.main import main
from dra_driver.neuron.topology.partitions import HardwarePart, parts_of
from tests.cluster.lib.installation import EMULATED, Installation
from tests.cluster.lib.kube import Kube, Object, eventually
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.objects import asking, pod, request, template
from tests.paths import ROOT

NEURON, CORE, GROUP = "aws.amazon.com/neuron", "aws.amazon.com/neuroncore", "aws.amazon.com/neuron-4"
EXAMPLES = ROOT / "examples/specs/extended-resources"
CHIPS, CORES, CORE_SIZE = 16, 8, 2
"""Chips of the emulated type, physical cores of each, and of these in a logical one."""
OFFERED = ("--emulate", EMULATED, "--partitions", "chip.core.group4", "--extended-resources")
ON_NODE_1 = {"kubernetes.io/hostname": "node-1"}

pytestmark = pytest.mark.usefixtures("no_device_plugin_remembered")


def claim_for(namespace: Namespace, name: str) -> Object:
    """The claim that the scheduler has made for the limits of a pod."""
    found = namespace.pod(name)
    assert found is not None
    claim = namespace.claim(found["status"]["extendedResourceClaimStatus"]["resourceClaimName"])
    assert claim is not None
    return claim


def parts(devices: Sequence[str]) -> list[HardwarePart]:
    """The hardware of devices."""
    found = [parts_of(device, range(CHIPS), lambda _: CORE_SIZE) for device in devices]
    return [part for each in found for part in each or ()]


def held(namespace: Namespace, name: str) -> list[str]:
    """The devices that the limits of a pod got."""
    return [item.device for item in namespace.allocated(claim_for(namespace, name))]


@pytest.fixture
def offering(installation: Installation) -> Installation:
    """The driver, with chips, cores and groups of four, and with extended resources."""
    installation.ensure(*OFFERED)
    return installation


def test_limits_of_chips_cores_and_groups_are_served_with_the_environment_of_the_device_plugin(
    offering: Installation, namespace: Namespace
) -> None:
    namespace.apply(
        asking("chips", {"main": {NEURON: 2}}, "node-1"),
        asking("cores", {"main": {CORE: 3}}, "node-1"),
        asking("group", {"main": {GROUP: 1}}, "node-1"),
    )
    namespace.wait_ready("chips", "cores", "group")
    assert namespace.numbers("chips") == [0, 1]
    assert namespace.numbers("group") == [0, 1, 2, 3]
    for name in ("chips", "group"):
        environment = namespace.environment(name)
        assert environment["NEURON_LOGICAL_NC_CONFIG"] == str(CORE_SIZE)
        assert "NEURON_RT_VISIBLE_CORES" not in environment
    cores = namespace.environment("cores")
    assert cores["NEURON_LOGICAL_NC_CONFIG"] == str(CORE_SIZE)
    chips = {part.chip for part in parts(held(namespace, "cores"))}
    assert namespace.numbers("cores") == list(range(len(chips)))
    assert len(visible(cores["NEURON_RT_VISIBLE_CORES"])) == 3

    taken = [part for name in ("chips", "cores", "group") for part in parts(held(namespace, name))]
    assert not any(one.overlaps(other) for place, one in enumerate(taken) for other in taken[:place])
    assert held(namespace, "group")[0].startswith("neuron-group4-")


def visible(text: str) -> list[int]:
    """The cores of NEURON_RT_VISIBLE_CORES, as the device plugin writes them: no ranges."""
    return [int(part) for part in text.split(",")]


def test_an_init_container_sees_the_cores_of_the_container_after_it(
    offering: Installation, namespace: Namespace
) -> None:
    before = asking("init", {"before": {CORE: 2}})["spec"]["containers"][0]
    before["command"] = ["sh", "-c", "ls /dev/neuron*; echo $NEURON_RT_VISIBLE_CORES"]
    made = asking("init", {"main": {CORE: 2}}, "node-1")
    made["spec"]["initContainers"] = [before]
    namespace.apply(made)
    namespace.wait_ready("init")
    seen = namespace.environment("init", "main")["NEURON_RT_VISIBLE_CORES"]
    assert namespace.kubectl("logs", "init", "-c", "before").split() == ["/dev/neuron0", seen]
    assert len(visible(seen)) == len(held(namespace, "init")) == 2


def test_init_containers_and_sidecars_see_all_their_chips_under_the_numbers_that_simulate_shows(
    offering: Installation, namespace: Namespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that asks for more than those before it uses devices of several requests (kubernetes#134880)."""
    before = asking("sharing", {"first": {NEURON: 1}, "sidecar": {NEURON: 1}, "more": {NEURON: 2}})
    made = asking("sharing", {"main": {NEURON: 1}}, "node-1")
    made["spec"]["initContainers"] = before["spec"]["containers"]
    for container in made["spec"]["initContainers"]:
        container["command"] = ["sh", "-c", "ls /dev/neuron*"]
    sidecar = made["spec"]["initContainers"][1]
    sidecar |= {"restartPolicy": "Always", "command": ["sh", "-c", "ls /dev/neuron*; exec sleep 3600"]}
    namespace.apply(made)
    namespace.wait_ready("sharing")

    file = tmp_path / "pod.json"
    file.write_text(json.dumps(made))
    options = ("--extended-resources", "--instance-type", EMULATED, "--partitions", "chip.core.group4")
    assert main(["simulate", str(file), *options, "-o", "json"]) == 0
    (simulated,) = json.loads(capsys.readouterr().out)["items"]
    expected = {
        container["name"]: sorted(device["containerPath"] for device in container["deviceNodes"])
        for container in simulated["containers"]
    }
    seen = {name: namespace.kubectl("logs", "sharing", "-c", name).split() for name in ("first", "sidecar", "more")}
    seen["main"] = [f"/dev/neuron{number}" for number in namespace.numbers("sharing", "main")]
    assert seen == expected
    assert [len(seen[name]) for name in ("first", "sidecar", "more", "main")] == [1, 1, 2, 1]
    assert len(held(namespace, "sharing")) == 3


def test_each_container_of_a_pod_sees_its_own_from_0_on(offering: Installation, namespace: Namespace) -> None:
    containers = {"a": {CORE: 2}, "b": {CORE: 1}, "c": {NEURON: 1}, "none": {}}
    namespace.apply(asking("several", containers, "node-1"))
    namespace.wait_ready("several")
    assert [namespace.numbers("several", name) for name in containers] == [[0], [0], [0], []]
    seen = {name: namespace.environment("several", name).get("NEURON_RT_VISIBLE_CORES") for name in containers}
    results = namespace.allocated(claim_for(namespace, "several"))
    by_request = {
        name: [item.device for item in results if item.request.startswith(f"container-{place}-")]
        for place, name in enumerate(containers)
    }
    assert [len(found) for found in by_request.values()] == [2, 1, 1, 0]
    for name in ("a", "b"):
        # A container that has cores of one chip sees that chip alone, so that cores count as they do on the chip.
        cores = [int(device.rpartition("-")[2]) for device in by_request[name]]
        assert visible(seen[name] or "") == sorted(cores)
    assert (seen["c"], seen["none"]) == (None, None)


def test_cores_run_out_and_a_pod_waits_until_others_have_ended(offering: Installation, namespace: Namespace) -> None:
    """Chips, cores and groups are the same hardware: 15 chips leave four cores."""
    namespace.apply(asking("chips", {"main": {NEURON: CHIPS - 1}}, "node-1"))
    namespace.wait_ready("chips")
    namespace.apply(asking("four", {"main": {CORE: 4}}, "node-1"))
    namespace.wait_ready("four")
    for name, limits in (("core", {CORE: 1}), ("chip", {NEURON: 1}), ("group", {GROUP: 1})):
        namespace.apply(asking(name, {"main": limits}, "node-1"))
        namespace.wait_event(name, "cannot allocate all claims")
    namespace.delete_pod("four")
    eventually("one of the two to run", lambda: [n for n in ("core", "chip") if namespace.phase(n) == "Running"], 60)
    assert namespace.phase("group") == "Pending"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_an_example_prints_what_its_comment_says(path: Path, offering: Installation, namespace: Namespace) -> None:
    text = path.read_text()
    printed = re.findall(r"(?m)^#   (/dev/\S+|NEURON\S+)$", text)
    assert printed
    manifest = yaml.safe_load(text)
    count = manifest["spec"].get("replicas", 1)
    namespace.apply(text)
    made = eventually("its pods", lambda: found if len(found := namespace.pods()) == count else None, 30)
    names = [item["metadata"]["name"] for item in made]
    namespace.wait_ready(*names)
    outputs = [namespace.printed(len(printed), name) for name in names]
    second = [line.replace("=0,1", "=2,3") for line in printed]
    share = len({namespace.node_of(name) for name in names}) < count
    assert sorted(outputs) == ([printed, second] if share else [printed] * count)


def test_a_driver_that_restarts_beside_old_pods_takes_them_for_its_own(
    offering: Installation, kube: Kube, namespace: Namespace
) -> None:
    """Devices by limits are no devices of a device plugin, which would keep the driver from starting."""
    namespace.apply(asking("old", {"main": {CORE: 2}}, "node-1"))
    namespace.wait_ready("old")
    before, slices = namespace.environment("old"), kube.slices("node-1")
    allocatable = (kube.get("nodes", "node-1") or {})["status"]["allocatable"]
    assert [allocatable.get(name, "0") for name in (NEURON, CORE)] == ["0", "0"]
    mine = offering.pod("node-1")["metadata"]["name"]
    kube.kubectl("--namespace", "neuron-dra-driver", "delete", "pod", mine)
    offering.wait_ready()
    assert kube.slices("node-1") == slices
    namespace.apply(asking("new", {"main": {CORE: 2}}, "node-1"))
    namespace.wait_ready("new")
    taken = [*parts(held(namespace, "old")), *parts(held(namespace, "new"))]
    assert not any(one.overlaps(other) for place, one in enumerate(taken) for other in taken[:place])
    assert namespace.environment("old") == before


@pytest.mark.kubernetes("1.37", "1.36")
def test_where_nodes_offer_chips_alone_limits_of_chips_run_and_those_of_cores_wait(
    installation: Installation, namespace: Namespace
) -> None:
    installation.ensure("--emulate", EMULATED, "--extended-resources")
    namespace.apply(asking("chips", {"a": {NEURON: 3}, "b": {NEURON: 1}}), asking("core", {"main": {CORE: 1}}))
    namespace.wait_ready("chips")
    assert [namespace.numbers("chips", name) for name in "ab"] == [[0, 1, 2], [0]]
    namespace.wait_event("core", "cannot allocate all claims")


def test_pods_with_limits_and_pods_with_claims_share_a_node(offering: Installation, namespace: Namespace) -> None:
    namespace.apply(
        template("one", request()),
        pod("new", templates={"neurons": "one"}, node="node-1"),
        asking("old", {"main": {NEURON: CHIPS - 1}}, "node-1"),
    )
    namespace.wait_ready("new", "old")
    chips = [*held(namespace, "old"), *(item.device for item in namespace.allocated(namespace.claim_of("new")))]
    assert len(set(chips)) == CHIPS
