"""Whole nodes and chips offered together: the one excludes the other, on servers that can do it."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial

import pytest

from dra_driver.neuron.topology.partitions import NODE_DEVICE, chips_of, device_name
from tests.cluster.lib.installation import EMULATED_ULTRASERVER, Installation
from tests.cluster.lib.kube import Kube, Object, eventually, steadily
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.objects import DRIVER, pod, request, template

pytestmark = pytest.mark.nightly

CHIPS = 16
EVERYTHING = (*(device_name(number) for number in range(CHIPS)), NODE_DEVICE)
TYPE = f"device.attributes['{DRIVER}'].resourceType"
NODE_TEMPLATE = template("whole", request(selectors=[f"{TYPE} == 'neuron_node'"]))
CHIP_TEMPLATE = template("chip", request())
FOUR_TEMPLATE = template("four", request(count=4, selectors=[f"{TYPE} == 'neuron_device'"]))


def _both(daemonset: Object, **more: str) -> None:
    """Emulated UltraServer nodes that offer both."""
    (container,) = daemonset["spec"]["template"]["spec"]["containers"]
    for name, value in {
        "NEURON_DRA_DRIVER_EMULATION_MODE": EMULATED_ULTRASERVER,
        "PARTITIONS": "chip.node",
        **more,
    }.items():
        container["env"] = [item for item in container["env"] if item["name"] != name]
        container["env"].append({"name": name, "value": value})


@pytest.fixture
def both(installation: Installation) -> Installation:
    installation.vary("both", _both)
    return installation


def wait_offered(kube: Kube, nodes: Sequence[str], *devices: str) -> None:
    """Wait until each node offers these alone, in the order in which the scheduler tries them.

    Servers without taints do not show that what was offered before is about to go.
    """

    def probe(node: str) -> bool:
        slices = sorted(kube.slices(node), key=lambda item: str(item["metadata"]["name"]))
        return [device["name"] for item in slices for device in item["spec"].get("devices") or []] == list(devices)

    for node in nodes:
        eventually(f"the devices of {node}", partial(probe, node))


def given_away(namespace: Namespace) -> dict[tuple[str, int], list[str]]:
    """Who holds each chip of each node, by the claims' own status: more than one is a chip given away twice."""
    held: dict[tuple[str, int], list[str]] = {}
    for claim in namespace.claims():
        for found in namespace.allocated(claim):
            for chip in chips_of(found.device, range(CHIPS)) or ():
                held.setdefault((found.pool, chip), []).append(claim["metadata"]["name"])
    return held


def nothing_twice(namespace: Namespace) -> int:
    """Chips that are given away now; fails when one of them is given to two claims."""
    held = given_away(namespace)
    twice = {chip: names for chip, names in held.items() if len(names) > 1}
    assert not twice, twice
    return len(held)


def member(name: str, of: str, node: str = "") -> Object:
    return pod(name, templates={"neurons": of}, node=node)


@pytest.mark.kubernetes("1.37")
def test_chips_come_first_and_the_counters_are_kept(both: Installation, nodes: Sequence[str]) -> None:
    wait_offered(both.kube, nodes, *EVERYTHING)
    for node in nodes:
        sets = [found for item in both.kube.slices(node) for found in item["spec"].get("sharedCounters") or []]
        assert [len(found["counters"]) for found in sets] == [CHIPS]


@pytest.mark.kubernetes("1.37")
@pytest.mark.parametrize(("first", "second"), [("whole", "chip"), ("chip", "whole")])
def test_a_node_and_its_chips_exclude_each_other(
    both: Installation, namespace: Namespace, nodes: Sequence[str], first: str, second: str
) -> None:
    namespace.apply(NODE_TEMPLATE, CHIP_TEMPLATE, member("first", first, nodes[0]))
    namespace.wait_ready("first")
    taken = CHIPS if first == "whole" else 1
    assert len(namespace.numbers("first")) == taken
    if second == "chip":
        namespace.apply(member("second", second, nodes[0]))
    else:
        namespace.apply(member("second", second, nodes[0]), member("third", "chip", nodes[0]))
        namespace.wait_ready("third")
    namespace.wait_event("second", "cannot allocate all claims")
    steadily("the second pod to wait", lambda: namespace.phase("second") == "Pending", 3)
    nothing_twice(namespace)
    for name in ("first", "third"):
        if namespace.phase(name):
            namespace.delete_pod(name)
    namespace.wait_ready("second")
    assert len(namespace.numbers("second")) == CHIPS + 1 - taken


@pytest.mark.kubernetes("1.37")
def test_a_request_that_says_nothing_gets_chips_while_there_are_some(
    both: Installation, namespace: Namespace, nodes: Sequence[str]
) -> None:
    namespace.apply(CHIP_TEMPLATE, *(member(f"p{i}", "chip", nodes[0]) for i in range(3)))
    namespace.wait_ready("p0", "p1", "p2")
    assert {found.device for claim in namespace.claims() for found in namespace.allocated(claim)} == {
        device_name(i) for i in range(3)
    }


@pytest.mark.kubernetes("1.37")
@pytest.mark.timeout(400, func_only=True)
def test_two_hundred_random_claims_share_no_chip(
    both: Installation, namespace: Namespace, nodes: Sequence[str], figures: list[str]
) -> None:
    """An observer reads the claims' status again and again while pods come and go."""
    choices = random.Random(200)
    namespace.apply(NODE_TEMPLATE, CHIP_TEMPLATE, FOUR_TEMPLATE)
    alive: list[str] = []
    kinds: Counter[str] = Counter()
    most = looks = 0
    for wave in range(20):
        made = {f"p{wave}-{i}": choices.choices(["whole", "four", "chip"], [1, 2, 4])[0] for i in range(10)}
        namespace.apply(*(member(name, of) for name, of in made.items()))
        alive += made
        until = time.monotonic() + choices.uniform(1.0, 3.0)
        while time.monotonic() < until:
            most = max(most, nothing_twice(namespace))
            looks += 1
            time.sleep(0.1)
        kinds.update(found.device for claim in namespace.claims() for found in namespace.allocated(claim))
        gone = choices.sample(alive, k=min(len(alive), choices.randrange(6, 14)))
        alive = [name for name in alive if name not in gone]
        namespace.kubectl("delete", "pod", *gone, "--grace-period=1", "--wait=false")
    figures.append(
        f"both layouts: 200 random claims, {looks} looks, at most {most} of {CHIPS * len(nodes)} chips in use"
    )
    assert kinds[NODE_DEVICE]
    assert kinds[device_name(0)]
    assert most > CHIPS
    namespace.kubectl("delete", "pod", "--all", "--grace-period=1", "--wait=false")
    eventually("all chips to be free", lambda: nothing_twice(namespace) == 0, 60)
    namespace.apply(*(member(f"last-{node}", "whole", node) for node in nodes))
    namespace.wait_ready(*(f"last-{node}" for node in nodes))


@pytest.mark.kubernetes("1.36", "1.34")
def test_older_servers_get_the_node_alone(both: Installation, nodes: Sequence[str]) -> None:
    wait_offered(both.kube, nodes, NODE_DEVICE)
    for node in nodes:
        assert "Kubernetes 1.37" in both.logs(node)


@pytest.mark.kubernetes("1.36")
def test_counters_can_be_forced_on_1_36(installation: Installation, namespace: Namespace, nodes: Sequence[str]) -> None:
    installation.vary("forced", lambda daemonset: _both(daemonset, SHARED_COUNTERS="force"))
    wait_offered(installation.kube, nodes, *EVERYTHING)
    namespace.apply(NODE_TEMPLATE, CHIP_TEMPLATE, member("chip", "chip", nodes[0]))
    namespace.wait_ready("chip")
    namespace.apply(member("whole", "whole", nodes[0]))
    namespace.wait_event("whole", "cannot allocate all claims")
    nothing_twice(namespace)
