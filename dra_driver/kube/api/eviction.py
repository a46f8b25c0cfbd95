"""Empties a node as ``kubectl drain`` does: evictions, which respect disruption budgets, and never a deletion.

Stay: pods of DaemonSets (they would come back at once, and the DRA driver is needed to end pods with claims), mirror
pods, and pods that have ended. Evicted: all others, also those with emptyDir volumes and those without a controller,
each with its own grace period.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from dra_driver.kube.api.client import REQUEST_SECONDS, Transport
from dra_driver.kube.api.codec import PODS
from dra_driver.kube.api.errors import ApiError
from dra_driver.kube.api.resources import Collection
from dra_driver.kube.objects.core import Pod
from dra_driver.util import runtime
from dra_driver.util.text import one_line
from dra_driver.util.worker import MAX_ROUND_SECONDS

MIRROR: Final = "kubernetes.io/config.mirror"
"""Annotation of the pods that stand for kubelet's static pods."""
EVICT_SECONDS: Final = 10.0
"""For all evictions of a look: other nodes wait meanwhile."""
TROUBLE_SECONDS: Final = 60.0
"""After trouble in a namespace, it evicts no other pod there for so long."""
PROMPT_SECONDS: Final = 1.0
"""An answer in this time, after which nothing is stored, costs others so little that it is about its pod alone."""
SLOW_SECONDS: Final = 3600.0
"""For so long, a pod that was trouble comes after all others."""
_ENDED: Final = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True, order=True)
class LeavingPod:
    """A pod that must leave its node. A tenant may bind hundreds of thousands: no more is kept of each."""

    namespace: str
    name: str
    uid: str
    terminates: bool = False
    """Whether its deletion has begun."""

    @property
    def reference(self) -> str:
        """Namespace and name, for people."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Left:
    """A pod that is still on the node."""

    pod: LeavingPod
    why: str
    """What it waits for: a disruption budget, its own end."""


def _leaving(pod: Pod) -> LeavingPod | None:
    meta = pod.metadata
    terminates = meta.deletion_timestamp is not None
    return None if _stays(pod) else LeavingPod(sys.intern(meta.namespace), meta.name, meta.uid, terminates)


def _stays(pod: Pod) -> bool:
    of_daemonset = any(owner.controller and owner.kind == "DaemonSet" for owner in pod.metadata.owner_references)
    return of_daemonset or MIRROR in pod.metadata.annotations or pod.status.phase in _ENDED


class Evictor:
    """Evicts the pods of nodes.

    Args:
        transport: the API server.
        may_act: asked before each eviction.
        well: called before each eviction with the seconds that it may take (see ``Worker.well``): a node may have
            thousands of pods that nobody ends.
    """

    def __init__(self, transport: Transport, may_act: Callable[[], bool], well: Callable[[float], None]) -> None:
        self._transport = transport
        self._may_act = may_act
        self._well = well
        self._trouble: dict[str, tuple[float, ApiError]] = {}
        """By namespace: until when it evicts no pod there, and why."""
        self._slow: dict[str, float] = {}
        """By UID of a pod: when it last was trouble. No more than one a second, since each takes that long."""
        self._spent = 0.0
        """Seconds of this look."""

    def begin(self) -> None:
        """A look begins, for whose evictions there are ``EVICT_SECONDS``, however many nodes they are of."""
        self._spent = 0.0

    @property
    def has_time(self) -> bool:
        """Whether a pod may still be asked to leave in this look."""
        return self._spent <= EVICT_SECONDS

    def pods(self, node: str) -> list[LeavingPod]:
        """The pods that must leave the node, in order. Raises ApiError if they cannot be listed."""
        selector = (("fieldSelector", f"spec.nodeName={node}"),)
        pods, _ = Collection(self._transport, PODS, selector, timeout=REQUEST_SECONDS).select(_leaving)
        pods.sort()
        return pods

    def evict(self, pods: Sequence[LeavingPod]) -> list[Left]:
        """Ask for the eviction of each pod that must leave, while there is time; returns those that are still there.

        After trouble with one pod, such as a webhook that hangs, no other of its namespace is asked for until later,
        and then before it. What the server says at once of one pod, such as a budget, is no trouble.

        Raises:
            ApiError: the server has trouble with all of them.
        """
        left = []
        now = runtime.monotonic()
        self._trouble = {namespace: item for namespace, item in self._trouble.items() if item[0] > now}
        self._slow = {uid: since for uid, since in self._slow.items() if since > now - SLOW_SECONDS}
        reasons: dict[str, str] = {}
        """By namespace: many pods share a text."""
        answered = False
        for pod in sorted(pods, key=lambda pod: self._slow.get(pod.uid, -math.inf)):
            namespace, why = pod.namespace, "it is ending"
            if not pod.terminates and namespace not in self._trouble:
                why = self._ask(pod) if self.has_time else "it has not been asked to leave yet"
                answered = answered or namespace not in self._trouble
            if namespace in self._trouble:
                if namespace not in reasons:
                    reasons[namespace] = one_line(str(self._trouble[namespace][1]), 300)
                why = reasons[namespace]
            left.append(Left(pod, why))
        trouble = next((self._trouble[pod.namespace][1] for pod in pods if pod.namespace in self._trouble), None)
        if trouble is not None and not answered:
            raise trouble
        return left

    def _ask(self, pod: LeavingPod) -> str:
        """Why the pod is still there, after a request to evict it."""
        self._well(MAX_ROUND_SECONDS)
        began = runtime.monotonic()
        try:
            return self._evict(pod) if self._may_act() else "this replica no longer leads"
        except ApiError as error:
            # Such as a pod that is as long as an object can be, and has no room for the condition that the server adds.
            if not error.undecided and runtime.monotonic() - began < PROMPT_SECONDS:
                return one_line(str(error), 300)
            self._slow[pod.uid] = now = runtime.monotonic()
            self._trouble[pod.namespace] = now + TROUBLE_SECONDS, error
            return ""
        finally:
            self._spent += runtime.monotonic() - began

    def _evict(self, pod: LeavingPod) -> str:
        """Ask for one eviction; why the pod is still there."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/eviction"
        try:
            self._transport.request("POST", path, body=body, timeout=REQUEST_SECONDS)
        except ApiError as error:
            if error.status in (404, 409):  # gone, or another pod of that name by now: seen at the next look
                return "it has just changed"
            if not _refused(error):
                raise
            return one_line(error.message or str(error), 300)
        return "it is ending"


def _refused(error: ApiError) -> bool:
    """Whether the answer is about this pod. A budget is a 429, as is an overloaded server; two budgets are a 500."""
    text = error.message.lower()
    about_budget = "disruption budget" in text or "poddisruptionbudget" in text
    return about_budget or error.of_a_webhook or error.status in (400, 403, 422)
