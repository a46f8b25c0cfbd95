"""One node's device plugin: its sources of facts about the node, and the agent that wires everything.

Threads: the host watch rescans sysfs, the health watch looks for faults, an informer watches the node's pods, the node
watch the Node, on which the status writer says what is wrong, each resource maintains its socket, and the keeper tells
kubelet what is available, lists the unusable chips on the Node, and watches for the DRA driver. What was handed out is
recorded by a thread that may wait for the webhooks of tenants, so that the keeper does not.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from dra_driver.kube.api.client import Transport
from dra_driver.kube.api.codec import Resource as ApiResource
from dra_driver.kube.api.errors import ApiError
from dra_driver.kube.api.resources import Collection, ResourceApi, WatchEvent
from dra_driver.kube.api.watch import Informer, Reflector
from dra_driver.kube.cdi import SpecDirectory
from dra_driver.kube.kubelet.devicecheckpoint import AllocatedContainer, DeviceCheckpoint
from dra_driver.kube.kubelet.deviceplugin import DIRECTORY, DevicePlugin
from dra_driver.kube.kubelet.health import HealthServer
from dra_driver.kube.kubelet.podresources import PodDevices
from dra_driver.kube.objects.core import Node
from dra_driver.legacy.device_plugin.allocator import OPERATIONS, Allocator, ResourceAnswers
from dra_driver.legacy.device_plugin.devices import (
    CDI_KIND,
    CDI_OWNER,
    PluginOffer,
    cdi_spec,
    offer,
    plugin_devices,
    unhealthy,
)
from dra_driver.legacy.device_plugin.record_writer import RecordWriter
from dra_driver.legacy.device_plugin.recording import Record, records, unusable_annotations
from dra_driver.legacy.device_plugin.settings import DevicePluginSettings
from dra_driver.legacy.device_plugin.snapshot import PODS, NodeSnapshot, PluginPod, withheld
from dra_driver.legacy.rules import NeuronResource
from dra_driver.neuron.exclusion import Excluded, check_claims, check_slices, node_pods
from dra_driver.neuron.health.faults import NodeHealth
from dra_driver.neuron.health.node_status import NodeStatusWriter, chips_present
from dra_driver.neuron.health.watch import HealthWatch
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.neuron.host.watch import HostWatch
from dra_driver.util.door import Door, own_addresses
from dra_driver.util.errors import DriverError
from dra_driver.util.metrics import Collector, Operations, Sample, serve
from dra_driver.util.worker import PATIENCE_SECONDS, Worker, stop_in_turn
from dra_driver.version import VERSION

REQUEST_SECONDS: Final = 3.0
"""Short, since kubelet waits meanwhile and starts no other pod."""

WRITE_TRIES: Final = 4
"""To change the Node, which others change too: a chip that fails becomes a condition at the same moment."""

NODES: Final = ApiResource(Node, "Node", "nodes", ("v1",))


class NodeSources:
    """The API server and kubelet, as the allocator (``allocator.Sources``) and the agent use them.

    Args:
        settings: of the device plugin.
        transport: the API server.
        offered: returns the node's current devices.
        registrations: returns how often kubelet has accepted the plugin.
        changed: called when a pod changes.
    """

    def __init__(
        self,
        settings: DevicePluginSettings,
        transport: Transport,
        offered: Callable[[], PluginOffer | None],
        registrations: Callable[[], int],
        changed: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._offered = offered
        self._registrations = registrations
        self._checkpoint = DeviceCheckpoint(
            settings.kubelet_directory / DIRECTORY, (resource.value for resource in NeuronResource)
        )
        query = (("fieldSelector", f"spec.nodeName={settings.node_name}"),)
        self._pods = Collection(transport, PODS, query, REQUEST_SECONDS)
        self._nodes = Collection(transport, NODES, (), REQUEST_SECONDS)
        self._informer = Informer("pods of this node", Collection(transport, PODS, query), changed)
        self._labels: Mapping[str, str] | None = None
        self.api = ResourceApi(transport)

    def start(self) -> None:
        """Start watching the pods."""
        self._informer.start()

    def stop(self, timeout: float) -> None:
        """Stop within ``timeout`` seconds."""
        self._informer.stop(timeout)

    @property
    def worker(self) -> Worker:
        """The loop that watches the pods, for health reports."""
        return self._informer.worker

    def problems(self) -> list[str]:
        """Why the pods of the node are not known; [] if they are."""
        if self._informer.current:
            return []
        return [f"the pods of the node are not followed: {self._informer.last_error or 'not read yet'}"]

    @property
    def followed(self) -> bool:
        """Whether the pods are known and watched."""
        return self._informer.current

    def labels(self) -> Mapping[str, str]:
        """Labels of the Node, read once, as the ones in use never change. Raises ApiError while they are unknown."""
        if self._labels is None:
            self._labels = dict(self._nodes.get("", self._settings.node_name).metadata.labels or {})
        return self._labels

    def write_unusable(self, unusable: tuple[int, ...]) -> bool:
        """Make the Node's annotations list these chips; returns whether that took a write. Raises ApiError."""
        for tries in range(1, WRITE_TRIES + 1):
            node = self._nodes.get("", self._settings.node_name)
            change = unusable_annotations(node.metadata.annotations or {}, unusable)
            if not change:
                return False
            # Only this version: the list has entries by hand too, and one that was added just now must not get lost.
            version = {"uid": node.metadata.uid, "resourceVersion": node.metadata.resource_version}
            try:
                self._nodes.patch("", self._settings.node_name, {"metadata": {**version, "annotations": change}})
            except ApiError as error:
                if error.status != 409 or tries == WRITE_TRIES:
                    raise
            else:
                break
        return True

    # allocator.Sources

    def pods(self) -> Sequence[PluginPod]:
        """Pods from the watch."""
        return self._informer.objects()

    def list_pods(self) -> Sequence[PluginPod]:
        """Pods as currently stored."""
        return self._pods.list_all()[0]

    def get_pod(self, namespace: str, name: str) -> PluginPod:
        """One pod as currently stored."""
        return self._pods.get(namespace, name)

    def listed(self) -> Sequence[PodDevices]:
        """The pods and devices that kubelet lists."""
        return node_pods(self._settings.kubelet_directory)

    def allocations(self) -> Sequence[AllocatedContainer]:
        """To containers, as kubelet's checkpoint has them. Raises DriverError if that is too long."""
        return self._checkpoint.containers()

    def registrations(self) -> int:
        """How often kubelet has accepted the plugin."""
        return self._registrations()

    def offer(self) -> PluginOffer | None:
        """The node's devices."""
        return self._offered()

    def record(self, record: Record) -> None:
        """Write annotations of a pod, and nothing else; a pod of that name with another UID is left alone."""
        change = {"metadata": {"uid": record.pod.uid, "annotations": dict(record.annotations)}}
        try:
            self._informer.wrote(self._pods.patch(record.pod.namespace, record.pod.name, change))
        except ApiError as error:
            if not (error.object_missing or error.status == 409):  # it has ended, so there is nothing to record
                raise


KEEP_SECONDS: Final = 10.0
"""Between rounds without a trigger: kubelet does not say when its allocations change."""
SETTLE_SECONDS: Final = 0.05
"""Between a change and the round that handles it, so that several changes are handled together."""
CALL_GRACE: Final = 5.0
"""Seconds that running calls of kubelet get at shutdown, for each resource."""
THREAD_GRACE: Final = 1.0
"""Seconds that a thread gets at shutdown that may be waiting for the API server or the host."""
LAST_WORD_GRACE: Final = 2.0
"""Seconds for the last write to the Node, when all that kubelet waits for is done."""
FORBIDDEN: Final = 403
FORBIDDEN_SECONDS: Final = 600.0
"""For so long after the DRA driver was looked for, a refusal to tell of it ends nothing."""
COMPONENT: Final = "neuron-device-plugin"
"""Source of the Events."""

log = logging.getLogger(__name__)


class DevicePluginAgent:
    """One node's device plugin.

    Args:
        settings: what an administrator sets.
        transport: access to the API server.
        on_fatal: called when the plugin cannot continue and the process should exit with an error.
    """

    def __init__(self, settings: DevicePluginSettings, transport: Transport, on_fatal: Callable[[], None]) -> None:
        self._settings = settings
        self._on_fatal = on_fatal
        self.fatal = ""
        """Why it cannot continue, or ""."""
        self._offer: PluginOffer | None = None
        self._inventory: NodeInventory | None = None
        """The last one that the offer was made of."""
        self._taking = threading.Lock()
        """Held while inventory and health are turned into the offer and the CDI file."""
        self._keeper = Worker("keeping kubelet's count", self._keep, settle=SETTLE_SECONDS)
        self._cdi = SpecDirectory(settings.cdi_root, CDI_KIND)
        self._sources = NodeSources(settings, transport, lambda: self._offer, self._registrations, self._keeper.wake)
        self._allocator = Allocator(self._sources, settings.answer, self._keeper.wake)
        self._records = RecordWriter(self._sources.record, self._sources.pods)
        self._operations = Operations(OPERATIONS)
        self._plugins = {
            resource: DevicePlugin(
                resource.value,
                ResourceAnswers(self._allocator, resource, self._operations, self._renew),
                kubelet_directory=settings.kubelet_directory,
                name=f"neuron-dra-driver-{resource.value.partition('/')[2]}",
                interval=settings.look_seconds,
            )
            for resource in NeuronResource
        }
        self._host = HostWatch(settings.host_root, self._sources.labels, self._on_inventory, settings.rescan_seconds)
        self._chips = HealthWatch(
            settings.host_root,
            lambda: self._host.current,
            settings.state_dir / "health",
            settings.health_hints_dir,
            self._on_health,
            settings.rescan_seconds,
        )
        self._sick = unhealthy(self._chips.current)
        """See ``PluginOffer``; from the beginning what was known before a restart."""
        api, node_name = self._sources.api, settings.node_name
        self._node_status = NodeStatusWriter(api, node_name, COMPONENT)
        self._node_watch: Reflector[Node] = Reflector(
            "own node",
            lambda: api.list_nodes(node_name),
            lambda version, seconds: api.watch_nodes(node_name, version, seconds),
            self._on_nodes,
            self._on_node_event,
        )
        self._annotations: Mapping[str, str] | None = None
        """Of the Node, from the watch; None: not known yet."""
        self._guarded_at: float | None = None
        self._guard_error = "not tried yet"
        self._pods_known = False
        self._unusable: tuple[int, ...] | None = None
        """The unusable chips last written to the Node's annotations."""
        self._unusable_at = -math.inf
        """When that was (monotonic clock)."""
        self._unusable_error = ""
        """Why the Node's annotations could not be written last, or ""."""
        checks = {"": self.readiness, "liveness": self.liveness, "readiness": self.readiness}
        self._door = Door(own_addresses(settings.node_address))
        self._health = HealthServer(settings.health_port, settings.health_address, checks, door=self._door)

    def start(self) -> None:
        """Start. Raises Excluded if the DRA driver has the chips, DriverError if a port or socket is not available."""
        log.info("neuron-dra-driver %s, device plugin on node %s", VERSION, self._settings.node_name)
        self._guard()
        self._sources.start()
        self._node_status.worker.start()
        self._host.start()
        self._chips.start()
        self._node_watch.start()
        if self._host.current.emulated:
            kind = self._host.current.instance_type
            log.warning("EMULATED hardware (%s): pods run, but there is no Neuron device", kind)
        self._health.start()
        if self._settings.metrics_port >= 0:
            text = "Time to answer one request of kubelet."
            collector = Collector(self._operations, self._samples, "device_plugin_request_seconds", text)
            serve(self._door, collector, self._settings.metrics_address, self._settings.metrics_port)
        for plugin in self._plugins.values():
            plugin.start()
        self._records.worker.start()
        self._keeper.start()

    def stop(self) -> None:
        """Finish kubelet's calls and remove the plugin's sockets; containers keep their devices."""
        log.info("stopping; running containers keep their devices")
        self._keeper.stop(0)
        self._records.worker.stop(0)
        stop_in_turn(
            *((plugin.stop, CALL_GRACE) for plugin in self._plugins.values()),
            (self._keeper.stop, CALL_GRACE),
            (self._records.worker.stop, THREAD_GRACE),
            (self._sources.stop, THREAD_GRACE),
            (self._node_watch.stop, THREAD_GRACE),
            (self._node_status.worker.stop, THREAD_GRACE),
            (self._last_word, LAST_WORD_GRACE),
            (self._chips.stop, THREAD_GRACE),
            (self._host.stop, THREAD_GRACE),
            (self._door.stop, THREAD_GRACE),
        )

    def _registrations(self) -> int:
        return sum(plugin.registrations for plugin in self._plugins.values())

    def _last_word(self, seconds: float) -> None:
        if not self.fatal and not any(plugin.succeeded() for plugin in self._plugins.values()):
            self._node_status.last_word(seconds)

    # Health and metrics

    def liveness(self) -> list[str]:
        """Problems that a restart may solve; [] if there are none."""
        found = [self.fatal, *(worker.stuck(PATIENCE_SECONDS) for worker in self._workers)]
        return [text for text in found if text]

    def readiness(self) -> list[str]:
        """Everything that keeps the plugin from working right now; [] if there is nothing."""
        found = [self.fatal, *self._sources.problems(), *(plugin.problem() for plugin in self._plugins.values())]
        if self._guarded_at is None:
            found.append(f"it is not known whether the DRA driver uses this node: {self._guard_error}")
        if self._allocator.checkpoint_trouble:
            found.append(self._allocator.checkpoint_trouble)
        if self._allocator.kubelet_trouble:
            found.append(f"kubelet does not list its pods: {self._allocator.kubelet_trouble}")
        found += [worker.problem() for worker in self._workers]
        return [text for text in found if text]

    @property
    def _workers(self) -> tuple[Worker, ...]:
        plugins = (plugin.worker for plugin in self._plugins.values())
        others = (self._host, self._chips, self._sources, self._node_watch, self._node_status, self._door)
        return (self._keeper, self._records.worker, *(part.worker for part in others), *plugins)

    def _samples(self) -> Iterator[Sample]:
        """The metrics beside the durations."""
        yield from self._chips.samples()
        yield from self._node_status.samples()
        for resource, plugin in self._plugins.items():
            labels, devices = (("resource", resource.value),), plugin.devices
            for name, text, value in (
                ("devices", "Devices that kubelet counts.", len(devices)),
                ("healthy_devices", "Those of them that can be allocated.", sum(device.healthy for device in devices)),
                ("followed", "1 while kubelet watches the devices.", plugin.in_use),
            ):
                yield Sample(f"device_plugin_{name}", text, float(value), labels)
            text = "Times that kubelet has accepted the plugin."
            yield Sample("device_plugin_registrations", text, float(plugin.registrations), labels, "counter")

    # The host

    def _renew(self) -> None:
        # The CDI file contains device numbers, and the kernel module may have been reloaded since the last scan.
        while self._settings.answer.injection == "cdi":
            scanned = self._host.current
            inventory = self._host.now()
            with self._taking:
                # A scan that has ended meanwhile is newer, and what it found is not told again.
                if self._host.current is scanned:
                    self._have(inventory)
                    break

    def _on_inventory(self, inventory: NodeInventory) -> None:
        with self._taking:
            self._have(inventory)

    def _have(self, inventory: NodeInventory) -> None:
        self._inventory = inventory
        self._take(inventory)
        self._node_status.want(NodeHealth(), chips_present(inventory))

    def _on_health(self, health: NodeHealth) -> None:
        with self._taking:
            inventory = self._inventory
            self._sick = unhealthy(health)
            if inventory is not None:
                self._take(inventory)
        self._node_status.want(health, None)  # whether there are chips, the inventory alone tells

    def _on_nodes(self, nodes: list[Node]) -> None:
        for node in nodes:
            self._saw(node)

    def _on_node_event(self, event: WatchEvent[Node]) -> None:
        if event.object is not None and event.type != "DELETED":
            self._saw(event.object)

    def _saw(self, node: Node) -> None:
        self._annotations = node.metadata.annotations or {}
        if self._is_edited(self._unusable):
            self._keeper.wake()
        self._node_status.saw(node)

    def _is_edited(self, unusable: tuple[int, ...] | None) -> bool:
        """Whether the Node no longer says what was written: somebody edited it, or it was made anew."""
        known = self._annotations
        return known is not None and unusable is not None and bool(unusable_annotations(known, unusable))

    def _take(self, inventory: NodeInventory) -> None:
        found = offer(inventory, self._offer, self._sick)
        if found is None:
            log.info("no Neuron device so far; the resources appear with the first one")
            return
        if self._settings.answer.injection == "cdi" and found.numbers:
            self._cdi.write(CDI_OWNER, cdi_spec(found, self._settings.answer))
        before = self._offer
        if before is None or (found.hardware, found.usable) != (before.hardware, before.usable):
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
        # Once the pods are known, a broken watch is no reason to hide a failed chip from kubelet.
        self._pods_known = self._pods_known or self._sources.followed
        if world is None or self._guarded_at is None or not self._pods_known:
            return
        check_claims(self._settings.node_name, (world.listed or {}).values())
        for resource, plugin in self._plugins.items():
            if plugin.update(plugin_devices(world.offer, resource, withheld(world, resource))):
                healthy = sum(device.healthy for device in plugin.devices)
                log.info("%d of %d %s can be given", healthy, len(plugin.devices), resource.value)
        self._record(world)

    def _record(self, world: NodeSnapshot) -> None:
        self._records.want(records(world, time.time_ns()))
        unusable = world.offer.unusable
        calm = time.monotonic() - self._unusable_at >= self._settings.guard_seconds
        if unusable != self._unusable or (calm and self._is_edited(unusable)):
            self._list_unusable(unusable)

    def _list_unusable(self, unusable: tuple[int, ...]) -> None:
        """A failure is logged once for as long as it stays the same, and retried in the next round."""
        try:
            self._sources.write_unusable(unusable)
        except DriverError as error:
            if str(error) != self._unusable_error:
                log.warning("annotations of the node cannot be written: %s", error)
            self._unusable_error = str(error)
        else:
            self._unusable, self._unusable_at = unusable, time.monotonic()
            self._unusable_error = ""

    def _guard_if_due(self) -> None:
        at = self._guarded_at
        if at is None or time.monotonic() - at >= self._settings.guard_seconds:
            self._guard()

    def _guard(self) -> None:
        """Check whether the DRA driver has the node. Raises Excluded, also if this plugin may not find out."""
        try:
            check_slices(self._sources.api, self._settings.node_name)
        except ApiError as error:
            # An API server that has just started refuses for a moment what it will allow.
            known = self._guarded_at is not None and time.monotonic() - self._guarded_at < FORBIDDEN_SECONDS
            if error.status == FORBIDDEN and not known:
                raise Excluded(
                    f"it is not known whether the DRA driver publishes the same chips: {error.message or error}",
                    consequence="the device plugin must not run beside it, so it exits",
                    remedy="grant list of resourceslices.resource.k8s.io to its service account",
                ) from error
            self._guard_error = str(error)
            log.warning("it is not known whether the DRA driver uses this node: %s; asked again", error)
            return
        self._guarded_at = time.monotonic()

    def _end(self, text: str) -> None:
        log.critical("%s", text)
        self.fatal = text
        self._on_fatal()
