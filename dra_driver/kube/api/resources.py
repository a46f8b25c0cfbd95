"""Typed API calls: ``Collection`` for the objects of any kind, ``ResourceApi`` for those that a DRA driver needs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote

import msgspec

from dra_driver.kube.api.client import JSON, MAX_OBJECT_BYTES, WHOLE_ANSWER, Query, Response, Stream, Transport
from dra_driver.kube.api.codec import (
    ALLOCATED_CLAIMS,
    CLAIMING_PODS,
    EVENTS,
    NODES,
    REPORTED_CLAIMS,
    RESOURCE_SLICES,
    WITHOUT_DRA,
    ListMeta,
    ListPage,
    RawEvent,
    Resource,
    ServerVersion,
    decode,
    missing_fields,
)
from dra_driver.kube.api.errors import NOT_SERVED, ApiError, Status, TooLarge, refusal
from dra_driver.kube.objects.core import Event, Node, Pod
from dra_driver.kube.objects.meta import Condition, JsonObject, ObjectMeta
from dra_driver.kube.objects.resource import AllocatedClaim, AllocatedDeviceStatus, ReportedClaim, ResourceSlice
from dra_driver.util import runtime
from dra_driver.util.worker import Backoff

T = TypeVar("T")
U = TypeVar("U")

WATCH_GRACE: Final = 30.0
"""Seconds after its agreed end at which a watch that received no byte counts as lost."""
APPLY: Final = "application/apply-patch+yaml"
"""Content type of server-side apply; JSON is valid YAML."""
MERGE_PATCH: Final = "application/merge-patch+json"
EVENT_SECONDS: Final = 5.0
"""Timeout of requests about events, which nothing waits for."""
PAGE: Final = 500
"""Objects per page of a list, at most."""
PAGE_BYTES: Final = 8 << 20
"""Of a page of more than one object; a larger one is not read, and asked for again with fewer objects."""
MAX_OBJECTS: Final = 200_000
"""Objects that are kept of a list, which bounds memory. Kubernetes supports up to 150,000 pods in a cluster."""
EXPIRED_TRIES: Final = 3
"""Lists that are begun anew because the server has forgotten the state that they began with."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[T]):
    """``object`` is None for bookmarks."""

    type: str
    resource_version: str
    object: T | None


class _Meta(msgspec.Struct):
    metadata: ListMeta


class Watch(Generic[T]):
    """Events of one watch. Iterate in one thread; ``abort`` may be called from any."""

    def __init__(self, stream: Stream, path: str, read: Callable[[msgspec.Raw], T]) -> None:
        self._stream = stream
        self._path = path
        self._read = read

    def abort(self) -> None:
        """End the iteration at once."""
        self._stream.abort()

    def __iter__(self) -> Iterator[WatchEvent[T]]:
        """Iterate over events until the server ends the watch. Raises ApiError for an error event (410: list again)."""
        for line in self._stream:
            event: RawEvent = decode(line, RawEvent, "a watch event")
            if event.type == "ERROR":
                status: Status = decode(event.object, Status, "a watch error")
                raise refusal("WATCH", self._path, status.code or 500, bytes(event.object))
            meta: _Meta = decode(event.object, _Meta, "a watch event")
            is_bookmark = event.type == "BOOKMARK"
            yield WatchEvent(
                event.type, meta.metadata.resource_version, None if is_bookmark else self._read(event.object)
            )


class ServedVersion:
    """The API version of some kinds that the server is known to serve. Kinds of one group may share it. Thread-safe.

    If a path is not served, the call tries the other versions, newest first. A list always starts with the newest, so
    that a server upgrade is noticed.
    """

    def __init__(self, versions: tuple[str, ...], unserved: tuple[str, str] = WITHOUT_DRA) -> None:
        self._versions = versions
        self._unserved = unserved
        self.known = versions[0]

    def call(self, send: Callable[[str], U], *, newest_first: bool = False) -> U:
        """Send the request in the first version that is served; a 404 about an object is raised as it is."""
        first = self._versions[0] if newest_first else self.known
        for version in (first, *(version for version in self._versions if version != first)):
            try:
                answer = send(version)
            except ApiError as error:
                if error.status != 404 or error.object_missing or len(self._versions) == 1:
                    self._remember(version, served=error.status > 0 and error.object_missing)
                    raise
                continue
            self._remember(version, served=True)
            return answer
        consequence, remedy = self._unserved
        raise ApiError(
            f"the API server serves none of {', '.join(self._versions)}",
            status=404,
            reason=NOT_SERVED,
            consequence=consequence,
            remedy=remedy,
        )

    def _remember(self, version: str, *, served: bool) -> None:
        if served and version != self.known:
            log.info("the API server serves %s; using it instead of %s", version, self.known)
            self.known = version


class Collection(Generic[T]):
    """The objects of one kind, or those that ``query`` selects. Thread-safe. Every call may raise ApiError.

    Args:
        transport: the API server.
        resource: the kind of objects.
        query: selectors for list and watch.
        timeout: seconds for an answer, and ``WHOLE_ANSWER`` times as many for a page of a list; None: those of the
            transport.
        served: the API version, if it is shared with other collections.
        namespace: whose objects are listed and watched; "": those of all namespaces.
    """

    def __init__(
        self,
        transport: Transport,
        resource: Resource[T],
        query: Query = (),
        timeout: float | None = None,
        served: ServedVersion | None = None,
        namespace: str = "",
    ) -> None:
        self._transport = transport
        self._resource = resource
        self._namespace = namespace
        self._query = tuple(query)
        self._timeout = timeout
        self._served = served or ServedVersion(resource.versions, resource.unserved)

    @property
    def version(self) -> str:
        """The API version in use, such as ``resource.k8s.io/v1``."""
        return self._served.known

    def list_all(self) -> tuple[list[T], str]:
        """List all objects, as stored now; also returns the resource version to watch from."""
        return self.select(lambda item: item)

    def select(self, keep: Callable[[T], U | None]) -> tuple[list[U], str]:
        """List all objects, and return what is kept of them, and the resource version to watch from.

        The list comes in pages, and a page is dropped before the next one is asked for, so that it does not matter for
        memory how many objects there are, how large they are, and who has made them. All pages show the state when
        the first one was asked for, and have its resource version, whatever is written meanwhile: the token for the
        next page has that version and a place, and the server reads there (k8s.io/apiserver, ``storage/continue.go``
        and ``storage/etcd3/store.go``). So a list has an end also while objects are made as fast as it is read.

        Args:
            keep: makes of each object what is kept of it; None: nothing.

        Raises:
            ApiError: 410 if the server has forgotten the state again and again before the last page.
            TooLarge: an object has more than ``MAX_OBJECT_BYTES``.
        """
        return self._served.call(lambda version: self._newest(version, keep), newest_first=True)

    def probe(self) -> None:
        """Ask for a list of one object, to see whether a list is refused (403), or not served (404)."""
        query = [*self._query, ("limit", "1")]
        self._served.call(
            lambda version: self._transport.request("GET", self._path(version), query=query, timeout=self._timeout),
            newest_first=True,
        )

    @contextmanager
    def watch(self, resource_version: str, seconds: float) -> Iterator[Watch[T]]:
        """Watch changes since ``resource_version`` for ``seconds``."""
        version = self.version
        path = self._path(version)
        query = [
            *self._query,
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", resource_version),
            ("timeoutSeconds", str(max(1, int(seconds)))),
        ]
        with self._transport.stream(path, query=query, timeout=seconds + WATCH_GRACE) as stream:
            yield Watch(stream, path, lambda item: self._decode(item, version))

    def get(self, namespace: str, name: str, *, timeout: float | None = None, most: int = MAX_OBJECT_BYTES) -> T:
        """Get one object as stored now; connecting and the response may take ``timeout`` seconds each.

        TooLarge: it has more than ``most`` bytes as JSON.
        """
        return self._read(self._request("GET", namespace, name, timeout=timeout, most=most))

    def create(self, namespace: str, document: T, *, dry_run: bool = False) -> T:
        """Create an object (409 if one of that name exists); ``dry_run``: answer as if, and store nothing."""
        query = (("dryRun", "All"),) if dry_run else ()
        return self._read(
            self._request("POST", namespace, "", lambda version: self._encode(document, version), query=query)
        )

    def replace(self, namespace: str, name: str, document: T, *, subresource: str = "") -> T:
        """Replace an object; if ``metadata.resourceVersion`` is set, only that version of it (else 409).

        Of a ``subresource`` such as ``status``, only the fields that belong to it are replaced: all else is left as it
        is stored, metadata included.
        """
        encoded = lambda version: self._encode(document, version)  # noqa: E731
        return self._read(self._request("PUT", namespace, name, encoded, subresource=subresource))

    def patch(self, namespace: str, name: str, change: Mapping[str, Any], *, subresource: str = "") -> T:
        """Merge-patch an object; UID and resource version in its ``metadata`` are preconditions (else 409).

        Of a ``subresource`` such as ``status``, only the fields that belong to it are changed.
        """
        body = lambda _: dict(change)  # noqa: E731
        return self._read(self._request("PATCH", namespace, name, body, MERGE_PATCH, subresource=subresource))

    def apply(
        self, namespace: str, name: str, document: T | Mapping[str, Any], manager: str, *, subresource: str = ""
    ) -> T:
        """Server-side apply of an object or some of its fields; nothing is written if they are stored already.

        An object that does not exist is created. ``manager`` takes ownership of the fields, even if another manager
        owned them. Of a ``subresource`` such as ``status``, only the fields that belong to it can be applied.
        """
        kind, query = self._resource.kind, (("fieldManager", manager), ("force", "true"))

        def body(version: str) -> JsonObject:
            if isinstance(document, Mapping):
                return {"apiVersion": version, "kind": kind, **document}
            return self._encode(document, version)

        return self._read(self._request("PATCH", namespace, name, body, APPLY, query, subresource=subresource))

    def delete(
        self, namespace: str, name: str, uid: str, resource_version: str = "", *, foreground: bool = False
    ) -> None:
        """Delete an object if it has this UID and, if given, this resource version (else 409).

        With foreground deletion, it is removed after all of its dependents.
        """
        preconditions = {"uid": uid} | ({"resourceVersion": resource_version} if resource_version else {})
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
        body |= {"propagationPolicy": "Foreground"} if foreground else {}
        self._request("DELETE", namespace, name, lambda _: body)

    def _path(self, version: str) -> str:
        """Of the list."""
        return _path(version, self._resource.plural, self._namespace)

    def _newest(self, version: str, keep: Callable[[T], U | None]) -> tuple[list[U], str]:
        """All pages of one state; of a newer one if the server forgets the first, which it does after some minutes.

        The token that comes with that answer is not used: it would go on with the rest of another state.
        """
        backoff = Backoff(first=1.0, cap=10.0)
        while True:
            try:
                return self._pages(version, keep)
            except ApiError as error:
                if error.status != 410 or backoff.tries == EXPIRED_TRIES:
                    raise
                wait = backoff.next()
                log.info("the list of %s begins anew in %.1f s: %s", self._resource.plural, wait, error)
            runtime.sleep(wait)

    def _pages(self, version: str, keep: Callable[[T], U | None]) -> tuple[list[U], str]:
        items: list[U] = []
        first, more, limit = "", "", PAGE
        while True:
            meta, limit = self._page(version, keep, more, limit, items)
            first, more = first or meta.resource_version, meta.continue_
            if not more:
                return items, first
            if len(items) >= MAX_OBJECTS:
                raise ApiError(
                    f"the API server has more than {MAX_OBJECTS} {self._resource.plural}",
                    consequence="they are not watched",
                    remedy="please report this with the size of your cluster",
                )

    def _page(
        self, version: str, keep: Callable[[T], U | None], more: str, limit: int, items: list[U]
    ) -> tuple[ListMeta, int]:
        """Add what is kept of a page to ``items``; returns its metadata, and how many objects the next may have.

        The objects are decoded one after the other, so that no more than one is in memory beside the page.
        """
        body, limit = self._page_of(version, more, limit)
        page: ListPage = decode(body, ListPage, f"a list of {self._resource.plural}")
        items += (value for item in page.items or () if (value := keep(self._decode(item, version))) is not None)
        return page.metadata, min(PAGE, 2 * limit) if 4 * len(body) <= PAGE_BYTES else limit

    def _page_of(self, version: str, more: str, limit: int) -> tuple[bytes | bytearray, int]:
        """A page with as many objects as can be read at once, ``limit`` at most; and how many those are."""
        path = self._path(version)
        whole = None if self._timeout is None else WHOLE_ANSWER * self._timeout
        request = partial(self._transport.request, timeout=self._timeout, whole=whole)
        while True:
            query = [*self._query, ("limit", str(limit)), *([("continue", more)] if more else ())]
            most = PAGE_BYTES if limit > 1 else MAX_OBJECT_BYTES
            try:
                return request("GET", path, query=query, most=most).body, limit
            except TooLarge as error:
                if limit == 1:
                    raise TooLarge(
                        f"one of the {self._resource.plural} has more than {MAX_OBJECT_BYTES >> 20} MiB as JSON",
                        consequence="they cannot be listed, and what the others say is not known",
                        remedy="find the largest (kubectl get --all-namespaces -o json) and make it smaller; by "
                        "default, etcd takes no object of more than 1.5 MiB (--max-request-bytes)",
                    ) from error
                limit = max(1, limit // 4)  # the same page again: the token has its place and its state, and no limit

    def _request(
        self,
        method: str,
        namespace: str,
        name: str,
        body: Callable[[str], object] | None = None,
        content_type: str = JSON,
        query: Query = (),
        timeout: float | None = None,
        subresource: str = "",
        most: int = MAX_OBJECT_BYTES,
    ) -> tuple[str, Response]:
        """Send a request in the served version; returns it and the response. ``body`` makes the body for a version."""

        def send(version: str) -> tuple[str, Response]:
            return version, self._transport.request(
                method,
                _path(version, self._resource.plural, namespace, name, subresource),
                query=query,
                body=body(version) if body else None,
                content_type=content_type,
                timeout=timeout or self._timeout,
                most=most,
            )

        return self._served.call(send)

    def _read(self, answered: tuple[str, Response]) -> T:
        """Decode the object in a response."""
        version, answer = answered
        return self._decode(answer.body, version)

    def _decode(self, body: bytes | bytearray | msgspec.Raw, version: str) -> T:
        convert, what = self._resource.from_version, f"an object of kind {self._resource.kind}"
        if convert is not None:
            return convert(decode(body, self._resource.wire, what), _short(version))
        item: T = decode(body, self._resource.struct, what)
        return item

    def _encode(self, document: T, version: str) -> JsonObject:
        convert = self._resource.to_version
        fields = msgspec.to_builtins(document) if convert is None else convert(document, _short(version))
        return {"apiVersion": version, "kind": self._resource.kind, **fields}


@dataclass(frozen=True, slots=True)
class Stored(Generic[T]):
    """The object as stored. ``dropped`` names the fields that were sent and did not come back equal."""

    object: T
    dropped: tuple[str, ...]


class ResourceApi:
    """The API calls of a DRA driver: claims, their pods, slices, its Node, events.

    Thread-safe. Every call may raise ApiError.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._served = ServedVersion(REPORTED_CLAIMS.versions)
        self._allocated = Collection(transport, ALLOCATED_CLAIMS, served=self._served)
        self._claim = Collection(transport, REPORTED_CLAIMS, served=self._served)
        self._slices = Collection(transport, RESOURCE_SLICES, served=self._served)
        self._nodes = Collection(transport, NODES)
        self._pods = Collection(transport, CLAIMING_PODS)
        self._events = Collection(transport, EVENTS, timeout=EVENT_SECONDS)

    @property
    def version(self) -> str:
        """The version of ``resource.k8s.io`` that the server is known to serve, such as ``v1``."""
        return _short(self._served.known)

    def server_version(self) -> ServerVersion:
        """The API server's version."""
        body = self._transport.request("GET", "/version").body
        version: ServerVersion = decode(body, ServerVersion, "its version")
        return version

    def known_version(self) -> ServerVersion:
        """The API server's version; without a text where it may not be asked for."""
        try:
            return self.server_version()
        except ApiError as error:
            if error.status not in (401, 403, 404):
                raise
            return ServerVersion()

    # Claims

    def get_claim(
        self, namespace: str, name: str, *, timeout: float = 10.0, most: int = MAX_OBJECT_BYTES
    ) -> ReportedClaim:
        """Get one claim as stored now. Connecting and the response may take ``timeout`` seconds each.

        TooLarge: it has more than ``most`` bytes as JSON.
        """
        return self._claim.get(namespace, name, timeout=timeout, most=most)

    def list_claims(self, driver: str, pool: str) -> list[AllocatedClaim]:
        """The claims that have devices of the driver's pool, looked for in a list of all claims of the cluster."""
        return self._allocated.select(lambda claim: claim if claim.has_devices(driver, pool) else None)[0]

    def apply_claim_devices(self, claim: ObjectMeta, devices: Sequence[AllocatedDeviceStatus], manager: str) -> None:
        """Apply entries of ``status.devices`` with ``manager`` as their owner; those that it omits now are removed.

        A claim of that name with another UID is not changed (409).
        """
        metadata = {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid}
        # Complete: a condition whose status is the default would lack it.
        entries = [
            {**msgspec.to_builtins(entry), "conditions": [_complete(item) for item in entry.conditions]}
            for entry in devices
        ]
        fields = {"metadata": metadata, "status": {"devices": entries}}
        self._claim.apply(claim.namespace, claim.name, fields, manager, subresource="status")

    def get_pod(self, namespace: str, name: str, *, timeout: float = 10.0, most: int = MAX_OBJECT_BYTES) -> Pod:
        """Get one pod as stored now, with no more than what tells which container uses which claims; as ``get_claim``.

        Of several containers that use the same, the first is there for all.
        """
        return self._pods.get(namespace, name, timeout=timeout, most=most)

    # Slices

    def slices_of(self, driver: str, node: str) -> Collection[ResourceSlice]:
        """The driver's slices of one node."""
        selector = ("fieldSelector", f"spec.driver={driver},spec.nodeName={node}")
        return Collection(self._transport, RESOURCE_SLICES, [selector], served=self._served)

    def list_slices(self, driver: str, node: str) -> tuple[list[ResourceSlice], str]:
        """List the driver's slices of one node; also returns the resource version to watch from."""
        return self.slices_of(driver, node).list_all()

    def list_all_slices(self) -> list[ResourceSlice]:
        """List the slices of all drivers and nodes, in pages."""
        return self._slices.list_all()[0]

    def watch_slices(
        self, driver: str, node: str, resource_version: str, seconds: float
    ) -> AbstractContextManager[Watch[ResourceSlice]]:
        """Watch the driver's slices of one node since ``resource_version`` for ``seconds``."""
        return self.slices_of(driver, node).watch(resource_version, seconds)

    def create_slice(self, desired: ResourceSlice, *, dry_run: bool = False) -> Stored[ResourceSlice]:
        """Create a slice; ``dry_run``: only see what the server would make of it."""
        return _stored(desired, self._slices.create("", desired, dry_run=dry_run))

    def update_slice(self, desired: ResourceSlice) -> Stored[ResourceSlice]:
        """Replace a slice; ``metadata`` must have its name, UID and resource version (409 if it has changed)."""
        return _stored(desired, self._slices.replace("", desired.metadata.name, desired))

    def delete_slice(self, existing: ResourceSlice) -> None:
        """Delete exactly this version of a slice (409 if it has changed, 404 if it does not exist)."""
        meta = existing.metadata
        self._slices.delete("", meta.name, meta.uid, meta.resource_version)

    # Nodes

    def get_node(self, name: str, *, timeout: float | None = None) -> Node:
        """Get one Node as stored now."""
        return self._nodes.get("", name, timeout=timeout)

    def list_nodes(self, name: str) -> tuple[list[Node], str]:
        """List the Node of that name: one or none, and the resource version to watch from."""
        return self._nodes_of(name).list_all()

    def watch_nodes(self, name: str, resource_version: str, seconds: float) -> AbstractContextManager[Watch[Node]]:
        """Watch the Node of that name since ``resource_version`` for ``seconds``."""
        return self._nodes_of(name).watch(resource_version, seconds)

    def apply_node_labels(self, node: Node, labels: Mapping[str, str], manager: str) -> Node:
        """Apply labels to the Node with ``manager`` as their owner, whoever owned them before; returns the Node.

        A Node of that name with another UID is not changed (409).
        """
        name = node.metadata.name
        metadata = {"name": name, "uid": node.metadata.uid, "labels": dict(labels)}
        return self._nodes.apply("", name, {"metadata": metadata}, manager)

    def apply_node_conditions(self, node: Node, conditions: Sequence[JsonObject], manager: str) -> Node:
        """Apply conditions to the Node's status as ``apply_node_labels`` does; each has all fields of its kind."""
        name = node.metadata.name
        fields = {"metadata": {"name": name, "uid": node.metadata.uid}, "status": {"conditions": list(conditions)}}
        return self._nodes.apply("", name, fields, manager, subresource="status")

    # Events

    def create_event(self, event: Event) -> Event:
        """Create an event (409 if one of that name exists)."""
        return self._events.create(event.metadata.namespace, event)

    def patch_event(self, namespace: str, name: str, change: Mapping[str, Any]) -> Event:
        """Merge-patch an event; an empty change reads it, without the right to read events."""
        return self._events.patch(namespace, name, change)

    def _nodes_of(self, name: str) -> Collection[Node]:
        return Collection(self._transport, NODES, [("fieldSelector", f"metadata.name={name}")])


def _stored(sent: ResourceSlice, stored: ResourceSlice) -> Stored[ResourceSlice]:
    return Stored(stored, missing_fields(msgspec.to_builtins(sent.spec), msgspec.to_builtins(stored.spec)))


def _complete(condition: Condition) -> JsonObject:
    """All fields of a condition, defaults included."""
    fields: JsonObject = msgspec.to_builtins(condition)
    return {"status": condition.status, "reason": condition.reason, "message": condition.message, **fields}


def _short(version: str) -> str:
    """The version without its group."""
    return version.rpartition("/")[2]


def _path(version: str, plural: str, namespace: str = "", name: str = "", subresource: str = "") -> str:
    parts = ["/apis" if "/" in version else "/api", version]
    parts += ["namespaces", quote(namespace, safe="")] if namespace else []
    parts += [plural, *([quote(name, safe="")] if name else []), *([subresource] if subresource else [])]
    return "/".join(parts)
