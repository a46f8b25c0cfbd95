"""Empties a node as ``kubectl drain`` does: evictions, which respect disruption budgets, and never a deletion.

Stay: pods of DaemonSets (they would come back at once, and the DRA driver is needed to end pods with claims), mirror
pods, and pods that have ended. Evicted: all others, also those with emptyDir volumes and those without a controller,
each with its own grace period.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from dra_driver.kube.api.client import REQUEST_SECONDS, Transport
from dra_driver.kube.api.codec import PODS
from dra_driver.kube.api.errors import ApiError
from dra_driver.kube.api.resources import Collection
from dra_driver.kube.objects.core import Pod
from dra_driver.util.text import one_line
from dra_driver.util.worker import MAX_ROUND_SECONDS

MIRROR: Final = "kubernetes.io/config.mirror"
"""Annotation of the pods that stand for kubelet's static pods."""
_ENDED: Final = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Left:
    """A pod that is still on the node."""

    name: str
    """``namespace/name``"""
    uid: str
    why: str
    """What it waits for: a disruption budget, its own end."""


def to_leave(pods: Iterable[Pod]) -> list[Pod]:
    """The pods that must leave a node, by namespace and name."""
    found = [pod for pod in pods if not _stays(pod)]
    return sorted(found, key=lambda pod: (pod.metadata.namespace, pod.metadata.name))


def _in_short(pod: Pod) -> Pod | None:
    """A pod that must leave: which one it is. What else it says, its users have written."""
    meta = pod.metadata
    return None if _stays(pod) else Pod(replace(meta, labels={}, annotations={}, finalizers=()))


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

    def pods(self, node: str) -> list[Pod]:
        """The pods that must leave the node. Raises ApiError if they cannot be listed."""
        selector = (("fieldSelector", f"spec.nodeName={node}"),)
        pods, _ = Collection(self._transport, PODS, selector, timeout=REQUEST_SECONDS).select(_in_short)
        return to_leave(pods)

    def evict(self, pods: Iterable[Pod]) -> list[Left]:
        """Ask once for the eviction of each pod that must leave; returns those that are still there.

        After trouble with one pod, such as a webhook that hangs, no other of its namespace is asked for.

        Raises:
            ApiError: the server has trouble with all of them.
        """
        left = []
        trouble: dict[str, ApiError] = {}
        answered = False
        for pod in pods:
            namespace, why = pod.metadata.namespace, "it is ending"
            if pod.metadata.deletion_timestamp is None and namespace not in trouble:
                self._well(MAX_ROUND_SECONDS)
                try:
                    why = self._evict(pod) if self._may_act() else "this replica no longer leads"
                    answered = True
                except ApiError as error:
                    trouble[namespace] = error
            if namespace in trouble:
                why = one_line(str(trouble[namespace]), 300)
            left.append(Left(f"{namespace}/{pod.metadata.name}", pod.metadata.uid, why))
        if trouble and not answered:
            raise next(iter(trouble.values()))
        return left

    def _evict(self, pod: Pod) -> str:
        """Ask for one eviction; why the pod is still there."""
        meta = pod.metadata
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": meta.name, "namespace": meta.namespace},
            "deleteOptions": {"preconditions": {"uid": meta.uid}},
        }
        path = f"/api/v1/namespaces/{meta.namespace}/pods/{meta.name}/eviction"
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
