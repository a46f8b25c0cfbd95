"""What a cluster says for a report: reads with the rights that are there, and notes what it may not read."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from dra_driver.kube.api.client import Query, Transport
from dra_driver.kube.api.codec import AS_SENT
from dra_driver.kube.api.errors import ApiError
from dra_driver.kube.api.resources import Collection, ResourceApi
from dra_driver.kube.documents import documents
from dra_driver.kube.formats import label
from dra_driver.kube.objects.meta import JsonObject
from dra_driver.kube.objects.resource import v1
from dra_driver.neuron.health.condition import TYPE as HEALTH_CONDITION
from dra_driver.neuron.health.policy import HealthPolicy
from dra_driver.neuron.names import DEVICE_PLUGIN_POD, DRIVER_NAME, DRIVER_POD
from dra_driver.operations.recovery.policy import decode_policy
from dra_driver.operations.report import allowed
from dra_driver.operations.report.archive import Collected, File
from dra_driver.util.errors import DriverError
from dra_driver.util.text import first_of, lines_to_print, one_line

MAX_OBJECTS: Final = 20_000
"""Of one kind in the report."""
OBJECTS_BYTES: Final = 32 << 20
"""Of what is kept of one kind, as JSON; in memory and in the archive's making it takes many times as much."""
NAMESPACE_BYTES: Final = 8 << 20
"""Of these, those that one namespace may have, so that it leaves room for others wherever it stands in the list."""
NODE_BYTES: Final = 1 << 20
"""Of these, those that one node may have of what is in no namespace; the slices of the largest have 50 kB."""
LOG_LINES: Final = 5000
"""Lines of a log that are asked for, the newest."""
LOG_BYTES: Final = 1 << 20
"""Of one log in the report, the newest."""
LOGS_BYTES: Final = 64 << 20
"""Of all logs together."""
MAX_LOGS: Final = 200
ASKED_BYTES: Final = 8 << 20
"""The API server ends its answer there; it counts from the oldest line that is asked for."""
LOG_SECONDS: Final = 20.0
"""For one log: kubelets of nodes that are gone do not answer."""
LOGS_SECONDS: Final = 180.0
"""For all of them; the rest is left out."""

PROGRAMS: Final = frozenset(
    {
        DRIVER_POD[1],
        DEVICE_PLUGIN_POD[1],
        "neuron-dra-driver-placer",
        "neuron-scheduler",
        "neuron-node-problem-detector",
        "neuron-node-recovery",
    }
)
"""The driver's own programs, whose settings and logs are collected, as a label of their pods names them."""
POLICIES: Final[Mapping[str, tuple[str, Callable[[str], object]]]] = {
    "neuron-dra-driver-health-policy": ("health-policy.yaml", HealthPolicy.parse),
    "neuron-node-recovery-policy": ("policy.yaml", decode_policy),
}
"""ConfigMaps with a policy: the key, and what reads it strictly."""
REASONS: Final = frozenset(
    {
        "FailedScheduling",
        "FailedPrepareDynamicResources",
        "FailedUnprepareDynamicResources",
        "FailedResourceClaimCreation",
        "DeviceTaintManagerEviction",
        "DeviceTaintManagerMisconfiguration",
        "UnexpectedAdmissionError",
    }
)
"""Reasons of Events about pods and claims; other reasons come with images, commands and probes of users."""


class ClusterReader:
    """Reads everything of a cluster that belongs into a report.

    Args:
        found: takes it.
        transport: the API server.
        workload: what is kept of a DaemonSet or Deployment of the driver (``allowed.workload``).
        nodes: objects and logs of these nodes alone; none: all nodes with Neuron devices.
    """

    def __init__(self, found: Collected, transport: Transport, workload: allowed.Rule, nodes: Iterable[str]) -> None:
        self._found = found
        self._transport = transport
        self._workload_rule = workload
        self._nodes = frozenset(nodes)
        self._programs: list[JsonObject] = []
        """Pods of the driver's own programs."""
        self._program_names: set[tuple[str, str]] = set()

    def read(self) -> None:
        """Raises ApiError if the API server does not answer at all. What it refuses is noted, and left out."""
        version = ResourceApi(self._transport).server_version()
        self._add("cluster/version.json", "version of the API server", {"gitVersion": version.git_version})
        own_slices = (("fieldSelector", f"spec.driver={DRIVER_NAME}"),)
        slices = self._objects("ResourceSlice", allowed.SLICE, self._slice, "what the driver offers", own_slices)
        offering = {_at(item, "spec", "nodeName") for item in slices}
        self._objects("Node", allowed.NODE, lambda kept, _: self._node(kept, offering), "versions, labels and health")
        own = self._objects("DeviceClass", allowed.DEVICE_CLASS, _class, "what claims can ask for")
        classes = {_at(item, "metadata", "name") for item in own}
        self._objects("DeviceTaintRule", allowed.TAINT_RULE, _taint_rule, "taints by administrators")
        claims = self._objects(
            "ResourceClaim",
            allowed.CLAIM,
            lambda kept, _: self._claim(kept, classes),
            "what is requested and allocated",
        )
        templates = self._objects(
            "ResourceClaimTemplate",
            allowed.TEMPLATE,
            lambda kept, _: _asks(_at(kept, "spec", "spec"), classes),
            "templates",
        )
        pods = self._objects(
            "Pod", allowed.POD, self._pod, "who uses claims or Neuron resources, and the driver's own pods"
        )
        self._programs = [pod for pod in pods if _key(pod) in self._program_names]
        self._remember("pod", pods)
        self._remember("claim", claims)
        self._remember("template", templates)
        about = {(kind, *_key(item)) for kind, items in (("Pod", pods), ("ResourceClaim", claims)) for item in items}
        self._objects("Event", allowed.EVENT, lambda kept, _: _event(kept, about), "messages about these objects")
        for kind in ("DaemonSet", "Deployment"):
            why = "settings of the driver's programs"
            self._objects(kind, self._workload_rule, lambda _, item: self._workload(item), why)
        self._policies()
        self._logs(pods)

    # Objects

    def _objects(
        self,
        kind: str,
        rule: allowed.Rule,
        wanted: Callable[[JsonObject, JsonObject], bool],
        why: str,
        query: Query = (),
    ) -> list[JsonObject]:
        """Add a file of the objects of a kind, in the shape of the newest version; returns what is in it.

        Args:
            kind: of ``AS_SENT``.
            rule: what is kept of an object.
            wanted: whether it belongs into the report, by what is kept of it; beside that is all of it.
            why: for the manifest.
            query: selects some of the objects.
        """
        plural = AS_SENT[kind].plural
        sizes: Counter[str] = Counter()
        left_out: Counter[str] = Counter()
        """Both by whose the objects are."""

        def convert(item: JsonObject, version: str) -> JsonObject | None:
            kept: JsonObject = allowed.keep(v1(item, kind, version), rule)
            if not wanted(kept, item):
                return None
            whose, most = _room(kept, kind)
            size = len(msgspec.json.encode(kept))
            if sizes[whose] + size > most or sizes.total() + size > OBJECTS_BYTES:
                left_out[whose] += 1
                return None
            sizes[whose] += size
            return kept

        resource = replace(AS_SENT[kind], from_version=convert)
        try:
            listed, _ = (collection := Collection(self._transport, resource, query)).select(lambda item: item)
        except ApiError as error:
            # Most servers before 1.37 do not serve these.
            if not (kind == "DeviceTaintRule" and error.status == 404):
                self._found.missing.append((plural, _refused(error)))
            return []
        if left_out:
            whose = first_of([f"{count} of {name}" for name, count in left_out.most_common()], 8)
            self._found.missing.append((plural, f"{whose}: they are too large together; name nodes"))
        items = sorted(listed, key=_order)
        if len(items) > MAX_OBJECTS:
            self._found.missing.append((plural, f"{len(items) - MAX_OBJECTS} of {len(items)}: too many; name nodes"))
        items = items[:MAX_OBJECTS]
        self._add(f"cluster/{plural}.json", why, {"apiVersion": collection.version, "items": items})
        for item in items:
            self._found.add_name("namespace", _at(item, "metadata", "namespace"))
        return items

    def _add(self, path: str, why: str, content: object) -> None:
        self._found.files.append(File(path, why, content))

    def _remember(self, kind: str, items: Iterable[JsonObject]) -> None:
        for item in items:
            self._found.add_name(kind, _at(item, "metadata", "name"))
            for owner in _at(item, "metadata", "ownerReferences") or ():
                if owner.get("kind") not in ("Node", None):
                    self._found.add_name("owner" if owner["kind"] != "Pod" else "pod", owner.get("name"))

    def _near(self, node: object) -> bool:
        return not self._nodes or node in self._nodes

    def _slice(self, kept: JsonObject, _: JsonObject) -> bool:
        node = _at(kept, "spec", "nodeName")
        self._found.add_name("node", node)
        return self._near(node) and bool(_at(kept, "spec", "driver") == DRIVER_NAME)

    def _node(self, kept: JsonObject, offering: Container[str]) -> bool:
        name = _at(kept, "metadata", "name")
        self._found.add_name("node", name)
        conditions = {entry.get("type") for entry in _at(kept, "status", "conditions") or ()}
        neuron = name in offering or _at(kept, "status", "capacity") or HEALTH_CONDITION in conditions
        return name in self._nodes if self._nodes else bool(neuron)

    def _claim(self, kept: JsonObject, classes: Container[str]) -> bool:
        results = _at(kept, "status", "allocation", "devices", "results")
        if results:
            return any(entry.get("driver") == DRIVER_NAME and self._near(entry.get("pool")) for entry in results)
        return _asks(kept.get("spec"), classes)

    def _pod(self, kept: JsonObject, item: JsonObject) -> bool:
        spec, node = kept.get("spec", {}), _at(kept, "spec", "nodeName")
        if node and not self._near(node):
            return False
        if _program(item):
            self._program_names.add(_key(kept))
            return True
        containers = [*spec.get("containers", ()), *spec.get("initContainers", ())]
        limits = any(_at(entry, "resources", "limits") for entry in containers)
        return bool(spec.get("resourceClaims") or limits or _at(kept, "metadata", "annotations"))

    # The driver's own programs

    def _workload(self, item: JsonObject) -> bool:
        own = _program(item)
        annotations = (_at(item, "metadata", "annotations") or {}) if own else {}
        release, namespace = (str(annotations.get(f"meta.helm.sh/release-{key}", "")) for key in ("name", "namespace"))
        if release and allowed.word(release) == release and allowed.word(namespace) == namespace:
            why = f"they are in Secrets, which reports leave out; helm get values {release} -n {namespace} prints them"
            self._found.missing.append((f"values of the helm release {release}", why))
        return own

    def _policies(self) -> None:
        namespaces = sorted({_key(pod)[0] for pod in self._programs} - {""})
        for name, (key, strict) in POLICIES.items():
            for namespace in namespaces:
                try:
                    found = Collection(self._transport, AS_SENT["ConfigMap"]).get(namespace, name)
                except ApiError as error:
                    if error.status != 404:
                        self._found.missing.append((f"ConfigMap {namespace}/{name}", _refused(error)))
                    continue
                self._policy(f"{namespace}/{name}", (found.get("data") or {}).get(key), strict)

    def _policy(self, name: str, text: object, strict: Callable[[str], object]) -> None:
        """Add a policy if it is one: then it has known fields alone, and parsing drops its comments."""
        if not isinstance(text, str):
            self._found.missing.append((f"ConfigMap {name}", "it has no policy"))
            return
        try:
            strict(text)
        except DriverError:
            self._found.missing.append((f"ConfigMap {name}", "it is not a valid policy (the program's log says why)"))
            return
        policy = next((value for _, value in documents(name, text)), None)
        self._add(f"cluster/policies/{name}.json", "what faults of chips mean", policy)

    def _logs(self, pods: Sequence[JsonObject]) -> None:
        """Add logs of the driver's programs: first of those that are not well, then by name.

        Namespaces take turns, log by log, since anybody may give pods the labels of our programs.
        """
        left, files, end = LOGS_BYTES, 0, time.monotonic() + LOGS_SECONDS
        waiting = {_at(pod, "spec", "nodeName") for pod in pods if _at(pod, "status", "phase") == "Pending"}

        def turn(pod: JsonObject) -> tuple[bool, bool, tuple[str, str]]:
            statuses = _at(pod, "status", "containerStatuses") or ()
            well = all(entry.get("ready") and not entry.get("restartCount") for entry in statuses)
            return well, _at(pod, "spec", "nodeName") not in waiting, _key(pod)

        turns: Counter[str] = Counter()
        logs = []
        for pod in sorted(self._programs, key=turn):
            namespace, name = _key(pod)
            for container, previous in self._containers(pod):
                turns[namespace] += 1
                logs.append((turns[namespace], namespace, name, container, previous))
        unread: dict[str, None] = {}
        for _, namespace, name, container, previous in sorted(logs, key=lambda log: log[0]):
            where = f"{namespace}/{name}"
            if left <= 0 or files >= MAX_LOGS or time.monotonic() >= end:
                unread[where] = None
                continue
            body = self._log(namespace, name, container, previous=previous)
            if body is not None:
                path = f"logs/{where}/{container}{'.previous' * previous}.log"
                self._add(path, "newest lines of the log of one of the driver's programs", body)
                left, files = left - len(body), files + 1
        if unread:
            why = "too many, too long or too slow logs; name nodes with --node-name"
            self._found.missing.append((f"logs of {first_of([*unread], 8)}", why))

    def _containers(self, pod: JsonObject) -> Iterator[tuple[str, bool]]:
        """The logs of a pod: name of a container, and whether it is that of its previous run."""
        for status in _at(pod, "status", "containerStatuses") or ():
            name = str(status.get("name", ""))
            # Its kubelet writes the status as it likes, and the name becomes a path.
            if problem := label(name):
                self._found.missing.append((f"a log of {'/'.join(_key(pod))}", problem))
                continue
            yield from ((name, previous) for previous in (False, True)[: 2 if status.get("restartCount") else 1])

    def _log(self, namespace: str, pod: str, container: str, *, previous: bool) -> str | None:
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/log"
        query = [("container", container), ("tailLines", str(LOG_LINES)), ("limitBytes", str(ASKED_BYTES))]
        query += [("previous", "true")] if previous else []
        try:
            body = self._transport.request("GET", path, query=query, timeout=LOG_SECONDS).body
        except ApiError as error:
            what = f"log of {namespace}/{pod}, container {container}"
            self._found.missing.append((what + (" (previous)" if previous else ""), _refused(error)))
            return None
        # Escapes take more room than what they stand for.
        return newest(lines_to_print(newest(body.decode("utf-8", "replace"))))


def newest(log: str, most: int = LOG_BYTES) -> str:
    """The last lines of a log, of at most so many characters, with a line that says that others were cut off."""
    if len(log) <= most:
        return log
    tail = log[-most:]
    first = tail.find("\n") + 1
    return f"({len(log) - most + first} characters before this were cut off)\n{tail[first:]}"


def _at(value: Any, *path: str) -> Any:
    """What an object has there; None if it has not."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _key(item: JsonObject) -> tuple[str, str]:
    return str(_at(item, "metadata", "namespace") or ""), str(_at(item, "metadata", "name") or "")


def _room(item: JsonObject, kind: str) -> tuple[str, int]:
    """Whose an object is, and how many bytes all of theirs of the kind may have.

    A node writes slices in its own name alone, under any owner; those of no node are of a controller.
    """
    namespace, name = _key(item)
    if namespace:
        return f"namespace {namespace}", NAMESPACE_BYTES
    if node := name if kind == "Node" else _at(item, "spec", "nodeName"):
        return f"node {node}", NODE_BYTES
    for owner in _at(item, "metadata", "ownerReferences") or ():
        return f"{owner.get('kind')} {owner.get('name')}", NODE_BYTES
    return f"{kind} {name}", NODE_BYTES


def _order(item: JsonObject) -> tuple[str, str, str]:
    """By namespace and name; Events by what they are about, and time."""
    subject = item.get("involvedObject") or item.get("metadata", {})
    return subject.get("namespace", ""), subject.get("name", ""), item.get("lastTimestamp", "")


def _program(item: JsonObject) -> bool:
    """Whether a pod, or a workload, is one of the driver's own programs."""
    labels, owners = _at(item, "metadata", "labels") or {}, _at(item, "metadata", "ownerReferences") or ()
    controlled = _at(item, "spec", "template") is not None or any(
        owner.get("kind") in ("DaemonSet", "ReplicaSet") and owner.get("controller") for owner in owners
    )
    keys = ("app", "name", "app.kubernetes.io/name", "app.kubernetes.io/component")
    return controlled and any(labels.get(key) in PROGRAMS for key in keys)


def _class(kept: JsonObject, _: JsonObject) -> bool:
    texts = [_at(entry, "cel", "expression") or "" for entry in _at(kept, "spec", "selectors") or ()]
    texts += [_at(entry, "opaque", "driver") or "" for entry in _at(kept, "spec", "config") or ()]
    return any(DRIVER_NAME in text for text in texts)


def _taint_rule(kept: JsonObject, _: JsonObject) -> bool:
    return _at(kept, "spec", "deviceSelector", "driver") in (None, DRIVER_NAME)


def _asks(spec: Any, classes: Container[str]) -> bool:
    """Whether a claim asks for devices of a class of this driver."""
    requests = _at(spec, "devices", "requests") or ()
    each = (part for request in requests for part in (request.get("exactly", {}), *request.get("firstAvailable", ())))
    return any(part.get("deviceClassName") in classes for part in each)


def _event(kept: JsonObject, about: Container[tuple[str, str, str]]) -> bool:
    subject, reason = kept.get("involvedObject", {}), kept.get("reason", "")
    if subject.get("kind") == "Node":
        return bool(reason.startswith("Neuron"))
    key = (subject.get("kind", ""), subject.get("namespace", ""), subject.get("name", ""))
    return key in about and reason in REASONS


def _refused(error: ApiError) -> str:
    return one_line(str(error), 300)
