"""A test double of kubelet's plugin manager and DRA manager.

It behaves like kubelet as far as a DRA driver can observe: it watches the registry directory, registers and deregisters
drivers, keeps one connection per instance, prepares and unprepares the claims of pods, and forgets in a restart what it
prepared. Times are shorter by default; names follow kubelet's.
"""

from __future__ import annotations

import stat
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import grpc

from dra_driver.kube.kubelet.api import pluginregistration_v1_pb2
from tests.doubles.kubelet_connection import MESSAGES, OPTIONS, Claim, DirectoryWatch, Instance, KubeletError, unary
from tests.doubles.kubelet_health import REDIAL_SECONDS, HealthInfo
from tests.eventually import PATIENCE

__all__ = ["Claim", "Device", "Kubelet", "KubeletError"]

INFO_SECONDS = 5.0
"""For a plugin to tell what it is; kubelet gives it one second."""


@dataclass(frozen=True)
class Device:
    """A prepared device as kubelet stores it."""

    requests: tuple[str, ...]
    pool: str
    name: str
    cdi_ids: tuple[str, ...]
    share_id: str | None


@dataclass
class ClaimInfo:
    claim: Claim
    pods: set[str] = field(default_factory=set)
    devices: dict[str, list[Device]] = field(default_factory=dict)
    prepared: bool = False


class Kubelet:
    """The kubelet side.

    ``refuse`` returns a reason to refuse a plugin's registration, or None. ``watches_health`` is the release whose
    ways with device health it has, "1.36" or "1.37".
    """

    def __init__(
        self,
        root: Path,
        *,
        versions: Sequence[str] = tuple(MESSAGES),
        call_seconds: float = 45.0,
        reconcile_seconds: float = 0.02,
        backoff_seconds: float = 0.1,
        refuse: Callable[[str], str | None] = lambda driver: None,
        watches_health: str | None = None,
        redial_seconds: float = REDIAL_SECONDS,
    ) -> None:
        self.registry_dir, self.plugins_dir = root / "plugins_registry", root / "plugins"
        self.registry_dir.mkdir(parents=True, exist_ok=True)
        self.plugins_dir.mkdir(exist_ok=True)
        self.versions, self.call_seconds, self.refuse = versions, call_seconds, refuse
        self._reconcile_seconds, self._backoff_seconds = reconcile_seconds, backoff_seconds
        self.claims: dict[tuple[str, str], ClaimInfo] = {}  # kubelet's checkpoint, except for `prepared`
        self.registrations = 0
        self.deregistrations = 0
        self.failures: list[str] = []
        self.offered: list[tuple[str, ...]] = []
        """``supported_versions`` of each registration."""
        self.health = HealthInfo(watches_health, redial_seconds)
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None

    # -- lifecycle

    def start(self) -> Self:
        """Start to watch; existing sockets are found too."""
        self.instances: dict[str, list[Instance]] = {}
        self._desired: dict[str, int] = {}
        self._actual: dict[str, tuple[int, Instance]] = {}
        self._retry: dict[str, tuple[float, float]] = {}
        self._stamp = 0
        self._stop = threading.Event()
        self._watch = DirectoryWatch(self.registry_dir)
        for path in sorted(self.registry_dir.iterdir()):
            self._created(path.name)
        self._thread = threading.Thread(target=self._run, name="test-kubelet", daemon=True)
        self._thread.start()
        return self

    def stop_watching(self) -> None:
        """Stop watching the registry; connections stay as they are."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None
            self._watch.close()

    def stop(self) -> None:
        """Stop without notifying the plugins, as kubelet does."""
        self.stop_watching()
        if self._actual:
            for _, instance in self._actual.values():
                instance.close()
            self._actual.clear()
            self.instances.clear()

    def restart(self) -> None:
        """Stop and start: forgets which claims were prepared, but not which pods refer to them."""
        self.stop()
        for info in self.claims.values():
            info.prepared = False
        self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()

    # -- plugin manager

    def _created(self, name: str) -> None:
        path = self.registry_dir / name
        try:
            is_socket = stat.S_ISSOCK(path.lstat().st_mode)
        except FileNotFoundError:
            return
        if is_socket and not name.startswith("."):
            self._stamp += 1
            self._desired[name] = self._stamp
            self._retry.pop(name, None)

    def _run(self) -> None:
        while not self._stop.is_set():
            for name, created in self._watch.events(self._reconcile_seconds):
                if created:
                    self._created(name)
                else:
                    self._desired.pop(name, None)
            self._reconcile()

    def _reconcile(self) -> None:
        for name, (stamp, instance) in list(self._actual.items()):
            if self._desired.get(name) != stamp:
                self._deregister(name, instance)
        for name, stamp in list(self._desired.items()):
            at, delay = self._retry.get(name, (0.0, self._backoff_seconds))
            if name not in self._actual and time.monotonic() >= at:
                try:
                    self._actual[name] = (stamp, self._register(name))
                except (KubeletError, grpc.RpcError) as error:
                    self.failures.append(str(error))
                    self._retry[name] = (time.monotonic() + delay, delay * 2)

    def _deregister(self, name: str, instance: Instance) -> None:
        with self._lock:
            self.instances[instance.driver].remove(instance)
            self.deregistrations += 1
        del self._actual[name]
        instance.close()

    def _register(self, name: str) -> Instance:
        api = pluginregistration_v1_pb2
        with grpc.insecure_channel(f"unix:{self.registry_dir / name}", options=OPTIONS) as channel:
            get_info = unary(channel, "/pluginregistration.Registration/GetInfo", api.PluginInfo)
            notify = unary(
                channel, "/pluginregistration.Registration/NotifyRegistrationStatus", api.RegistrationStatusResponse
            )
            info = get_info(api.InfoRequest(), timeout=INFO_SECONDS)
            try:
                instance = self._accept(info, name)
            except KubeletError as error:
                notify(api.RegistrationStatus(plugin_registered=False, error=str(error)), timeout=5)
                raise
            notify(api.RegistrationStatus(plugin_registered=True), timeout=5)
        with self._lock:
            self.instances.setdefault(info.name, []).append(instance)
            self.offered.append(tuple(info.supported_versions))
            self.registrations += 1
        self.health.follow(instance, info.supported_versions)
        return instance

    def _accept(self, info: Any, name: str) -> Instance:
        if info.type != "DRAPlugin":
            raise KubeletError(f"no handler registered for plugin type {info.type}")
        reason = self.refuse(info.name)
        version = next((v for v in info.supported_versions if v in self.versions), None)
        endpoint = info.endpoint or str(self.registry_dir / name)
        if reason is None and version is None:
            reason = f"none of the versions {list(info.supported_versions)} is supported"
        if reason is None and any(i.endpoint == endpoint for i in self.instances.get(info.name, [])):
            reason = f"endpoint {endpoint} already registered for plugin {info.name}"
        if reason is not None:
            raise KubeletError(f"RegisterPlugin error -- failed to register plugin {info.name}: {reason}")
        assert version is not None
        return Instance(info.name, endpoint, version)

    def instance(self, driver: str) -> Instance:
        """The newest connected instance, otherwise the newest."""
        with self._lock:
            known = list(self.instances.get(driver, ()))
        if not known:
            raise KubeletError(f"DRA driver {driver} is not registered")
        return next((i for i in reversed(known) if i.connected()), known[-1])

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
        """Wait until ``condition()``; AssertionError after ``seconds``."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"not within {seconds} s: {what}; failures: {self.failures[-3:]}"
            time.sleep(0.005)

    def wait_registered(self, driver: str, instances: int = 1) -> None:
        """Wait until this number of instances of ``driver`` is registered and connected."""

        def ready() -> bool:
            known = self.instances.get(driver, [])
            return len(known) == instances and all(i.connected() for i in known)

        self.wait(ready, f"{instances} registered instances of {driver}")

    # -- DRA manager

    def prepare(self, pod: str, claims: Sequence[Claim]) -> dict[str, list[Device]]:
        """PrepareResources of a pod: the devices by claim UID.

        Raises:
            KubeletError: with the text of the pod's event; kubelet would retry, which is another call here.
        """
        for claim in claims:
            for driver in claim.drivers:
                self.instance(driver)
        batches: dict[str, list[ClaimInfo]] = {}
        with self._lock:
            for claim in claims:
                info = self.claims.setdefault((claim.namespace, claim.name), ClaimInfo(claim))
                if info.claim.uid != claim.uid:
                    raise KubeletError(f"old ResourceClaim with same name {claim.name} and different UID still exists")
                info.pods.add(pod)
                for driver in () if info.prepared else claim.drivers:
                    batches.setdefault(driver, []).append(info)
        for driver, infos in batches.items():
            reply = self._call(driver, "NodePrepareResources", [info.claim for info in infos])
            for info in infos:
                info.devices[driver] = [
                    Device(
                        tuple(d.request_names),
                        d.pool_name,
                        d.device_name,
                        tuple(d.cdi_device_ids),
                        d.share_id if hasattr(d, "share_id") and d.HasField("share_id") else None,
                    )
                    for d in reply.claims[info.claim.uid].devices
                ]
        for infos in batches.values():
            for info in infos:
                info.prepared = True
        return {
            claim.uid: [d for ds in self.claims[claim.namespace, claim.name].devices.values() for d in ds]
            for claim in claims
        }

    def unprepare(self, pod: str) -> None:
        """UnprepareResources of a pod that has ended: for claims to which no other pod refers."""
        batches: dict[str, list[ClaimInfo]] = {}
        with self._lock:
            for info in [i for i in self.claims.values() if pod in i.pods]:
                if info.pods == {pod}:
                    for driver in info.claim.drivers:
                        batches.setdefault(driver, []).append(info)
                else:
                    info.pods.discard(pod)
        for driver, infos in batches.items():
            self._call(driver, "NodeUnprepareResources", [info.claim for info in infos])
        for info in {id(i): i for infos in batches.values() for i in infos}.values():
            del self.claims[info.claim.namespace, info.claim.name]

    def _call(self, driver: str, method: str, claims: Sequence[Claim]) -> Any:
        reply = self.instance(driver).call(method, claims, self.call_seconds)
        wanted = {claim.uid for claim in claims}
        for uid, result in reply.claims.items():
            if uid not in wanted:
                raise KubeletError(f"{method} returned result for unknown claim UID {uid}")
            if result.error:
                raise KubeletError(f"{method} failed for ResourceClaim {uid}: {result.error}")
        if len(reply.claims) < len(wanted):
            raise KubeletError(f"{method} skipped {len(wanted) - len(reply.claims)} ResourceClaims")
        return reply
