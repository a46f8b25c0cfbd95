"""Random cases asked of the simulator, and its answer beside the one of a real cluster.

The answer for a pod, as a cluster gave it, is plain JSON too: ``refused``, names of claims that the API server refused
(then there is no pod); or ``node`` and ``allocations``, ``status.allocation`` of each claim; or ``node`` null with
``reason`` and ``message`` of the condition PodScheduled.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast

import msgspec

from dra_driver.cel import CelDevice, CelError, Kubernetes, KubernetesRelease, Program, UnsupportedError, compile  # noqa: A004 # the usual word for it
from dra_driver.manifests.objects import (
    AllocationResult,
    Device,
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceSlice,
)
from dra_driver.simulator.allocator import Allocation, NodeView, Refusal, Selectors, World
from tests.generators.simulator_cases import Object


class _Watched:
    """A program that tells when it meets what the simulator does not know."""

    def __init__(self, program: Program, met: list[str]) -> None:
        self._program = program
        self._met = met

    def matches(self, device: CelDevice) -> bool:
        try:
            return self._program.matches(device)
        except UnsupportedError as error:
            self._met.append(error.message)
            raise


@lru_cache(maxsize=8192)
def legal(expression: str, kubernetes: Kubernetes) -> bool | None:
    """Whether the API server accepts the expression; None when the simulator does not know."""
    try:
        compile(expression, KubernetesRelease(kubernetes))
    except UnsupportedError:
        return None
    except CelError:
        return False
    return True


def expressions(value: object) -> Iterator[str]:
    """All selectors in a claim or class."""
    if isinstance(value, dict):
        if isinstance(value.get("cel"), dict):
            yield value["cel"].get("expression", "")
        for item in value.values():
            yield from expressions(item)
    elif isinstance(value, list):
        for item in value:
            yield from expressions(item)


def accepted(value: Object, kubernetes: Kubernetes) -> bool | None:
    """Whether all selectors in a claim or class are legal; None when the simulator does not know."""
    verdicts = [legal(text, kubernetes) for text in expressions(value)]
    return False if False in verdicts else None if None in verdicts else True


@dataclass(frozen=True)
class Expected:
    """What the simulator says of a pod."""

    refused: tuple[str, ...] = ()
    """Claims that the API server refuses."""
    allocations: dict[str, list[Object]] = field(default_factory=dict)
    """By node, for each that can satisfy the claims."""
    fatal: tuple[str, ...] = ()
    """Why the scheduling ends, whatever the other nodes have; the scheduler tells one of the reasons."""
    unknown: str = ""
    """What it does not claim to know; then the rest says nothing."""


class Simulated:
    """The simulator with the objects of several cases, as one cluster has them.

    ``missing`` are names of classes that the API server refused.
    """

    def __init__(self, found: Sequence[Object], kubernetes: Kubernetes, missing: Sequence[str] = ()) -> None:
        self.kubernetes = kubernetes
        self._met: list[str] = []
        environment = KubernetesRelease(kubernetes)

        def program(text: str) -> _Watched:
            try:
                return _Watched(compile(text, environment), self._met)
            except UnsupportedError as error:
                self._met.append(error.message)
                raise

        def view(driver: str, device: Device) -> CelDevice:
            # Capacities are texts in all cases.
            return CelDevice.of(driver, cast("Any", device))

        self._world = World(
            [msgspec.convert(item, ResourceSlice) for case in found for item in case["slices"]],
            [
                msgspec.convert(item, DeviceClass)
                for case in found
                for item in case["classes"]
                if item["metadata"]["name"] not in missing
            ],
            Selectors(program, view),
            kubernetes=kubernetes,
            taint_rules=[
                msgspec.convert(item, DeviceTaintRule) for case in found for item in case.get("taintRules", ())
            ],
        )
        self._nodes = {
            item["metadata"]["name"]: NodeView(item["metadata"]["name"], item["metadata"].get("labels", {}))
            for case in found
            for item in case["nodes"]
        }

    def ask(self, pod: Object) -> Expected:
        """What the pod would get now; nothing is changed."""
        verdicts = {claim["metadata"]["name"]: accepted(claim, self.kubernetes) for claim in pod["claims"]}
        refused = tuple(name for name, verdict in verdicts.items() if verdict is False)
        if None in verdicts.values():
            return Expected(unknown="an expression")
        if refused:
            return Expected(refused=refused)
        self._met.clear()
        prepared = self._world.prepare([msgspec.convert(claim, ResourceClaim) for claim in pod["claims"]])
        if isinstance(prepared, Refusal):
            return Expected(fatal=(prepared.reason,))
        allocations: dict[str, list[Object]] = {}
        fatal: list[str] = []
        for name in pod["nodes"]:
            answer = self._world.ask(prepared, self._nodes[name])
            if isinstance(answer, Allocation):
                allocations[name] = [normal(msgspec.to_builtins(item)) for item in answer.results]
            elif answer.fatal:
                fatal.append(answer.reason)
        return Expected(allocations=allocations, fatal=tuple(fatal), unknown="; ".join(self._met))

    def take(self, answer: Object) -> None:
        """Count as in use what the cluster gave."""
        for item in answer.get("allocations", ()):
            self._world.usage.take(msgspec.convert(item, AllocationResult).devices.results)


def unreadable(case: Object) -> str:
    """Why the simulator does not read something that the API server may accept; "" when it reads all."""
    try:
        Simulated([case], "1.37")
        for pod in case["pods"]:
            msgspec.convert(pod["claims"], list[ResourceClaim])
    except msgspec.ValidationError as error:
        return str(error)
    return ""


def replayed(row: Object) -> list[str]:
    """In what the simulator is wrong about a recorded case, whatever was in use by what the cluster gave before."""
    kubernetes: Kubernetes = "1.36" if row["kubernetes"].startswith("1.36.") else "1.37"
    case = row["case"]
    missing = [item["metadata"]["name"] for item in case["classes"] if accepted(item, kubernetes) is False]
    simulated = Simulated([case], kubernetes, missing)
    wrong = []
    for pod, answer in zip(case["pods"], row["answers"], strict=True):
        wrong.append(disagreement(simulated.ask(pod), answer))
        simulated.take(answer)
    return [f"pod {pod['name']}: {text}" for pod, text in zip(case["pods"], wrong, strict=True) if text]


def normal(allocation: Object) -> Object:
    """``status.allocation`` without what no one can foresee, and with what is left out or empty left out alike."""
    made: Object = msgspec.to_builtins(msgspec.convert(allocation, AllocationResult))
    for item in made.get("devices", {}).get("results", ()):
        if "shareID" in item:
            item["shareID"] = "a share"
    return made


def disagreement(expected: Expected, answer: Object) -> str:
    """In what the simulator is wrong about a pod; "" when in nothing."""
    if expected.unknown:
        return ""
    refused = tuple(answer.get("refused", ()))
    if refused != expected.refused:
        return f"the API server refuses {refused or 'nothing'}, the simulator {expected.refused or 'nothing'}"
    if refused:
        return ""
    node = answer["node"]
    if node is None:
        return _of_pending(expected, answer)
    if expected.fatal:
        return f"allocated on {node}; the simulator ends the scheduling: {'; '.join(expected.fatal)}"
    if node not in expected.allocations:
        return f"allocated on {node}; the simulator has nothing there"
    real, ours = [normal(item) for item in answer["allocations"]], expected.allocations[node]
    if real != ours:
        return f"allocations differ on {node}: {_first_difference(real, ours, 'claims')}"
    return ""


_TOO_LONG = "timed out trying to allocate devices"
"""The scheduler has no answer: it gives up a search after 10 seconds."""
_NO_CLASS = re.compile(r"device class \S+ does not exist")
"""What is true of all nodes is no error of the scheduler, but ends the scheduling as well."""


def _of_pending(expected: Expected, answer: Object) -> str:
    message = answer["message"]
    if _TOO_LONG in message:
        return ""
    ended = answer["reason"] == "SchedulerError" or _NO_CLASS.search(message) is not None
    if ended != bool(expected.fatal):
        ours = "; ".join(expected.fatal) or f"allocates on {', '.join(expected.allocations) or 'no node'}"
        return f"pending, {answer['reason']} ({message}); the simulator: {ours}"
    if expected.allocations and not ended:
        return f"pending ({message}); the simulator allocates on {', '.join(expected.allocations)}"
    failing = "CEL runtime error" in message
    if failing and not any(text.partition("CEL runtime error")[0] in message for text in expected.fatal):
        return f"ended by {message}; the simulator: {'; '.join(expected.fatal)}"
    return ""


def _first_difference(real: object, ours: object, path: str) -> str:
    if isinstance(real, dict) and isinstance(ours, dict):
        for key in sorted({*real, *ours}):
            if real.get(key) != ours.get(key):
                return _first_difference(real.get(key), ours.get(key), f"{path}.{key}")
    if isinstance(real, list) and isinstance(ours, list) and len(real) == len(ours):
        for place, (one, other) in enumerate(zip(real, ours, strict=True)):
            if one != other:
                return _first_difference(one, other, f"{path}[{place}]")
    return f"{path}: {json.dumps(real)} in the cluster, {json.dumps(ours)} here"
