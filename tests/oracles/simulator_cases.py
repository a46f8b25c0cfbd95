"""Random cases in the simulator, and the comparison of its results with those of a real cluster.

A cluster's result for a pod is plain JSON too: ``refused``, names of claims that the API server refused (then there is
no pod); or ``node`` and ``allocations``, ``status.allocation`` of each claim; or ``node`` null with ``reason`` and
``message`` of the condition PodScheduled.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast

import msgspec

from dra_driver.kube.objects.resource import (
    AllocationResult,
    Device,
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceSlice,
)
from dra_driver.simulator.allocator import Allocation, NodeView, Refusal, Selectors, World
from dra_driver.simulator.cel import (
    CelDevice,
    CelError,
    Kubernetes,
    Program,
    UnsupportedError,
    compile,  # noqa: A004 # the usual word for it
)
from tests.generators.simulator_cases import Object


class _Watched:
    """A program that reports when the simulator does not support something in it."""

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
    """Whether the API server accepts the expression; None if the simulator does not support it."""
    try:
        compile(expression, kubernetes)
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
    """Whether all selectors in a claim or class are valid; None if the simulator does not support one."""
    verdicts = [legal(text, kubernetes) for text in expressions(value)]
    return False if False in verdicts else None if None in verdicts else True


@dataclass(frozen=True)
class Expected:
    """The simulator's result for a pod."""

    refused: tuple[str, ...] = ()
    """Claims that the API server refuses."""
    allocations: dict[str, list[Object]] = field(default_factory=dict)
    """Allocations by node, for each node that can satisfy the claims."""
    fatal: tuple[str, ...] = ()
    """Errors that end scheduling, whatever the other nodes have; the scheduler reports one of them."""
    unknown: str = ""
    """What the simulator does not support; if set, the other fields are meaningless."""


class Simulated:
    """The simulator with the objects of several cases, as in one cluster.

    ``missing`` are names of classes that the API server refused.
    """

    def __init__(self, found: Sequence[Object], kubernetes: Kubernetes, missing: Sequence[str] = ()) -> None:
        self.kubernetes = kubernetes
        self._met: list[str] = []
        environment = kubernetes

        def program(text: str) -> _Watched:
            try:
                return _Watched(compile(text, environment), self._met)
            except UnsupportedError as error:
                self._met.append(error.message)
                raise

        def view(driver: str, device: Device) -> CelDevice:
            # Capacities are strings in all cases.
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
        """What the pod would get now; changes nothing."""
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
        """Mark the cluster's allocations as in use."""
        for item in answer.get("allocations", ()):
            self._world.usage.take(msgspec.convert(item, AllocationResult).devices.results)

    def give_back(self, answer: Object) -> None:
        """Mark allocations as no longer in use."""
        for item in answer.get("allocations", ()):
            self._world.usage.release(msgspec.convert(item, AllocationResult).devices.results)


def unreadable(case: Object) -> str:
    """Why the simulator cannot read something that the API server may accept; "" if it reads everything."""
    try:
        Simulated([case], "1.37")
        for pod in case["pods"]:
            msgspec.convert(pod["claims"], list[ResourceClaim])
    except msgspec.ValidationError as error:
        return str(error)
    return ""


def replayed(row: Object) -> list[str]:
    """The simulator's errors about a recorded case, based on the cluster's own allocations for the pods before."""
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
    """``status.allocation`` without unpredictable values, and with empty values treated like omitted ones."""
    made: Object = msgspec.to_builtins(msgspec.convert(allocation, AllocationResult))
    for item in made.get("devices", {}).get("results", ()):
        if "shareID" in item:
            item["shareID"] = "a share"
    return made


def disagreement(expected: Expected, answer: Object) -> str:
    """The simulator's error about a pod; "" if there is none."""
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
"""The scheduler has no result: it gives up a search after 10 seconds."""
_NO_CLASS = re.compile(r"device class \S+ does not exist")
"""A problem that concerns all nodes is not reported as an error of the scheduler, but ends scheduling as well."""


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
