"""One resource of the API server: list, watch and the writes that small controllers need, typed by a struct."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote

import msgspec

from dra_driver.kube import codec
from dra_driver.kube.codec import ObjectList
from dra_driver.kube.errors import ApiError
from dra_driver.kube.resources import PAGE, WATCH_GRACE, Watch
from dra_driver.kube.transport import Query, Response, Transport

T = TypeVar("T")

MERGE_PATCH: Final = "application/merge-patch+json"
LONGEST: Final = 100_000
"""Objects that a list may have at most; memory is bounded by it."""


class ApiObject(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Base of the structs: camel-case on the wire, defaults left out, unknown fields ignored."""


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """Where the objects of a kind are found, and how they are read."""

    struct: type[T]
    kind: str
    plural: str
    versions: tuple[str, ...]
    """API versions such as ``v1`` or ``coordination.k8s.io/v1``, newest first; the first one that is served is used."""


class Collection(Generic[T]):
    """The objects of one kind, or those that ``query`` selects. Thread-safe. Every call raises ApiError.

    Args:
        transport: the API server.
        resource: what kind of objects.
        query: selectors for list and watch.
        timeout: seconds without a byte before a request is given up.
    """

    def __init__(self, transport: Transport, resource: Resource[T], query: Query = (), timeout: float = 15.0) -> None:
        self._transport = transport
        self._resource = resource
        self._query = tuple(query)
        self._timeout = timeout
        self._version = resource.versions[0]

    def list_all(self) -> tuple[list[T], str]:
        """All of them in pages, as stored now, and the resource version to watch from."""
        for version in self._resource.versions:
            try:
                found = self._pages(_path(version, self._resource.plural))
            except ApiError as error:
                if error.status != 404 or version == self._resource.versions[-1]:
                    raise
                continue
            self._version = version
            return found
        raise AssertionError("a resource has at least one version")

    @contextmanager
    def watch(self, resource_version: str, seconds: float) -> Iterator[Watch[T]]:
        """Changes since ``resource_version``, for that long."""
        path = _path(self._version, self._resource.plural)
        query = [
            *self._query,
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", resource_version),
            ("timeoutSeconds", str(max(1, int(seconds)))),
        ]
        with self._transport.stream(path, query=query, timeout=seconds + WATCH_GRACE) as stream:
            yield Watch(stream, path, self._decode)

    def get(self, namespace: str, name: str) -> T:
        """One object as stored now."""
        return self._read(self._request("GET", namespace, name))

    def create(self, namespace: str, document: T) -> T:
        """Create an object (409 when there is one of that name)."""
        return self._read(self._request("POST", namespace, body=self._encode(document)))

    def replace(self, namespace: str, name: str, document: T) -> T:
        """Replace an object; with ``metadata.resourceVersion`` only that state of it (else 409)."""
        return self._read(self._request("PUT", namespace, name, body=self._encode(document)))

    def patch(self, namespace: str, name: str, change: Mapping[str, Any]) -> T:
        """Merge a change into an object; UID and resource version in its ``metadata`` are preconditions (else 409)."""
        return self._read(self._request("PATCH", namespace, name, body=dict(change), content_type=MERGE_PATCH))

    def delete(self, namespace: str, name: str, uid: str, *, foreground: bool = False) -> None:
        """Delete an object if it has that UID (else 409); in the foreground it goes after all that it owns."""
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        self._request(
            "DELETE", namespace, name, body=options | ({"propagationPolicy": "Foreground"} if foreground else {})
        )

    def _pages(self, path: str) -> tuple[list[T], str]:
        items: list[T] = []
        more: Query = ()
        kind = self._resource.struct
        while True:
            query = [*self._query, ("limit", str(PAGE)), *more]
            answer = self._transport.request("GET", path, query=query, timeout=self._timeout)
            page = codec.decode(answer.body, ObjectList[kind], f"a list of {self._resource.plural}")  # type: ignore[valid-type] # a type as a value
            items += page.items or ()
            if not page.metadata.continue_:
                return items, page.metadata.resource_version
            if len(items) >= LONGEST:
                raise ApiError(
                    f"the API server has more than {LONGEST} {self._resource.plural}",
                    consequence="they are not followed",
                    remedy="please report this with the size of your cluster",
                )
            more = (("continue", page.metadata.continue_),)

    def _request(
        self,
        method: str,
        namespace: str,
        name: str = "",
        *,
        body: object = None,
        content_type: str = "application/json",
    ) -> Response:
        path = _path(self._version, self._resource.plural, namespace, name)
        return self._transport.request(method, path, body=body, content_type=content_type, timeout=self._timeout)

    def _read(self, answer: Response) -> T:
        return self._decode(answer.body)

    def _decode(self, body: bytes | msgspec.Raw) -> T:
        found: T = codec.decode(body, self._resource.struct, f"an object of kind {self._resource.kind}")
        return found

    def _encode(self, document: T) -> dict[str, Any]:
        fields: dict[str, Any] = msgspec.to_builtins(document)
        return {"apiVersion": self._version, "kind": self._resource.kind, **fields}


def _path(version: str, plural: str, namespace: str = "", name: str = "") -> str:
    parts = ["/apis" if "/" in version else "/api", version]
    parts += ["namespaces", quote(namespace, safe="")] if namespace else []
    parts += [plural, *([quote(name, safe="")] if name else [])]
    return "/".join(parts)
