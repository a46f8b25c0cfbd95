"""Examples of cores and groups do what their comments say, and all partitions of one node exclude each other."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pytest
import yaml

from tests.cluster.lib.installation import EMULATED, Installation
from tests.cluster.lib.kube import Object, eventually
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.nodefiles import NodeFiles
from tests.cluster.lib.objects import config, connected, container, neuron_config, pod, request, template
from tests.oracles.core_ledger import Ledger
from tests.oracles.visible_cores import View
from tests.paths import ROOT

pytestmark = pytest.mark.kubernetes("1.37")

SPECS = ROOT / "examples/specs/partitions"
EXAMPLES = {
    "two-pods-on-a-chip": EMULATED,
    "four-pods-on-a-chip": EMULATED,
    "group-of-8": EMULATED,
    "run-of-3-inf2": "inf2.48xlarge",
}
"""On which kind of node each is for."""

CORE = "core.neuron.aws.com"
ONE_CORE = template("core", request(device_class=CORE))
CHIP = template("chip", request(device_class="chip.neuron.aws.com"))
FOUR = template("group", request(device_class="group4.neuron.aws.com"))
NODE = template("whole", request(device_class="node.neuron.aws.com"))


def offering(installation: Installation, instance_type: str) -> None:
    """Have both nodes be of a type and offer everything."""
    installation.ensure("--emulate", instance_type, "--partitions", "chip.core.group.node")


@pytest.fixture
def all_partitions(installation: Installation) -> Installation:
    offering(installation, EMULATED)
    return installation


def used(namespace: Namespace, files: Mapping[str, NodeFiles]) -> Ledger:
    """All claims of the namespace in a ledger; each pod's container has just what its claims hold."""
    ledger = Ledger.of(namespace.kube.slices())
    for claim in namespace.claims():
        allocation = claim.get("status", {}).get("allocation")
        if allocation:
            ledger.take(claim["metadata"]["uid"], allocation["devices"]["results"])
    for item in namespace.pods():
        name, node = item["metadata"]["name"], item["spec"]["nodeName"]
        statuses = item["status"].get("resourceClaimStatuses", ())
        claims = [namespace.claim(entry["resourceClaimName"]) for entry in statuses]
        uids = [claim["metadata"]["uid"] for claim in claims if claim is not None]
        seen = View(namespace.environment(name))
        for uid in uids:
            seen.chips |= files[node].shown(uid)
        assert namespace.numbers(name) == sorted(seen.chips)
        held = {(chip, core) for uid in uids for _, chip, core in ledger.held(uid)}
        (kind,) = {device.attributes["instanceType"] for (pool, _), device in ledger.devices.items() if pool == node}
        assert seen.cores(kind) == held, f"{name} has {seen}"
    return ledger


def promised(text: str) -> tuple[list[str], list[str]]:
    """The words after ``kubectl logs`` in an example's comment, and the lines that it is said to print."""
    lines = [line.removeprefix("#").removeprefix("   ") for line in text.splitlines() if line.startswith("#")]
    (start,) = [number for number, line in enumerate(lines) if line.startswith("$ kubectl logs ")]
    printed = lines[start + 1 :]
    return lines[start].split()[3:], printed[: printed.index("")]


def by_pod(lines: Sequence[str]) -> list[list[str]]:
    """What each pod printed: devices come first. In an order of its own, since pods are in none."""
    return sorted(
        found.splitlines() for found in re.split(r"(?<=\n)(?=/dev/neuron0\n)", "".join(f"{line}\n" for line in lines))
    )


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_prints_what_its_comment_promises(
    installation: Installation, namespace: Namespace, node_files: dict[str, NodeFiles], name: str
) -> None:
    offering(installation, EXAMPLES[name])
    text = (SPECS / f"{name}.yaml").read_text()
    which, expected = promised(text)
    namespace.apply(text)
    objects = list(yaml.safe_load_all(text))
    count = sum(item.get("spec", {}).get("replicas", 1) for item in objects if item["kind"] in ("Pod", "Deployment"))
    names = eventually("all pods", lambda: _names(namespace, count))
    namespace.wait_ready(*names)
    assert by_pod(namespace.printed(len(expected), *which)) == by_pod(expected)
    used(namespace, node_files)
    devices = re.findall(r"^#   (neuron-\S+)$", text, re.MULTILINE)
    if devices:
        assert [item.device for claim in namespace.claims() for item in namespace.allocated(claim)] == devices


def test_pods_that_share_a_chip_keep_it_from_whoever_wants_it_whole(
    all_partitions: Installation, namespace: Namespace, nodes: Sequence[str], node_files: dict[str, NodeFiles]
) -> None:
    """A core excludes its chip, its row and the node, and nothing else; the last one that goes gives them back."""
    first = nodes[0]

    def member(name: str, of: str) -> Object:
        return pod(name, templates={"neurons": of}, node=first)

    namespace.apply(ONE_CORE, CHIP, FOUR, NODE, *(member(f"core-{number}", "core") for number in range(2)))
    namespace.wait_ready("core-0", "core-1")
    assert _devices(namespace, "core-0", "core-1") == {"neuron-core-0-0", "neuron-core-0-1"}
    namespace.apply(member("whole", "whole"))
    namespace.wait_event("whole", "cannot allocate all claims")
    namespace.apply(*(member(f"row-{number}", "group") for number in range(3)))
    namespace.wait_ready(*(f"row-{number}" for number in range(3)))
    assert _devices(namespace, *(f"row-{number}" for number in range(3))) == {
        f"neuron-group4-{number}" for number in (1, 2, 3)
    }
    namespace.apply(member("row-3", "group"))
    namespace.wait_event("row-3", "cannot allocate all claims")
    namespace.apply(member("chip", "chip"))
    namespace.wait_ready("chip")
    assert _devices(namespace, "chip") == {"neuron-device-1"}
    namespace.delete_pod("core-0")
    namespace.delete_pod("chip")
    for waiting in ("row-3", "whole"):
        assert namespace.phase(waiting) == "Pending"
    used_now = {item for claim in namespace.claims() for item in namespace.allocated(claim)}
    assert len(used_now) == 4
    namespace.delete_pod("core-1")
    namespace.wait_ready("row-3")
    for name in ("row-0", "row-1", "row-2", "row-3"):
        namespace.delete_pod(name)
    namespace.wait_ready("whole")
    used(namespace, node_files)


def test_cores_of_two_claims_are_for_containers_of_their_own(
    all_partitions: Installation, namespace: Namespace, nodes: Sequence[str]
) -> None:
    templates = {"one": "one", "three": "three"}
    containers = [container("a", "one"), container("b", "three")]
    namespace.apply(
        template("one", request(device_class=CORE)),
        template("three", request(device_class=CORE, count=3)),
        pod("apart", templates=templates, containers=containers, node=nodes[0]),
    )
    namespace.wait_ready("apart")
    seen = {name: namespace.environment("apart", name)["NEURON_RT_VISIBLE_CORES"] for name in ("a", "b")}
    assert seen == {"a": "0", "b": "1-3"}
    assert [namespace.numbers("apart", name) for name in ("a", "b")] == [[0], [0]]
    namespace.apply(pod("both", templates=templates, node=nodes[0]))
    namespace.wait_event("both", "a container can use the cores of only one claim")
    assert namespace.phase("both") == "Pending"


def test_the_first_claim_on_a_chip_decides_its_logical_core_size(
    all_partitions: Installation, namespace: Namespace, nodes: Sequence[str], node_files: dict[str, NodeFiles]
) -> None:
    """The refused pod starts as soon as the chip is its own."""
    small = template("small", request(device_class=CORE), configs=[config(neuron_config(1))])
    namespace.apply(small, ONE_CORE, pod("first", templates={"neurons": "small"}, node=nodes[0]))
    namespace.wait_ready("first")
    environment = namespace.environment("first")
    assert (environment["NEURON_LOGICAL_NC_CONFIG"], environment["NEURON_RT_VISIBLE_CORES"]) == ("1", "0-1")
    namespace.apply(pod("second", templates={"neurons": "core"}, node=nodes[0]))
    holder = namespace.claim_of("first")["metadata"]["name"]
    text = namespace.wait_event("second", holder)
    assert "logical" in text
    namespace.delete_pod("first")
    namespace.wait_ready("second")
    environment = namespace.environment("second")
    assert (environment["NEURON_LOGICAL_NC_CONFIG"], environment["NEURON_RT_VISIBLE_CORES"]) == ("2", "1")
    used(namespace, node_files)


def test_chips_are_still_found_by_the_constraint_of_the_founding_template(
    all_partitions: Installation, namespace: Namespace, nodes: Sequence[str], node_files: dict[str, NodeFiles]
) -> None:
    row = template("row", request(count=4), constraints=[connected(4, "neurons")])
    namespace.apply(ONE_CORE, row, pod("core", templates={"neurons": "core"}, node=nodes[0]))
    namespace.wait_ready("core")
    namespace.apply(pod("row", templates={"neurons": "row"}, node=nodes[0]))
    namespace.wait_ready("row")
    assert _devices(namespace, "row") == {f"neuron-device-{number}" for number in range(4, 8)}
    used(namespace, node_files)


def _devices(namespace: Namespace, *names: str) -> set[str]:
    return {item.device for name in names for item in namespace.allocated(namespace.claim_of(name))}


def _names(namespace: Namespace, count: int) -> list[str] | None:
    names = [str(item["metadata"]["name"]) for item in namespace.pods()]
    return names if len(names) == count else None
