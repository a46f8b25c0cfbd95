"""One node's device plugin, put together.

Threads: the host watch reads sysfs again and again, an informer follows the node's pods, each resource looks after its
socket, and the keeper tells kubelet what can be given, writes down what was, and watches for the DRA driver.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from dra_driver.cdi.directory import SpecDirectory
from dra_driver.errors import DriverError
from dra_driver.exclusion import Excluded
from dra_driver.host.inventory import NodeInventory
from dra_driver.host.watch import HostWatch
from dra_driver.kube.errors import ApiError
from dra_driver.kube.transport import Transport
from dra_driver.kubeletplugin.deviceplugin import DevicePlugin
from dra_driver.kubeletplugin.health import HealthServer
from dra_driver.legacy.deviceplugin.allocator import OPERATIONS, Allocator, ResourceAnswers
from dra_driver.legacy.deviceplugin.answer import CDI_KIND, CDI_OWNER, cdi_spec
from dra_driver.legacy.deviceplugin.exclusion import check_claims, check_slices
from dra_driver.legacy.deviceplugin.node import NodeSources
from dra_driver.legacy.deviceplugin.offer import Offer, offer, plugin_devices
from dra_driver.legacy.deviceplugin.recording import records
from dra_driver.legacy.deviceplugin.settings import DevicePluginSettings
from dra_driver.legacy.deviceplugin.snapshot import Snapshot, withheld
from dra_driver.legacy.names import Resource
from dra_driver.metrics import Collector, Operations, Sample, serve
from dra_driver.version import VERSION
from dra_driver.worker import PATIENCE_SECONDS, Worker, stop_in_turn

KEEP_SECONDS: Final = 10.0
"""Between looks without a reason: kubelet does not say when its count changes."""
SETTLE_SECONDS: Final = 0.05
"""Between a change and the look at it, so that several changes are one."""
CALL_GRACE: Final = 5.0
"""Seconds that running calls of kubelet get at the end, for each resource."""
THREAD_GRACE: Final = 1.0
"""Seconds that a thread gets which may be waiting for the API server or the host."""
FORBIDDEN: Final = 403

log = logging.getLogger(__name__)


class DevicePluginAgent:
    """One node's device plugin.

    Args:
        settings: what an administrator sets.
        transport: access to the API server.
        on_fatal: called when the plugin cannot go on and the process should end with an error.
    """

    def __init__(self, settings: DevicePluginSettings, transport: Transport, on_fatal: Callable[[], None]) -> None:
        self._settings = settings
        self._on_fatal = on_fatal
        self.fatal = ""
        """Why it cannot go on, or ""."""
        self._offer: Offer | None = None
        self._taking = threading.Lock()
        """Held while an inventory becomes the offer, and the CDI file."""
        self._keeper = Worker("keeping kubelet's count", self._keep, settle=SETTLE_SECONDS)
        self._cdi = SpecDirectory(settings.cdi_root, CDI_KIND)
        self._sources = NodeSources(settings, transport, lambda: self._offer, self._keeper.wake)
        self._allocator = Allocator(self._sources, settings.answer, self._keeper.wake)
        self._operations = Operations(OPERATIONS)
        self._stop_metrics: Callable[[], None] | None = None
        self._plugins = {
            resource: DevicePlugin(
                resource.value,
                ResourceAnswers(self._allocator, resource, self._operations, self._renew),
                kubelet_directory=settings.kubelet_directory,
                name=f"neuron-dra-driver-{resource.value.partition('/')[2]}",
                interval=settings.look_seconds,
            )
            for resource in Resource
        }
        self._host = HostWatch(settings.host_root, self._sources.labels, self._on_inventory, settings.rescan_seconds)
        self._guarded_at: float | None = None
        self._guard_error = "not tried yet"
        self._pods_known = False
        self._unusable: tuple[int, ...] | None = None
        """What the Node's annotations were last made to say."""
        self._trouble: dict[str, str] = {}
        checks = {"": self.readiness, "liveness": self.liveness, "readiness": self.readiness}
        self._health = HealthServer(settings.health_port, settings.health_address, checks)

    def start(self) -> None:
        """Begin. Excluded where the DRA driver has the chips; DriverError when a port or socket cannot be had."""
        log.info("neuron-dra-driver %s, device plugin on node %s", VERSION, self._settings.node_name)
        self._guard()
        self._sources.start()
        self._host.start()
        if self._host.current.emulated:
            kind = self._host.current.instance_type
            log.warning("EMULATED hardware (%s): pods run, but there is no Neuron device", kind)
        self._health.start()
        if self._settings.metrics_port >= 0:
            text = "Time to answer one request of kubelet."
            collector = Collector(self._operations, self._samples, "device_plugin_request_seconds", text)
            self._stop_metrics = serve(collector, self._settings.metrics_address, self._settings.metrics_port)
        for plugin in self._plugins.values():
            plugin.start()
        self._keeper.start()

    def stop(self) -> None:
        """Finish what kubelet asked for and remove the own sockets; containers keep what they have."""
        log.info("stopping; running containers keep their devices")
        self._keeper.stop(0)
        stop_in_turn(
            *((plugin.stop, CALL_GRACE) for plugin in self._plugins.values()),
            (self._keeper.stop, CALL_GRACE),
            (self._sources.stop, THREAD_GRACE),
            (self._host.stop, THREAD_GRACE),
            (self._health.stop, THREAD_GRACE),
        )
        if self._stop_metrics is not None:
            self._stop_metrics()

    # What it tells

    def liveness(self) -> list[str]:
        """Problems that a restart may mend; [] when there are none."""
        found = [self.fatal, *(worker.stuck(PATIENCE_SECONDS) for worker in self._workers)]
        return [text for text in found if text]

    def readiness(self) -> list[str]:
        """All that keeps the plugin from its work right now; [] when there is nothing."""
        found = [self.fatal, *self._sources.problems(), *(plugin.problem() for plugin in self._plugins.values())]
        if self._guarded_at is None:
            found.append(f"whether the DRA driver has this node is not known: {self._guard_error}")
        if self._allocator.kubelet_trouble:
            found.append(f"kubelet does not tell of its pods: {self._allocator.kubelet_trouble}")
        found += [worker.problem() for worker in self._workers]
        return [text for text in found if text]

    @property
    def _workers(self) -> tuple[Worker, ...]:
        plugins = (plugin.worker for plugin in self._plugins.values())
        return (self._keeper, self._host.worker, self._sources.worker, *plugins)

    def _samples(self) -> Iterator[Sample]:
        """What the metrics show beside the durations."""
        for resource, plugin in self._plugins.items():
            labels, devices = (("resource", resource.value),), plugin.devices
            for name, text, value in (
                ("devices", "Devices that kubelet counts.", len(devices)),
                ("healthy_devices", "Those of them that can be given.", sum(device.healthy for device in devices)),
                ("followed", "1 while kubelet follows the devices.", plugin.in_use),
            ):
                yield Sample(f"device_plugin_{name}", text, float(value), labels)
            text = "How often kubelet has accepted the plugin."
            yield Sample("device_plugin_registrations", text, float(plugin.registrations), labels, "counter")

    # The host

    def _renew(self) -> None:
        # The CDI file has device numbers in it, and the kernel module may have been loaded anew since the last scan.
        if self._settings.answer.injection == "cdi":
            self._on_inventory(self._host.now())

    def _on_inventory(self, inventory: NodeInventory) -> None:
        with self._taking:
            self._take(inventory)

    def _take(self, inventory: NodeInventory) -> None:
        found = offer(inventory, self._offer)
        if found is None:
            log.info("no Neuron device so far; the resources appear with the first one")
            return
        if self._settings.answer.injection == "cdi" and found.numbers:
            self._cdi.write(CDI_OWNER, cdi_spec(found, self._settings.answer))
        if found != self._offer:
            log.info(
                "%s: %d of %d devices can be used, %d cores each",
                found.hardware.instance_type,
                len(found.usable),
                found.hardware.devices,
                found.hardware.cores_per_device,
            )
        self._offer = found
        self._keeper.wake()

    # The keeper

    def _keep(self) -> float:
        try:
            self._look()
        except Excluded as error:
            self._end(str(error))
            return math.inf
        return min(KEEP_SECONDS, self._settings.guard_seconds)

    def _look(self) -> None:
        self._guard_if_due()
        world = self._allocator.world()
        # Once known, a watch that is away for a while is no reason to keep from kubelet that a chip has failed.
        self._pods_known = self._pods_known or self._sources.followed
        if world is None or self._guarded_at is None or not self._pods_known:
            return
        check_claims(self._settings.node_name, (world.listed or {}).values())
        for resource, plugin in self._plugins.items():
            if plugin.update(plugin_devices(world.offer, resource, withheld(world, resource))):
                healthy = sum(device.healthy for device in plugin.devices)
                log.info("%d of %d %s can be given", healthy, len(plugin.devices), resource.value)
        self._record(world)

    def _record(self, world: Snapshot) -> None:
        for record in records(world, time.time_ns()):
            self._attempt(f"annotations of pod {record.pod}", partial(self._sources.record, record))
        unusable = world.offer.unusable
        if unusable != self._unusable:

            def write() -> None:
                self._sources.write_unusable(unusable)
                self._unusable = unusable

            self._attempt("annotations of the node", write)

    def _guard_if_due(self) -> None:
        at = self._guarded_at
        if at is None or time.monotonic() - at >= self._settings.guard_seconds:
            self._guard()

    def _guard(self) -> None:
        """Look whether the DRA driver has the node. Raises Excluded, or DriverError if that may not be asked."""
        try:
            check_slices(self._sources.api, self._settings.node_name)
        except ApiError as error:
            if error.status == FORBIDDEN:
                raise Excluded(
                    f"whether the DRA driver publishes the same chips cannot be found out: {error.message or error}",
                    consequence="the device plugin does not run beside it, and ends",
                    remedy="grant list of resourceslices.resource.k8s.io to its service account",
                ) from error
            self._guard_error = str(error)
            log.warning("whether the DRA driver has this node is not known: %s; asked again", error)
            return
        self._guarded_at = time.monotonic()

    def _end(self, text: str) -> None:
        log.critical("%s", text)
        self.fatal = text
        self._on_fatal()

    def _attempt(self, what: str, action: Callable[[], None]) -> None:
        """Do it; what fails is logged once for as long as it stays the same, and tried again at the next look."""
        try:
            action()
        except DriverError as error:
            if self._trouble.get(what) != str(error):
                log.warning("%s cannot be written: %s", what, error)
            self._trouble[what] = str(error)
        else:
            self._trouble.pop(what, None)
