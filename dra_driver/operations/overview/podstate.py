"""How a pod is, in the words of kubectl's column STATUS, and why. Values in, values out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dra_driver.kube.objects.core import ContainerStateTerminated, ContainerStatus, ReportedPod
from dra_driver.util.text import one_line

LINE_BYTES: Final = 300
"""Of a message that is shown in a row."""
_CREATING: Final = frozenset({"ContainerCreating", "PodInitializing"})


@dataclass(frozen=True, slots=True)
class PodState:
    """What kubectl shows in the column STATUS, and more."""

    word: str
    """Such as ``Running``, ``ContainerCreating``, ``CrashLoopBackOff``, ``Evicted``, ``Terminating``."""
    since: str = ""
    """RFC 3339, or ""."""
    detail: str = ""
    """One line, or ""."""
    ready: bool = False


def state_of(pod: ReportedPod) -> PodState:
    """How a pod is, in the words of kubectl."""
    status, meta = pod.status, pod.metadata
    ready = next((entry for entry in status.conditions if entry.type == "Ready"), None)
    since = (ready.last_transition_time if ready is not None else "") or meta.creation_timestamp or ""
    if status.phase in ("Failed", "Succeeded"):
        return PodState(status.reason or status.phase, since, one_line(status.message, LINE_BYTES))
    if meta.deletion_timestamp is not None:
        return PodState("Terminating", meta.deletion_timestamp)
    for item in (*status.init_container_statuses, *status.container_statuses):
        found = _trouble(item)
        if found is not None:
            return PodState(found[0], since, found[1])
    if status.phase == "Running" and (ready is None or ready.status == "True"):
        return PodState("Running", since, ready=True)
    scheduled = next((entry for entry in status.conditions if entry.type == "PodScheduled"), None)
    detail = scheduled.message if scheduled is not None and scheduled.status != "True" else ""
    word = "NotReady" if status.phase == "Running" else status.phase
    # Between two crashes it runs for a moment.
    before = [(item, ended) for item in status.container_statuses if (ended := item.last_state.terminated) is not None]
    for item, ended in before if word == "NotReady" else ():
        detail = f"{_restarts(item)}; {_last_line(ended)}" if ended.exit_code else detail
    return PodState(word, since, one_line(detail, LINE_BYTES))


def _trouble(item: ContainerStatus) -> tuple[str, str] | None:
    """Word and detail of a container that does not run; None for one that does, or has done its work."""
    now, last = item.state, item.last_state.terminated
    if now.terminated is not None:
        ended = now.terminated
        return None if not ended.exit_code else (ended.reason or "Error", _last_line(ended))
    if now.waiting is None:
        return None
    word = now.waiting.reason or "Waiting"
    if last is None:
        return word, "" if word in _CREATING else one_line(now.waiting.message, LINE_BYTES)
    return word, f"{_restarts(item)}; {_last_line(last)}"


def _restarts(item: ContainerStatus) -> str:
    return f"{item.restart_count} restart{'s' if item.restart_count != 1 else ''}"


def _last_line(ended: ContainerStateTerminated) -> str:
    lines = [line.strip() for line in ended.message.splitlines() if line.strip()]
    return one_line(lines[-1] if lines else f"{ended.reason or 'ended'} with exit code {ended.exit_code}", LINE_BYTES)
