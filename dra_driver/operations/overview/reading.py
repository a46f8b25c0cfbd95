"""The objects of an overview from the API server: listed once, or followed by watches."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, Self, TypeVar

from dra_driver.kube.api.client import Query, Transport
from dra_driver.kube.api.codec import Resource
from dra_driver.kube.api.errors import ApiError
from dra_driver.kube.api.resources import Collection
from dra_driver.kube.api.watch import Informer
from dra_driver.kube.formats import subdomain
from dra_driver.kube.objects.apps import DaemonSet
from dra_driver.neuron.names import DEVICE_PLUGIN_POD, DEVICES_VIEWER_ROLE, DRIVER_NAME, DRIVER_POD, VIEWER_ROLE
from dra_driver.operations.overview.objects import (
    CLAIMS,
    CREATE,
    DAEMON_SETS,
    EVENTS,
    GROUP_KEY,
    NODES,
    PODS,
    PREPARE,
    SLICES,
    TAINT_RULES,
    TEMPLATES,
    ClusterView,
    Pod,
)
from dra_driver.operations.overview.workloads import FAILED_CREATE, MAX_WORKLOADS, WORKLOADS, Podless, podless
from dra_driver.util.errors import DriverError

T = TypeVar("T")
STOP_SECONDS: Final = 2.0


class _Source(NamedTuple):
    """Objects of one kind that are read."""

    name: str
    """A field of ``ClusterView``; of Events with what they are about before it."""
    kind: Resource[Any]
    query: Query = ()


_NO_DAEMON: Final = f"reason={FAILED_CREATE},involvedObject.kind=DaemonSet"
_SOURCES: Final = (
    _Source("nodes", NODES),
    _Source("slices", SLICES, (("fieldSelector", f"spec.driver={DRIVER_NAME}"),)),
    _Source("claims", CLAIMS),
    _Source("pods", PODS),
    _Source("taint_rules", TAINT_RULES),
    # The API server selects Events by one reason.
    _Source("prepare_events", EVENTS, (("fieldSelector", f"reason={PREPARE}"),)),
    _Source("create_events", EVENTS, (("fieldSelector", f"reason={CREATE}"),)),
    _Source("failed_events", EVENTS, (("fieldSelector", _NO_DAEMON),)),
    _Source("daemon_sets", DAEMON_SETS, (("labelSelector", "=".join(DRIVER_POD)),)),
)


def _matters(item: object) -> bool:
    """Of pods without devices, nobody here asks."""
    return item.counts or item.daemon is not None if isinstance(item, Pod) else True


@dataclass(frozen=True, slots=True)
class Scope:
    """What of a cluster can be read."""

    namespace: str = ""
    """Pods, claims and Events of this namespace, and of no other; "": of all."""
    lacking: frozenset[str] = frozenset()
    """Plural names of kinds that cannot be read."""
    notes: tuple[str, ...] = ()
    """What is left out because the user may not list it, a sentence each."""


def readable(transport: Transport, namespace: str = "", *, devices: bool = False) -> Scope:
    """What the user of the transport may list.

    Args:
        transport: the API server.
        namespace: to make do with if the whole cluster may not be read; "": nothing less will do.
        devices: whether nothing can be said without ResourceSlices.

    Raises:
        DriverError: the user may not list what is needed. ApiError: the API server does not answer.
    """
    refused = {kind.plural: _refused(transport, kind) for kind in (NODES, SLICES, TAINT_RULES)}
    elsewhere = {
        f"{kind.plural} of all namespaces": error
        for kind in (CLAIMS, PODS)
        if (error := _refused(transport, kind)) is not None
    }
    needed = dict(elsewhere)
    if elsewhere and namespace:
        within = {
            f"{kind.plural} of namespace {namespace}": _refused(transport, kind, namespace) for kind in (CLAIMS, PODS)
        }
        needed = {what: error for what, error in within.items() if error is not None}
    slices = refused[SLICES.plural]
    if slices is not None and (devices or not namespace):
        needed[SLICES.plural] = slices
    if needed:
        error = next(iter(needed.values()))
        more = "" if namespace else "; with rights in one namespace: dra-driver top -n NAMESPACE"
        raise DriverError(
            f"this user may not list {', '.join(needed)} ({error.message or error})",
            consequence="nothing can be shown",
            remedy=f"the ClusterRole {VIEWER_ROLE} allows it{more}",
        )
    within_only = namespace if elsewhere else ""
    refused[EVENTS.plural] = _refused(transport, EVENTS, within_only)
    refused[DAEMON_SETS.plural] = _refused(transport, DAEMON_SETS)
    lacking = {plural: error for plural, error in refused.items() if error is not None}
    # What DaemonSets explain is left to the reader where they cannot be read.
    unlisted = [plural for plural, error in lacking.items() if error.status != 404 and plural != DAEMON_SETS.plural]
    return Scope(within_only, frozenset(lacking), _note(unlisted, within_only))


def _note(unlisted: Sequence[str], within_only: str) -> tuple[str, ...]:
    """What is said of the kinds that the user may not list."""
    others = [f"claims and pods of namespaces other than {within_only}"] if within_only else []
    if SLICES.plural in unlisted:
        text = f"{', '.join([*unlisted, *others])}: nodes and their chips are not shown; the ClusterRole "
        text += f"{DEVICES_VIEWER_ROLE} allows it for chips, {VIEWER_ROLE} for everything"
    elif unlisted or others:
        parts = [f"{plural} ({_WITHOUT[plural]})" for plural in unlisted]
        parts += [f"{what} (it is not known how many chips are free)" for what in others]
        text = f"{', '.join(parts)}; the ClusterRole {VIEWER_ROLE} allows it"
    else:
        return ()
    return (f"this user may not list {text}",)


_WITHOUT: Final = {
    NODES.plural: "it is not known what keeps pods off nodes",
    TAINT_RULES.plural: "devices that they taint look free",
    EVENTS.plural: "it is not known why claims cannot be prepared",
}


def _refused(transport: Transport, resource: Resource[Any], namespace: str = "") -> ApiError | None:
    """Why a kind cannot be listed: 403, or 404 if the server does not serve it."""
    try:
        _collection(transport, Scope(namespace), resource).probe()
    except ApiError as error:
        if error.status == 403 or (error.status == 404 and resource is TAINT_RULES):
            return error
        raise
    return None


def _readable(transport: Transport, scope: Scope) -> dict[str, Collection[Any]]:
    """What can be read, by the source's name."""
    return {
        source.name: _collection(transport, scope, source.kind, source.query)
        for source in _SOURCES
        if source.kind.plural not in scope.lacking
    }


def _collection(transport: Transport, scope: Scope, kind: Resource[Any], query: Query = ()) -> Collection[Any]:
    return Collection(transport, kind, query, namespace=scope.namespace if kind in (CLAIMS, PODS, EVENTS) else "")


def _cluster(scope: Scope, objects: Mapping[str, list[Any]]) -> ClusterView:
    """The objects by their source as a cluster."""
    given: dict[str, Any] = defaultdict(list)
    for name, items in objects.items():
        given["events" if name.endswith("events") else name] += items
    return ClusterView(
        **given,
        whole=not scope.namespace,
        with_nodes=NODES.plural not in scope.lacking,
        with_slices=SLICES.plural not in scope.lacking,
    )


def listed(transport: Transport, scope: Scope) -> ClusterView:
    """The objects as stored now. Raises ApiError for a kind that cannot be listed."""
    return _cluster(
        scope,
        {
            name: collection.select(lambda item: item if _matters(item) else None)[0]
            for name, collection in _readable(transport, scope).items()
        },
    )


def around(transport: Transport, namespace: str, name: str) -> tuple[Pod, ClusterView]:
    """A pod, what there is on its node, and the warnings about it, as far as the user may read them.

    That is a few small requests, however large the cluster is. Raises ApiError: the pod cannot be read.
    """
    pod: Pod = Collection(transport, PODS).get(namespace, name)
    answers = [_if_permitted(partial(_one, transport, CLAIMS, namespace, name)) for name in pod.claims]
    claims, with_claims = [claim for answer in answers for claim in answer or ()], None not in answers
    about = f"involvedObject.uid={pod.metadata.uid},type=Warning"
    events = _if_permitted(partial(_selected, transport, EVENTS, about, namespace)) if pod.metadata.uid else ()
    if not pod.node:
        templates = {
            name: _if_permitted(partial(_one, transport, TEMPLATES, namespace, name)) for name in pod.templates
        }
        there = None if None in templates.values() else [name for name, item in templates.items() if item]
        return pod, ClusterView(
            claims=claims, pods=[pod], events=events or (), with_claims=with_claims, templates=there
        )
    nodes = _if_permitted(partial(_one, transport, NODES, "", pod.node))
    of_node = f"spec.driver={DRIVER_NAME},spec.nodeName={pod.node}"
    slices = _if_permitted(partial(_selected, transport, SLICES, of_node))
    serving = daemons(transport, f"spec.nodeName={pod.node}")
    refused = () if serving else _if_permitted(partial(_selected, transport, EVENTS, _NO_DAEMON))
    return pod, ClusterView(
        nodes or (),
        slices or (),
        claims,
        [pod, *(serving or ())],
        (),
        [*(events or ()), *(refused or ())],
        daemon_sets(transport),
        whole=serving is not None,
        with_nodes=nodes is not None,
        with_slices=slices is not None,
        with_claims=with_claims,
        group=_others(transport, pod),
    )


def workloads_without_pods(transport: Transport, namespace: str) -> list[Podless]:
    """Workloads of a namespace, or of all if it is "", that lack pods, as far as the user may read that."""
    read = partial(_selected, transport, EVENTS, f"reason={FAILED_CREATE}", namespace)
    events = sorted(_if_permitted(read) or (), key=lambda item: item.last)
    last = {item.uid: item for item in events if item.kind in WORKLOADS and not subdomain(item.name)}
    lacking = []
    for event in sorted(last.values(), key=lambda item: item.last)[-MAX_WORKLOADS:]:
        get = partial(_one, transport, WORKLOADS[event.kind], event.metadata.namespace, event.name)
        lacking += [podless(workload, event) for workload in _if_permitted(get) or ()]
    return sorted(filter(None, lacking), key=lambda item: item.subject)


def _others(transport: Transport, pod: Pod) -> list[Pod]:
    """The other pods of the pod's group."""
    key, namespace = pod.group[0], pod.metadata.namespace
    read = partial(_selected, transport, PODS, "", namespace, labels=f"{GROUP_KEY}={key}")
    members = _if_permitted(read) if key else ()
    return [item for item in members or () if item.metadata.uid != pod.metadata.uid]


def daemons(transport: Transport, field_selector: str = "") -> list[Pod] | None:
    """The pods of driver and device plugin; None: the user may not list them."""
    labels = ("=".join(label) for label in (DRIVER_POD, DEVICE_PLUGIN_POD))
    found = [_if_permitted(partial(_selected, transport, PODS, field_selector, labels=label)) for label in labels]
    return None if None in found else [pod for pods in found for pod in pods or () if pod.daemon is not None]


def daemon_sets(transport: Transport) -> list[DaemonSet] | None:
    """The driver's; None: the user may not list them."""
    return _if_permitted(partial(_selected, transport, DAEMON_SETS, "", labels="=".join(DRIVER_POD)))


def _one(transport: Transport, kind: Resource[T], namespace: str, name: str) -> list[T]:
    return [Collection(transport, kind).get(namespace, name)]


def _selected(
    transport: Transport, kind: Resource[T], fields: str, namespace: str = "", *, labels: str = ""
) -> list[T]:
    query = (("fieldSelector", fields), ("labelSelector", labels))
    return Collection(transport, kind, [pair for pair in query if pair[1]], namespace=namespace).list_all()[0]


def _if_permitted(read: Callable[[], list[T]]) -> list[T] | None:
    """What is read; [] where it is not there, None where it may not be read."""
    try:
        return read()
    except ApiError as error:
        if error.status not in (403, 404):
            raise
        return None if error.status == 403 else []


class Followed:
    """The objects as watches deliver them. A context manager; ``cluster`` may be called from any thread."""

    def __init__(self, transport: Transport, scope: Scope) -> None:
        self._event = threading.Event()
        self._scope = scope
        self._informers: Mapping[str, Informer[Any]] = {
            name: Informer(name.replace("_", " "), collection, self._event.set, _matters)
            for name, collection in _readable(transport, scope).items()
        }

    def __enter__(self) -> Self:
        for informer in self._informers.values():
            informer.start()
        return self

    def __exit__(self, *_: object) -> None:
        for informer in self._informers.values():
            informer.stop(STOP_SECONDS)

    def wait_listed(self) -> None:
        """Return when everything has been listed. Raises DriverError if something cannot be."""
        while not all(informer.current for informer in self._informers.values()):
            trouble = self.trouble
            if trouble:
                raise DriverError(trouble)
            self._event.wait(0.05)

    def wait_changed(self, seconds: float) -> bool:
        """Whether something has changed since the last call, or does so within that time."""
        changed = self._event.wait(seconds)
        self._event.clear()
        return changed

    @property
    def trouble(self) -> str:
        """Why some of it is not followed now, or ""."""
        return next((informer.last_error for informer in self._informers.values() if informer.last_error), "")

    def cluster(self) -> ClusterView:
        """The objects as known now."""
        return _cluster(self._scope, {name: informer.objects() for name, informer in self._informers.items()})
