"""What the agent as a process writes into the status of claims, over real HTTP."""

from __future__ import annotations

import time
from typing import Any

import pytest

from dra_driver.kube.api.client import READ_TIMEOUT
from dra_driver.neuron.emulation.tree import DEVICES
from dra_driver.neuron.emulation.writer import EmulationOptions, write_host
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.neuron.topology.instance_types import resolve_emulation
from tests.builders.agent import NODE, World, agent, agent_on_host
from tests.doubles.kubelet import Claim, KubeletError
from tests.eventually import eventually

WITHIN = 30.0
QUIET = 1.5
"""Seconds after which what is not written will not be."""
CLAIMS = "/resourceclaims/"
STATUS = f"{CLAIMS}.*/status$"


def devices(world: World, claim: Claim) -> list[dict[str, Any]]:
    stored = world.server.store.get("resourceclaims", f"{claim.namespace}/{claim.name}")
    found: list[dict[str, Any]] = stored["status"].get("devices", [])
    return found


def conditions(world: World, claim: Claim) -> dict[str, dict[str, str]]:
    """By type of the claim's first entry."""
    found = devices(world, claim)
    return {item["type"]: item for item in found[0]["conditions"]} if found else {}


def says(world: World, claim: Claim, type_: str, status: str, reason: str) -> None:
    def so() -> bool:
        found = conditions(world, claim).get(type_, {})
        return (found.get("status"), found.get("reason")) == (status, reason)

    eventually(so, WITHIN, f"{type_}={status} ({reason})")


def requests(world: World, since: int = 0) -> list[str]:
    """Methods of the requests about claims."""
    return [request.method for request in list(world.server.requests)[since:] if CLAIMS in request.path]


def test_a_claim_says_its_chips_for_one_request_more_and_keeps_what_others_say(world: World) -> None:
    wanted = world.add_claim("default", "two", [("chips", "neuron-device-2"), ("chips", "neuron-device-3")])
    key = "default/two"
    stored = world.server.store.get("resourceclaims", key)
    other = {"driver": "efa.networking.k8s.aws", "pool": NODE, "device": "nic", "conditions": []}
    stored["status"]["devices"] = [other]
    world.server.store.update("resourceclaims", key, stored)
    with agent(world) as running:
        running.ready()
        world.kubelet.prepare("pod", [wanted])
        eventually(lambda: len(devices(world, wanted)) == 3, WITHIN, "the entries")
        time.sleep(QUIET)
    first, *own = devices(world, wanted)
    assert first == other
    chips = [(entry["device"], chip["index"], chip["path"]) for entry in own for chip in entry["data"]["chips"]]
    assert chips == [("neuron-device-2", 2, "/dev/neuron0"), ("neuron-device-3", 3, "/dev/neuron1")]
    assert requests(world) == ["GET", "PATCH"]


def test_each_pod_has_another_chip_by_what_its_claim_says(world: World) -> None:
    claims = [world.add_claim("default", f"claim-{n}", [("chip", f"neuron-device-{n}")]) for n in range(4)]
    with agent(world) as running:
        running.ready()
        for number, claim in enumerate(claims):
            world.kubelet.prepare(f"pod-{number}", [claim])
        eventually(lambda: all(devices(world, claim) for claim in claims), WITHIN, "the entries")
    chips = [chip["index"] for claim in claims for entry in devices(world, claim) for chip in entry["data"]["chips"]]
    assert len(chips) == len(set(chips)) == 4


def test_a_refused_claim_says_why_and_is_ready_when_that_is_over(world: World) -> None:
    first = world.add_claim("default", "first", [("chip", "neuron-device-3")])
    second = world.add_claim("default", "second", [("chip", "neuron-device-3")])
    with agent(world) as running:
        running.ready()
        world.kubelet.prepare("one", [first])
        for _ in range(3):
            with pytest.raises(KubeletError):
                world.kubelet.prepare("two", [second])
        says(world, second, "Ready", "False", "DeviceInUse")
        assert "still prepared for claim default/first" in conditions(world, second)["Ready"]["message"]
        world.kubelet.unprepare("one")
        world.kubelet.prepare("two", [second])
        says(world, second, "Ready", "True", "Prepared")
        # Nothing at unprepare, and one write a state.
        assert requests(world).count("PATCH") == 3


def test_a_sick_chip_is_told_and_told_well_again(world: World) -> None:
    write_host(world.host, resolve_emulation("trn2.48xlarge"), EmulationOptions())
    wanted = world.add_claim("default", "claim", [("chip", "neuron-device-3")])
    errors = world.host / DEVICES / "neuron3/stats/hardware/sram_ecc_uncorrected"
    with agent_on_host(world) as running:
        running.ready()
        world.kubelet.prepare("pod", [wanted])
        says(world, wanted, "Healthy", "True", "Healthy")
        since = conditions(world, wanted)["Ready"]["lastTransitionTime"]
        errors.write_text("2\n")
        says(world, wanted, "Healthy", "False", "Unhealthy")
    assert conditions(world, wanted)["Ready"]["lastTransitionTime"] == since


def test_after_a_restart_what_is_missing_is_written_and_nothing_else(world: World) -> None:
    claims = [world.add_claim("default", f"claim-{n}", [("chip", f"neuron-device-{n}")]) for n in range(2)]
    with agent(world) as running:
        running.ready()
        world.kubelet.prepare("pod-0", [claims[0]])
        says(world, claims[0], "Ready", "True", "Prepared")
        world.server.fail(503, 100, path=STATUS, method="PATCH")
        world.kubelet.prepare("pod-1", [claims[1]])
        running.kill()
    world.server.faults.clear()
    begun = len(world.server.requests)
    with agent(world) as running:
        running.ready()
        says(world, claims[1], "Ready", "True", "Prepared")
        time.sleep(QUIET)
    # The killed driver's last try may have arrived late: what is counted is about which claims.
    later = [item for item in world.server.requests[begun:] if CLAIMS in item.path]
    assert {item.path.rpartition(CLAIMS)[2] for item in later if item.method == "PATCH"} == {"claim-1/status"}
    assert sorted(item.path.rpartition("/")[2] for item in later if item.method == "GET") == ["claim-0", "claim-1"]


def test_an_api_server_that_is_away_keeps_no_claim_waiting(world: World) -> None:
    wanted = world.add_claim("default", "claim", [("chip", "neuron-device-3")])
    with agent(world) as running:
        running.ready()
        with world.server.hold(1000, path=STATUS):
            began = time.monotonic()
            world.kubelet.prepare("pod", [wanted])
            world.kubelet.unprepare("pod")
            world.kubelet.prepare("pod", [wanted])
            assert time.monotonic() - began < READ_TIMEOUT, "no call has waited for an answer"
        says(world, wanted, "Ready", "True", "Prepared")
        assert "Traceback" not in running.log


@pytest.mark.parametrize(
    ("status", "message", "retry_after"),
    [
        (500, "etcdserver: request is too large", None),
        (500, "failed calling webhook", None),
        (503, "no", None),
        (429, 'admission webhook "of.a.tenant" denied the request: later', 300),
    ],
)
def test_a_claim_that_cannot_be_written_keeps_no_other_waiting(
    world: World, status: int, message: str, retry_after: int | None
) -> None:
    """Its owner may have made it as long as an object can be, or its namespace may have a webhook that fails."""
    long = world.add_claim("default", "long", [("chip", "neuron-device-2")])
    other = world.add_claim("default", "other", [("chip", "neuron-device-3")])
    path = f"{CLAIMS}long/status$"
    world.server.fail(status, 10**6, path=path, method="PATCH", message=message, retry_after=retry_after)
    with agent(world) as running:
        running.ready()
        world.kubelet.prepare("one", [long])
        eventually(lambda: world.server.count("PATCH", path) > 0, WITHIN)
        world.kubelet.prepare("two", [other])
        eventually(lambda: devices(world, other), WITHIN, "the entries")
    assert not devices(world, long)


def test_a_claim_with_another_uid_is_left_alone(world: World) -> None:
    wanted = world.add_claim("default", "claim", [("chip", "neuron-device-3")])
    with agent(world) as running:
        running.ready()
        world.server.fail(503, 1, path=STATUS)
        world.kubelet.prepare("pod", [wanted])
        world.server.delete_claim("default", "claim")
        again = world.add_claim("default", "claim", [("chip", "neuron-device-3")])
        time.sleep(2 + QUIET)
        assert not devices(world, again)
        assert requests(world).count("PATCH") <= 2


def test_without_the_right_pods_run_and_the_log_says_so_once(world: World) -> None:
    claims = [world.add_claim("default", f"claim-{n}", [("chip", f"neuron-device-{n}")]) for n in range(3)]
    with agent(world) as running:
        running.ready()
        world.server.fail(403, 1000, path=STATUS, reason="Forbidden", message="may not patch resourceclaims/status")
        for number, claim in enumerate(claims):
            world.kubelet.prepare(f"pod-{number}", [claim])
        eventually(lambda: requests(world).count("PATCH") == 3, WITHIN, "a try for each claim")
        time.sleep(QUIET)
        assert requests(world).count("PATCH") == 3
        assert running.log.count("status.devices cannot be written") == 1


def test_turned_off_nothing_is_written(world: World) -> None:
    wanted = world.add_claim("default", "claim", [("chip", "neuron-device-3")])
    with agent(world, "--claim-status", "off") as running:
        running.ready()
        world.kubelet.prepare("pod", [wanted])
        with pytest.raises(KubeletError):
            world.kubelet.prepare("two", [world.add_claim("default", "second", [("chip", "neuron-device-3")])])
        time.sleep(QUIET)
    assert "PATCH" not in requests(world)
    assert wanted.drivers == (DRIVER_NAME,)
