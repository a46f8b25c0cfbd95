"""How a pod is, in the words of kubectl's column STATUS, and why. Values in, values out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from dra_driver.kube.objects.core import ContainerStateTerminated, ContainerStatus, ReportedPod
from dra_driver.util.text import one_line
from dra_driver.util.wording import counted

LINE_BYTES: Final = 300
"""Of a message that is shown in a row."""
OUT_OF_MEMORY: Final = "OOMKilled"
"""Reason of a container that the kernel has ended."""
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
    log: str = ""
    """What kubectl logs is to be given for the log that tells more: the pod, a container, which of its runs."""


def state_of(pod: ReportedPod) -> PodState:
    """How a pod is, in the words of kubectl."""
    status, meta = pod.status, pod.metadata
    ready = next((entry for entry in status.conditions if entry.type == "Ready"), None)
    since = (ready.last_transition_time if ready is not None else "") or meta.creation_timestamp or ""
    if status.phase in ("Failed", "Succeeded"):
        first = _first(pod) or PodState("")
        detail = one_line(status.message, LINE_BYTES) or first.detail
        return PodState(status.reason or status.phase, since, detail, log=first.log)
    if meta.deletion_timestamp is not None:
        return PodState("Terminating", meta.deletion_timestamp)
    trouble = _first(pod)
    if trouble is not None:
        return replace(trouble, since=since)
    if status.phase == "Running" and (ready is None or ready.status == "True"):
        return PodState("Running", since, ready=True)
    scheduled = next((entry for entry in status.conditions if entry.type == "PodScheduled"), None)
    detail = scheduled.message if scheduled is not None and scheduled.status != "True" else ""
    word = "NotReady" if status.phase == "Running" else status.phase
    # Between two crashes it runs for a moment.
    before = [(item, ended) for item in status.container_statuses if (ended := item.last_state.terminated) is not None]
    for item, ended in before if word == "NotReady" else ():
        if ended.exit_code:
            crashed = _of_container(pod, item, word, f"{counted(item.restart_count, 'restart')}; {_last_line(ended)}")
            return replace(crashed, since=since)
    return PodState(word, since, one_line(detail, LINE_BYTES))


def _first(pod: ReportedPod) -> PodState | None:
    """By the first container that does not run."""
    for item in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        trouble = _trouble(item)
        if trouble is not None:
            return _of_container(pod, item, *trouble)
    return None


def _of_container(pod: ReportedPod, item: ContainerStatus, word: str, detail: str) -> PodState:
    # kubelet writes the status; the names of the spec are known to be names.
    names = [container.name for container in (*pod.spec.init_containers, *pod.spec.containers)]
    named = len(names) > 1 and item.name in names
    log = pod.metadata.name + (f" -c {item.name}" if named else "")
    # Of a container that does not run, this is the log of its last run; kubelet may have removed the one before.
    runs = item.state.terminated is None and item.state.waiting is None
    log += " --previous" * (runs and item.last_state.terminated is not None)
    return PodState(word, detail=f"container {item.name}: {detail}" if named and detail else detail, log=log)


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
    return word, f"{counted(item.restart_count, 'restart')}; {_last_line(last)}"


def _last_line(ended: ContainerStateTerminated) -> str:
    lines = [line.strip() for line in ended.message.splitlines() if line.strip()]
    last = lines[-1] if lines and ended.reason != OUT_OF_MEMORY else ""
    return one_line(last or f"{ended.reason or 'ended'} with exit code {ended.exit_code}", LINE_BYTES)
