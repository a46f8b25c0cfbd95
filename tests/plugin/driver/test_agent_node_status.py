"""What the agent as a process says about sick chips on its Node: condition, Events, label, metrics."""

from __future__ import annotations

import time
from typing import Any

import pytest

from dra_driver.neuron.emulation.tree import DEVICES
from dra_driver.neuron.emulation.writer import EmulationOptions, write_host
from dra_driver.neuron.health.condition import KERNEL_DRIVER, STOPPED_REASON
from dra_driver.neuron.host.discover import MODULE_VERSION
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.neuron.topology.instance_types import resolve_emulation
from tests.builders.agent import NODE, World, agent_on_host, free_port, scraped
from tests.eventually import eventually
from tests.golden import golden

WITHIN = 30.0
SRAM = "NeuronHasError_SRAM_UNCORRECTABLE_ERROR"
PRESENT = "neuron.amazonaws.com/present"


@pytest.fixture
def world(world: World) -> World:
    write_host(world.host, resolve_emulation("trn2.48xlarge"), EmulationOptions())
    return world


def count(world: World, chip: int, errors: int) -> None:
    """Have the kernel driver count so many uncorrectable errors in a chip's SRAM."""
    (world.host / DEVICES / f"neuron{chip}/stats/hardware/sram_ecc_uncorrected").write_text(f"{errors}\n")


def says(world: World, status: str, message: str) -> None:
    def told() -> bool:
        found = world.condition()
        return (found.get("status"), found.get("message")) == (status, message)

    eventually(told, WITHIN, f"{status}: {message}")


def events(world: World) -> list[dict[str, Any]]:
    return world.server.store.list("events")[0]


def told(world: World, *wanted: tuple[str, str]) -> None:
    eventually(lambda: [(item["type"], item["reason"]) for item in events(world)] == list(wanted), WITHIN, f"{wanted}")


def test_a_fault_is_a_condition_an_event_and_a_metric_until_it_is_over(world: World) -> None:
    port = free_port()
    with agent_on_host(world, "--metrics-port", str(port)) as running:
        running.ready()
        world.node_told()
        says(world, "False", "Neuron has no error")
        count(world, 3, 2)
        says(world, "True", "neuron3: sram-uncorrectable")
        told(world, ("Warning", SRAM))
        golden(events(world)[0]["message"])
        text = scraped(port)
        assert 'neuron_dra_driver_chip_health{device="neuron3",state="unhealthy"} 1.0' in text
        assert 'fault="sram-uncorrectable"' in text
        eventually(lambda: 'node_events_total{outcome="written"} 1.0' in scraped(port), WITHIN, "the count")
        eventually(lambda: "neuron_dra_driver_node_condition_current 1.0" in scraped(port), WITHIN, "the metric")
        count(world, 3, 0)
        says(world, "False", "Neuron has no error")
        told(world, ("Warning", SRAM), ("Normal", "NeuronHasNoError"))
        assert 'chip_health{device="neuron3",state="healthy"} 1.0' in scraped(port)


def test_killed_and_started_again_during_a_fault_it_takes_nothing_back_and_repeats_nothing(world: World) -> None:
    with agent_on_host(world) as running:
        running.ready()
        world.node_told()
        count(world, 3, 1)
        told(world, ("Warning", SRAM))
        says(world, "True", "neuron3: sram-uncorrectable")
        running.kill()
    (event,) = events(world)
    writes = world.server.count("PATCH", f"/nodes/{NODE}")
    with agent_on_host(world) as running:
        eventually(lambda: "kubelet registered the driver" in running.log, what="the start")
        time.sleep(0.7)
        running.kill()
    assert world.server.count("PATCH", f"/nodes/{NODE}") == writes
    assert [item | {"metadata": None} for item in events(world)] == [event | {"metadata": None}]
    count(world, 3, 0)
    with agent_on_host(world):
        says(world, "False", "Neuron has no error")
        told(world, ("Warning", SRAM), ("Normal", "NeuronHasNoError"))


def test_a_fault_while_the_api_server_is_away_is_told_when_it_is_back(world: World) -> None:
    with agent_on_host(world) as running:
        running.ready()
        world.node_told()
        world.server.stop()
        count(world, 3, 1)
        eventually(lambda: "neuron3 is unhealthy" in running.log, WITHIN, "the finding")
        world.server.start()
        says(world, "True", "neuron3: sram-uncorrectable")
        told(world, ("Warning", SRAM))


def test_a_storm_on_all_chips_is_few_writes(world: World) -> None:
    with agent_on_host(world) as running:
        running.ready()
        world.node_told()
        begun, began = len(world.server.requests), time.monotonic()
        for chip in range(16):
            count(world, chip, 1)
        eventually(lambda: world.condition()["message"].count("sram-uncorrectable") == 16, 30.0, "all chips")
        eventually(lambda: len(events(world)) == 16, WITHIN, "an Event for each")
        since = [request for request in list(world.server.requests)[begun:] if request.method != "GET"]
        assert sum("/events" in request.path for request in since) == 16
        # Chips may be read while they break, one after the other: five writes are free, the others a second apart.
        written = sum(f"/nodes/{NODE}/" in request.path for request in since)
        assert written <= 5 + (time.monotonic() - began)


def test_the_label_can_be_turned_off(world: World) -> None:
    def labels() -> dict[str, str]:
        found: dict[str, str] = world.server.store.get("nodes", NODE)["metadata"]["labels"]
        return found

    with agent_on_host(world) as running:
        running.ready()
        eventually(lambda: labels() == {PRESENT: "true"}, WITHIN, "the label")
    with agent_on_host(world, "--present-label", "off"):
        eventually(lambda: labels() == {}, WITHIN, "no label")


def test_without_the_right_to_patch_nodes_nothing_is_written_there_but_events_are(world: World) -> None:
    with agent_on_host(world, "--node-status", "off") as running:
        running.ready()
        count(world, 3, 1)
        told(world, ("Warning", SRAM))
        assert running.terminate() == 0
    assert world.server.count("PATCH", f"/nodes/{NODE}") == 0
    assert "not up to date" not in running.log


def test_its_last_word_is_that_nobody_watches_the_chips_and_the_next_one_repeats_no_event(world: World) -> None:
    with agent_on_host(world) as running:
        running.ready()
        world.node_told()
        count(world, 3, 1)
        told(world, ("Warning", SRAM))
        says(world, "True", "neuron3: sram-uncorrectable")
        writes = world.server.count("PATCH", f"/nodes/{NODE}")
        assert running.terminate() == 0
    found = world.condition()
    assert (found["status"], found["reason"]) == ("Unknown", STOPPED_REASON)
    golden(found["message"])
    assert world.server.count("PATCH", f"/nodes/{NODE}") == writes + 1
    (event,) = events(world)
    with agent_on_host(world) as running:
        says(world, "True", "neuron3: sram-uncorrectable")
        assert [item | {"metadata": None} for item in events(world)] == [event | {"metadata": None}]
        assert running.terminate() == 0
    count(world, 3, 0)
    with agent_on_host(world):
        says(world, "False", "Neuron has no error")
        told(world, ("Warning", SRAM), ("Normal", "NeuronHasNoError"))


def test_an_instance_whose_successor_serves_says_no_last_word(world: World) -> None:
    uids = ("00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002")
    with agent_on_host(world, "--pod-uid", uids[0]) as old:
        old.ready()
        says(world, "False", "Neuron has no error")
        with agent_on_host(world, "--pod-uid", uids[1]) as new:
            eventually(lambda: len(world.kubelet.instances[DRIVER_NAME]) == 2, WITHIN, "the successor")
            writes = world.server.count("PATCH", f"/nodes/{NODE}")
            assert old.terminate() == 0
            assert world.server.count("PATCH", f"/nodes/{NODE}") == writes
            assert new.terminate() == 0
    assert world.condition()["reason"] == STOPPED_REASON


def test_the_last_word_waits_for_no_api_server(world: World) -> None:
    with agent_on_host(world) as running:
        running.ready()
        world.node_told()
        world.server.delay(120.0, method="PATCH", path=f"/nodes/{NODE}/status")
        assert running.terminate() == 0
        golden(next(line.partition("the conditions")[2] for line in running.log.splitlines() if "within 2 s" in line))


def problems(world: World) -> list[str]:
    found = world.server.store.get("nodes", NODE)["status"].get("conditions", [])
    return [item["message"] for item in found if item["type"] == KERNEL_DRIVER.type and item["status"] == "True"]


def test_a_kernel_driver_that_is_not_loaded_is_one_finding_with_its_remedy_until_it_is(world: World) -> None:
    version, devices, away = world.host / MODULE_VERSION, world.host / DEVICES, world.root / "away"
    content = version.read_text()
    version.unlink()
    devices.rename(away)
    for _ in range(2):  # a restart of the driver repeats no Event
        with agent_on_host(world) as running:
            running.ready()
            eventually(lambda: problems(world), WITHIN, "the condition")
            (text,) = problems(world)
            says(world, "Unknown", text)
            told(world, ("Warning", KERNEL_DRIVER.reason))
            assert running.terminate() == 0
            assert text in world.condition()["message"]
        wrong = [line for line in running.log.splitlines() if " INFO " not in line]
        assert sum("modprobe neuron" in line for line in wrong) == 1
        assert "unreadable" not in running.log
    golden(text)
    (event,) = events(world)
    assert (event["message"], event["count"]) == (text, 1)
    with agent_on_host(world) as running:
        running.ready()
        away.rename(devices)
        version.write_text(content)
        says(world, "False", "Neuron has no error")
        eventually(lambda: not problems(world), WITHIN, "its end")
    told(world, ("Warning", KERNEL_DRIVER.reason))
