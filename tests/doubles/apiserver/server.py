"""A test double of the API server: real HTTP on loopback, and able to fail on purpose.

    with ApiServer() as server:
        server.add_node("node-a")
        server.add_claim("default", "claim", devices=[("neuron", "neuron-device-0")], node="node-a")
        transport = server.transport()

It stands for the API server only because a real one cannot be made to drop, delay or refuse at a chosen moment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import yaml

from dra_driver.kube.api.client import RestConfig, Transport
from tests.doubles.apiserver.crowd import Crowd
from tests.doubles.apiserver.http import Fault, HttpServer, Request
from tests.doubles.apiserver.store import Object, Store


@dataclass
class ApiServer:
    """The server. All methods may be called from any thread while it runs."""

    versions: tuple[str, ...] = ("v1",)
    """Served versions of resource.k8s.io."""
    custom_versions: tuple[str, ...] = ("v1beta1", "v1")
    """Served versions of the custom resources; none: nobody has installed them."""
    git_version: str = "v1.37.1"
    """Version in the response of ``/version``."""
    bookmark_seconds: float = 60.0
    watch_seconds: float | None = None
    """End every watch after this time, whatever timeout the client requested."""
    token: str | None = None
    """Bearer token that requests must have."""
    dropped_fields: tuple[str, ...] = ()
    """Fields that are not stored, as by a server with a feature gate off: ``spec.devices[].taints``."""
    added_spec: Object = field(default_factory=dict)
    """Fields that the server adds to the ``spec`` of each stored slice, like one with newer defaults."""
    before_page: Callable[[Request], None] | None = None
    """Called before each page of a list: what happens between two pages."""
    gzip: bool = False
    """Pack all answers but watches."""
    tls: tuple[str, str] | None = None
    """Certificate and key files."""
    store: Store = field(default_factory=Store)
    crowds: list[Crowd] = field(default_factory=list)
    """Objects that are in no store, behind those that are."""
    requests: list[Request] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    port: int = 0

    def __post_init__(self) -> None:
        self._http: HttpServer | None = None
        self.watch_era = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def kubeconfig(self, path: Path) -> Path:
        """Write a kubeconfig for this server."""
        user = {"token": self.token} if self.token else {}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": self.url}}],
            "users": [{"name": "test", "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }
        path.write_text(yaml.safe_dump(content))
        return path

    def start(self) -> None:
        """Listen; after ``stop``, on the same port again."""
        self._http = HttpServer(("127.0.0.1", self.port), self)
        self.port = self._http.server_address[1]
        threading.Thread(target=self._http.serve_forever, args=(0.01,), name="test API server", daemon=True).start()

    def stop(self) -> None:
        """Refuse connections and break the open ones."""
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()
            self.close_watches()
            self._http.cut()
            self._http = None

    def cut(self) -> None:
        """Break all open connections; new ones are accepted."""
        if self._http is not None:
            self._http.cut()

    @property
    def connections(self) -> int:
        """Number of connections accepted so far."""
        return self._http.accepted if self._http else 0

    def transport(self, **configuration: Any) -> Transport:
        """A client for this server."""
        return Transport(RestConfig(server=self.url, **configuration), user_agent="test")

    # Content

    def add_node(self, name: str, uid: str | None = None, labels: dict[str, str] | None = None) -> Object:
        meta: Object = {"name": name, "labels": labels or {}, **({"uid": uid} if uid else {})}
        return self.store.create("nodes", {"metadata": meta, "spec": {}, "status": {"capacity": {"cpu": "4"}}})

    def add_claim(
        self,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        devices: Sequence[tuple[str, str]] | None = None,
        node: str = "node-a",
        driver: str = "neuron.aws.com",
        config: Sequence[Object] = (),
        results: Sequence[Object] | None = None,
        pods: Sequence[tuple[str, str]] = (),
    ) -> Object:
        """Store a claim: ``devices`` are (request, device) of ``driver`` in pool ``node``; ``results`` replaces them.

        ``pods`` are (name, UID) of those that it is reserved for.

        With neither, it is not allocated.
        """
        meta: Object = {"namespace": namespace, "name": name, **({"uid": uid} if uid else {})}
        if devices is not None and results is None:
            results = [{"request": r, "driver": driver, "pool": node, "device": device} for r, device in devices]
        status: Object = {}
        if results is not None:
            status = {"allocation": {"devices": {"results": list(results), "config": list(config)}}}
        if pods:
            status["reservedFor"] = [{"resource": "pods", "name": pod, "uid": of} for pod, of in pods]
        return self.store.create("resourceclaims", {"metadata": meta, "spec": {"devices": {}}, "status": status})

    def delete_claim(self, namespace: str, name: str) -> None:
        self.store.delete("resourceclaims", f"{namespace}/{name}")

    def slices(self) -> list[Object]:
        """Stored slices in the shape of v1, by name."""
        return sorted(self.store.list("resourceslices")[0], key=lambda item: str(item["metadata"]["name"]))

    def wipe_slices(self, node: str) -> None:
        """Delete the node's slices, as kubelet does at its start."""
        for item in self.store.list("resourceslices", lambda item: item["spec"].get("nodeName") == node)[0]:
            self.store.delete("resourceslices", item["metadata"]["name"])

    # Faults

    def fail(self, status: int, times: int = 1, **fault: Any) -> Fault:
        """Answer the next ``times`` matching requests with an error (see Fault)."""
        return self._fault(Fault(times, status=status, **fault))

    def drop(self, times: int = 1, **fault: Any) -> Fault:
        """Close the connection of the next ``times`` matching requests without a response."""
        return self._fault(Fault(times, drop=True, **fault))

    def delay(self, seconds: float, times: int = 1, **fault: Any) -> Fault:
        """Answer the next ``times`` matching requests late."""
        return self._fault(Fault(times, delay=seconds, **fault))

    @contextmanager
    def hold(self, times: int = 1, **fault: Any) -> Iterator[Callable[[], bool]]:
        """Answer the next ``times`` matching requests when the block ends; what it gives tells whether they have come.

        What is to happen while a request is under way then needs no time in which it has to happen.
        """
        release = threading.Event()
        hold = self._fault(Fault(times, release=release, **fault))
        try:
            yield lambda: not hold.times
        finally:
            hold.times = 0
            release.set()

    def close_watches(self) -> None:
        """End all open watches."""
        with self.store.changed:
            self.watch_era += 1
            self.store.changed.notify_all()

    def count(self, method: str = "", path: str = "", *, watch: bool | None = None) -> int:
        """Number of matching requests so far."""
        wanted = Fault(1, method=method, path=path, watch=watch)
        return sum(wanted.matches(request) for request in list(self.requests))

    def writes(self, *, since: int = 0) -> int:
        """Number of POST, PUT, PATCH and DELETE requests after the first ``since`` requests, without dry runs."""
        later = list(self.requests)[since:]
        return sum(request.method != "GET" and "dryRun" not in request.query for request in later)

    def _fault(self, fault: Fault) -> Fault:
        self.faults.append(fault)
        return fault

    def take_fault(self, request: Request) -> Fault | None:
        with self.store.changed:
            for fault in self.faults:
                if fault.matches(request):
                    fault.times -= 1
                    return fault
        return None
