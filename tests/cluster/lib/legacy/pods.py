"""Pods with Neuron limits for `my-scheduler`, nodes that exist as objects only, and what becomes of the pods."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from dra_driver.kube.api.client import JSON, Stream, Transport
from dra_driver.kube.api.errors import ApiError
from tests.cluster.lib.deadline import Deadline
from tests.cluster.lib.kube import Object
from tests.cluster.lib.legacy.rules import CORE, DEVICE, Kind

PODS = "/api/v1/namespaces/default/pods"
TYPE_LABEL = "node.kubernetes.io/instance-type"
ROOM = {"cpu": "10000", "memory": "1000Gi", "pods": "10000"}
MERGE = "application/merge-patch+json"


def container(name: str, limits: Mapping[str, object]) -> Object:
    """A container that asks for these."""
    return {
        "name": name,
        "image": "none",
        "resources": {"limits": {key: str(count) for key, count in limits.items()}},
    }


def pod(
    name: str,
    *containers: Object,
    init: Sequence[Object] = (),
    where: Mapping[str, str] | None = None,
    scheduler: str = "my-scheduler",
) -> Object:
    """A pod; tolerates what the API server taints a new node with."""
    return {
        "metadata": {"name": name},
        "spec": {
            "schedulerName": scheduler,
            "containers": list(containers),
            "initContainers": list(init),
            "nodeSelector": dict(where or {}),
            "automountServiceAccountToken": False,
            "tolerations": [{"operator": "Exists"}],
        },
    }


def node(name: str, kind: str, shape: Kind | None, labels: Mapping[str, str] | None = None) -> Object:
    """A node whose device plugin has registered what its type has; with None, none has."""
    room = dict(ROOM)
    if shape is not None:
        room |= {DEVICE: str(shape.units(DEVICE)), CORE: str(shape.units(CORE))}
    condition = {"type": "Ready", "status": "True", "reason": "Always", "message": ""}
    return {
        "metadata": {"name": name, "labels": {TYPE_LABEL: kind, "kubernetes.io/hostname": name, **(labels or {})}},
        "status": {"capacity": room, "allocatable": room, "conditions": [condition]},
    }


def limits_of(item: Object) -> dict[str, tuple[str, int]]:
    """By container what a pod asks for."""
    found: dict[str, tuple[str, int]] = {}
    for entry in (*item["spec"].get("initContainers", ()), *item["spec"]["containers"]):
        for resource, count in entry["resources"].get("limits", {}).items():
            if resource in (DEVICE, CORE) and count != "0":
                found[entry["name"]] = (resource, int(count))
    return found


def notes(item: Object) -> dict[str, str]:
    """Of a pod."""
    return dict(item["metadata"].get("annotations") or {})


def ids(text: str) -> list[int]:
    """``0-2,5`` as numbers, read without the project's code."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def refusal(item: Object) -> str:
    """Why the scheduler has found no node so far, or ""."""
    conditions = item.get("status", {}).get("conditions", ())
    found: Object = next((entry for entry in conditions if entry["type"] == "PodScheduled"), {})
    return str(found.get("message", "")) if found.get("status") == "False" else ""


def ended(item: Object) -> bool:
    """Whether its devices are free again."""
    return item["status"].get("phase") in ("Succeeded", "Failed")


class Pods:
    """The pods of the default namespace as the API server's watch tells of them, in its order."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._changed = threading.Condition()
        self._over = False
        self._stream: Stream | None = None
        self._version = ""
        self._writers = ThreadPoolExecutor(8, "pods")
        self.known: dict[str, Object] = {}
        self.seen: set[str] = set()
        """Pods that the watch has told of."""
        self.made: dict[str, float] = {}
        self.bound: dict[str, float] = {}
        """When a pod was made, and when it was seen to have a node."""
        self.heard: list[Callable[[str, Object], None]] = []
        """Called with each event."""
        self.fault: Exception | None = None

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follow them meanwhile; at the end all of them are deleted."""
        self._version = json.loads(self._transport.request("GET", PODS).body)["metadata"]["resourceVersion"]
        thread = threading.Thread(target=self._follow, name="pods-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.delete(*list(self.known), at_once=True)
            self._over = True
            if self._stream is not None:
                self._stream.abort()
            thread.join(10)
            self._writers.shutdown()

    def _follow(self) -> None:
        try:
            # The server ends a watch whose reader is slow; it goes on where that one has ended.
            while not self._over:
                query = [("watch", "1"), ("resourceVersion", self._version)]
                with self._transport.stream(PODS, query=query, timeout=3600) as self._stream:
                    for line in self._stream:
                        self._hear(json.loads(line))
        except Exception as error:  # noqa: BLE001 # told by those who wait
            self.fault = error

    def _hear(self, event: Object) -> None:
        kind, item = event["type"], event["object"]
        self._version, name = item["metadata"]["resourceVersion"], item["metadata"]["name"]
        with self._changed:
            self.seen.add(name)
            if kind == "DELETED":
                self.known.pop(name, None)
            else:
                self.known[name] = item
            if item["spec"].get("nodeName"):
                self.bound.setdefault(name, time.monotonic())
            for listener in self.heard:
                listener(kind, item)
            self._changed.notify_all()

    def create(self, *items: Object) -> None:
        """Make pods, several at a time."""
        list(self._writers.map(self._create, items))

    def _create(self, item: Object) -> None:
        self.made[item["metadata"]["name"]] = time.monotonic()
        self._transport.request("POST", PODS, body=item, timeout=60)

    def delete(self, *names: str, at_once: bool = False) -> None:
        """Delete pods; ``at_once``: without kubelet's consent."""
        query = [("gracePeriodSeconds", "0")] if at_once else []
        list(self._writers.map(lambda name: self.send("DELETE", name, query=query), names))

    def stored(self, name: str, uid: str) -> bool:
        """Whether the API server has this pod now, whatever the watch has told so far."""
        try:
            found = self._transport.request("GET", f"{PODS}/{name}", timeout=60)
        except ApiError as error:
            if error.status != 404:
                raise
            return False
        return str(json.loads(found.body)["metadata"]["uid"]) == uid

    def annotate(self, name: str, changes: Mapping[str, str | None]) -> None:
        """What others write; None removes."""
        self.send("PATCH", name, {"metadata": {"annotations": dict(changes)}})

    def send(
        self, method: str, path: str, body: object = None, *, query: Sequence[tuple[str, str]] = (), kind: str = MERGE
    ) -> None:
        """A request below the pods; what is gone already, or has changed, is left."""
        form = kind if method == "PATCH" else JSON
        try:
            self._transport.request(method, f"{PODS}/{path}", body=body, query=query, content_type=form, timeout=60)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    def wait(self, what: str, ready: Callable[[], object], within: float) -> None:
        """Until ``ready``, which is asked after each event."""
        deadline = Deadline(within)
        with self._changed:
            while not ready():
                left = deadline.left()
                assert left > 0, f"{what}: not so within {deadline}"
                assert self.fault is None, f"the watch has failed: {self.fault}"
                self._changed.wait(min(left, 1.0))

    def rest(self, seconds: float) -> None:
        """Until the next event, so long at most."""
        assert self.fault is None, f"the watch has failed: {self.fault}"
        with self._changed:
            self._changed.wait(seconds)

    def phase(self, name: str) -> str:
        """Phase of a pod; "" when there is none."""
        return str(self.known.get(name, {}).get("status", {}).get("phase", ""))

    def wait_bound(self, *names: str, within: float = 60.0) -> list[Object]:
        """Until all have a node; the pods."""

        def missing() -> list[str]:
            return [name for name in names if not self.known.get(name, {}).get("spec", {}).get("nodeName")]

        try:
            self.wait("pods to have nodes", lambda: not missing(), within)
        except AssertionError as error:
            reasons = {name: refusal(self.known.get(name, {})) for name in missing()[:5]}
            raise AssertionError(f"{len(missing())} pods have no node, such as {reasons}") from error
        return [self.known[name] for name in names]
