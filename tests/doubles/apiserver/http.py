"""HTTP layer of the test API server: paths, versions, watches, and deliberate faults."""

from __future__ import annotations

import gzip
import io
import json
import random
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from dra_driver.kube.api.codec import ServerVersion
from tests.doubles.apiserver.claim_status import apply_devices
from tests.doubles.apiserver.core_objects import MERGE_PATCH, PLAIN_KINDS, bind_pod, evict_pod, patch_node, write_plain
from tests.doubles.apiserver.crowd import Crowd
from tests.doubles.apiserver.custom_objects import CUSTOM_GROUP, CUSTOM_KINDS, write_custom
from tests.doubles.apiserver.discovery import discovery
from tests.doubles.apiserver.node_fields import APPLY, apply_conditions, apply_labels
from tests.doubles.apiserver.selectors import event_type, selected
from tests.doubles.apiserver.slice_validation import validate_slice
from tests.doubles.apiserver.store import Object, Refused, Store, copied

if TYPE_CHECKING:
    from tests.doubles.apiserver.server import ApiServer

GROUP_PATH = re.compile(
    r"/apis/resource\.k8s\.io/(?P<version>[^/]+)/(namespaces/(?P<namespace>[^/]+)/)?(?P<kind>[a-z]+)(/(?P<name>[^/]+))?"
    r"(?P<sub>(?<=[^/])/status)?"
)
CORE_PATH = re.compile(
    r"/(api|apis/(coordination\.k8s\.io|apps|batch|admissionregistration\.k8s\.io))/(?P<version>v1)/"
    r"(namespaces/(?P<namespace>[^/]+)/)?"
    r"(?P<kind>namespaces|nodes|pods|leases|events|configmaps|daemonsets|deployments|replicasets|statefulsets|jobs"
    r"|validatingadmissionpolicies|validatingadmissionpolicybindings)"
    r"(/(?P<name>[^/]+))?"
    r"(?P<sub>(?<=[^/])/(binding|eviction|status|log))?"
)
CUSTOM_PATH = re.compile(
    rf"/apis/(?P<group>{re.escape(CUSTOM_GROUP)})/(?P<version>[^/]+)/(namespaces/(?P<namespace>[^/]+)/)?"
    rf"(?P<kind>{'|'.join(CUSTOM_KINDS)})(/(?P<name>[^/]+))?(?P<sub>(?<=[^/])/status)?"
)
_OF_PODS = {"/binding": bind_pod, "/eviction": evict_pod}
CHUNK = 32
"""Texts in a chunk of a page, at least."""
_NO_TEXT = re.compile(rb"(?<!\\)\\udc([89a-f][0-9a-f])")
KINDS = (
    {
        "namespaces": "Namespace",
        "nodes": "Node",
        "resourceclaims": "ResourceClaim",
        "resourceslices": "ResourceSlice",
    }
    | PLAIN_KINDS
    | CUSTOM_KINDS
)


@dataclass(slots=True)
class Request:
    """One request as the server received it. ``status`` is 0 until it is answered, and if it was dropped."""

    method: str
    path: str
    query: dict[str, str]
    authorization: str
    body: Any
    at: float
    content_type: str = ""
    status: int = 0

    @property
    def watch(self) -> bool:
        return "watch" in self.query


@dataclass(slots=True)
class Fault:
    """What happens to the next ``times`` requests that match; ``path`` is a regular expression to search for."""

    times: int
    method: str = ""
    path: str = ""
    watch: bool | None = None
    delay: float = 0.0
    drop: bool = False
    after: bool = False
    """Carry out the request before dropping the connection."""
    status: int = 0
    reason: str = ""
    message: str = ""
    retry_after: int | None = None
    torn: bool = False
    """Break the connection in the middle of the body that is sent with ``status``."""
    release: threading.Event | None = None
    """Begin with the request only when this is set."""

    def matches(self, request: Request) -> bool:
        return (
            self.times > 0
            and self.method in ("", request.method)
            and re.search(self.path, request.path) is not None
            and self.watch in (None, request.watch)
        )


class HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    late_writes: tuple[float, float] = (0.0, 0.0)
    """At least and at most so many seconds pass before a write arrives; not before one of a lease."""

    def __init__(self, address: tuple[str, int], api: ApiServer) -> None:
        self.api = api
        self._connections: set[socket.socket] = set()
        self.accepted = 0
        super().__init__(address, _Handler)
        if api.tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*api.tls)
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        self.accepted += 1
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect: tests do so on purpose."""

    def cut(self) -> None:
        for connection in list(self._connections):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # the client closed it first


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: HttpServer

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 # the base class's name
        """Log nothing."""

    def do_GET(self) -> None:
        self._handle()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 # names that http.server calls

    def _handle(self) -> None:
        api = self.server.api
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.command != "GET" and "/leases" not in url.path:
            time.sleep(random.uniform(*self.server.late_writes))
        request = Request(
            self.command,
            url.path,
            dict(parse_qsl(url.query)),
            self.headers.get("Authorization", ""),
            json.loads(body) if body else None,
            time.monotonic(),
            self.headers.get("Content-Type", ""),
        )
        api.requests.append(request)
        fault = api.take_fault(request)
        if fault and fault.delay:
            time.sleep(fault.delay)
        if fault and fault.release:
            fault.release.wait()
        if fault and fault.drop:
            self.close_connection = True
            if not fault.after:
                return
            self.wfile = io.BytesIO()
        try:
            if fault and fault.status:
                raise Refused(fault.status, fault.reason, fault.message or "failed on purpose")
            self._answer(api, request)
        except Refused as refused:
            request.status = refused.status
            details = {"name": refused.name} if refused.name else {}
            status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": refused.status}
            status |= {"reason": refused.reason, "message": refused.message, "details": details}
            status |= {"metadata": {"continue": refused.more}} if refused.more else {}
            self.close_connection = fault is not None and fault.torn
            lacking = 100 if self.close_connection else 0
            self._send(refused.status, status, fault.retry_after if fault else None, lacking)

    def _send(self, status: int, document: Any, retry_after: int | None = None, lacking: int = 0) -> None:
        """Send a response; ``lacking`` bytes are announced but never sent."""
        plain = isinstance(document, str)
        payload = document.encode() if plain else encoded(document)
        payload = gzip.compress(payload, 1) if self.server.api.gzip else payload
        self.send_response(status)
        if self.server.api.gzip:
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Type", "text/plain" if plain else "application/json")
        self.send_header("Content-Length", str(len(payload) + lacking))
        if retry_after is not None:
            self.send_header("Retry-After", str(retry_after))
        self.end_headers()
        self.wfile.write(payload)

    def _answer(self, api: ApiServer, request: Request) -> None:
        if api.token is not None and request.authorization.lower() != f"bearer {api.token}".lower():
            raise Refused(401, "Unauthorized", "Unauthorized")
        match = served_path(api, request.path)
        if request.path == "/version":
            request.status = 200
            self._send(200, {"gitVersion": api.git_version})
        elif groups := discovery(request.path, api.versions):
            request.status = 200
            self._send(200, groups)
        elif match is None:
            request.status = 404
            self._send(404, "404 page not found\n")
        elif request.watch:
            self._watch(api, request, match)
        elif crowds := _crowds(api, request, match):
            self._send_page(api, request, match, crowds)
        else:
            request.status, document = respond(api, request, match)
            self._send(request.status, document)

    def _send_page(self, api: ApiServer, request: Request, match: re.Match[str], crowds: Sequence[Crowd]) -> None:
        """Send a page as chunks, with objects that are made meanwhile; it counts as answered when all is sent."""
        kind = match["kind"]
        wanted = lambda item: covers(match, kind, item) and selected(item, request.query)  # noqa: E731
        stored, version = api.store.list(kind, wanted)
        start = int(request.query.get("continue", 0))
        total = len(stored) + sum(crowd.count for crowd in crowds)
        last = min(total, start + (int(request.query.get("limit", 0)) or total))
        meta: Object = {"resourceVersion": str(version)}
        if last < total:
            meta["continue"] = str(last)
            if not request.query.keys() & {"fieldSelector", "labelSelector"}:
                meta["remainingItemCount"] = total - last
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        head = {"apiVersion": _api_version(match), "kind": f"{KINDS[kind]}List", "metadata": meta}
        self._chunk(json.dumps(head).encode()[:-1] + b', "items": [')
        items = (encoded(export(item, match)) for item in stored[start:last])
        pending: list[bytes] = []
        for number, item in enumerate(chain(items, _of_crowds(crowds, match, start - len(stored), last - len(stored)))):
            pending += [b",", item] if number else [item]
            if len(pending) > CHUNK:
                self._chunk(*pending)
                pending.clear()
        self._chunk(*pending, b"]}")
        self._chunk(b"")
        request.status = 200

    def _watch(self, api: ApiServer, request: Request, match: re.Match[str]) -> None:
        """Stream events as chunks until the time is over, the server ends the watch, or the client disconnects."""
        store, era = api.store, api.watch_era
        version = int(request.query.get("resourceVersion") or 0)
        if version < store.oldest:
            raise Refused(410, "Expired", f"too old resource version: {version} ({store.oldest})")
        request.status = 200
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        asked = float(request.query.get("timeoutSeconds", 1800))
        end = time.monotonic() + (asked if api.watch_seconds is None else api.watch_seconds)
        bookmark = time.monotonic() + api.bookmark_seconds
        while True:
            with store.changed:
                lines, version = watched(store, request, match, version)
                if not lines:
                    now = time.monotonic()
                    if now >= end or api.watch_era != era:
                        break
                    if version < store.oldest:
                        gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "compacted"}
                        lines.append({"type": "ERROR", "object": gone})
                        end = 0.0
                    elif now >= bookmark:
                        meta = {"resourceVersion": str(store.version), "creationTimestamp": None}
                        lines.append({"type": "BOOKMARK", "object": {"metadata": meta, "spec": {}}})
                        bookmark = now + api.bookmark_seconds
                    else:
                        store.changed.wait(min(end, bookmark) - now)
            for line in lines:
                self._chunk(encoded(line) + b"\n")
        self._chunk(b"")

    def _chunk(self, *payload: bytes) -> None:
        self.wfile.writelines([b"%x\r\n" % sum(map(len, payload)), *payload, b"\r\n"])
        self.wfile.flush()


def encoded(document: Any) -> bytes:
    """The document as JSON. What ``surrogateescape`` makes of bytes that are no text is sent as these bytes."""
    return _NO_TEXT.sub(lambda escape: bytes.fromhex(escape[1].decode()), json.dumps(document).encode())


def served_path(api: ApiServer, path: str) -> re.Match[str] | None:
    """The parts of a path of objects that are served; None: it is something else."""
    match = GROUP_PATH.fullmatch(path) or CORE_PATH.fullmatch(path) or CUSTOM_PATH.fullmatch(path)
    if match is None or match["kind"] not in KINDS:
        return None
    if match.re is CUSTOM_PATH:
        return match if match["version"] in api.custom_versions else None
    return match if match.re is CORE_PATH or match["version"] in api.versions else None


def watched(store: Store, request: Request, match: re.Match[str], version: int) -> tuple[list[Object], int]:
    """What a watch says of the changes since a version, and the version after them; with ``store.changed`` held."""
    lines = []
    for event in store.since(version):
        version = event.version
        type_ = event_type(event, request.query) if covers(match, event.kind, event.object) else ""
        if type_:
            lines.append({"type": type_, "object": export(event.object, match)})
    return lines, version


def respond(api: ApiServer, request: Request, match: re.Match[str]) -> tuple[int, Any]:
    """Status and document of the answer to a request that is no watch. Raises Refused."""
    store, kind, name = api.store, match["kind"], match["name"]
    namespace = match.groupdict().get("namespace")
    key = f"{namespace}/{name}" if namespace else name
    if request.method == "GET":
        return 200, _got(api, request, match, key)
    if of_pod := _OF_PODS.get(match.groupdict().get("sub") or ""):
        return 201, of_pod(store, key, request.body)
    if kind in CUSTOM_KINDS:
        status, item = write_custom(store, request, match)
        return status, export(item, match)
    if kind in PLAIN_KINDS:
        return _write_plain(api, request, match)
    if kind in _PATCHES and request.method == "PATCH":
        return 200, export(_PATCHES[kind](store, key, request, match["sub"] or ""), match)
    if request.method == "DELETE":
        return 200, store.delete(kind, key, (request.body or {}).get("preconditions"))
    if kind != "resourceslices":
        raise Refused(405, "MethodNotAllowed", "only slices are written through this server")
    return _write_slice(api, request, match, key)


def _write_plain(api: ApiServer, request: Request, match: re.Match[str]) -> tuple[int, Any]:
    kind, namespace = match["kind"], match.groupdict().get("namespace")
    if kind == "resourceclaimtemplates":
        for path in api.dropped_fields:
            _drop(request.body, path.split("."))
    if request.query.get("dryRun"):
        return 201, request.body
    return write_plain(api.store, request.method, kind, namespace or "", match["name"] or "", request.body)


def _write_slice(api: ApiServer, request: Request, match: re.Match[str], key: str) -> tuple[int, Any]:
    store, kind = api.store, match["kind"]
    item = _import(request.body, match["version"])
    item["spec"] |= api.added_spec
    for path in api.dropped_fields:
        _drop(item, path.split("."))
    if (release := ServerVersion(api.git_version).release) is not None and release < (1, 35):
        item["spec"].setdefault("devices", None)  # there the field has no omitempty
    if request.method == "PATCH":
        return 200, export(_apply_slice(store, key, item, request), match)
    if request.method == "POST":
        validate_slice(item, None)
        return 201, export(item if request.query.get("dryRun") else store.create(kind, item), match)
    validate_slice(item, store.get(kind, key))
    return 200, export(store.update(kind, key, item), match)


def _apply_slice(store: Store, name: str, item: Object, request: Request) -> Object:
    """Server-side apply of a whole slice, by the only manager that it has."""
    forced = request.query.get("fieldManager") and request.query.get("force") == "true"
    if request.content_type != APPLY or not forced or item["metadata"].get("name") != name:
        raise Refused(422, "Invalid", "server-side apply with a field manager and force was expected", name)
    with store.changed:
        stored = next(iter(store.list("resourceslices", lambda one: one["metadata"]["name"] == name)[0]), None)
        validate_slice(item, stored)
        return store.update("resourceslices", name, item) if stored else store.create("resourceslices", item)


def _got(api: ApiServer, request: Request, match: re.Match[str], key: str) -> Any:
    if match.groupdict().get("sub") == "/log":
        return _log(api.store, key, request.query)
    return export(api.store.get(match["kind"], key), match) if match["name"] else _page(api, request, match)


def _log(store: Store, pod: str, query: dict[str, str]) -> str:
    """Lines of the object ``logs`` of the pod, which has ``data`` by container (``NAME.previous``: of the former)."""
    suffix = ".previous" if query.get("previous") == "true" else ""
    lines = str(store.get("logs", pod)["data"][query["container"] + suffix]).splitlines(keepends=True)
    return "".join(lines[-int(query.get("tailLines", len(lines))) :])[: int(query.get("limitBytes", 1 << 30))]


def _patch_node(store: Store, key: str, request: Request, sub: str) -> Object:
    if sub:
        return apply_conditions(store, key, request.body, request.query, request.content_type)
    if request.content_type == MERGE_PATCH:
        return patch_node(store, key, request.body)
    return apply_labels(store, key, request.body, request.query, request.content_type)


def _patch_claim(store: Store, key: str, request: Request, sub: str) -> Object:
    if not sub:
        raise Refused(405, "MethodNotAllowed", "of claims, only the status is patched through this server")
    return apply_devices(store, key, request.body, request.query, request.content_type)


_PATCHES = {"nodes": _patch_node, "resourceclaims": _patch_claim}


def _page(api: ApiServer, request: Request, match: re.Match[str]) -> Object:
    kind = match["kind"]
    if api.before_page:
        api.before_page(request)
    items, version, more = api.store.page(
        kind,
        lambda item: covers(match, kind, item) and selected(item, request.query),
        request.query.get("continue", ""),
        int(request.query.get("limit", 0)),
    )
    meta: Object = {"resourceVersion": str(version), **({"continue": more} if more else {})}
    of_kind = {"kind": f"{KINDS[kind]}List", "apiVersion": _api_version(match)}
    return {**of_kind, "metadata": meta, "items": [export(item, match) for item in items]}


def covers(match: re.Match[str], kind: str, item: Object) -> bool:
    """Whether an object is in the collection of a path: of that kind, and of that namespace if there is one."""
    return kind == match["kind"] and match["namespace"] in (None, item["metadata"].get("namespace"))


def _crowds(api: ApiServer, request: Request, match: re.Match[str]) -> list[Crowd]:
    """Those that are in the list that is asked for."""
    if request.method != "GET" or match["name"]:
        return []
    return [
        crowd
        for crowd in api.crowds
        if covers(match, crowd.kind, crowd.pattern) and selected(crowd.pattern, request.query)
    ]


def _of_crowds(crowds: Sequence[Crowd], match: re.Match[str], start: int, last: int) -> Iterator[bytes]:
    for crowd in crowds:
        yield from crowd.objects(export(crowd.pattern, match), max(0, start), max(0, min(last, crowd.count)))
        start, last = start - crowd.count, last - crowd.count


def export(item: Object, match: re.Match[str]) -> Object:
    version, kind = match["version"], match["kind"]
    item = copied(item)
    if version == "v1beta1" and kind == "resourceslices":
        item["spec"]["devices"] = [
            {"name": device.pop("name"), "basic": device} for device in item["spec"].get("devices") or []
        ]
    return {"apiVersion": _api_version(match), "kind": KINDS[kind], **item}


def _api_version(match: re.Match[str]) -> str:
    group = "" if match.re is CORE_PATH else match.groupdict().get("group") or "resource.k8s.io"
    return f"{group}/{match['version']}".lstrip("/")


def _import(document: Object, version: str) -> Object:
    item = copied({key: value for key, value in document.items() if key not in ("apiVersion", "kind")})
    if document.get("apiVersion") != f"resource.k8s.io/{version}":
        raise Refused(400, "BadRequest", f"the body is {document.get('apiVersion')}, the path says {version}")
    if version == "v1beta1":
        item["spec"]["devices"] = [
            {"name": device["name"], **device["basic"]} for device in item["spec"].get("devices") or []
        ]
    return item


def _drop(value: Any, path: list[str]) -> None:
    name, rest = path[0], path[1:]
    for item in value if isinstance(value, list) else [value]:
        if not isinstance(item, dict):
            continue
        if rest:
            _drop(item.get(name.removesuffix("[]")), rest)
        else:
            item.pop(name, None)
