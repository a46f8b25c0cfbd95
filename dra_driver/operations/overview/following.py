"""The objects of an overview from the API server: listed once, or followed by watches."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from dra_driver.kube.api.client import Transport
from dra_driver.kube.api.codec import Resource
from dra_driver.kube.api.errors import ApiError
from dra_driver.kube.api.resources import Collection
from dra_driver.kube.api.watch import Informer
from dra_driver.neuron.names import DRIVER_NAME, VIEWER_ROLE
from dra_driver.operations.overview.objects import CLAIMS, NODES, PODS, SLICES, TAINT_RULES, Claim, Pod
from dra_driver.operations.overview.view import ClusterView
from dra_driver.util.errors import DriverError

STOP_SECONDS: Final = 2.0
_OWN_SLICES: Final = (("fieldSelector", f"spec.driver={DRIVER_NAME}"),)
_ROLE: Final = f"the ClusterRole {VIEWER_ROLE} (docs/top.md) allows it"


def _matters(item: object) -> bool:
    """Of the others, nobody here asks: claims of other drivers, once allocated, and pods without devices."""
    if isinstance(item, Claim):
        return bool(item.held) or item.status.allocation is None
    return item.counts if isinstance(item, Pod) else True


@dataclass(frozen=True, slots=True)
class Scope:
    """What of a cluster can be read."""

    namespace: str = ""
    """Pods and claims of this namespace, and nothing else; "": the whole cluster."""
    taint_rules: bool = True
    """Whether DeviceTaintRules can be read too."""
    notes: tuple[str, ...] = ()
    """What is left out because the user may not list it, a sentence each."""


def readable(transport: Transport, namespace: str = "") -> Scope:
    """What the user of the transport may list.

    Args:
        transport: the API server.
        namespace: to make do with if the whole cluster may not be read; "": nothing less will do.

    Raises:
        DriverError: the user may not list what is needed. ApiError: the API server does not answer.
    """
    cluster = {
        "nodes": _refused(transport, NODES),
        "resourceslices": _refused(transport, SLICES),
        "resourceclaims of all namespaces": _refused(transport, CLAIMS),
        "pods of all namespaces": _refused(transport, PODS),
    }
    refused = [what for what, error in cluster.items() if error is not None]
    if not refused:
        rules = _refused(transport, TAINT_RULES)
        note = f"this user may not list devicetaintrules: what they keep from pods looks free; {_ROLE}"
        return Scope(taint_rules=rules is None, notes=(note,) if rules is not None and rules.status == 403 else ())
    within = {
        f"{resource.plural} of namespace {namespace}": _refused(transport, resource, namespace)
        for resource in (CLAIMS, PODS)
        if namespace
    }
    lacking = [what for what, error in (within or cluster).items() if error is not None]
    if lacking:
        error = next(error for error in (within or cluster).values() if error is not None)
        raise DriverError(
            f"this user may not list {', '.join(lacking)} ({error.message or error})",
            consequence="nothing can be shown",
            remedy=_ROLE if within else f"{_ROLE}; with rights in one namespace: dra-driver top -n NAMESPACE",
        )
    note = f"this user may not list {', '.join(refused)}: only namespace {namespace} is shown, without nodes; {_ROLE}"
    return Scope(namespace, taint_rules=False, notes=(note,))


def _refused(transport: Transport, resource: Resource[Any], namespace: str = "") -> ApiError | None:
    """Why a kind cannot be listed: 403, or 404 if the server does not serve it."""
    try:
        Collection(transport, resource, namespace=namespace).probe()
    except ApiError as error:
        if error.status == 403 or (error.status == 404 and resource is TAINT_RULES):
            return error
        raise
    return None


def _kinds(scope: Scope) -> tuple[Resource[Any], ...]:
    """What can be read."""
    whole = () if scope.namespace else (NODES, SLICES)
    return (*whole, CLAIMS, PODS, *((TAINT_RULES,) if scope.taint_rules else ()))


def _collection(transport: Transport, scope: Scope, kind: Resource[Any]) -> Collection[Any]:
    query = _OWN_SLICES if kind is SLICES else ()
    return Collection(transport, kind, query, namespace=scope.namespace if kind in (CLAIMS, PODS) else "")


def _cluster(scope: Scope, objects: Mapping[str, list[Any]]) -> ClusterView:
    """The objects by their kind as a cluster."""
    nodes, slices, claims, pods, rules = (
        objects.get(kind.plural, []) for kind in (NODES, SLICES, CLAIMS, PODS, TAINT_RULES)
    )
    return ClusterView(nodes, slices, claims, pods, rules, whole=not scope.namespace)


def listed(transport: Transport, scope: Scope) -> ClusterView:
    """The objects as stored now. Raises ApiError for a kind that cannot be listed."""
    kinds = {kind.plural: _collection(transport, scope, kind) for kind in _kinds(scope)}
    return _cluster(scope, {plural: list(filter(_matters, kind.list_all()[0])) for plural, kind in kinds.items()})


class Followed:
    """The objects as watches deliver them. A context manager; ``cluster`` may be called from any thread."""

    def __init__(self, transport: Transport, scope: Scope) -> None:
        self._event = threading.Event()
        self._scope = scope
        self._informers: Mapping[str, Informer[Any]] = {
            kind.plural: Informer(kind.plural, _collection(transport, scope, kind), self._event.set, _matters)
            for kind in _kinds(scope)
        }

    def __enter__(self) -> Self:
        for informer in self._informers.values():
            informer.start()
        return self

    def __exit__(self, *_: object) -> None:
        for informer in self._informers.values():
            informer.stop(STOP_SECONDS)

    def wait_listed(self, poll: float = 0.05) -> None:
        """Return when everything has been listed. Raises DriverError if something cannot be."""
        while not all(informer.current for informer in self._informers.values()):
            trouble = self.trouble
            if trouble:
                raise DriverError(trouble)
            self._event.wait(poll)

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
        return _cluster(self._scope, {plural: informer.objects() for plural, informer in self._informers.items()})
