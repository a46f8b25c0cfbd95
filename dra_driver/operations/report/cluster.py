"""What a cluster says for a report: reads with the rights that are there, and notes what it may not read."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from dra_driver.kube.api.client import Query, Transport
from dra_driver.kube.api.codec import PARTIAL_RESOURCE_CLAIMS, Resource
from dra_driver.kube.api.errors import ApiError
from dra_driver.kube.api.resources import Collection, ResourceApi
from dra_driver.kube.objects.meta import JsonObject
from dra_driver.kube.objects.resource import TAINT_RULE_VERSIONS
from dra_driver.neuron.health.condition import TYPE as HEALTH_CONDITION
from dra_driver.neuron.health.policy import HealthPolicy
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.operations.recovery.policy import decode_policy
from dra_driver.operations.report import allowed
from dra_driver.operations.report.archive import Collected, File
from dra_driver.util.errors import DriverError
from dra_driver.util.text import first_of, one_line

MAX_OBJECTS: Final = 20_000
"""Of one kind in the report."""
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

_DRA: Final = PARTIAL_RESOURCE_CLAIMS.versions

PROGRAMS: Final[Mapping[str, tuple[str, ...]]] = {
    "app": (
        "neuron-dra-driver-kubelet-plugin",
        "neuron-dra-driver-placer",
        "neuron-scheduler",
        "neuron-node-problem-detector",
        "neuron-node-recovery",
    ),
    "name": ("neuron-device-plugin-ds",),
}
"""Labels of the pods of the driver's own programs, whose settings and logs are collected."""
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


@dataclass(frozen=True, slots=True)
class Settings:
    """What is a setting of the driver's programs."""

    variables: frozenset[str]
    """Environment variables."""
    options: frozenset[str]
    """Words of the command line: commands, and options such as ``--v``."""


def read(transport: Transport, settings: Settings, nodes: Iterable[str] = ()) -> Collected:
    """Everything of a cluster that belongs into a report.

    Args:
        transport: the API server.
        settings: of the driver's programs.
        nodes: objects and logs of these nodes alone; none: all nodes with Neuron devices.

    Raises:
        ApiError: the API server does not answer at all. What it refuses is noted, and left out.
    """
    return _Reader(transport, settings, frozenset(nodes)).read()


class _Reader:
    def __init__(self, transport: Transport, settings: Settings, nodes: frozenset[str]) -> None:
        self._transport = transport
        self._settings = settings
        self._nodes = nodes
        self._found = Collected()
        self._programs: list[JsonObject] = []
        """Pods of the driver's own programs."""

    def read(self) -> Collected:
        version = ResourceApi(self._transport).server_version()
        self._add("cluster/version.json", "version of the API server", {"gitVersion": version.git_version})
        slices = self._objects("resourceslices", "ResourceSlice", _DRA, self._slice, "what the driver offers", SLICES)
        offering = {str(item.get("spec", {}).get("nodeName", "")) for item in slices}
        self._objects("nodes", "Node", ("v1",), lambda item: self._node(item, offering), "versions, labels and health")
        classes = self._objects("deviceclasses", "DeviceClass", _DRA, _class, "what claims can ask for")
        names = {str(_meta(item).get("name", "")) for item in classes}
        self._objects(
            "devicetaintrules",
            "DeviceTaintRule",
            TAINT_RULE_VERSIONS,
            _taint_rule,
            "taints by administrators",
            beta=True,
        )
        claims = self._objects(
            "resourceclaims",
            "ResourceClaim",
            _DRA,
            lambda item: self._claim(item, names),
            "what is asked and allocated",
        )
        templates = self._objects(
            "resourceclaimtemplates", "ResourceClaimTemplate", _DRA, lambda item: _template(item, names), "templates"
        )
        pods = self._objects(
            "pods", "Pod", ("v1",), self._pod, "who uses claims or Neuron resources, and the driver's own pods"
        )
        self._remember("pod", pods)
        self._remember("claim", claims)
        self._remember("template", templates)
        about = {
            (kind, meta.get("namespace", ""), meta.get("name", ""))
            for kind, items in (("Pod", pods), ("ResourceClaim", claims))
            for meta in map(_meta, items)
        }
        self._objects("events", "Event", ("v1",), lambda item: _event(item, about), "what was said about these objects")
        self._workloads()
        self._policies()
        self._logs(pods)
        return self._found

    # Objects

    def _objects(
        self,
        plural: str,
        kind: str,
        versions: tuple[str, ...],
        reduced: Callable[[JsonObject], JsonObject | None],
        why: str,
        query: Query = (),
        *,
        beta: bool = False,
    ) -> list[JsonObject]:
        """Add a file of the objects of a kind; returns what is in it. ``beta``: most servers do not serve it."""

        def convert(item: JsonObject, _: str) -> JsonObject:
            return reduced(item) or {}

        resource: Resource[JsonObject] = Resource(dict, kind, plural, versions, convert)
        try:
            listed, _ = (collection := Collection(self._transport, resource, query)).list_all()
        except ApiError as error:
            if not (beta and error.status == 404):
                self._found.missing.append((plural, _refused(error)))
            return []
        items = sorted(filter(None, listed), key=_key)
        if len(items) > MAX_OBJECTS:
            self._found.missing.append((plural, f"{len(items) - MAX_OBJECTS} of {len(items)}: too many; name nodes"))
        items = items[:MAX_OBJECTS]
        self._add(f"cluster/{plural}.json", why, {"apiVersion": collection.version, "items": items})
        for item in items:
            self._found.add_name("namespace", _meta(item).get("namespace"))
        return items

    def _add(self, path: str, why: str, content: object) -> None:
        self._found.files.append(File(path, why, content))

    def _remember(self, kind: str, items: Iterable[JsonObject]) -> None:
        for item in items:
            meta = _meta(item)
            self._found.add_name(kind, meta.get("name"))
            for owner in meta.get("ownerReferences", ()):
                if owner.get("kind") not in ("Node", None):
                    self._found.add_name("owner" if owner.get("kind") != "Pod" else "pod", owner.get("name"))

    def _wanted(self, node: object) -> bool:
        return not self._nodes or node in self._nodes

    def _slice(self, item: JsonObject) -> JsonObject | None:
        kept = allowed.keep(item, allowed.SLICE)
        node = kept.get("spec", {}).get("nodeName")
        self._found.add_name("node", node)
        return kept if self._wanted(node) and kept.get("spec", {}).get("driver") == DRIVER_NAME else None

    def _node(self, item: JsonObject, offering: set[str]) -> JsonObject | None:
        kept: JsonObject = allowed.keep(item, allowed.NODE)
        name, status = kept.get("metadata", {}).get("name"), kept.get("status", {})
        self._found.add_name("node", name)
        conditions = {entry.get("type") for entry in status.get("conditions", ())}
        neuron = name in offering or status.get("capacity") or HEALTH_CONDITION in conditions
        return kept if self._wanted(name) and (neuron or name in self._nodes) else None

    def _claim(self, item: JsonObject, classes: set[str]) -> JsonObject | None:
        kept: JsonObject = allowed.keep(item, allowed.CLAIM)
        allocation = kept.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
        own = [result for result in allocation if result.get("driver") == DRIVER_NAME]
        if allocation:
            return kept if own and any(self._wanted(result.get("pool")) for result in own) else None
        return kept if _asks(kept.get("spec", {}), classes) else None

    def _pod(self, item: JsonObject) -> JsonObject | None:
        kept: JsonObject = allowed.keep(item, allowed.POD)
        if not self._wanted(kept.get("spec", {}).get("nodeName", "")) and kept.get("spec", {}).get("nodeName"):
            return None
        if _program(item):
            self._programs.append(kept)
            return kept
        spec, meta = kept.get("spec", {}), kept.get("metadata", {})
        containers = [*spec.get("containers", ()), *spec.get("initContainers", ())]
        limits = any(entry.get("resources", {}).get("limits") for entry in containers)
        return kept if spec.get("resourceClaims") or limits or meta.get("annotations") else None

    # The driver's own programs

    def _workloads(self) -> None:
        rule = allowed.workload(self._settings.variables, self._settings.options)

        def own(item: JsonObject) -> JsonObject | None:
            return allowed.keep(item, rule) if _program(item) else None

        for plural, kind in (("daemonsets", "DaemonSet"), ("deployments", "Deployment")):
            self._objects(plural, kind, ("apps/v1",), own, "settings of the driver's programs")

    def _policies(self) -> None:
        namespaces = sorted({str(_meta(pod).get("namespace", "")) for pod in self._programs} - {""})
        resource: Resource[JsonObject] = Resource(dict, "ConfigMap", "configmaps", ("v1",))
        for name, (key, strict) in POLICIES.items():
            for namespace in namespaces:
                try:
                    found = Collection(self._transport, resource).get(namespace, name)
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
        self._add(f"cluster/policies/{name}.json", "what faults of chips mean", yaml.safe_load(text))

    def _logs(self, pods: Sequence[JsonObject]) -> None:
        """Add logs of the driver's programs: first of those that are not well, then by name."""
        left, files, end = LOGS_BYTES, 0, time.monotonic() + LOGS_SECONDS
        waiting = {
            pod.get("spec", {}).get("nodeName") for pod in pods if pod.get("status", {}).get("phase") == "Pending"
        }

        def turn(pod: JsonObject) -> tuple[bool, bool, tuple[str, str]]:
            statuses = pod.get("status", {}).get("containerStatuses", ())
            well = all(entry.get("ready") and not entry.get("restartCount") for entry in statuses)
            return well, pod.get("spec", {}).get("nodeName") not in waiting, _key(pod)

        unread = []
        for pod in sorted(self._programs, key=turn):
            meta = _meta(pod)
            where = f"{meta.get('namespace')}/{meta.get('name')}"
            if left <= 0 or files >= MAX_LOGS or time.monotonic() >= end:
                unread.append(where)
                continue
            for status in pod.get("status", {}).get("containerStatuses", ()):
                for previous in (False, True)[: 2 if status.get("restartCount") else 1]:
                    body = self._log(meta, str(status.get("name", "")), previous=previous)
                    if body is not None:
                        suffix = ".previous" if previous else ""
                        path = f"logs/{where}/{status.get('name')}{suffix}.log"
                        self._add(path, "newest lines of the log of one of the driver's programs", body)
                        left, files = left - len(body), files + 1
        if unread:
            self._found.missing.append(
                (f"logs of {first_of(unread, 8)}", "too many, too long or too slow logs; name nodes with --node-name")
            )

    def _log(self, meta: Mapping[str, Any], container: str, *, previous: bool) -> str | None:
        path = f"/api/v1/namespaces/{meta.get('namespace')}/pods/{meta.get('name')}/log"
        query = [("container", container), ("tailLines", str(LOG_LINES)), ("limitBytes", str(ASKED_BYTES))]
        query += [("previous", "true")] if previous else []
        try:
            body = self._transport.request("GET", path, query=query, timeout=LOG_SECONDS).body
        except ApiError as error:
            what = f"log of {meta.get('namespace')}/{meta.get('name')}, container {container}"
            self._found.missing.append((what + (" (previous)" if previous else ""), _refused(error)))
            return None
        return newest(body.decode("utf-8", "replace"))


SLICES: Final = (("fieldSelector", f"spec.driver={DRIVER_NAME}"),)


def newest(log: str, most: int = LOG_BYTES) -> str:
    """The last lines of a log, of at most so many characters, with a line that says that others were cut off."""
    if len(log) <= most:
        return log
    tail = log[-most:]
    first = tail.find("\n") + 1
    return f"({len(log) - most + first} characters before this were cut off)\n{tail[first:]}"


def _program(item: JsonObject) -> bool:
    """Whether a pod, or a workload, is one of the driver's own programs."""
    labels = item.get("metadata", {}).get("labels") or {}
    owners = item.get("metadata", {}).get("ownerReferences") or ()
    controlled = "template" in item.get("spec", {}) or any(
        owner.get("kind") in ("DaemonSet", "ReplicaSet") and owner.get("controller") for owner in owners
    )
    names = {name for each in PROGRAMS.values() for name in each}
    return controlled and any(
        labels.get(key) in names for key in (*PROGRAMS, "app.kubernetes.io/name", "app.kubernetes.io/component")
    )


def _class(item: JsonObject) -> JsonObject | None:
    kept: JsonObject = allowed.keep(item, allowed.DEVICE_CLASS)
    spec = kept.get("spec", {})
    said = [entry.get("cel", {}).get("expression", "") for entry in spec.get("selectors", ())]
    said += [entry.get("opaque", {}).get("driver", "") for entry in spec.get("config", ())]
    return kept if any(DRIVER_NAME in text for text in said) else None


def _taint_rule(item: JsonObject) -> JsonObject | None:
    kept: JsonObject = allowed.keep(item, allowed.TAINT_RULE)
    driver = kept.get("spec", {}).get("deviceSelector", {}).get("driver", DRIVER_NAME)
    return kept if driver == DRIVER_NAME else None


def _template(item: JsonObject, classes: set[str]) -> JsonObject | None:
    kept: JsonObject = allowed.keep(item, allowed.TEMPLATE)
    return kept if _asks(kept.get("spec", {}).get("spec", {}), classes) else None


def _asks(spec: JsonObject, classes: set[str]) -> bool:
    """Whether a claim asks for devices of a class of this driver."""
    requests = spec.get("devices", {}).get("requests") or ()  # null before 1.35 if there are none
    each = [part for request in requests for part in (request, request.get("exactly", {}), *_first(request))]
    return any(part.get("deviceClassName") in classes for part in each)


def _first(request: JsonObject) -> Sequence[JsonObject]:
    found: Sequence[JsonObject] = request.get("firstAvailable", ())
    return found


def _event(item: JsonObject, about: Container[tuple[str, str, str]]) -> JsonObject | None:
    kept: JsonObject = allowed.keep(item, allowed.EVENT)
    subject = kept.get("involvedObject", {})
    reason = str(kept.get("reason", ""))
    if subject.get("kind") == "Node":
        return kept if reason.startswith("Neuron") else None
    key = (subject.get("kind", ""), subject.get("namespace", ""), subject.get("name", ""))
    return kept if key in about and reason in REASONS else None


def _meta(item: JsonObject) -> JsonObject:
    found: JsonObject = item.get("metadata") or {}
    return found


def _key(item: JsonObject) -> tuple[str, str]:
    meta = item.get("metadata") or item.get("involvedObject") or {}
    # Events have no name here; equal ones stand in the order of their times.
    return str(meta.get("namespace", "")), f"{meta.get('name', '')} {item.get('lastTimestamp', '')}"


def _refused(error: ApiError) -> str:
    return one_line(str(error), 300)
