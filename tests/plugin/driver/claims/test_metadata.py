"""Files about devices follow prepared claims, through repairs, restarts and a change of the setting."""

from __future__ import annotations

import json
from pathlib import Path

from dra_driver.neuron.names import DRIVER_NAME
from tests.builders.agent import START_SECONDS, World, agent
from tests.doubles.kubelet import Claim
from tests.eventually import eventually

ON = ("--device-metadata", "on")


def claim(world: World) -> Claim:
    devices = [("neurons", f"neuron-device-{index}") for index in (4, 5)]
    return world.add_claim("team", "claim", devices=devices)


def written(world: World) -> list[Path]:
    return sorted((world.kubelet.plugins_dir / DRIVER_NAME / "metadata").glob("*/*"))


def mounts(world: World) -> list[dict[str, str]]:
    return [
        mount
        for spec in world.specs()
        for device in spec["devices"]
        for mount in device["containerEdits"].get("mounts", [])
    ]


def test_each_device_mounts_the_file_of_its_request_until_the_claim_is_unprepared(world: World) -> None:
    with agent(world, *ON) as running:
        running.ready()
        world.kubelet.prepare("pod", [claim(world)])
        (file,) = written(world)
        assert [mount["hostPath"] for mount in mounts(world)] == [str(file)] * 2
        (request,) = json.loads(file.read_text())["requests"]
        published = {
            device["name"]: device["attributes"] for item in world.server.slices() for device in item["spec"]["devices"]
        }
        assert [device["name"] for device in request["devices"]] == ["neuron-device-4", "neuron-device-5"]
        assert all(device["attributes"] == published[device["name"]] for device in request["devices"])
        world.kubelet.unprepare("pod")
        assert (written(world), mounts(world)) == ([], [])


def test_what_is_lost_between_two_lives_is_mended_and_what_is_left_over_removed(world: World) -> None:
    with agent(world, *ON) as first:
        first.ready()
        world.kubelet.prepare("pod", [claim(world)])
        first.terminate()
    eventually(lambda: not world.kubelet.instances.get(DRIVER_NAME), what="deregistration")
    (file,) = written(world)
    before = file.read_bytes()
    file.write_bytes(b"")
    left = file.parent.with_name("00000000-1111-4222-8333-444444444444")
    left.mkdir()
    (left / "neurons.json").write_text("{}")
    # Turned off: claims that are prepared keep their files, and new ones get none.
    with agent(world) as second:
        second.ready()
        eventually(lambda: written(world) == [file], START_SECONDS, "the repair")
        assert file.read_bytes() == before
        world.kubelet.unprepare("pod")
        assert written(world) == []


def test_off_unless_asked_for(world: World) -> None:
    with agent(world) as running:
        running.ready()
        world.kubelet.prepare("pod", [claim(world)])
        assert (written(world), mounts(world)) == ([], [])
