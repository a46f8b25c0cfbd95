"""Claims, hosts and an API server as values, and one node's claim handling on real files."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from dra_driver.driver.claims import planner
from dra_driver.driver.claims.checkpoint import Checkpoint
from dra_driver.driver.claims.metadata import MetadataDirectory
from dra_driver.driver.claims.model import Consumers, Needs, Plan, PlanSettings, Pods, PreparedClaims, Unhealthy
from dra_driver.driver.claims.prepare import Preparer
from dra_driver.driver.claims.reconcile import Reconciler
from dra_driver.driver.claims.situation import NodeFacts, Situation, claim_facts
from dra_driver.driver.claims.status_writer import ClaimStatusWriter
from dra_driver.kube.api.codec import decode
from dra_driver.kube.api.errors import ApiError
from dra_driver.kube.api.resources import ResourceApi
from dra_driver.kube.cdi import Spec, SpecDirectory
from dra_driver.kube.kubelet.dra import ClaimRef
from dra_driver.kube.objects.core import (
    Container,
    ContainerClaim,
    ContainerExtendedResourceRequest,
    Pod,
    PodExtendedResourceClaimStatus,
    PodResourceClaim,
    PodResourceClaimStatus,
    PodSpec,
    PodStatus,
    ResourceRequirements,
)
from dra_driver.kube.objects.meta import ObjectMeta, OwnerReference
from dra_driver.kube.objects.resource import (
    AllocatedClaim,
    AllocationResult,
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    OpaqueDeviceConfiguration,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceClaimStatus,
)
from dra_driver.neuron.host.discover import chip_of
from dra_driver.neuron.host.inventory import NeuronDevice, NodeInventory
from dra_driver.neuron.names import CDI_KIND, DRIVER_NAME
from dra_driver.neuron.topology.instance_types import lookup
from dra_driver.util.errors import DriverError

NODE = "node-1"
SETTINGS = PlanSettings(NODE)
LATER = (
    b'{"version":2,"signature":"c2","checksum":"","entry":{"plan":{"uid":"00000001-1111-4222-8333-444444444444",'
    b'"halves":[{"chip":4,"half":0}]},"bootId":"boot-1"}}\n'
)
"""The checkpoint file of claim 1 as a later version may write it, for readers that know its fields."""


def plan_or_needs(
    item: ResourceClaim,
    inventory: NodeInventory,
    prepared: PreparedClaims,
    settings: PlanSettings,
    consumers: Consumers | None = None,
    unhealthy: Unhealthy | None = None,
    core_sizes: Mapping[int, int] | None = None,
    pods: Pods | None = None,
) -> Plan | Needs:
    facts = NodeFacts(unhealthy=unhealthy or {}, core_sizes=core_sizes or {})
    return planner.plan(Situation(claim_facts(item), inventory, facts, consumers or {}, pods), prepared, settings)


def plan(*values: Any, **options: Any) -> Plan:
    """What a claim gets of which all is known that the plan needs; arguments: ``plan_or_needs``."""
    outcome = plan_or_needs(*values, **options)
    assert isinstance(outcome, Plan), outcome
    return outcome


def needs(*values: Any, **options: Any) -> Needs:
    """What a plan needs to be known first."""
    outcome = plan_or_needs(*values, **options)
    assert isinstance(outcome, Needs), outcome
    return outcome


def uid(number: int) -> str:
    return f"{number:08x}-1111-4222-8333-444444444444"


def host(
    count: int = 16, instance_type: str | None = "trn2.48xlarge", major: int = 240, **changes: Any
) -> NodeInventory:
    devices = tuple(
        NeuronDevice(index, major, index, None, 8, None, None, "Trainium2", None, None) for index in range(count)
    )
    inventory = NodeInventory(instance_type, "2.26.10.0", devices, **of_type(instance_type, devices))
    return replace(inventory, **changes)


def of_type(instance_type: str | None, devices: Iterable[NeuronDevice] = ()) -> dict[str, Any]:
    """What a scan of the host takes from the table of instance types, or concludes from the devices."""
    kind = lookup(instance_type) if instance_type is not None else None
    chip = kind.chip if kind is not None else chip_of(devices)
    return {"expected_devices": (kind.devices or 0) if kind else 0, "chip": chip}


def without(inventory: NodeInventory, *indexes: int) -> NodeInventory:
    return replace(inventory, devices=tuple(d for d in inventory.devices if d.index not in indexes))


def changed(inventory: NodeInventory, index: int, **changes: Any) -> NodeInventory:
    return replace(
        inventory, devices=tuple(replace(d, **changes) if d.index == index else d for d in inventory.devices)
    )


def result(chip: int | str, request: str = "neurons", **changes: Any) -> DeviceRequestAllocationResult:
    name = chip if isinstance(chip, str) else f"neuron-device-{chip}"
    values = {"request": request, "driver": DRIVER_NAME, "pool": NODE, "device": name, **changes}
    return DeviceRequestAllocationResult(**values)


def config(parameters: object, *requests: str, source: str = "FromClaim", driver: str = DRIVER_NAME) -> Any:
    return DeviceAllocationConfiguration(source, requests, OpaqueDeviceConfiguration(driver, parameters))


def neuron_config(size: object) -> dict[str, object]:
    return {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig", "logicalNeuronCore": size}


def ultraserver_config(nodes: object) -> dict[str, object]:
    return {"apiVersion": "neuron.aws.com/v1", "kind": "UltraServerConfig", "ultraserverMode": nodes}


def claim(
    number: int,
    chips: Iterable[int | DeviceRequestAllocationResult],
    *,
    name: str | None = None,
    namespace: str = "default",
    pods: Sequence[str] = ("pod-1",),
    template: bool = False,
    configs: Sequence[DeviceAllocationConfiguration] = (),
) -> ResourceClaim:
    """An allocated claim; with ``template``, created for its only pod."""
    results = tuple(chip if isinstance(chip, DeviceRequestAllocationResult) else result(chip) for chip in chips)
    owners = (OwnerReference("v1", "Pod", "pod", pods[0], controller=True),) if template else ()
    return ResourceClaim(
        ObjectMeta(name=name or f"claim-{number}", namespace=namespace, uid=uid(number), owner_references=owners),
        ResourceClaimStatus(
            AllocationResult(DeviceAllocationResult(results, tuple(configs))),
            tuple(ResourceClaimConsumerReference("pods", pod, pod) for pod in pods),
        ),
    )


def pod(name: str, **containers: Sequence[str]) -> Pod:
    """A pod whose UID is its name. Each container uses claims, by name, or requests of them: ``claim/request``."""
    uses = {container: [use.partition("/") for use in names] for container, names in containers.items()}
    claims = dict.fromkeys(claim for found in uses.values() for claim, _, _ in found)
    return Pod(
        ObjectMeta(name=name, namespace="default", uid=name),
        PodSpec(
            containers=tuple(
                Container(
                    container,
                    resources=ResourceRequirements(
                        tuple(ContainerClaim(f"of-{claim}", request) for claim, _, request in found)
                    ),
                )
                for container, found in uses.items()
            ),
            resource_claims=tuple(PodResourceClaim(f"of-{claim}") for claim in claims),
        ),
        PodStatus(resource_claim_statuses=tuple(PodResourceClaimStatus(f"of-{claim}", claim) for claim in claims)),
    )


def with_extended_resources(of: Pod, claim: str, **requests: str) -> Pod:
    """The pod with a claim for its extended resources: the requests of each container, with spaces between."""
    mappings = tuple(
        ContainerExtendedResourceRequest(container, request)
        for container, names in requests.items()
        for request in names.split()
    )
    containers = tuple(Container(name) for name in requests if name not in {c.name for c in of.spec.containers})
    extended = PodExtendedResourceClaimStatus(claim, mappings)
    spec = msgspec.structs.replace(of.spec, containers=(*of.spec.containers, *containers))
    return Pod(of.metadata, spec, msgspec.structs.replace(of.status, extended_resource_claim_status=extended))


def ref(of: ResourceClaim) -> ClaimRef:
    return ClaimRef(of.metadata.namespace, of.metadata.name, of.metadata.uid)


def in_time() -> float:
    """The deadline of a kubelet call."""
    return time.monotonic() + 45.0


def missing() -> ApiError:
    return ApiError("the API server answered 404", status=404, reason="NotFound", object_missing=True)


class ApiServer(ResourceApi):
    """Claims by namespace and name. The next calls raise the errors in ``trouble``, in order; ``down`` fails all."""

    def __init__(self, *claims: ResourceClaim) -> None:
        self.claims: dict[tuple[str, str], ResourceClaim] = {}
        self.pods: dict[str, Pod] = {}
        self.pods_forbidden = False
        self.trouble: list[ApiError] = []
        self.down: ApiError | None = None
        self.gets: list[str] = []
        self.lists = 0
        for item in claims:
            self.put(item)

    def put(self, item: ResourceClaim) -> ResourceClaim:
        self.claims[item.metadata.namespace, item.metadata.name] = item
        return item

    def delete(self, item: ResourceClaim) -> None:
        self.claims.pop((item.metadata.namespace, item.metadata.name), None)

    def get_claim(self, namespace: str, name: str, *, timeout: float = 10.0, most: int = 0) -> ResourceClaim:
        self.gets.append(f"{namespace}/{name}")
        self._fail()
        found = self.claims.get((namespace, name))
        if found is None:
            raise missing()
        return found

    def get_pod(self, namespace: str, name: str, *, timeout: float = 10.0, most: int = 0) -> Pod:
        self.gets.append(f"pod {namespace}/{name}")
        self._fail()
        if self.pods_forbidden:
            raise ApiError("the API server answered GET pods with 403 Forbidden", status=403, reason="Forbidden")
        if name not in self.pods:
            raise missing()
        return self.pods[name]

    def list_claims(self, driver: str, pool: str) -> list[AllocatedClaim]:
        self.lists += 1
        self._fail()
        stored = [decode(msgspec.json.encode(item), AllocatedClaim, "a claim") for item in self.claims.values()]
        return [item for item in stored if item.has_devices(driver, pool)]

    def _fail(self) -> None:
        if self.trouble:
            raise self.trouble.pop(0)
        if self.down is not None:
            raise self.down


class Node:
    """One node's claim handling on real files. ``restart`` creates new objects over the same files."""

    def __init__(
        self,
        root: Path,
        api: ApiServer,
        *,
        settings: PlanSettings = SETTINGS,
        status: ClaimStatusWriter | None = None,
    ) -> None:
        self.root = root
        self.api = api
        self.settings = settings
        self.status = status
        self.inventory = host()
        self.boot = "boot-1"
        self.now = 1000.0
        self.listed: set[str] = set()
        """UIDs of the claims that kubelet lists with containers."""
        self.kubelet_silent: DriverError | None = None
        self.slept: list[float] = []
        self.facts = NodeFacts()
        self.patience = 0.0
        self._open()

    def restart(self) -> None:
        self.checkpoint.close()
        self._open()

    def _open(self) -> None:
        # Without a table of mounts, wherever the tests' files are, the directory is on no tmpfs.
        self.cdi = SpecDirectory(self.root / "cdi", CDI_KIND, self.boot, mounts=self.root / "mountinfo")
        self.metadata = MetadataDirectory(self.root / "metadata")
        self.checkpoint = Checkpoint(self.root / "state", boot_id=self.boot, cdi=self.cdi, lock_timeout=5.0)
        self.preparer = Preparer(
            self.api,
            self.checkpoint,
            self.cdi,
            lambda _: self.inventory,
            self.settings,
            metadata=self.metadata,
            facts=lambda: self.facts,
            status=self.status,
            patience=self.patience,
            sleep=self.slept.append,
        )
        self.reconciler = Reconciler(
            self.checkpoint,
            self.cdi,
            self.api,
            lambda: self.inventory,
            NODE,
            listed=self._kubelet_lists,
            metadata=self.metadata,
            clock=lambda: self.now,
        )

    def _kubelet_lists(self) -> set[str]:
        if self.kubelet_silent is not None:
            raise self.kubelet_silent
        return self.listed

    def reboot(self, *, major: int | None = None, tmpfs: bool = True) -> None:
        """Restart in a new boot.

        Args:
            major: the number that the kernel driver gets this time.
            tmpfs: lose the CDI specs; on another file system they stay.
        """
        self.boot = f"boot-{int(self.boot.removeprefix('boot-')) + 1}"
        for path in (self.root / "cdi").glob("*") if tmpfs else ():
            path.unlink()
        if major is not None:
            self.inventory = host(major=major)
        self.restart()

    def prepare(self, item: ResourceClaim) -> list[str]:
        """Prepare a claim; returns the CDI ids in the response."""
        return [name for device in self.preparer.prepare(ref(item), in_time()) for name in device.cdi_device_ids]

    def unprepare(self, item: ResourceClaim) -> None:
        self.preparer.unprepare(ref(item), in_time())

    def spec(self, item: ResourceClaim) -> Spec | None:
        return self.cdi.read(item.metadata.uid)

    def paths(self, item: ResourceClaim) -> dict[str, int]:
        """Container path -> device minor, from the claim's CDI spec."""
        spec = self.spec(item)
        assert spec is not None
        return {
            node.path: node.minor if node.minor is not None else -1
            for device in spec.devices
            for node in device.container_edits.device_nodes
        }

    def env(self, item: ResourceClaim) -> set[str]:
        spec = self.spec(item)
        assert spec is not None
        return {entry for device in spec.devices for entry in device.container_edits.env}

    def checkpointed(self) -> dict[str, tuple[int, ...]]:
        """Chips held by claim UID, as a new instance reads them from the files."""
        checkpoint = Checkpoint(self.root / "state", boot_id=self.boot, cdi=self.cdi)
        try:
            with checkpoint.locked() as held:
                return {uid: entry.plan.held_chips for uid, entry in held.entries.items()}
        finally:
            checkpoint.close()

    def checkpoint_file(self, item: ResourceClaim) -> Path:
        return self.checkpoint.path(item.metadata.uid)

    def quarantined(self) -> list[Path]:
        return sorted((self.root / "state" / "quarantine").glob("*"))


def container(specs: Iterable[Spec | None], ids: Sequence[str]) -> tuple[dict[str, tuple[int, int]], dict[str, str]]:
    """What a runtime makes of CDI ids: device nodes (path to major and minor) and variables; later ones override."""
    devices: Mapping[str, Any] = {
        f"{spec.kind}={device.name}": device.container_edits
        for spec in specs
        if spec is not None
        for device in spec.devices
    }
    nodes: dict[str, tuple[int, int]] = {}
    env: dict[str, str] = {}
    for name in ids:
        edits = devices[name]
        nodes |= {node.path: (node.major, node.minor) for node in edits.device_nodes}
        env |= dict(entry.split("=", 1) for entry in edits.env)
    return nodes, env
