"""A test double of kubelet's device manager and of its PodResources service.

It behaves like kubelet towards a device plugin: it serves Registration, calls back, watches the devices, asks for a
preferred allocation, allocates container by container, keeps allocations in a checkpoint across its restarts, and at
each start removes all sockets in its directory. ``release`` is the minor version of Kubernetes whose behaviour it has
(from the source of 1.33 to 1.37: ``pkg/kubelet/cm/devicemanager``).
"""

from __future__ import annotations

import base64
import json
import random
import stat
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent import futures
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, cast

import grpc

from dra_driver.kube.kubelet.api import deviceplugin_v1beta1_pb2 as api
from dra_driver.kube.kubelet.api import podresources_v1_pb2 as resources_api
from dra_driver.kube.kubelet.devicecheckpoint import FILE
from tests.doubles.kubelet_connection import OPTIONS, KubeletError, unary
from tests.eventually import PATIENCE

PLUGIN = "/v1beta1.DevicePlugin"


@dataclass(frozen=True)
class Container:
    """A container of a pod with its limits."""

    name: str = "main"
    limits: Mapping[str, int] = field(default_factory=dict)
    init: bool = False


@dataclass
class KnownPod:
    """A pod that kubelet knows."""

    namespace: str
    name: str
    uid: str
    containers: tuple[Container, ...]
    claims: tuple[tuple[str, str], ...] = ()
    """Devices of the claim as (driver, device); each container has all."""
    claim: str = "claim"
    pool: str = "node-a"


@dataclass
class Allocation:
    """What kubelet accounts and the plugin's response, for one container and resource."""

    ids: frozenset[str]
    answer: Any


class Connection:
    """kubelet's connection to one registered plugin."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.channel = grpc.insecure_channel(f"unix:{path}", options=OPTIONS)
        self.healthy: frozenset[str] = frozenset()
        self.unhealthy: frozenset[str] = frozenset()
        self.numa: dict[str, tuple[int, ...]] = {}
        self.lists = 0
        self.open = True
        self.stream: Any = None
        self.follower: threading.Thread | None = None
        """Reads the stream."""

    def call(self, method: str, request: Any, reply: type[Any], seconds: float = 10.0) -> Any:
        try:
            return unary(self.channel, f"{PLUGIN}/{method}", reply)(request, timeout=seconds)
        except grpc.RpcError as error:
            call = cast("grpc.Call", error)
            raise KubeletError(f"rpc error: code = {call.code().name} desc = {call.details()}") from error

    def close(self) -> None:
        self.open = False
        if self.stream is not None:
            self.stream.cancel()
        self.channel.close()


class DeviceManager:
    """The kubelet side; a context manager."""

    def __init__(self, root: Path, *, release: int = 37, pod_resources: bool = True, seed: int = 1) -> None:
        self.root, self.release, self.serves_pod_resources = root, release, pod_resources
        self.directory, self.resources_directory = root / "device-plugins", root / "pod-resources"
        self.directory.mkdir(parents=True, exist_ok=True)
        self.resources_directory.mkdir(exist_ok=True)
        self.allocations: dict[tuple[str, str, str], Allocation] = {}
        """The checkpoint: by pod UID, container and resource."""
        self.pods: dict[str, KnownPod] = {}
        self.registrations: list[str] = []
        self.refuse_registration = ""
        self.hide: set[str] = set()
        """UIDs of pods that PodResources omits."""
        self.resources_fault: grpc.StatusCode | None = None
        self.asked = 0
        """How often PodResources was asked for its list."""
        self.connections: dict[str, Connection] = {}
        self._random = random.Random(seed)
        self._lock = threading.RLock()
        self._servers: list[grpc.Server] = []

    # -- lifecycle

    def start(self) -> Self:
        """Remove all sockets, then serve, as kubelet does."""
        for path in self.directory.iterdir():
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()
        registration = {"Register": (self._register, api.RegisterRequest)}
        self._serve(self.directory / "kubelet.sock", "v1beta1.Registration", registration)
        if self.serves_pod_resources:
            listing = {"List": (self._list, resources_api.ListPodResourcesRequest)}
            (self.resources_directory / "kubelet.sock").unlink(missing_ok=True)
            self._serve(self.resources_directory / "kubelet.sock", "v1.PodResourcesLister", listing)
        return self

    def stop(self) -> None:
        """Stop without notifying the plugins; the socket files and the checkpoint stay."""
        with self._lock:
            gone, self.connections = list(self.connections.values()), {}
        for connection in gone:
            connection.close()
        for connection in gone:
            if connection.follower is not None:
                connection.follower.join()  # of a process that has ended, nothing drops a connection of the next one
        for server in self._servers:
            server.stop(0).wait()
        self._servers.clear()

    def restart(self) -> None:
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _serve(self, path: Path, service: str, methods: Mapping[str, tuple[Any, type[Any]]]) -> None:
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            name: grpc.unary_unary_rpc_method_handler(handle, kind.FromString, lambda m: m.SerializeToString())
            for name, (handle, kind) in methods.items()
        }
        server = grpc.server(
            futures.ThreadPoolExecutor(4), handlers=[grpc.method_handlers_generic_handler(service, handlers)]
        )
        server.add_insecure_port(f"unix:{path}")
        server.start()
        self._servers.append(server)

    # -- registration

    def _register(self, request: Any, context: grpc.ServicerContext) -> Any:
        resource, path = request.resource_name, self.directory / request.endpoint
        self.registrations.append(resource)
        if request.version != "v1beta1" or "/" not in resource or self.refuse_registration:
            context.abort(grpc.StatusCode.UNKNOWN, self.refuse_registration or "unsupported")
        before = self.connections.get(resource)
        if self.release >= 37 and before is not None and before.open and before.path == path:
            context.abort(grpc.StatusCode.UNKNOWN, f"device plugin already connected: {path}")
        connection = Connection(path)
        try:
            told = connection.call("GetDevicePluginOptions", api.Empty(), api.DevicePluginOptions)
        except KubeletError as error:
            connection.close()
            context.abort(grpc.StatusCode.UNKNOWN, f"failed to get device plugin options: {error}")
        assert told.get_preferred_allocation_available == request.options.get_preferred_allocation_available
        connection.follower = threading.Thread(target=self._follow, args=(resource, connection), daemon=True)
        with self._lock:
            self.connections[resource] = connection
            connection.follower.start()
        return api.Empty()

    def _follow(self, resource: str, connection: Connection) -> None:
        listen: grpc.UnaryStreamMultiCallable[Any, Any] = connection.channel.unary_stream(
            f"{PLUGIN}/ListAndWatch", lambda m: m.SerializeToString(), api.ListAndWatchResponse.FromString
        )
        with suppress(grpc.RpcError, ValueError):
            connection.stream = listen(api.Empty())
            for answer in connection.stream:
                connection.healthy = frozenset(d.ID for d in answer.devices if d.health == "Healthy")
                connection.unhealthy = frozenset(d.ID for d in answer.devices) - connection.healthy
                connection.numa = {d.ID: tuple(n.ID for n in d.topology.nodes) for d in answer.devices}
                connection.lists += 1
        with self._lock:
            # Before 1.37 kubelet then drops whatever client the resource currently has, even a newer one.
            victim = connection if self.release >= 37 else self.connections.get(resource)
            if victim is not None:
                victim.unhealthy, victim.healthy = victim.unhealthy | victim.healthy, frozenset()
                if self.connections.get(resource) is victim:
                    del self.connections[resource]
        for ended in (connection, victim):
            if ended is not None:
                ended.close()

    # -- node status

    def healthy(self, resource: str) -> frozenset[str]:
        connection = self.connections.get(resource)
        return connection.healthy if connection is not None else frozenset()

    def allocatable(self, resource: str) -> int:
        """The amount in the Node's status."""
        return len(self.healthy(resource))

    def capacity(self, resource: str) -> int:
        connection = self.connections.get(resource)
        return len(connection.healthy | connection.unhealthy) if connection is not None else 0

    def wait_for(self, resource: str, allocatable: int, seconds: float = PATIENCE) -> None:
        """Wait until this number of devices is allocatable."""
        end = time.monotonic() + seconds
        while self.allocatable(resource) != allocatable:
            assert time.monotonic() < end, f"{resource}: {self.allocatable(resource)} instead of {allocatable}"
            time.sleep(0.005)

    # -- pods

    def admit(self, pod: KnownPod) -> dict[tuple[str, str], Any]:
        """Admit a pod: the plugin's responses by container and resource. KubeletError fails the pod for good."""
        self.pods[pod.uid] = pod
        reusable: dict[str, set[str]] = {}
        try:
            for container in sorted(pod.containers, key=lambda c: not c.init):
                for resource, count in container.limits.items():
                    self._allocate(pod, container, resource, count, reusable)
        except KubeletError:
            self.reject(pod)
            raise
        return {(c, r): found.answer for (uid, c, r), found in self.allocations.items() if uid == pod.uid}

    def reject(self, pod: KnownPod) -> None:
        """Fail the admission, also for kubelet's own reasons. Before 1.34, PodResources keeps listing such a pod."""
        self.remove(pod.uid)
        if self.release < 34:
            self.pods[pod.uid] = pod

    def remove(self, uid: str) -> None:
        """End the pod."""
        self.pods.pop(uid, None)
        self.allocations = {key: value for key, value in self.allocations.items() if key[0] != uid}

    def counted(self, uid: str, resource: str) -> frozenset[str]:
        """Ids that kubelet accounts to a pod."""
        return frozenset().union(*(a.ids for (u, _, r), a in self.allocations.items() if (u, r) == (uid, resource)))

    def _allocate(
        self, pod: KnownPod, container: Container, resource: str, count: int, reusable: dict[str, set[str]]
    ) -> None:
        key = (pod.uid, container.name, resource)
        if key in self.allocations or count == 0:
            return
        connection = self.connections.get(resource)
        if connection is None:
            raise KubeletError(f"cannot allocate unregistered device {resource}")
        chosen = self._choose(connection, resource, count, reusable.setdefault(resource, set()))
        request = api.AllocateRequest(container_requests=[api.ContainerAllocateRequest(devices_ids=chosen)])
        answer = connection.call("Allocate", request, api.AllocateResponse)
        if not answer.container_responses:
            raise KubeletError("no containers return in allocation response")
        self.allocations[key] = Allocation(frozenset(chosen), answer.container_responses[0])
        self._write_checkpoint()
        if container.init:
            reusable[resource] |= set(chosen)
        else:
            reusable[resource] -= set(chosen)

    def _write_checkpoint(self) -> None:
        """As Go's JSON; kubelet writes after each allocation, and not when it frees what a pod had."""
        entries = [
            {
                "PodUID": uid,
                "ContainerName": container,
                "ResourceName": resource,
                "DeviceIDs": {"-1": sorted(found.ids)},
                "AllocResp": base64.b64encode(found.answer.SerializeToString()).decode(),
            }
            for (uid, container, resource), found in self.allocations.items()
        ]
        data: dict[str, Any] = {"PodDeviceEntries": entries or None, "RegisteredDevices": {}}
        text = json.dumps({"Data": data, "Checksum": 1})
        (self.directory / FILE).write_text(text)

    def _choose(self, connection: Connection, resource: str, count: int, reusable: set[str]) -> list[str]:
        """devicesToAllocate, without alignment to NUMA nodes; in arbitrary order, as from Go's sets."""
        chosen = self._shuffled(reusable)[:count]
        in_use = frozenset().union(*(a.ids for (_, _, r), a in self.allocations.items() if r == resource))
        available = connection.healthy - in_use
        needed = count - len(chosen)
        if len(available) < needed:
            raise KubeletError(
                f"requested number of devices unavailable for {resource}. Requested: {needed}, "
                f"Available: {len(available)}"
            )
        if needed:
            request = api.PreferredAllocationRequest()
            request.container_requests.add(
                available_deviceIDs=self._shuffled(available | set(chosen)),
                must_include_deviceIDs=chosen,
                allocation_size=count,
            )
            told = connection.call("GetPreferredAllocation", request, api.PreferredAllocationResponse)
            preferred = set(told.container_responses[0].deviceIDs) if told.container_responses else set()
            for pool in (preferred & available, available):
                chosen += [text for text in self._shuffled(pool) if text not in chosen][: count - len(chosen)]
        return self._shuffled(chosen)

    def _shuffled(self, ids: Any) -> list[str]:
        found = sorted(ids)
        self._random.shuffle(found)
        return found

    # -- PodResources

    def _list(self, request: Any, context: grpc.ServicerContext) -> Any:
        del request
        self.asked += 1
        if self.resources_fault is not None:
            context.abort(self.resources_fault, "failed on purpose")
        answer = resources_api.ListPodResourcesResponse()
        for pod in list(self.pods.values()):
            if pod.uid in self.hide:
                continue
            message = answer.pod_resources.add(name=pod.name, namespace=pod.namespace)
            for container in pod.containers:
                if container.init:
                    continue
                told = message.containers.add(name=container.name)
                for (uid, name, resource), found in list(self.allocations.items()):
                    if (uid, name) == (pod.uid, container.name):
                        for text in sorted(found.ids):  # kubelet has an entry per NUMA node; here one per device
                            told.devices.add(resource_name=resource, device_ids=[text])
                for driver, device in pod.claims:
                    held = told.dynamic_resources.add(claim_name=pod.claim, claim_namespace=pod.namespace)
                    held.claim_resources.add(driver_name=driver, pool_name=pod.pool, device_name=device)
        return answer


def plugin_call(path: Path, method: str, request: Any, reply: type[Any], seconds: float = 5.0) -> Any:
    """A call by a client other than kubelet."""
    connection = Connection(path)
    try:
        return connection.call(method, request, reply, seconds)
    finally:
        connection.close()


def sockets(directory: Path) -> Sequence[Path]:
    """The plugins' sockets."""
    return sorted(p for p in directory.iterdir() if p.is_socket() and p.name != "kubelet.sock")
