"""A DRA driver for the tests of the library: records its calls, and can be slow or fail on demand."""

from __future__ import annotations

import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from dra_driver.kube.kubelet.dra import ClaimRef, PreparedDevice
from dra_driver.kube.kubelet.server import KubeletPlugin
from tests.doubles.kubelet import Claim, Kubelet
from tests.doubles.kubelet_connection import OPTIONS, unary

DRIVER = "gpu.example.com"


class SampleDriver:
    """Prepares one device for every claim, named like the claim."""

    def __init__(self) -> None:
        self.prepared: set[str] = set()
        self.calls: list[tuple[str, str]] = []
        self.running = 0
        self.most_running = 0
        self.deadlines: dict[str, float] = {}
        """Deadline of the last call, by UID."""
        self.on_prepare: Callable[[ClaimRef], Any] = lambda claim: None
        self.on_unprepare: Callable[[ClaimRef], Any] = lambda claim: None
        self._lock = threading.Lock()

    def prepare(self, claim: ClaimRef, deadline: float) -> list[PreparedDevice]:
        self.deadlines[claim.uid] = deadline
        with self._counted("prepare", claim):
            special = self.on_prepare(claim)
        self.prepared.add(claim.uid)
        if special is not None:
            return special  # type: ignore[no-any-return]  # tests also return invalid values
        return [PreparedDevice(("gpu/large", "gpu/small"), "node-1", claim.name, (f"example.com/gpu={claim.uid}",))]

    def unprepare(self, claim: ClaimRef, deadline: float) -> None:
        self.deadlines[claim.uid] = deadline
        with self._counted("unprepare", claim):
            self.on_unprepare(claim)
        self.prepared.discard(claim.uid)

    @contextmanager
    def _counted(self, verb: str, claim: ClaimRef) -> Iterator[None]:
        with self._lock:
            self.calls.append((verb, claim.uid))
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        try:
            yield
        finally:
            with self._lock:
                self.running -= 1


def claim(name: str = "c", uid: str = "", drivers: tuple[str, ...] = (DRIVER,)) -> Claim:
    return Claim("default", name, uid or str(uuid.uuid4()), drivers)


@contextmanager
def node_directory() -> Iterator[Path]:
    """A short directory: socket paths are limited to 107 bytes, and pytest's own directories are too long."""
    with tempfile.TemporaryDirectory(prefix="k", dir="/tmp") as directory:
        yield Path(directory)


@contextmanager
def served(kubelet: Kubelet, driver: Any, name: str = DRIVER, **options: Any) -> Iterator[KubeletPlugin]:
    """Start ``driver`` with the directories of ``kubelet``, and stop it at the end."""
    plugin = KubeletPlugin(
        driver, name, plugin_dir=kubelet.plugins_dir / name, registrar_dir=kubelet.registry_dir, **options
    )
    plugin.start()
    try:
        yield plugin
    finally:
        plugin.stop(1)


@contextmanager
def client(path: Path | str, *options: tuple[str, object]) -> Iterator[grpc.Channel]:
    """A separate connection to a socket."""
    with grpc.insecure_channel(f"unix:{path}", options=[*OPTIONS, *options]) as channel:
        yield channel


def rpc(channel: grpc.Channel, messages: Any, service: str, method: str, request: Any, **options: Any) -> Any:
    """One call of ``service`` (as in the .proto) in the messages module."""
    descriptor = messages.DESCRIPTOR.services_by_name[service]
    reply = getattr(messages, descriptor.methods_by_name[method].output_type.name)
    return unary(channel, f"/{descriptor.full_name}/{method}", reply)(request, timeout=5, **options)
