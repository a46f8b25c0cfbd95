"""kubelet and the container runtime of a simulation: pods, their claims, and what their containers were given.

What containers have is read from the CDI specs at the moment in which they start, as a runtime does: it is what the
oracle goes by, and no word of the driver's.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dra_driver.kube.kubelet.api import dra_health_v1alpha1_pb2, dra_v1_pb2, pluginregistration_v1_pb2
from dra_driver.kube.kubelet.client import CallError
from dra_driver.kube.kubelet.devicehealth import HealthStream
from dra_driver.kube.kubelet.dra import VERSIONS, DRAPlugin, DRAService
from dra_driver.kube.kubelet.podresources import SOCKET, ClaimUse, PodClaim, PodDevices
from dra_driver.kube.kubelet.registration import OnRegistered, Registrar, Registration
from dra_driver.util.worker import Worker
from tests.simulation.scheduler import Life, Scheduler, Task

CALL_SECONDS: Final = 45.0
_DRA: Final = dra_v1_pb2.DESCRIPTOR.services_by_name["DRAPlugin"].full_name
WIPE_SECONDS: Final = 30.0
"""After a driver has gone, kubelet deletes its slices."""


@dataclass(frozen=True)
class Claim:
    """As kubelet knows it."""

    namespace: str
    name: str
    uid: str


@dataclass
class Pod:
    """A pod of the node."""

    name: str
    uid: str
    claims: tuple[Claim, ...]
    devices: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Of its container, by UID of the claim: qualified CDI names; empty until the container runs."""
    numbers: dict[str, frozenset[tuple[int, int]]] = field(default_factory=dict)
    """By UID of the claim: numbers of the device nodes that the container has."""
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By UID of the claim: published names of its devices, as the driver told when it prepared it."""
    running: bool = False
    ending: bool = False
    gone: bool = False
    deleted: bool = False
    """Whether somebody has asked for its end."""

    def clear(self) -> None:
        """Its container has ended."""
        self.running = False
        self.devices, self.numbers, self.names = {}, {}, {}


class Context:
    """What gRPC gives to a call."""

    def __init__(self, scheduler: Scheduler, seconds: float, life: Life) -> None:
        self._scheduler, self._end = scheduler, scheduler.clock + seconds
        self.life = life
        self.active = True
        self.callbacks: list[Callable[[], None]] = []

    def time_remaining(self) -> float:
        return self._end - self._scheduler.clock

    def is_active(self) -> bool:
        return self.active

    def add_callback(self, callback: Callable[[], None]) -> bool:
        self.callbacks.append(callback)
        return True


class SimulatedPlugin:
    """As ``KubeletPlugin``, without sockets: kubelet calls what would be behind them."""

    def __init__(
        self,
        kubelet: SimulatedKubelet,
        plugin: DRAPlugin,
        driver_name: str,
        *,
        plugin_dir: Path,
        on_registered: OnRegistered,
        on_error: Callable[[BaseException], None],
        health: HealthStream,
        **_: Any,
    ) -> None:
        self._kubelet = kubelet
        self.life = kubelet.scheduler.life
        self._registrar = Registrar(driver_name, plugin_dir / "dra.sock", list(VERSIONS), on_registered)
        self.methods: dict[str, Callable[[Any, Any], Any]] = {
            method.path: method.handle
            for method in (
                *self._registrar.methods(),
                *DRAService(plugin, on_error).methods(VERSIONS),
                *health.methods(),
            )
        }
        self.worker = Worker("checking its sockets", lambda: 10.0)
        self.serving = False
        self.calls = 0

    @property
    def registration(self) -> Registration:
        return self._registrar.registration

    def problems(self) -> list[str]:
        problem = self.registration.problem()
        return [problem] if problem else []

    def start(self) -> None:
        self.serving = True
        self._kubelet.scheduler.pause()

    def stop(self, grace: float = 10.0) -> None:
        self.serving = False
        self.worker.stop(0)
        self._kubelet.scheduler.wait(lambda: not self.calls, grace)

    def succeeded(self) -> bool:
        return any(other is not self and other.reachable for other in self._kubelet.plugins)

    @property
    def reachable(self) -> bool:
        """Whether its socket is there, and a process behind it."""
        return self.serving and self.life.alive


class SimulatedKubelet:
    """kubelet of one node.

    Args:
        scheduler: of the node.
        directory: kubelet's.
        cdi: the directory of specs.
        wipe: deletes the node's slices at the server.
    """

    def __init__(self, scheduler: Scheduler, directory: Path, cdi: Path, wipe: Callable[[], None]) -> None:
        self.on_health: Callable[[dict[str, str], dict[str, str]], None] = lambda _, __: None
        """Called with what one instance of the driver has said of the devices before, and says now."""
        self.on_start: Callable[[str, tuple[str, ...], frozenset[tuple[int, int]] | None], None] = lambda *_: None
        """Called with a pod, the devices of one of its claims, and their numbers; None: no spec has them."""
        self.on_prepare: Callable[[Life, str], Callable[[bool | None], None]] = lambda *_: lambda _: None
        """Called with a driver and the UID of a claim that it is to prepare. What it returns is called with whether the
        driver has; None: there was no answer."""
        self.scheduler = scheduler
        self._directory, self._cdi, self._wipe = directory, cdi, wipe
        self.plugins: list[SimulatedPlugin] = []
        self._registered: list[SimulatedPlugin] = []
        """The latest last: it gets the calls."""
        self.pods: dict[str, Pod] = {}
        """By UID."""
        self.plugin_pods: dict[str, tuple[int, ...]] = {}
        """Pods of a device plugin: their chips."""
        self.health: dict[str, str] = {}
        """What the driver says of each device."""
        self.prepared: dict[str, tuple[str, ...]] = {}
        """CDI names by UID of each claim that was prepared and not unprepared, as this kubelet knows."""
        self.called: dict[str, float] = {}
        """When the last call began that prepared a claim, by its UID."""
        self.left: set[str] = set()
        """Claims of calls under way when a kubelet ended: they may take effect after those of the next one."""
        self.unprepared: dict[str, float] = {}
        """When that was asked for last, by UID of the claim."""
        self._names: dict[str, tuple[str, ...]] = {}
        """Published names of the devices of prepared claims."""
        self._life = Life("kubelet")
        self._left_at: float | None = None
        self._calling: set[str] = set()
        """Claims for which the driver has been called and has not answered."""
        self._streams: list[Context] = []

    def start(self) -> None:
        """Begin; deletes the node's slices first."""
        self._life = Life("kubelet")
        self._registered.clear()
        self._calling = set()
        self.prepared.clear()
        self.health.clear()
        self._left_at = None
        socket = self._directory / SOCKET
        socket.parent.mkdir(parents=True, exist_ok=True)
        self._wipe()
        socket.touch()
        self._spawn(self._register, "registration")
        for pod in self.pods.values():
            self._spawn(self._syncing(pod), f"pod {pod.name}")

    def kill(self) -> None:
        """End it; containers go on."""
        self.left |= self._calling
        self.scheduler.kill(self._life)
        for context in self._streams:
            context.active = False
            for callback in context.callbacks:
                self._spawn(callback, "a stream has ended", context.life)
        self._streams.clear()
        (self._directory / SOCKET).unlink(missing_ok=True)
        self._registered.clear()

    @property
    def alive(self) -> bool:
        return self._life.alive

    def add(self, pod: Pod) -> None:
        """A pod was bound to the node."""
        self.pods[pod.uid] = pod
        if self.alive:
            self._spawn(self._syncing(pod), f"pod {pod.name}")

    def list_pods(self, _: Path, *, seconds: float = 5.0, **__: str) -> tuple[PodDevices, ...]:
        """As the PodResources API tells it."""
        self.scheduler.pause()
        if not self.alive:
            self.scheduler.sleep(self.scheduler.random.choice((0.0, seconds)))
            raise CallError("kubelet does not answer", code="UNAVAILABLE")
        pods = [
            PodDevices("default", pod.name, {"main": {}}, tuple(self._claims(pod)))
            for pod in self.pods.values()
            if pod.running
        ]
        of_plugin = [
            PodDevices("default", name, {"main": {"aws.amazon.com/neuron": frozenset(map(str, chips))}})
            for name, chips in self.plugin_pods.items()
        ]
        return (*pods, *of_plugin)

    def _claims(self, pod: Pod) -> Iterator[ClaimUse]:
        for claim in pod.claims:
            names = frozenset(pod.devices.get(claim.uid, ()))
            if names:
                devices = frozenset(("", name.rpartition("-")[2]) for name in names)
                yield ClaimUse(PodClaim(claim.name, devices, names), ("main",))

    def _spawn(self, work: Callable[[], object], name: str, life: Life | None = None) -> Task:
        return self.scheduler.spawn(work, name, life or self._life)

    # Registration

    def _register(self) -> None:
        while True:
            for plugin in self.plugins:
                if plugin.reachable and plugin not in self._registered:
                    self._registered.append(plugin)
                    self._left_at = None
                    status = pluginregistration_v1_pb2.RegistrationStatus(plugin_registered=True)
                    self._call(plugin, "/pluginregistration.Registration/NotifyRegistrationStatus", status, 1.0)
                    self._spawn(self._watching(plugin), "health stream", plugin.life)
            gone = [plugin for plugin in self._registered if not plugin.reachable]
            for plugin in gone:
                self._registered.remove(plugin)
            if gone and not self._registered:
                self._left_at = self.scheduler.clock
            if self._left_at is not None and self.scheduler.clock > self._left_at + WIPE_SECONDS:
                self._left_at = None
                self._wipe()
            self.scheduler.sleep(self.scheduler.random.choice((0.1, 1.0)))
            self.scheduler.wait(self._sockets_have_changed, WIPE_SECONDS / 3)

    def _sockets_have_changed(self) -> bool:
        return any(plugin.reachable != (plugin in self._registered) for plugin in self.plugins)

    def _watching(self, plugin: SimulatedPlugin) -> Callable[[], None]:
        """Take what the driver says of its devices, in a thread of the driver's, as gRPC streams do."""
        path = "/v1alpha1.DRAResourceHealth/NodeWatchResources"

        def stream() -> None:
            context = Context(self.scheduler, math.inf, plugin.life)
            self._streams.append(context)
            replies = plugin.methods[path](dra_health_v1alpha1_pb2.NodeWatchResourcesRequest(), context)
            before: dict[str, str] = {}
            with contextlib.closing(replies):
                for reply in replies:
                    if plugin in self._registered[-1:]:
                        status = dra_health_v1alpha1_pb2.HealthStatus
                        self.health = {item.device.device_name: status.Name(item.health) for item in reply.devices}
                        self.on_health(before, self.health)
                        before = self.health
                    self.scheduler.pause()

        return stream

    def _call(self, plugin: SimulatedPlugin, path: str, request: Any, seconds: float) -> Any:
        """A call: it runs in a thread of the plugin's process. None: no answer."""
        answers: list[Any] = []
        context = Context(self.scheduler, seconds, plugin.life)

        def serve() -> None:
            plugin.calls += 1
            try:
                answers.append(plugin.methods[path](request, context))
            finally:
                plugin.calls -= 1

        if not plugin.reachable:
            return None
        self._spawn(serve, path.rpartition("/")[2], plugin.life)
        self.scheduler.wait(lambda: bool(answers) or not plugin.life.alive, seconds)
        context.active = False
        return answers[0] if answers else None

    # Pods

    def _syncing(self, pod: Pod) -> Callable[[], None]:
        def sync() -> None:
            scheduler = self.scheduler
            while not pod.ending:
                # Also where its containers run: a kubelet that has just started knows of no claim that is prepared.
                prepared = all(claim.uid in self.prepared or self._prepare(pod, claim) for claim in pod.claims)
                if prepared and (pod.running or self._run(pod)):
                    break
                scheduler.sleep(scheduler.random.choice((0.2, 1.0, 5.0)))
            scheduler.wait(lambda: pod.ending)
            scheduler.sleep(scheduler.random.choice((0.0, 0.5)))
            pod.clear()
            for claim in pod.claims:
                while not self._unprepare(pod, claim):
                    scheduler.sleep(scheduler.random.choice((0.2, 1.0, 5.0)))
            pod.gone = True
            self.pods.pop(pod.uid, None)

        return sync

    def _used(self, claim: Claim, by_another_than: Pod) -> bool:
        return any(claim in pod.claims for pod in self.pods.values() if pod is not by_another_than)

    @contextlib.contextmanager
    def _alone(self, claim: Claim) -> Iterator[None]:
        """One call at a time for one claim (kubernetes/kubernetes pull request 140527)."""
        self.scheduler.wait(lambda: claim.uid not in self._calling)
        self._calling.add(claim.uid)
        try:
            yield
        finally:
            self._calling.discard(claim.uid)

    def _prepare(self, pod: Pod, claim: Claim) -> bool:
        with self._alone(claim):
            return claim.uid in self.prepared or self._have_prepared(pod, claim)

    def _have_prepared(self, pod: Pod, claim: Claim) -> bool:
        request = dra_v1_pb2.NodePrepareResourcesRequest()
        request.claims.add(namespace=claim.namespace, name=claim.name, uid=claim.uid)
        if not self._registered:
            return False
        began = self.scheduler.clock
        plugin = self._registered[-1]
        ended = self.on_prepare(plugin.life, claim.uid)
        reply = self._call(plugin, f"/{_DRA}/NodePrepareResources", request, CALL_SECONDS)
        ended(None if reply is None else not reply.claims[claim.uid].error)
        if reply is None or reply.claims[claim.uid].error or pod.ending:
            return False
        devices = reply.claims[claim.uid].devices
        self.called[claim.uid] = began
        self.prepared[claim.uid] = tuple(name for device in devices for name in device.cdi_device_ids)
        self._names[claim.uid] = tuple(device.device_name for device in devices)
        return True

    def _unprepare(self, pod: Pod, claim: Claim) -> bool:
        with self._alone(claim):
            return self._used(claim, pod) or self._have_unprepared(claim)

    def _have_unprepared(self, claim: Claim) -> bool:
        if not self._registered:
            return False
        request = dra_v1_pb2.NodeUnprepareResourcesRequest()
        request.claims.add(namespace=claim.namespace, name=claim.name, uid=claim.uid)
        self.prepared.pop(claim.uid, None)
        self.unprepared[claim.uid] = self.scheduler.clock
        reply = self._call(self._registered[-1], f"/{_DRA}/NodeUnprepareResources", request, CALL_SECONDS)
        return reply is not None and not reply.claims[claim.uid].error

    def _run(self, pod: Pod) -> bool:
        """The runtime starts the container, if the specs are there."""
        self.scheduler.pause()
        if pod.ending or any(claim.uid not in self.prepared for claim in pod.claims):
            return False
        for claim in pod.claims:
            numbers = self._numbers(self.prepared[claim.uid])
            self.on_start(pod.name, self._names[claim.uid], numbers)
            if numbers is None:
                del self.prepared[claim.uid]  # kubelet has the claim prepared again
                return False
            pod.numbers[claim.uid] = numbers
            pod.names[claim.uid] = self._names[claim.uid]
        pod.devices = {claim.uid: self.prepared[claim.uid] for claim in pod.claims}
        pod.running = True
        return True

    def _numbers(self, names: tuple[str, ...]) -> frozenset[tuple[int, int]] | None:
        """Numbers of the device nodes that these CDI devices have; None: one of them is in no spec."""
        specs = self.specs()
        if not all(name in specs for name in names):
            return None
        return frozenset().union(*(specs[name] for name in names))

    def specs(self) -> dict[str, frozenset[tuple[int, int]]]:
        """Device numbers by qualified name, of all specs in the directory."""
        found = {}
        for path in self._cdi.glob("*.json"):
            spec = json.loads(path.read_bytes())
            for device in spec["devices"]:
                nodes = device["containerEdits"].get("deviceNodes") or ()
                found[f"{spec['kind']}={device['name']}"] = frozenset((node["major"], node["minor"]) for node in nodes)
        return found
