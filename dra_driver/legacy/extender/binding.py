"""Binds a pod to a node and writes down its devices, in one request that happens as a whole or not at all.

The API server merges the annotations of a Binding into those of the pod and touches no other, in the same write that
sets the node (Kubernetes, ``pods/binding``). So there is no moment in which a pod has devices and no node, and nothing
of others is overwritten. The Binding names UID and resource version of the pod, so it fails once the pod has changed.

Before it is sent, the choice is kept in ``Cluster``. A clear refusal gives the choice up. Without an answer it stays,
until it is known what became of the request: a read tells; and where the pod is not bound yet, a small change to our
own annotation makes the resource version in that request too old, so that it cannot be carried out later.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from dra_driver.kube.api import Collection
from dra_driver.kube.client import Transport
from dra_driver.kube.election import REQUEST_SECONDS
from dra_driver.kube.errors import ApiError
from dra_driver.legacy.annotations import ALLOC_TIME, ranges, write
from dra_driver.legacy.extender.cluster import Choice, Chosen, Cluster
from dra_driver.legacy.extender.wire import PODS, PartialPod, Pod, pod_of, requests_of
from dra_driver.legacy.placement import DoesNotFit
from dra_driver.legacy.rules import Resource
from dra_driver.util.errors import DriverError

TRIES: Final = 4
"""Bindings sent for one request of the scheduler: a pod may change while it is bound."""

NEWS_SECONDS: Final = 30.0
"""When the watch has not told of a pod so long after it was bound, the API server is asked."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BindRequest:
    """What the scheduler requests: a pod, identified also by its UID, on a node."""

    namespace: str
    name: str
    uid: str
    node: str

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


class Binder:
    """Carries out orders of the scheduler; thread-safe.

    Args:
        transport: the API server.
        cluster: what is taken.
        may_act: asked before each write: whether this process leads.
        clock: nanoseconds since the epoch.
    """

    def __init__(
        self,
        transport: Transport,
        cluster: Cluster,
        may_act: Callable[[], bool],
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._transport = transport
        self._pods = Collection(transport, PODS, timeout=REQUEST_SECONDS)
        self._cluster = cluster
        self._may_act = may_act
        self._clock = clock
        self._guard = threading.Lock()
        self._busy: set[str] = set()
        """UIDs of pods that are being bound."""
        self._unanswered: dict[str, BindRequest] = {}
        """By UID of the pod: Bindings that may be carried out yet."""

    @property
    def uncertain(self) -> bool:
        """Whether a write is under way, or has had no answer."""
        return bool(self._unanswered or self._busy)

    def bind(self, request: BindRequest) -> None:
        """Bind a pod; done when it returns, also if it was bound there before. DriverError says why not."""
        with self._alone(request.uid):
            if request.uid in self._unanswered:
                pod = self._settle(self._unanswered[request.uid])
            else:
                known = self._cluster.pod(request.key)
                usable = known is not None and known.uid == request.uid and not known.node
                pod = known if known is not None and usable else self._fetch(request)
            for _ in range(TRIES):
                if pod.node:
                    self._require_there(request, pod)
                    return
                later = self._write(request, pod)
                if later is None:
                    return
                pod = later
        raise DriverError(f"pod {request.key} has changed {TRIES} times while it was bound", remedy="it is tried again")

    def reconcile(self) -> None:
        """Find out about Bindings without an answer, and bound pods without news; nothing is raised."""
        for uid, request in list(self._unanswered.items()):
            try:
                with self._alone(uid):
                    if uid in self._unanswered:
                        self._settle(request)
            except DriverError as error:
                log.info("pod %s: %s", request.key, error)
        for uid, chosen in self._cluster.unconfirmed(time.monotonic() - NEWS_SECONDS):
            try:
                self._confirm(uid, chosen)
            except DriverError as error:
                log.info("pod %s, of which there is no news: %s", chosen.key, error)

    def _confirm(self, uid: str, chosen: Chosen) -> None:
        """Look whether a pod is there whose Binding was written."""
        try:
            item = self._pods.get(*chosen.key.split("/", 1))
        except ApiError as error:
            if not error.object_missing:
                raise
            self._cluster.give_up(uid)
            return
        pod = pod_of(item)
        if pod.uid != uid or pod.ended:
            self._cluster.give_up(uid)
        else:
            self._cluster.found_bound(item)

    def _write(self, request: BindRequest, pod: Pod) -> Pod | None:
        """Choose and send; None when the pod is bound, or the pod as it is now, to go on from there."""
        self._require_leader()
        choice = self._choose(request, pod)
        # Whatever happens from here on, the choice is not forgotten before it is known what became of it.
        self._unanswered[request.uid] = request
        try:
            self._post(request, pod.version, _annotations(choice, pod, self._clock()))
        except ApiError as error:
            if error.status == 409:
                self._over(request)
                return self._fetch(request)
            if 400 <= error.status < 500 and error.status != 408:
                self._over(request)
                raise
            log.warning("pod %s: it is not known whether it was bound to %s: %s", request.key, request.node, error)
            return self._settle(request)
        self._done(request)
        _report(request, choice)
        return None

    def _choose(self, request: BindRequest, pod: Pod) -> Choice | None:
        """What the pod gets; None for one that asks for nothing."""
        if pod.requests is None:
            # This says why, as the scheduler was told when it asked where the pod fits.
            requests_of(self._pods.get(request.namespace, request.name))
            raise DriverError(f"pod {request.key} has changed", remedy="it is tried again")
        if not pod.requests:
            return None
        found = self._cluster.choose(request.uid, request.key, request.node, pod.requests)
        if isinstance(found, DoesNotFit):
            log.info("POD %s does not fit in Node:%s any more: %s", request.key, request.node, found.text)
            raise DriverError(f"node {request.node}: {found.text}")
        return found

    def _post(self, request: BindRequest, version: str, annotations: dict[str, str]) -> None:
        document: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": request.name,
                "namespace": request.namespace,
                "uid": request.uid,
                "resourceVersion": version,
                "annotations": annotations,
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": request.node},
        }
        path = f"/api/v1/namespaces/{quote(request.namespace, safe='')}/pods/{quote(request.name, safe='')}/binding"
        self._transport.request("POST", path, body=document, timeout=REQUEST_SECONDS)

    def _settle(self, request: BindRequest) -> Pod:
        """The pod of a Binding without an answer, once that Binding is over; DriverError if that cannot be said yet."""
        try:
            item = self._pods.get(request.namespace, request.name)
            if item.metadata.uid == request.uid and not item.spec.node_name:
                item = self._fence(request)
        except ApiError as error:
            if error.object_missing:
                self._over(request)
                raise DriverError(f"pod {request.key} is gone") from error
            raise DriverError(
                f"whether pod {request.key} was bound to {request.node} is not known",
                consequence="its devices there are kept for it",
                remedy="the API server is asked again",
            ) from error
        if item.metadata.uid != request.uid:
            self._over(request)
            raise DriverError(f"pod {request.key} is another one now")
        pod = pod_of(item)
        if pod.node == request.node:
            self._done(request)
        else:
            self._over(request)
        self._cluster.found_bound(item)
        return pod

    def _fence(self, request: BindRequest) -> PartialPod:
        """Make every Binding that was sent before too old."""
        self._require_leader()
        metadata = {"uid": request.uid, "annotations": {ALLOC_TIME: str(self._clock())}}
        return self._pods.patch(request.namespace, request.name, {"metadata": metadata})

    def _done(self, request: BindRequest) -> None:
        self._cluster.written(request.uid)
        self._unanswered.pop(request.uid, None)

    def _over(self, request: BindRequest) -> None:
        self._cluster.give_up(request.uid)
        self._unanswered.pop(request.uid, None)

    def _fetch(self, request: BindRequest) -> Pod:
        item = self._pods.get(request.namespace, request.name)
        if item.metadata.uid != request.uid:
            raise DriverError(f"pod {request.key} is another one now: its UID is {item.metadata.uid}")
        pod = pod_of(item)
        if pod.ended:
            raise DriverError(f"pod {request.key} has ended")
        self._cluster.found_bound(item)
        return pod

    def _require_there(self, request: BindRequest, pod: Pod) -> None:
        if pod.node != request.node:
            raise DriverError(f"pod {request.key} is bound to {pod.node} already")
        log.info("POD %s is bound to Node:%s already", request.key, request.node)

    def _require_leader(self) -> None:
        if not self._may_act():
            raise DriverError("this replica does not lead any more", remedy="another one is asked next time")

    @contextmanager
    def _alone(self, uid: str) -> Iterator[None]:
        """Only one request at a time for a pod."""
        with self._guard:
            if uid in self._busy:
                raise DriverError("the pod is being bound already", remedy="it is tried again")
            self._busy.add(uid)
        try:
            yield
        finally:
            with self._guard:
                self._busy.discard(uid)


def _annotations(choice: Choice | None, pod: Pod, now: int) -> dict[str, str]:
    """What a Binding writes: our keys, and nothing in those that were there before and are not used now."""
    if choice is None:
        return {}
    found = write(choice.hardware, choice.shares, now)
    return {key: "" for key in pod.stale if key not in found} | found


def _report(request: BindRequest, choice: Choice | None) -> None:
    """The facts of the vendor's log lines, in one line."""
    if choice is None:
        log.info("Bound POD %s to Node:%s; it asks for no Neuron resources", request.key, request.node)
        return
    hardware = choice.hardware
    mine = choice.after & ~choice.before
    log.info(
        "Allocated ids for POD %s are: %s; devices: %s; bound to Node:%s (%s). Devices in use there now: %s",
        request.key,
        ", ".join(f"{share.resource.value} {ranges(share.ids)} for {share.container}" for share in choice.shares),
        ranges(hardware.ids(Resource.DEVICE, mine)),
        request.node,
        hardware.instance_type,
        ranges(hardware.ids(Resource.DEVICE, choice.after)),
    )
