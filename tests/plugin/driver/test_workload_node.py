"""A node that is allocated to an UltraServer workload: the agent as a process, and an API server on the network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from dra_driver.neuron.emulation.writer import EmulationOptions, write_host
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.neuron.topology.partitions import NODE_DEVICE
from tests.builders.agent import NODE, THIRD, TRN2U, World, agent_on_host, third_of_four
from tests.builders.ultraserver_objects import allocation, ultraserver
from tests.doubles.kubelet import Claim, KubeletError
from tests.eventually import eventually
from tests.golden import golden

ON = ("--ultraserver-namespace", "neuron-dra-driver")
TRAIN, OTHER = (f"b2b1e5a0-0000-4000-8000-00000000000{digit}" for digit in "ab")
SERVER = f"ultraserver-{THIRD.server_ids[4]}"
KIND = "neuronultraservers"


@pytest.fixture
def world() -> Iterator[World]:
    with third_of_four() as made:
        yield made


def allocate(world: World, uid: str | None, workload: str = "default/train", name: str = SERVER) -> None:
    """The node's server says that it is this workload's, or (None) nobody's."""
    server = ultraserver(name)
    if uid is not None:
        server = ultraserver(name, allocation(workload, [NODE]), uids={workload: uid})
    store = world.server.store
    if not any(item["metadata"]["name"] == name for item in store.list(KIND)[0]):
        store.create(KIND, server)
    else:
        store.update(KIND, f"neuron-dra-driver/{name}", server)


def claim(world: World, uid: str | None, name: str) -> Claim:
    parameters = {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig", **({"workload": uid} if uid else {})}
    entry = {"source": "FromClaim", "requests": [], "opaque": {"driver": DRIVER_NAME, "parameters": parameters}}
    return world.add_claim("default", name, devices=[("neurons", NODE_DEVICE)], config=[entry])


def test_a_node_is_marked_by_its_server_and_serves_that_ones_claims_alone(world: World) -> None:
    allocate(world, TRAIN)
    with agent_on_host(world, *ON) as running:
        running.ready()
        eventually(lambda: world.attributes("workloadUID") == {TRAIN}, what="the mark")
        assert world.attributes("workloadId") == {"train"}
        assert world.taints() == {NODE_DEVICE: {"ultraserver-workload": "NoSchedule"}}
        for number, stranger in enumerate((None, OTHER)):
            with pytest.raises(KubeletError, match="is allocated to the UltraServer workload default/train"):
                world.kubelet.prepare("stranger", [claim(world, stranger, f"stranger-{number}")])
        own = claim(world, TRAIN, "own")
        assert world.kubelet.prepare("own", [own])[own.uid]

        allocate(world, None)
        eventually(lambda: world.attributes("workloadUID") == set(), what="no mark")
        assert world.taints() == {}
        assert world.kubelet.prepare("own", [own])[own.uid], "it goes on being served"
        world.kubelet.unprepare("own")
        plain = claim(world, None, "plain")
        assert world.kubelet.prepare("plain", [plain])[plain.uid]

    of_agent = [line.partition(" driver.agent ")[2] for line in running.log.splitlines()]
    golden([line for line in of_agent if "workload" in line])
    asked = [item for item in world.server.requests if KIND in item.path]
    assert {item.path for item in asked} == {f"/apis/neuron.aws.com/v1beta1/namespaces/neuron-dra-driver/{KIND}"}
    assert {item.query["fieldSelector"] for item in asked} == {f"metadata.name={SERVER}"}
    assert {item.method for item in asked} == {"GET"}
    assert len(asked) == 2, "a list and a watch"


def test_a_node_that_an_election_makes_part_of_another_server_follows_that_one_once_it_is_free(world: World) -> None:
    allocate(world, TRAIN)
    other = "00000000000000f4"
    allocate(world, OTHER, "default/other", f"ultraserver-{other}")
    with agent_on_host(world, *ON, "--rescan-seconds", "0.2") as running:
        running.ready()
        eventually(lambda: world.attributes("workloadUID") == {TRAIN}, what="the mark")
        write_host(world.host, TRN2U, moved(other))
        eventually(lambda: world.attributes("ultraserverServerId4") == {other}, what="what the host says")
        assert world.attributes("workloadUID") == {TRAIN}
        allocate(world, None)
        eventually(lambda: world.attributes("workloadUID") == {OTHER}, what="the other one's")
        allocate(world, TRAIN, "default/train", f"ultraserver-{other}")
        eventually(lambda: world.attributes("workloadUID") == {TRAIN}, what="what the other one says now")


def test_who_has_a_node_is_known_to_the_next_run_though_slices_and_server_are_not_there(world: World) -> None:
    """A kubelet that starts deletes the slices, and the API server may not answer for the object."""
    allocate(world, TRAIN)
    with agent_on_host(world, *ON) as running:
        running.ready()
        eventually(lambda: world.attributes("workloadUID") == {TRAIN}, what="the mark")
    for item in world.server.store.list("resourceslices")[0]:
        world.server.store.delete("resourceslices", item["metadata"]["name"])
    world.server.custom_versions = ()
    with agent_on_host(world, *ON) as running:
        running.ready()
        eventually(lambda: world.offered() == [NODE_DEVICE], what="the node device")
        assert world.attributes("workloadUID") == {TRAIN}
        own = claim(world, TRAIN, "own")
        assert world.kubelet.prepare("own", [own])[own.uid]
    with agent_on_host(world) as running:
        running.ready()
        eventually(lambda: world.attributes("workloadUID") == set(), what="the switch to be off")
    with agent_on_host(world, *ON) as running:
        running.ready()
        assert world.attributes("workloadUID") == set(), "nothing was kept where nobody asks"


def moved(server: str) -> EmulationOptions:
    """The same host in another server."""
    return replace(THIRD, server_ids={**THIRD.server_ids, 4: server})


@pytest.mark.parametrize("served", [True, False])
def test_where_no_servers_are_served_a_node_is_nobodys(world: World, served: bool) -> None:
    if not served:
        world.server.custom_versions = ()
    with agent_on_host(world, *ON) as running:
        running.ready()
        eventually(lambda: world.offered() == [NODE_DEVICE], what="the node device")
        plain = claim(world, None, "plain")
        assert world.kubelet.prepare("plain", [plain])[plain.uid]
        assert world.attributes("workloadUID") == set()


def test_without_the_setting_nothing_is_asked_and_nothing_said(world: World) -> None:
    allocate(world, TRAIN)
    with agent_on_host(world) as running:
        running.ready()
        eventually(lambda: world.offered() == [NODE_DEVICE], what="the node device")
        own = claim(world, OTHER, "own")
        assert world.kubelet.prepare("own", [own])[own.uid]
        assert world.attributes("workloadUID") == world.attributes("ultraserverId") == set()
    assert not [item for item in world.server.requests if KIND in item.path]
