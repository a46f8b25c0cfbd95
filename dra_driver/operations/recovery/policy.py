"""What is done about which fault, and how much at once: a table, and the administrator's file that changes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, get_args

from dra_driver.kube.documents import ManifestError, Origin, documents
from dra_driver.neuron.health.faults import FAULTS, REMEDIES, Fault, Remedy
from dra_driver.util.errors import UsageError
from dra_driver.util.text import quoted

Harmless = Literal["taint", "cordon"]
"""What may be done on the word of a source that pods can forge."""
Step = Literal[Harmless, "drain", "request", "replace"]

STEPS: Final[Mapping[Step, str]] = {
    "taint": "taint the node, so that only pods that tolerate it are scheduled there",
    "cordon": "cordon the node, so that no new pods are scheduled there",
    "drain": "evict the node's pods, as far as disruption budgets allow",
    "request": "request the fault's remedy: an annotation on the Node, and the hook",
    "replace": "have Auto Scaling replace the instance",
}
"""Each step and what it does, in the order in which the steps of a fault are taken."""

HARMLESS: Final[tuple[Harmless, ...]] = get_args(Harmless)

DEFAULT_STEPS: Final[Mapping[Remedy, tuple[Step, ...]]] = {
    "nothing": (),
    "driver-reload": ("cordon", "drain", "request"),
    "reboot": ("cordon", "drain", "request"),
    "replacement": ("cordon", "drain", "request"),
}
MAX_POLICY_BYTES: Final = 1 << 13
_NO_REMEDY: Final = "request: there is no remedy to request; leave it out"


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings; the fields' metadata has the name, the least and the greatest value in the file."""

    persist_seconds: int = field(default=300, metadata={"key": "persistSeconds", "range": (0, 86400)})
    """How long a fault must have been seen by the leader before anything is done about it."""
    healthy_seconds: int = field(default=60, metadata={"key": "healthySeconds", "range": (0, 86400)})
    """How long a node must have been seen without faults before what was done is undone."""
    pause_seconds: int = field(default=600, metadata={"key": "pauseSeconds", "range": (0, 86400)})
    """Between the beginning or end of one node, or of a leader's term, and the beginning of the next node."""
    drain_seconds: int = field(default=3600, metadata={"key": "drainSeconds", "range": (600, 604800)})
    """How long the leader evicts a node's pods before it no longer waits for those that come anew, nor the other nodes
    for this one. Pods may come for ten minutes after a cordon: the scheduler has chosen their node before, and waits
    for their volumes (``bindTimeoutSeconds``)."""
    max_at_once: int = field(default=1, metadata={"key": "maxAtOnce", "range": (1, 1000)})
    """Nodes that may be out of use at once in the cluster, each node of an UltraServer counted."""
    max_percent_of_group: int = field(default=20, metadata={"key": "maxPercentOfGroup", "range": (1, 100)})
    """The same in a node group, rounded down, but never less than one."""
    leave_to_aws: bool = field(default=True, metadata={"key": "leaveToAWS"})
    """Whether nodes that the EKS node monitoring agent reports (condition AcceleratedHardwareReady) are left to EKS."""
    respect_grace_period: bool = field(default=False, metadata={"key": "respectGracePeriod"})
    """Whether Auto Scaling keeps an instance that is younger than its group's health check grace period."""
    remedies: Mapping[Remedy, tuple[Step, ...]] = field(default_factory=dict)
    """Steps by the remedy of a fault; the others keep those of ``DEFAULT_STEPS``."""
    faults: Mapping[str, tuple[Step, ...]] = field(default_factory=dict)
    """Steps of single faults, by code; these win."""

    @property
    def replaces(self) -> bool:
        """Whether instances of any fault are replaced, for which AWS is asked."""
        return any("replace" in steps for table in (self.remedies, self.faults) for steps in table.values())

    def steps(self, code: str) -> tuple[Step, ...]:
        """What is done about a fault, in order; nothing for a code that is not in the table of faults."""
        fault = FAULTS.get(code)
        if fault is None:
            return ()
        if code in self.faults:
            return self.faults[code]
        # What a pod can forge must not use up the budgets, and a chip that is degraded works.
        if fault.severity != "unhealthy" or _forgeable(fault):
            return ()
        return self.remedies.get(fault.remedy, DEFAULT_STEPS[fault.remedy])


def decode_policy(text: str, file: str = "policy") -> Policy:
    """The policy of a YAML or JSON file; what it leaves out keeps its default.

    Raises:
        UsageError: anything that is not known or not legal; the text has line, path and the legal values.
    """
    if len(text.encode(errors="replace")) > MAX_POLICY_BYTES:
        raise UsageError(f"{file} is longer than {MAX_POLICY_BYTES} bytes", remedy="give a policy, not another file")
    try:
        found = list(documents(file, text))
        if not found:
            return Policy()
        if len(found) > 1:
            raise found[1][0].error((), "expected one document, got more")
        return _policy(*found[0])
    except ManifestError as error:
        raise UsageError(str(error), consequence="the program does not start") from error


def _policy(origin: Origin, document: Any) -> Policy:
    own = {item.metadata["key"]: item for item in fields(Policy) if "key" in item.metadata}
    _check_keys(origin, (), document, (*own, "remedies", "faults"))
    given: dict[str, Any] = {}
    for key, value in document.items():
        if key in own:
            given[own[key].name] = _number_or_flag(origin, key, value, own[key].metadata.get("range"))
        else:
            known = tuple(REMEDIES) if key == "remedies" else tuple(FAULTS)
            _check_keys(origin, (key,), value, known)
            given[key] = {name: _steps(origin, (key, name), steps) for name, steps in value.items()}
    if "request" in given.get("remedies", {}).get("nothing", ()):
        raise origin.error(("remedies", "nothing"), _NO_REMEDY)
    for code, steps in given.get("faults", {}).items():
        if "request" in steps and FAULTS[code].remedy == "nothing":
            raise origin.error(("faults", code), _NO_REMEDY)
        if _forgeable(FAULTS[code]) and not set(steps) <= set(HARMLESS):
            told = f"{', '.join(HARMLESS)} expected, because pods can forge this fault; got {', '.join(steps)}"
            raise origin.error(("faults", code), told)
    return Policy(**given)


def _check_keys(origin: Origin, path: tuple[str, ...], value: Any, legal: tuple[str, ...]) -> None:
    if not isinstance(value, dict):
        raise origin.error(path, f"expected an object, got {_shown(value)}")
    for key in value:
        if key not in legal:
            raise origin.error(
                (*path, key[:64] if isinstance(key, str) else _shown(key)), f"unknown; legal: {', '.join(legal)}"
            )


def _number_or_flag(origin: Origin, key: str, value: Any, bounds: tuple[int, int] | None) -> int | bool:
    if bounds is None:
        if isinstance(value, bool):
            return value
        raise origin.error((key,), f"expected true or false, got {_shown(value)}")
    least, most = bounds
    if type(value) is int and least <= value <= most:
        return value
    raise origin.error((key,), f"expected a whole number from {least} to {most}, got {_shown(value)}")


def _steps(origin: Origin, path: tuple[str, ...], value: Any) -> tuple[Step, ...]:
    if not isinstance(value, list):
        raise origin.error(path, f"expected a list of steps, got {_shown(value)}; legal: {', '.join(STEPS)}")
    for place, item in enumerate(value):
        if item not in tuple(STEPS):  # it may be unhashable
            raise origin.error((*path, place), f"no step: {_shown(item)}; legal: {', '.join(STEPS)}")
    steps = tuple(step for step in STEPS if step in value)
    if list(steps) != value:
        raise origin.error(path, f"list each step once and in their order, got {', '.join(steps)}")
    if "drain" in steps and not {"taint", "cordon"} & set(steps):
        raise origin.error(path, "drain needs taint or cordon, or the pods come back; add one of them")
    return steps


def _forgeable(fault: Fault) -> bool:
    return fault.strongest != "NoExecute"


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return quoted(value)
    small = isinstance(value, float) or (isinstance(value, int) and abs(value) < 10**15)
    return str(value).lower() if small else {"NoneType": "null"}.get(type(value).__name__, type(value).__name__)
