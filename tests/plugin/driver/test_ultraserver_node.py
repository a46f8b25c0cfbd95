"""A node of an UltraServer, the agent as a process: whole-node claims through elections, changes and restarts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from dra_driver.neuron.emulation.ultraservers import Servers
from dra_driver.neuron.emulation.writer import EmulationOptions, write_host
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.neuron.topology.partitions import NODE_DEVICE
from dra_driver.neuron.topology.ultraserver import Mode
from tests.builders.agent import THIRD, TRN2U, Agent, World, agent, agent_on_host, third_of_four
from tests.doubles.kubelet import Claim, Device, KubeletError
from tests.eventually import eventually
from tests.golden import golden_error

ELECTING = EmulationOptions(busy=True)
SERVER, PAIR = "1a2b3c4d5e6f7081", "1a2b3c4d5e6f7080"
FOUR_NODES = {
    "NEURON_RT_ULTRASERVER_MODE=1",
    f"NEURON_RT_ULTRASERVER_SERVER_ID={SERVER}",
    "NEURON_RT_ULTRASERVER_NODE_ID=2",
}


@pytest.fixture
def world() -> Iterator[World]:
    with third_of_four() as made:
        yield made


def claim(world: World, nodes: int | None, name: str = "claim", device: str = NODE_DEVICE) -> Claim:
    parameters = {"apiVersion": "neuron.aws.com/v1", "kind": "UltraServerConfig", "ultraserverMode": nodes}
    entry = {"source": "FromClaim", "requests": [], "opaque": {"driver": DRIVER_NAME, "parameters": parameters}}
    devices = [("neurons", device)]
    config = [entry] if nodes is not None else []
    return world.add_claim("default", name, devices=devices, config=config)


def prepared(world: World, wanted: Claim) -> list[Device]:
    """What kubelet gets, which tries again until it gets it."""
    found: list[Device] = []

    def done() -> bool:
        try:
            found[:] = world.kubelet.prepare("pod", [wanted])[wanted.uid]
        except KubeletError:
            return False
        return True

    eventually(done, what="a prepared claim")
    return found


def environment(world: World) -> set[str]:
    """Variables about the UltraServer in the one CDI spec."""
    (spec,) = world.specs()
    (device,) = spec["devices"]
    return {entry for entry in device["containerEdits"]["env"] if "ULTRASERVER" in entry}


def settled(running: Agent, text: str) -> None:
    eventually(lambda: text in running.log, what=f"{text!r} in the log")


def test_a_whole_node_is_prepared_with_all_chips_and_its_place_in_the_server(world: World) -> None:
    with agent_on_host(world) as running:
        running.ready()
        eventually(lambda: world.offered() == [NODE_DEVICE], what="the node device")
        (device,) = prepared(world, claim(world, 4))
        assert device.name == NODE_DEVICE
        (spec,) = world.specs()
        assert [f"{spec['kind']}={one['name']}" for one in spec["devices"]] == list(device.cdi_ids)
        paths = [one["path"] for one in spec["devices"][0]["containerEdits"]["deviceNodes"]]
        assert paths == [f"/dev/neuron{index}" for index in range(16)]
        assert environment(world) == FOUR_NODES

        world.kubelet.unprepare("pod")
        assert world.specs() == []
        prepared(world, claim(world, 2, "pair"))
        assert f"NEURON_RT_ULTRASERVER_SERVER_ID={PAIR}" in environment(world)


def test_a_pod_of_before_the_election_waits_and_starts_when_it_has_ended(world: World) -> None:
    write_host(world.host, TRN2U, ELECTING)
    with agent_on_host(world) as running:
        running.ready()
        wanted = claim(world, 4)
        with golden_error(KubeletError):
            world.kubelet.prepare("pod", [wanted])
        assert world.specs() == []

        write_host(world.host, TRN2U, THIRD)
        prepared(world, wanted)
        assert environment(world) == FOUR_NODES


def test_a_pod_is_told_the_place_of_its_preparation_not_that_of_the_last_scan(world: World) -> None:
    with agent_on_host(world, "--rescan-seconds", "3600") as running:
        running.ready()
        write_host(world.host, TRN2U, ELECTING)
        wanted = claim(world, 4)
        with golden_error(KubeletError):
            world.kubelet.prepare("pod", [wanted])
        write_host(world.host, TRN2U, Servers.parse("2x4").options(TRN2U, 2))
        world.kubelet.prepare("pod", [wanted])
        assert "NEURON_RT_ULTRASERVER_NODE_ID=1" in environment(world)


def test_a_mode_that_is_lost_after_the_start_is_refused_with_those_that_are_left(world: World) -> None:
    with agent_on_host(world) as running:
        running.ready()
        write_host(world.host, TRN2U, EmulationOptions(ultraserver_modes=(Mode.X2H, Mode.X1), node_ids={2: 1}))
        settled(running, "ultraserver-incomplete")
        with golden_error(KubeletError):
            world.kubelet.prepare("pod", [claim(world, 4)])
        world.kubelet.unprepare("pod")
        prepared(world, claim(world, 2, "pair"))
        assert "NEURON_RT_ULTRASERVER_MODE=2" in environment(world)


def test_a_restart_and_an_election_change_nothing_for_a_prepared_claim(world: World) -> None:
    wanted = claim(world, 4)
    with agent_on_host(world) as running:
        running.ready()
        first = prepared(world, wanted)
        running.kill()
    write_host(world.host, TRN2U, ELECTING)
    shutil.rmtree(world.cdi)
    world.kubelet.restart()  # it then asks again for what it has prepared
    with agent_on_host(world) as running:
        running.ready()
        assert prepared(world, wanted) == first
        assert environment(world) == FOUR_NODES
        chip = claim(world, None, "chip", "neuron-device-7")
        with golden_error(KubeletError):
            world.kubelet.prepare("other", [chip])


def test_an_election_costs_two_writes_and_the_node_stays_on_offer(world: World) -> None:
    with agent_on_host(world) as running:
        running.ready()
        eventually(lambda: world.offered() == [NODE_DEVICE], what="the node device")
        writes, slices = world.slice_writes(), world.server.slices()
        write_host(world.host, TRN2U, ELECTING)
        settled(running, "ultraserver-electing")
        assert world.offered() == [NODE_DEVICE]
        write_host(world.host, TRN2U, THIRD)
        settled(running, "ultraserver-electing: resolved")
        eventually(
            lambda: world.server.slices()[0]["spec"]["devices"] == slices[0]["spec"]["devices"],
            what="the slice of before",
        )
        assert world.slice_writes() - writes <= 2


def test_an_agent_takes_its_place_in_emulated_servers_from_its_nodes_name(world: World) -> None:
    world.server.add_node("lab-6")
    root = world.root / "other"
    options = ("--node-name", "lab-6", "--emulate", "trn2u.48xlarge", "--emulation-root", str(root))
    with agent(world, *options, "--emulated-ultraservers", "2x4") as running:
        running.ready()
        files = root / "sys/class/neuron_device"
        assert (files / "node_id_4").read_text() == "1\n"
        assert (files / "server_id_4").read_text() == "1a2b3c4d5e6f7091\n"
