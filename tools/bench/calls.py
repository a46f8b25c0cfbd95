"""Measures calls: creates the claims and the client's job, and sorts the client's measurements."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.cluster import Cluster
from lab.errors import LabError
from lab.layout import API_ADDRESS, API_PORT

from bench import objects
from bench.drivers import Driver
from bench.figures import Round
from dra_driver.kube.api.client import Transport

CLAIMS_PATH = f"/apis/resource.k8s.io/v1/namespaces/{objects.NAMESPACE}/resourceclaims"
AT_ONCE = 8
_CLIENT_SECONDS = 600.0


@dataclass(frozen=True)
class Extent:
    """How much is measured.

    Attributes:
        rounds: Rounds of each kind; the drivers take turns.
        claims: Claims of one round.
        held: Number of other claims that are prepared during the second half of each round.
        devices: Devices of each claim.
    """

    rounds: int
    claims: int
    held: int
    devices: int


@dataclass(frozen=True)
class Situation:
    """The circumstances of a measurement: the driver, concurrent calls, and claims already prepared."""

    label: str
    at_once: int
    held: int


@dataclass(frozen=True)
class Access:
    """How the client reaches the API server: its URL, and files."""

    server: str
    authority: Path
    certificate: Path
    key: Path

    @classmethod
    def of(cls, cluster: Cluster) -> Access:
        """That of a cluster's administrator."""
        pki = cluster.layout.pki
        return cls(f"https://{API_ADDRESS}:{API_PORT}", pki / "ca.crt", pki / "admin.crt", pki / "admin.key")


@dataclass(frozen=True)
class _Step:
    situation: Situation | None
    """None for a step that only warms up, or prepares or unprepares the held claims."""
    content: Mapping[str, Any]


def make_claims(transport: Transport, driver: Driver, extent: Extent) -> list[dict[str, str]]:
    """Create the allocated claims of one driver; return them in the client's format."""
    made = []
    for number in range(extent.held + extent.claims):
        name = f"{driver.node}-{number}"
        body = objects.claim(name, driver.name, extent.devices)
        stored = json.loads(transport.request("POST", CLAIMS_PATH, body=body).body)
        first = number * extent.devices % len(driver.devices)
        devices = list((driver.devices * 2)[first : first + extent.devices])
        path = f"{CLAIMS_PATH}/{name}"
        allocated = objects.allocated(stored, driver.name, driver.node, devices)
        transport.request("PUT", f"{path}/status", body=allocated)
        uid = stored["metadata"]["uid"]
        made.append({"namespace": objects.NAMESPACE, "name": name, "uid": uid, "path": path})
    return made


def delete_claims(transport: Transport) -> None:
    """Delete all claims of the benchmark."""
    transport.request("DELETE", CLAIMS_PATH)


def measure(
    program: Path,
    access: Access,
    drivers: Sequence[Driver],
    claims: Mapping[str, Sequence[Mapping[str, str]]],
    extent: Extent,
) -> dict[Situation, list[Round]]:
    """Let the client call all drivers, taking turns, and return its measurements.

    Raises:
        LabError: A call or the client failed.
    """
    steps = _steps(drivers, claims, extent)
    found: dict[Situation, list[Round]] = {}
    for step, result in zip(steps, run(program, access, [step.content for step in steps]), strict=True):
        if step.situation is not None:
            found.setdefault(step.situation, []).append(result)
    return found


def run(program: Path, access: Access, steps: Sequence[Mapping[str, Any]]) -> list[Round]:
    """Let the client do these steps, in its format, and return what each took.

    Raises:
        LabError: A call or the client failed.
    """
    job = {
        "server": access.server,
        "ca": str(access.authority),
        "certificate": str(access.certificate),
        "key": str(access.key),
        "steps": steps,
    }
    done = subprocess.run(
        [str(program)], input=json.dumps(job), capture_output=True, text=True, check=False, timeout=_CLIENT_SECONDS
    )
    if done.returncode != 0:
        raise LabError(f"A call failed, so nothing is reported: {done.stderr.strip()[-2000:]}")
    return [Round(result["Milliseconds"], result["Seconds"]) for result in json.loads(done.stdout)]


def _steps(drivers: Sequence[Driver], claims: Mapping[str, Sequence[Mapping[str, str]]], extent: Extent) -> list[_Step]:
    def step(driver: Driver, held: int, at_once: int, *actions: str) -> _Step:
        own = claims[driver.label][extent.held :]
        content = {"socket": str(driver.socket), "claims": own, "atOnce": at_once, "do": actions}
        return _Step(Situation(driver.label, at_once, held), content)

    def hold(driver: Driver, action: str) -> _Step:
        own = claims[driver.label][: extent.held]
        return _Step(None, {"socket": str(driver.socket), "claims": own, "atOnce": 1, "do": [action]})

    # All kinds alternate, so that other load on the machine disturbs them equally.
    steps = [step(driver, 0, AT_ONCE, "prepare", "unprepare") for driver in drivers]
    steps = [_Step(None, warming.content) for warming in steps]
    for number in range(extent.rounds):
        for held in dict.fromkeys((0, extent.held)):
            steps += [hold(driver, "prepare") for driver in drivers if held]
            for driver in drivers if number % 2 else reversed(drivers):
                steps.append(step(driver, held, 1, "get", "prepare", "unprepare"))
                steps.append(step(driver, held, AT_ONCE, "prepare", "unprepare"))
            steps += [hold(driver, "unprepare") for driver in drivers if held]
    return steps
