"""The DRA driver of one node: wires its parts together, and is the only module that knows them all.

Sources (host, health, own Node, kubelet's pods, prepared claims) post what they see to the ``NodeLoop``, which decides
what follows; ``_carry_out`` hands that to those who write. gRPC's workers prepare claims, and the reconciler compares.
Every loop is a ``Worker``, and the health checks look at all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from dra_driver.driver.claims.checkpoint import Checkpoint
from dra_driver.driver.claims.metadata import MetadataDirectory
from dra_driver.driver.claims.model import PlanSettings, PreparedClaims
from dra_driver.driver.claims.prepare import Preparer
from dra_driver.driver.claims.reconcile import Reconciler
from dra_driver.driver.claims.status_writer import ClaimStatusWriter
from dra_driver.driver.device_use import ContainerWatch, allocation_samples, allocations, claims_in_use
from dra_driver.driver.metrics import checkpoint_samples, offer_samples, samples
from dra_driver.driver.node.decide import DEVICE_HEALTH, NodeSnapshot, Wanted
from dra_driver.driver.node.loop import NodeLoop
from dra_driver.driver.node.review import SliceReview, desired, post_prepared, read_prepared
from dra_driver.driver.node_labels import LABELS
from dra_driver.driver.resourceslices.controller import SliceController, SlicePolicy
from dra_driver.driver.resourceslices.devices import Offer
from dra_driver.driver.resourceslices.holders import Holders, allocated_devices
from dra_driver.driver.resourceslices.instance import DriverInstance
from dra_driver.driver.resourceslices.kept import changes
from dra_driver.driver.settings import DriverSettings
from dra_driver.driver.tenure_file import TenureFile
from dra_driver.driver.workload import SeenServer
from dra_driver.kube.api.client import Transport
from dra_driver.kube.api.errors import ApiError
from dra_driver.kube.api.reachability import Reachability
from dra_driver.kube.api.resources import ResourceApi, WatchEvent
from dra_driver.kube.api.watch import Reflector
from dra_driver.kube.cdi import SpecDirectory
from dra_driver.kube.kubelet.devicehealth import DeviceHealth, HealthStream
from dra_driver.kube.kubelet.health import HealthServer
from dra_driver.kube.kubelet.server import KubeletPlugin
from dra_driver.kube.kubelet.versions import kubelet_problem
from dra_driver.kube.objects.core import Node
from dra_driver.neuron.exclusion import plugin_offers
from dra_driver.neuron.health.condition import DEVICE_PLUGIN, KUBELET, PARTITIONS
from dra_driver.neuron.health.faults import NodeHealth
from dra_driver.neuron.health.node_status import NodeStatusWriter
from dra_driver.neuron.health.watch import HealthWatch
from dra_driver.neuron.host.discover import boot_id
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.neuron.host.watch import HostWatch
from dra_driver.neuron.names import CDI_KIND, DRIVER_NAME
from dra_driver.util import runtime
from dra_driver.util.door import Door, own_addresses
from dra_driver.util.errors import DriverError
from dra_driver.util.metrics import Collector, Operations, Sample, serve
from dra_driver.util.worker import PATIENCE_SECONDS, Worker, stop_in_turn

if TYPE_CHECKING:
    from dra_driver.driver.ultraserver_watch import UltraServerWatch
from dra_driver.version import VERSION

COMPONENT: Final = "neuron-dra-driver"
"""Source of the Events on the Node."""
CALL_GRACE: Final = 10.0
"""Seconds that running calls of kubelet get at the end."""
REPAIR_GRACE: Final = 5.0
"""Seconds that a repair gets at the end: wherever it stops, the next start goes on."""
THREAD_GRACE: Final = 1.0
"""Seconds that a thread gets which may be waiting for the API server or the host: it writes nothing any more."""
LAST_WORD_GRACE: Final = 2.0
"""Seconds for the last write to the Node, when all that kubelet waits for is done."""
DEVICE_HEALTH_SECONDS: Final = 4.0
"""Between two lists of the devices' health for kubelet. When an instance of the driver ends, kubelet forgets what the
next one has said already, until that one says it again."""
NODE_PATIENCE: Final = 3.0
"""Seconds that the start waits for the Node object; after that it is followed in the background."""

CUT_OFF: Final = (
    "the published slices stay, but claims of new pods on this node cannot be prepared until it does; check that the "
    "API server is up, and that the driver's pod can reach it: routes, security groups, network policies, proxies"
)
"""What it means that the API server does not answer, and what to do."""

log = logging.getLogger(__name__)


class NodeAgent:
    """One node's agent.

    Args:
        settings: what an administrator sets.
        transport: access to the API server.
        on_fatal: called when the agent cannot go on and the process should end with an error.
    """

    def __init__(self, settings: DriverSettings, transport: Transport, on_fatal: Callable[[], None]) -> None:
        self._settings = settings
        self._on_fatal = on_fatal
        self.fatal = False
        self._last = Wanted()
        """What was carried out last."""
        self._scan_labels: Mapping[str, str] | None = None
        """Of the scanning thread: with which it reads the host."""
        self._operations = Operations()
        self._api_server = Reachability(transport, settings.node_name, CUT_OFF)
        api = ResourceApi(transport)

        self._node = _get_node(api, settings.node_name)
        self._loop = NodeLoop(settings, self._carry_out)
        self._host = HostWatch(settings.host_root, self._known_labels, self._on_inventory, settings.rescan_seconds)
        self._health_watch = HealthWatch(
            settings.host_root,
            lambda: self._host.current,
            settings.health_dir,
            settings.health_hints_dir,
            self._on_health,
            settings.rescan_seconds,
        )
        self._node_watch: Reflector[Node] = Reflector(
            "own node",
            lambda: api.list_nodes(settings.node_name),
            lambda version, seconds: api.watch_nodes(settings.node_name, version, seconds),
            self._on_nodes,
            self._on_node_event,
        )
        self._server_watch: UltraServerWatch | None = None
        if settings.ultraserver_namespace is not None:
            from dra_driver.driver.ultraserver_watch import UltraServerWatch  # with the kinds, which few nodes need

            self._server_watch = UltraServerWatch(
                transport, settings.ultraserver_namespace, settings.node_name, self._on_server
            )
        self._tenure = TenureFile(settings.state_dir, settings.node_name)
        boot = boot_id(settings.host_root)
        cdi = SpecDirectory(settings.cdi_root, CDI_KIND, boot)
        self._checkpoint = Checkpoint(settings.state_dir, boot_id=boot, cdi=cdi)
        self._review = SliceReview(
            self._loop,
            read_prepared=lambda: read_prepared(self._checkpoint, self._loop),
            allocated=lambda: allocated_devices(api, settings.node_name),
            registered=lambda: self._plugin.registration.problem() is None,
            holders=Holders(api, self._checkpoint, settings.node_name).of,
        )
        self._slices = SliceController(
            api,
            DRIVER_NAME,
            settings.node_name,
            instance=DriverInstance.here(boot),
            source=self._review,
            policy=SlicePolicy(shared_counters=settings.shared_counters),
        )

        self._node_status = NodeStatusWriter(
            api,
            settings.node_name,
            COMPONENT,
            present_label=settings.present_label,
            labels=[LABELS],
            writes=settings.node_status,
        )

        plan_settings = PlanSettings(
            settings.node_name, settings.device_numbering, settings.contiguity, settings.health_policy.prepare
        )
        metadata = MetadataDirectory(settings.state_dir / "metadata")
        self._claim_status: ClaimStatusWriter | None = None
        if settings.claim_status:
            self._claim_status = ClaimStatusWriter(
                api,
                settings.node_name,
                self._known_health,
                lambda: self._loop.decision()[2].whole or self._host.current,
            )
        self._preparer = Preparer(
            api,
            self._checkpoint,
            cdi,
            self._host.now,
            plan_settings,
            metadata=metadata,
            operations=self._operations,
            facts=lambda: self._loop.wanted.facts,
            status=self._claim_status,
            rights_changed=lambda: self._slices.trigger("the API server's answer about a claim shows other rights"),
        )
        self._reconciler = Reconciler(
            self._checkpoint,
            cdi,
            api,
            self._host.now,
            settings.node_name,
            listed=lambda: claims_in_use(settings.plugins_dir.parent),
            metadata=metadata,
            prepared=self._on_prepared,
        )
        self._containers = ContainerWatch(
            settings.plugins_dir.parent,
            lambda: self._checkpoint.plans if settings.metrics_port >= 0 else (),
            self._on_plugin_pods,
        )
        self._device_health = HealthStream(self._devices_now, period=DEVICE_HEALTH_SECONDS)
        self._plugin = KubeletPlugin(
            self._preparer,
            DRIVER_NAME,
            plugin_dir=settings.state_dir,
            registrar_dir=settings.registrar_dir,
            pod_uid=settings.pod_uid,
            on_registered=self._on_registered,
            on_error=self._on_plugin_error,
            health=self._device_health,
        )
        self._door = Door(own_addresses(settings.node_address))
        self._health = HealthServer(
            settings.health_port,
            settings.health_address,
            {"": self.readiness, "liveness": self.liveness, "readiness": self.readiness},
            door=self._door,
        )

    # Life

    def start(self) -> None:
        """Publish, repair, then let kubelet in.

        Beside a device plugin too: kubelet has to be able to end pods with claims, and to offer the chips again takes
        no restart then. DriverError when a socket or a port cannot be had.
        """
        settings = self._settings
        log.info("neuron-dra-driver %s on node %s", VERSION, settings.node_name)
        # What an instance before this one has prepared is on offer from the first publication on, whatever is set now.
        read_prepared(self._checkpoint, self._loop)
        tenure = self._tenure.read()
        self._loop.post(health=self._health_watch.current, tenure=tenure if self._server_watch is not None else None)
        self._api_server.worker.start()
        self._slices.start()
        self._node_status.worker.start()
        if self._node is not None:
            self._saw(self._node)
        self._loop.worker.start()
        self._containers.start()
        self._host.start()
        self._health_watch.start()
        host = self._host.current
        if host.emulated:
            log.warning("EMULATED hardware (%s): pods run, but there is no Neuron device", host.instance_type)
        self._node_watch.start()
        try:
            self._reconciler.repair()
        except DriverError as error:
            # Serving regardless lets prepare and unprepare report the problem, and recovers without a restart.
            log.error("prepared claims cannot be checked: %s", error)  # noqa: TRY400 # it explains itself
        # Before kubelet is let in: what happens before metrics are served is not counted.
        if settings.metrics_port >= 0:
            collector = Collector(self._operations, self.samples)
            serve(self._door, collector, settings.metrics_address, settings.metrics_port)
        self._device_health.refresh()
        self._plugin.start()
        self._reconciler.worker.start()
        if self._claim_status is not None:
            self._claim_status.worker.start()
        self._health.start()

    def stop(self) -> None:
        """Stop writing, finish what kubelet asked for, remove the own sockets; slices and prepared claims stay."""
        log.info("stopping; slices and prepared claims stay")
        stop_in_turn(
            (self._loop.worker.stop, THREAD_GRACE),
            (self._slices.stop, THREAD_GRACE),
            (self._node_status.worker.stop, THREAD_GRACE),
            (self._plugin.stop, CALL_GRACE),
            (self._reconciler.worker.stop, REPAIR_GRACE),
            *([(self._claim_status.worker.stop, THREAD_GRACE)] if self._claim_status is not None else []),
            (self._node_watch.stop, THREAD_GRACE),
            *([(self._server_watch.stop, THREAD_GRACE)] if self._server_watch is not None else []),
            (self._api_server.worker.stop, THREAD_GRACE),
            (self._containers.worker.stop, THREAD_GRACE),
            (self._last_word, LAST_WORD_GRACE),
            (self._health_watch.stop, THREAD_GRACE),
            (self._host.stop, THREAD_GRACE),
            (self._door.stop, THREAD_GRACE),
        )
        self._checkpoint.close()

    def _last_word(self, seconds: float) -> None:
        if not self.fatal and not self._plugin.succeeded():
            self._node_status.last_word(seconds)

    # What the sources say

    def _known_labels(self) -> Mapping[str, str]:
        self._scan_labels = self._loop.sources.labels
        if self._scan_labels is None:
            raise DriverError("the Node object has not been read yet", consequence="label attributes are not known")
        return self._scan_labels

    def _on_inventory(self, inventory: NodeInventory) -> None:
        self._loop.post(inventory=inventory, scan_labels=self._scan_labels)

    def _known_health(self) -> NodeHealth | None:
        """As the watch reported it: what it knows may grow old for a moment, and nobody hears when that is over."""
        sources = self._loop.sources
        return sources.health if sources.health_decided else None

    def _on_health(self, chips: NodeHealth) -> None:
        self._loop.post(health=chips, health_decided=True)

    def _on_nodes(self, nodes: list[Node]) -> None:
        for node in nodes:
            self._saw(node)

    def _on_node_event(self, event: WatchEvent[Node]) -> None:
        if event.object is not None and event.type != "DELETED":
            self._saw(event.object)

    def _saw(self, node: Node) -> None:
        self._node_status.saw(node)
        labels, offers = node.metadata.labels, plugin_offers(node)
        version = node.status.node_info.kubelet_version
        problem = kubelet_problem(version)
        before = self._loop.update(
            lambda sources: replace(
                sources,
                labels=labels,
                kubelet_problem=problem,
                plugin_offers=offers,
                # What it offered until a moment ago counts until its pods are known: it may be back at once.
                device_plugin=offers or sources.device_plugin,
            )
        )
        if problem and problem != before.kubelet_problem:
            log.warning("%s", problem)
        elif before.kubelet_problem and not problem:
            log.info("kubelet is %s now: all devices are offered again", version)
        if before.plugin_offers != offers:
            self._containers.ask_later()
        if before.labels != labels:
            self._host.rescan()

    def _on_server(self, seen: Callable[[], SeenServer | None]) -> None:
        def change(sources: NodeSnapshot) -> NodeSnapshot:
            server = seen()
            return sources if server is None else replace(sources, server=server)

        self._loop.update(change)

    def _on_plugin_pods(self) -> None:
        pods = self._containers.plugin_pods
        self._loop.update(lambda sources: replace(sources, plugin_pods=pods, device_plugin=sources.plugin_offers))

    def _on_prepared(self, claims: PreparedClaims) -> None:
        post_prepared(claims, self._loop)
        if self._claim_status is not None:
            boot = self._checkpoint.boot_id
            self._claim_status.catch_up([one.plan for one in claims.entries.values() if not one.outlived(boot)])

    def _on_registered(self, registered: bool, _error: str) -> None:
        # kubelet deletes the node's slices when it starts, just before it registers drivers again.
        if registered:
            self._slices.trigger("kubelet registered the driver")

    def _on_plugin_error(self, error: BaseException) -> None:
        log.critical("kubelet can no longer reach the driver, so it exits: %s", error)
        self.fatal = True
        self._on_fatal()

    # What follows

    def _carry_out(self, wanted: Wanted) -> None:
        """Hand on what was decided; each writer compares it with what it got last."""
        before = self._last
        trouble = self._keep_tenure(wanted)
        if wanted.published:
            self._slices.set_desired(desired(wanted))
        if wanted.inventory is not None:
            self._node_status.label(LABELS, wanted.labels)
        if self._server_watch is not None and wanted.server is not None:
            self._server_watch.follow(wanted.server)
        self._node_status.want(wanted.health, wanted.present)
        if wanted.kubelet_problem is not None:
            self._node_status.problem(KUBELET, wanted.kubelet_problem)
        if wanted.label_problem is not None:
            self._node_status.problem(PARTITIONS, wanted.label_problem)
        if wanted.published and (wanted.held_back.problem or before.held_back.problem):
            self._node_status.problem(DEVICE_PLUGIN, wanted.held_back.problem)
        self._device_health.refresh()
        if wanted.health != before.health and self._claim_status is not None:
            self._claim_status.health_changed()
        _log_changes(before, wanted)
        self._last = wanted if wanted.published else replace(wanted, held_back=before.held_back)
        if trouble is not None:
            raise trouble

    def _keep_tenure(self, wanted: Wanted) -> DriverError | None:
        """Keep whose the node is for the next run; why that fails: what slices say keeps others away all the same."""
        if self._server_watch is None or wanted.server is not None:
            try:
                self._tenure.keep(wanted.tenure)
            except DriverError as error:
                return error
        return None

    def _devices_now(self) -> tuple[DeviceHealth, ...]:
        """For kubelet; raises what keeps from knowing it: all devices are unknown then."""
        wanted = self._loop.wanted
        if error := wanted.failures.get(DEVICE_HEALTH):
            raise error
        return wanted.device_health

    # Health and metrics

    def liveness(self) -> list[str]:
        """Problems that a restart of the driver may mend; [] when there are none."""
        status = self._slices.status
        # A checkpoint that cannot be written is no reason for a restart: a full disk stays full, and without the driver
        # nothing is unprepared.
        problems = [*self._plugin.problems(), *filter(None, [self._checkpoint.unusable])]
        problems += [text for worker in self._workers if (text := worker.stuck(PATIENCE_SECONDS))]
        if status.failing_since is not None and runtime.monotonic() - status.failing_since > PATIENCE_SECONDS:
            problems.append(f"slices have not been published for long: {status.last_error}")
        return problems

    def readiness(self) -> list[str]:
        """All that keeps this instance from doing its work right now; [] when there is nothing."""
        status = self._slices.status
        problems = [*self._plugin.problems(), *filter(None, [self._checkpoint.unusable, self._checkpoint.unwritable])]
        problems += [text for worker in self._workers if (text := worker.problem())]
        problems += filter(None, [self._api_server.problem()])
        held_back = self._last.held_back
        if held_back.chips.issuperset(self._host.current.chip_indexes):
            # Chips of single pods are no reason: the others are offered, and an update need not wait for those pods.
            problems += filter(None, [held_back.problem])
        if not status.published:
            # Before the Node object was read nothing can be tried.
            reason = status.last_error or self._node_watch.last_error or self._containers.problem or "not tried yet"
            problems.append(f"the slices are not published: {reason}")
        return problems

    @property
    def _workers(self) -> tuple[Worker, ...]:
        others = (
            self._loop,
            self._host,
            self._health_watch,
            self._node_watch,
            self._node_status,
            self._reconciler,
            self._plugin,
        )
        return (
            *self._slices.workers,
            *(part.worker for part in (*others, self._containers, self._api_server, self._door)),
            *([self._claim_status.worker] if self._claim_status is not None else []),
            *(self._server_watch.workers if self._server_watch is not None else ()),
        )

    def samples(self) -> Iterator[Sample]:
        """The numbers of now, for Prometheus."""
        host = self._host.current
        yield from samples(host, self._slices.status, self._plugin.registration)
        yield from offer_samples(self._loop.wanted)
        yield from self._node_status.samples()
        yield from self._health_watch.samples()
        yield from checkpoint_samples(self._checkpoint.counts, self._reconciler.counts)
        if self._checkpoint.counts is not None:
            listed = self._containers.listed
            yield from allocation_samples(allocations(self._checkpoint.plans, listed, self._reconciler.consumers))


def _log_changes(before: Wanted, wanted: Wanted) -> None:
    """Say what is decided otherwise than before."""
    if wanted.label_problem and wanted.label_problem != before.label_problem:
        log.warning("%s", wanted.label_problem)
    workload, now = (one.tenancy.workload if one.tenancy is not None else None for one in (before, wanted))
    if now is not None and (workload is None or now.uid != workload.uid):
        log.info("the node is allocated to the UltraServer workload %s", now)
    elif workload is not None and now is None:
        log.info("the node is no longer allocated to the UltraServer workload %s", workload)
    if not wanted.published or wanted.inventory is None:
        return
    if wanted.held_back.problem and wanted.held_back.problem != before.held_back.problem:
        log.warning("%s", wanted.held_back.problem)
    elif before.held_back.problem and not wanted.held_back.problem:
        log.info("no device plugin has chips of this node anymore: all are offered again")
    for text in changes(before.keeping, wanted.keeping):
        log.info("%s", text)
    former = (before.published, before.inventory, before.offer.partitions)
    if former != (True, wanted.inventory, wanted.offer.partitions):
        _log_offer(wanted.offer, wanted.inventory)


def _log_offer(offered: Offer, inventory: NodeInventory) -> None:
    log.info(
        "%s, kernel driver %s: %d chips are offered as %s (%d devices)",
        inventory.instance_type or "unknown instance type",
        inventory.driver_version or "not loaded",
        len(inventory.devices),
        offered.partitions,
        len(offered.devices),
    )
    if offered.problem:
        log.warning(
            "the whole node is not offered: %s; it is offered again when all chips are usable. --partitions chip "
            "offers the other chips in the meantime",
            offered.problem,
        )
    for word in offered.absent:
        log.info("%s hosts do not have %s, so it is not offered", inventory.instance_type or "these", word)


def _get_node(api: ResourceApi, name: str) -> Node | None:
    """The own Node object, or None when it cannot be had soon: then it is followed in the background."""
    deadline = runtime.monotonic() + NODE_PATIENCE
    while True:
        try:
            return api.get_node(name, timeout=NODE_PATIENCE)
        except ApiError as error:
            if runtime.monotonic() >= deadline:
                log.warning("the Node object is not known yet: %s", error)
                return None
            runtime.sleep(0.3)
