"""The API calls of a DRA driver, typed, for whichever version of ``resource.k8s.io`` the server has."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

from dra_driver.kube import codec
from dra_driver.kube.codec import GROUP, VERSIONS, ObjectList, RawEvent
from dra_driver.kube.errors import ApiError, Status, refusal
from dra_driver.kube.objects import Node, ResourceClaim, ResourceSlice, ServerVersion
from dra_driver.kube.transport import Query, Stream, Transport

T = TypeVar("T")
U = TypeVar("U")

WATCH_GRACE = 30.0
"""Seconds after its agreed end that a watch without a byte counts as lost."""
APPLY = "application/apply-patch+yaml"
"""Server-side apply; JSON is YAML."""
PAGE = 500
"""Objects in one answer of a list."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[T]):
    """``object`` is None for bookmarks."""

    type: str
    resource_version: str
    object: T | None


@dataclass(frozen=True, slots=True)
class Stored(Generic[T]):
    """What the server stored. ``dropped`` names the fields that were sent and did not come back equal."""

    object: T
    dropped: tuple[str, ...]


class Watch(Generic[T]):
    """Events of one watch. Iterate in one thread; ``abort`` from any."""

    def __init__(self, stream: Stream, path: str, decode: Callable[[msgspec.Raw], T]) -> None:
        self._stream = stream
        self._path = path
        self._decode = decode

    def abort(self) -> None:
        """End the iteration at once."""
        self._stream.abort()

    def __iter__(self) -> Iterator[WatchEvent[T]]:
        """Events; ends when the server ends the watch. ApiError for an error event (410: list again)."""
        for line in self._stream:
            event: RawEvent = codec.decode(line, RawEvent, "a watch event")
            if event.type == "ERROR":
                status: Status = codec.decode(event.object, Status, "a watch error")
                raise refusal("WATCH", self._path, status.code or 500, bytes(event.object))
            meta: _Meta = codec.decode(event.object, _Meta, "a watch event")
            is_bookmark = event.type == "BOOKMARK"
            yield WatchEvent(
                event.type, meta.metadata.resource_version, None if is_bookmark else self._decode(event.object)
            )


class _Meta(msgspec.Struct):
    metadata: codec.ListMeta


class ResourceApi:
    """Calls of a DRA driver. Thread-safe.

    ``version`` is what the server is known to serve. A path that is not served makes the call try the other versions,
    newest first; every list of slices starts from the newest again, so an upgraded server is noticed.

    Every call raises ApiError (see ``dra_driver.kube.errors``).
    """

    def __init__(self, transport: Transport, versions: tuple[str, ...] = VERSIONS) -> None:
        self._transport = transport
        self._versions = versions
        self.version = versions[0]

    def server_version(self) -> ServerVersion:
        """What the API server says it is."""
        body = self._transport.request("GET", "/version").body
        version: ServerVersion = codec.decode(body, ServerVersion, "its version")
        return version

    # Claims

    def get_claim(self, namespace: str, name: str, *, timeout: float = 10.0) -> ResourceClaim:
        """One claim as stored now. Connecting and the answer may take ``timeout`` seconds each."""
        path = f"namespaces/{quote(namespace, safe='')}/resourceclaims/{quote(name, safe='')}"

        def get(version: str) -> ResourceClaim:
            return codec.decode_claim(self._transport.request("GET", _path(version, path), timeout=timeout).body)

        return self._served(get)

    def list_claims(self) -> list[ResourceClaim]:
        """All claims of the cluster, in pages."""
        return self._served(lambda version: self._list(_path(version, "resourceclaims"), (), ResourceClaim)[0])

    # Slices

    def list_slices(self, driver: str, node: str) -> tuple[list[ResourceSlice], str]:
        """The driver's slices of one node, and the resource version to watch from."""
        query = _slice_query(driver, node)

        def list_(version: str) -> tuple[list[ResourceSlice], str]:
            documents, resource_version = self._list(_path(version, "resourceslices"), query, dict[str, Any])
            return [codec.decode_slice(document, version) for document in documents], resource_version

        return self._served(list_, newest_first=True)

    def list_all_slices(self) -> list[ResourceSlice]:
        """The slices of all drivers and nodes, in pages."""

        def list_(version: str) -> list[ResourceSlice]:
            documents, _ = self._list(_path(version, "resourceslices"), (), dict[str, Any])
            return [codec.decode_slice(document, version) for document in documents]

        return self._served(list_, newest_first=True)

    def watch_slices(
        self, driver: str, node: str, resource_version: str, timeout: float
    ) -> AbstractContextManager[Watch[ResourceSlice]]:
        """Changes of the driver's slices of one node since ``resource_version``, for ``timeout`` seconds."""
        version = self.version

        def decode(raw: msgspec.Raw) -> ResourceSlice:
            return codec.decode_slice(codec.decode(raw, dict[str, Any], "a ResourceSlice"), version)

        return self._watch(
            _path(version, "resourceslices"), _slice_query(driver, node), resource_version, timeout, decode
        )

    def create_slice(self, desired: ResourceSlice) -> Stored[ResourceSlice]:
        """Create a slice."""
        return self._served(lambda version: self._write("POST", _path(version, "resourceslices"), desired, version))

    def update_slice(self, desired: ResourceSlice) -> Stored[ResourceSlice]:
        """Replace a slice; ``metadata`` must carry its name, UID and resource version (409 when it has changed)."""
        name = quote(desired.metadata.name, safe="")
        return self._served(
            lambda version: self._write("PUT", _path(version, f"resourceslices/{name}"), desired, version)
        )

    def delete_slice(self, existing: ResourceSlice) -> None:
        """Delete exactly this state of a slice (409 when it has changed, 404 when it is gone)."""
        meta = existing.metadata
        preconditions = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
        path = f"resourceslices/{quote(meta.name, safe='')}"
        self._served(lambda version: self._transport.request("DELETE", _path(version, path), body=body))

    # Nodes

    def get_node(self, name: str, *, timeout: float = 15.0) -> Node:
        """One Node as stored now."""
        path = f"/api/v1/nodes/{quote(name, safe='')}"
        return codec.decode_node(self._transport.request("GET", path, timeout=timeout).body)

    def list_nodes(self, name: str) -> tuple[list[Node], str]:
        """The Node of that name as a list of one or none, and the resource version to watch from."""
        return self._list("/api/v1/nodes", _node_query(name), Node)

    def watch_nodes(self, name: str, resource_version: str, timeout: float) -> AbstractContextManager[Watch[Node]]:
        """Changes of the Node of that name since ``resource_version``, for ``timeout`` seconds."""
        return self._watch("/api/v1/nodes", _node_query(name), resource_version, timeout, codec.decode_node)

    def apply_node_labels(self, node: Node, labels: Mapping[str, str], manager: str) -> Node:
        """Make these the labels that ``manager`` has on the Node, whoever had them before; gives the Node as stored.

        A Node of that name with another UID is not touched (409).
        """
        metadata = {"name": node.metadata.name, "uid": node.metadata.uid, "labels": dict(labels)}
        answer = self._transport.request(
            "PATCH",
            f"/api/v1/nodes/{quote(node.metadata.name, safe='')}",
            query=[("fieldManager", manager), ("force", "true")],
            body=msgspec.json.encode({"apiVersion": "v1", "kind": "Node", "metadata": metadata}),
            content_type=APPLY,
        )
        return codec.decode_node(answer.body)

    def _write(self, method: str, path: str, desired: ResourceSlice, version: str) -> Stored[ResourceSlice]:
        sent = codec.encode_slice(desired, version)
        answer = self._transport.request(method, path, body=sent)
        document = codec.decode(answer.body, dict[str, Any], "a ResourceSlice")
        return Stored(
            codec.decode_slice(document, version), codec.missing_fields(sent["spec"], document.get("spec") or {})
        )

    def _list(self, path: str, query: Query, kind: type[U]) -> tuple[list[U], str]:
        """All pages. The first page's resource version is the one to watch from."""
        items: list[U] = []
        more: Query = ()
        while True:
            answer = self._transport.request("GET", path, query=[*query, ("limit", str(PAGE)), *more])
            page = codec.decode(answer.body, ObjectList[kind], "a list")  # type: ignore[valid-type] # a type as a value
            items += page.items or ()
            if not page.metadata.continue_:
                return items, page.metadata.resource_version
            more = (("continue", page.metadata.continue_),)

    @contextmanager
    def _watch(
        self, path: str, query: Query, resource_version: str, timeout: float, decode: Callable[[msgspec.Raw], U]
    ) -> Iterator[Watch[U]]:
        watch_query = [
            *query,
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", resource_version),
            ("timeoutSeconds", str(max(1, int(timeout)))),
        ]
        with self._transport.stream(path, query=watch_query, timeout=timeout + WATCH_GRACE) as stream:
            yield Watch(stream, path, decode)

    def _served(self, call: Callable[[str], U], *, newest_first: bool = False) -> U:
        """Do the call in the first version that is served; a 404 about an object is the call's own answer."""
        known = self._versions[0] if newest_first else self.version
        for version in (known, *(version for version in self._versions if version != known)):
            try:
                answer = call(version)
            except ApiError as error:
                if error.status != 404 or error.object_missing:
                    self._remember(version, served=error.status > 0 and error.object_missing)
                    raise
                continue
            self._remember(version, served=True)
            return answer
        raise ApiError(
            f"the API server serves none of {', '.join(f'{GROUP}/{version}' for version in self._versions)}",
            status=404,
            reason="NotServed",
            consequence="no device can be published or prepared",
            remedy="use Kubernetes 1.34 or later, or enable the API with --runtime-config on older ones",
        )

    def _remember(self, version: str, *, served: bool) -> None:
        if served and version != self.version:
            log.info("the API server serves %s/%s; using it instead of %s", GROUP, version, self.version)
            self.version = version


def _path(version: str, rest: str) -> str:
    return f"/apis/{GROUP}/{version}/{rest}"


def _slice_query(driver: str, node: str) -> Query:
    return (("fieldSelector", f"spec.driver={driver},spec.nodeName={node}"),)


def _node_query(name: str) -> Query:
    return (("fieldSelector", f"metadata.name={name}"),)
