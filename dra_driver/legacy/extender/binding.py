"""Binds a pod to a node and records its devices, in one atomic request.

The API server merges the annotations of a Binding into those of the pod, and touches no others, in the same write that
sets the node (Kubernetes, ``pods/binding``). A pod thus never has devices without a node, and nobody else's annotations
are overwritten. The Binding names UID and resource version of the pod, so it fails if the pod has changed.

Before it is sent, the choice is stored in ``Cluster``. A definite error discards the choice. Without an answer it stays
until the outcome is known: the pod is read, and if it is not bound yet, a small change to the extender's own annotation
makes the resource version in the Binding stale, so that it cannot be carried out later.
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

from dra_driver.kube.api.client import REQUEST_SECONDS, Transport
from dra_driver.kube.api.errors import ApiError
from dra_driver.kube.api.resources import Collection
from dra_driver.legacy.annotations import ALLOC_TIME, write
from dra_driver.legacy.extender.cluster import Choice, Chosen, Cluster
from dra_driver.legacy.extender.wire import PODS, ExtenderPod, LimitsPod, pod_of, requests_of
from dra_driver.legacy.placement import DoesNotFit
from dra_driver.legacy.rules import NeuronResource
from dra_driver.util.errors import DriverError
from dra_driver.util.text import ranges

TRIES: Final = 4
"""Bindings sent for one request of the scheduler: a pod may change while it is bound."""

SLOW_SECONDS: Final = 1.0
"""A namespace where it takes longer to learn what became of a Binding comes last: a webhook hangs."""

NEWS_SECONDS: Final = 30.0
"""If a bound pod has not appeared in the watch for so long, it is read from the API server."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BindRequest:
    """The scheduler's request: a pod, identified also by its UID, and a node."""

    namespace: str
    name: str
    uid: str
    node: str

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


class Binder:
    """Carries out the scheduler's requests; thread-safe.

    Args:
        transport: the API server.
        cluster: the view of the cluster.
        may_act: called before each write; whether this process leads.
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
        """UIDs of pods that are currently being bound."""
        self._unanswered: dict[str, BindRequest] = {}
        """Requests whose Binding may still be carried out, by UID of the pod."""
        self._slow: dict[str, float] = {}
        """By namespace, when it last took long to resolve one of them (monotonic clock)."""

    @property
    def uncertain(self) -> bool:
        """Whether a write is under way or got no answer."""
        return bool(self._unanswered or self._busy)

    def require_idle(self, uid: str) -> None:
        """Raises DriverError if the pod of that UID is being bound."""
        if uid in self._busy:
            raise DriverError("the pod is already being bound", remedy="it is retried")

    def bind(self, request: BindRequest) -> None:
        """Bind a pod; also succeeds if it is bound there already. Raises DriverError."""
        with self._alone(request.uid):
            if request.uid in self._unanswered:
                pod = self._settle(self._unanswered[request.uid])
            else:
                known = self._cluster.pod(request.key)
                usable = known is not None and known.uid == request.uid and not known.node
                # A choice from before was written: the pod is bound, even if the watch has not delivered that yet.
                usable = usable and not self._cluster.has_choice(request.uid)
                pod = known if known is not None and usable else self._fetch(request)
            for _ in range(TRIES):
                if pod.node:
                    self._require_there(request, pod)
                    return
                later = self._write(request, pod)
                if later is None:
                    return
                pod = later
        raise DriverError(f"pod {request.key} has changed {TRIES} times while it was bound", remedy="it is retried")

    def reconcile(self) -> None:
        """Resolve Bindings without an answer, and bound pods that the watch has not delivered. Raises nothing.

        The first that takes long ends the round, and its namespace comes last in the next ones.
        """
        unanswered = list(self._unanswered.items())
        spaces = {request.namespace for _, request in unanswered}
        self._slow = {name: when for name, when in self._slow.items() if name in spaces}
        for uid, request in sorted(unanswered, key=lambda item: self._slow.get(item[1].namespace, 0.0)):
            began = time.monotonic()
            try:
                with self._alone(uid):
                    if uid in self._unanswered:
                        self._settle(request)
            except DriverError as error:
                log.info("pod %s: %s", request.key, error)
            if (now := time.monotonic()) - began > SLOW_SECONDS:
                self._slow[request.namespace] = now
                break
        for uid, chosen in self._cluster.unconfirmed(time.monotonic() - NEWS_SECONDS):
            try:
                self._confirm(uid, chosen)
            except DriverError as error:
                log.info("pod %s, whose state is not known: %s", chosen.key, error)

    def _confirm(self, uid: str, chosen: Chosen) -> None:
        """Check on a pod whose Binding was written."""
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

    def _write(self, request: BindRequest, pod: ExtenderPod) -> ExtenderPod | None:
        """Choose devices and send the Binding; None if the pod is bound, else its current state to retry with."""
        self._require_leader()
        choice = self._choose(request, pod)
        # From here on, the choice is kept until its outcome is known.
        self._unanswered[request.uid] = request
        try:
            self._post(request, pod.version, _annotations(choice, pod, self._clock()))
        except ApiError as error:
            if error.status == 409:
                self._over(request)
                return self._fetch(request)
            # The server gives these two before it looks at the Binding.
            if not error.undecided or error.status in (401, 429):
                self._over(request)
                raise
            log.warning("pod %s: it is not known whether it was bound to %s: %s", request.key, request.node, error)
            return self._settle(request)
        self._done(request)
        _report(request, choice)
        return None

    def _choose(self, request: BindRequest, pod: ExtenderPod) -> Choice | None:
        """The devices for the pod; None if it requests none."""
        if pod.requests is None:
            # Raises the error that the scheduler was given when it asked where the pod fits.
            requests_of(self._pods.get(request.namespace, request.name))
            raise DriverError(f"pod {request.key} has changed", remedy="it is retried")
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

    def _settle(self, request: BindRequest) -> ExtenderPod:
        """The pod of a Binding without an answer, once its outcome is known. Raises DriverError if it is not."""
        try:
            item = self._pods.get(request.namespace, request.name)
            if item.metadata.uid == request.uid and not item.spec.node_name:
                item = self._fence(request)
        except ApiError as error:
            if error.object_missing:
                self._over(request)
                raise DriverError(f"pod {request.key} is gone") from error
            raise DriverError(
                f"it is not known whether pod {request.key} was bound to {request.node}",
                consequence="its devices there stay reserved",
                remedy="the API server is queried again",
            ) from error
        if item.metadata.uid != request.uid:
            self._over(request)
            raise DriverError(f"pod {request.key} has been replaced by another one")
        pod = pod_of(item)
        if pod.node == request.node:
            self._done(request)
        else:
            self._over(request)
        self._cluster.found_bound(item)
        return pod

    def _fence(self, request: BindRequest) -> LimitsPod:
        """Make the resource version in every Binding sent before stale."""
        self._require_leader()
        metadata = {"uid": request.uid, "annotations": {ALLOC_TIME: str(self._clock())}}
        return self._pods.patch(request.namespace, request.name, {"metadata": metadata})

    def _done(self, request: BindRequest) -> None:
        self._cluster.written(request.uid)
        self._unanswered.pop(request.uid, None)

    def _over(self, request: BindRequest) -> None:
        self._cluster.give_up(request.uid)
        self._unanswered.pop(request.uid, None)

    def _fetch(self, request: BindRequest) -> ExtenderPod:
        item = self._pods.get(request.namespace, request.name)
        if item.metadata.uid != request.uid:
            raise DriverError(f"pod {request.key} has been replaced by another one: its UID is {item.metadata.uid}")
        pod = pod_of(item)
        if pod.ended:
            raise DriverError(f"pod {request.key} has ended")
        self._cluster.found_bound(item)
        return pod

    def _require_there(self, request: BindRequest, pod: ExtenderPod) -> None:
        if pod.node != request.node:
            raise DriverError(f"pod {request.key} is already bound to {pod.node}")
        log.info("POD %s is already bound to Node:%s", request.key, request.node)

    def _require_leader(self) -> None:
        if not self._may_act():
            raise DriverError("this replica no longer leads", remedy="the next request goes to the leader")

    @contextmanager
    def _alone(self, uid: str) -> Iterator[None]:
        """Serialize requests for one pod."""
        with self._guard:
            self.require_idle(uid)
            self._busy.add(uid)
        try:
            yield
        finally:
            with self._guard:
                self._busy.discard(uid)


def _annotations(choice: Choice | None, pod: ExtenderPod, now: int) -> dict[str, str]:
    """The annotations of a Binding: our keys, with stale ones emptied."""
    if choice is None:
        return {}
    found = write(choice.hardware, pod.uid, choice.shares, now)
    return {key: "" for key in pod.stale if key not in found} | found


def _report(request: BindRequest, choice: Choice | None) -> None:
    """Log the facts of the vendor's log lines in one line."""
    if choice is None:
        log.info("Bound POD %s to Node:%s; it asks for no Neuron resources", request.key, request.node)
        return
    hardware = choice.hardware
    mine = choice.after & ~choice.before
    log.info(
        "Allocated ids for POD %s are: %s; devices: %s; bound to Node:%s (%s). Devices in use there now: %s",
        request.key,
        ", ".join(f"{share.resource.value} {ranges(share.ids)} for {share.container}" for share in choice.shares),
        ranges(hardware.ids(NeuronResource.DEVICE, mine)),
        request.node,
        hardware.instance_type,
        ranges(hardware.ids(NeuronResource.DEVICE, choice.after)),
    )
