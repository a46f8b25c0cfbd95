"""What ``scripts/benchmark scheduling`` asks kube-scheduler for: pods and claims by row, and nodes by world."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from dra_driver.driver.deviceclasses import DEVICE_CLASSES
from dra_driver.neuron.emulation.efa import EFA_CLASS, EFA_SELECTOR
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.neuron.topology.instance_types import resolve_emulation

Object = dict[str, Any]

_TYPE: Final = "trn2.48xlarge"
_ULTRASERVER_TYPE: Final = "trn2u.48xlarge"


@dataclass(frozen=True, order=True)
class World:
    """What all nodes offer."""

    partitions: str = "chip"
    """As the setting says it."""
    instance_type: str = _TYPE
    driver_version: str | None = None
    """Of the Neuron kernel driver; None: the newest."""
    efa: bool = False
    """Whether AWS's EFA DRA driver offers the nodes' EFA devices beside them."""

    def __str__(self) -> str:
        return f"{self.instance_type} offering {self.partitions}{' and EFA' if self.efa else ''}"

    @property
    def chips(self) -> int:
        """Of each node."""
        return resolve_emulation(self.instance_type).devices or 0


ALL_PARTITIONS: Final = "chip.core.group.node"


@dataclass(frozen=True)
class Row:
    """Pods of one kind on nodes of one kind."""

    name: str
    world: World
    chips: float
    """That a pod takes, to know how many fit."""
    claim: Object | None = None
    """``spec`` of a ResourceClaim; None: the pod has none."""
    limits: Mapping[str, str] = field(default_factory=dict)
    """Extended resources."""


def fitting(row: Row, nodes: int) -> int:
    """How many pods of the row find room on nodes of which nothing is taken."""
    return int(row.world.chips / row.chips) * nodes if row.chips else nodes * 100


def _request(class_name: str, selector: str | None = None, **more: Any) -> Object:
    exactly: Object = {"deviceClassName": class_name, "allocationMode": "ExactCount", "count": 1} | more
    if exactly["allocationMode"] == "All":
        del exactly["count"]
    if selector:
        exactly["selectors"] = [{"cel": {"expression": selector}}]
    return {"name": "neurons", "exactly": exactly}


def _claim(class_name: str, selector: str | None = None, match: str | None = None, **more: Any) -> Object:
    devices: Object = {"requests": [_request(class_name, selector, **more)]}
    if match:
        devices["constraints"] = [{"requests": ["neurons"], "matchAttribute": match}]
    return {"devices": devices}


_GROUP4: Final = "resource.aws.com/devicegroup4_id"


def own_rows() -> tuple[Row, ...]:
    """The classes that come with the driver, without further selectors: one partition a node, several, and all."""
    one = [
        Row("chip", World(), 1, _claim(f"chip.{DRIVER_NAME}")),
        Row("4 chips by matchAttribute", World(), 4, _claim(f"chip.{DRIVER_NAME}", match=_GROUP4, count=4)),
        Row("16 chips by count", World(), 16, _claim(f"chip.{DRIVER_NAME}", count=16)),
        Row("all chips", World(), 16, _claim(f"chip.{DRIVER_NAME}", allocationMode="All")),
        Row("limit neuron: 1", World(), 1, limits={"aws.amazon.com/neuron": "1"}),
        Row("group of 4", World("group4"), 4, _claim(f"group4.{DRIVER_NAME}")),
        Row("limit neuron-4: 1", World("group4"), 4, limits={"aws.amazon.com/neuron-4": "1"}),
        Row("node", World("node"), 16, _claim(f"node.{DRIVER_NAME}")),
        Row("core", World("core"), 0.25, _claim(f"core.{DRIVER_NAME}")),
        Row("limit neuroncore: 2", World("core"), 0.5, limits={"aws.amazon.com/neuroncore": "2"}),
    ]
    no_cores = World("chip.group.node")
    three = [
        Row("chip", no_cores, 1, _claim(f"chip.{DRIVER_NAME}")),
        Row("group of 4", no_cores, 4, _claim(f"group4.{DRIVER_NAME}")),
        Row("node", no_cores, 16, _claim(f"node.{DRIVER_NAME}")),
    ]
    everything = World(ALL_PARTITIONS)
    every = [
        Row("chip", everything, 1, _claim(f"chip.{DRIVER_NAME}")),
        Row("chip, any device of the class", everything, 1, _claim(DRIVER_NAME)),
        Row("4 chips by matchAttribute", everything, 4, _claim(f"chip.{DRIVER_NAME}", match=_GROUP4, count=4)),
        Row("group of 4", everything, 4, _claim(f"group4.{DRIVER_NAME}")),
        Row("group of 8", everything, 8, _claim(f"group8.{DRIVER_NAME}")),
        Row("node", everything, 16, _claim(f"node.{DRIVER_NAME}")),
        Row("core", everything, 0.25, _claim(f"core.{DRIVER_NAME}")),
    ]
    return (*one, *three, *every)


_VERSION: Final = re.compile(r"neuronDriverVersion == '([^']+)'")
_OF_TYPE: Final = re.compile(r"instanceType == '([^']+)'")
_SIZE: Final = re.compile(r"\.size == ([0-9]+)")
_CORE_CHIPS: Final = 0.25
"""Of a trn2.48xlarge, whose chips have four logical cores."""
_OLD_SPELLINGS: Final = "v1beta1"
"""The examples' directory with the same templates in another version of the API."""


def template_rows(directory: Path) -> tuple[Row, ...]:
    """One row for each ResourceClaimTemplate of the project's examples, on nodes that can serve it."""
    ours = {item["metadata"]["name"] for item in (*classes(), *template_classes(directory))}
    return tuple(_template_row(path, item, ours) for path, item in _documents(directory, "ResourceClaimTemplate"))


def template_classes(directory: Path) -> list[Object]:
    """The DeviceClasses of the examples."""
    return [item for _, item in _documents(directory, "DeviceClass")]


def _documents(directory: Path, kind: str) -> Iterator[tuple[Path, Object]]:
    for path in sorted(directory.rglob("*.yaml")):
        for item in yaml.safe_load_all(path.read_text()) if path.parent.name != _OLD_SPELLINGS else ():
            if item and item["kind"] == kind:
                yield path, item


def _template_row(path: Path, item: Object, ours: Collection[str]) -> Row:
    spec = item["spec"]["spec"]
    requests = [request["exactly"] for request in spec["devices"]["requests"]]
    (wanted,) = [request for request in requests if request["deviceClassName"] in ours]
    text = json.dumps(wanted)
    name, instance_type = wanted["deviceClassName"], _said(_OF_TYPE, text) or _TYPE
    partition = name.removesuffix(f".{DRIVER_NAME}") if name.endswith(f".{DRIVER_NAME}") else "chip"
    if "'neuron_node'" in text:
        partition, instance_type = "node", _ULTRASERVER_TYPE
    world = World(partition, instance_type, _said(_VERSION, text), efa=len(requests) > 1)
    if partition.startswith("group"):
        size = float(partition.removeprefix("group") or _said(_SIZE, text) or 0)
    else:
        size = {"chip": 1, "core": _CORE_CHIPS, "node": world.chips}[partition]
    everything = wanted.get("allocationMode") == "All"
    return Row(path.stem, world, world.chips if everything else size * wanted.get("count", 1), spec)


def _said(pattern: re.Pattern[str], text: str) -> str | None:
    found = pattern.search(text)
    return found[1] if found else None


def classes() -> list[Object]:
    """The DeviceClasses that come with the driver, with their extended resources."""
    found = []
    for row in DEVICE_CLASSES:
        spec: Object = {"selectors": [{"cel": {"expression": row.expression}}]}
        if row.extended_resource:
            spec["extendedResourceName"] = row.extended_resource
        found.append({"metadata": {"name": row.name}, "spec": spec})
    return found


def efa_class() -> Object:
    """The DeviceClass that comes with AWS's EFA DRA driver."""
    return {"metadata": {"name": EFA_CLASS}, "spec": {"selectors": [{"cel": {"expression": EFA_SELECTOR}}]}}


def node(number: int) -> Object:
    """A Node without kubelet."""
    room = {"cpu": "192", "memory": "2Ti", "pods": "250"}
    ready = {"type": "Ready", "status": "True", "reason": "Always", "message": ""}
    return {
        "metadata": {"name": node_name(number), "labels": {"kubernetes.io/hostname": node_name(number)}},
        "status": {"capacity": room, "allocatable": room, "conditions": [ready]},
    }


def node_name(number: int) -> str:
    """Like the names that EC2 gives, in length."""
    return f"ip-10-{number // 65536}-{number // 256 % 256}-{number % 256}.ec2.internal"


def claim(name: str, spec: Object) -> Object:
    """A claim made beforehand."""
    return {"metadata": {"name": name}, "spec": spec}


def pod(name: str, row: Row) -> Object:
    """A pod of a burst, with the claim of its name."""
    resources: Object = {"limits": dict(row.limits)} if row.limits else {}
    spec: Object = {
        "containers": [{"name": "main", "image": "none", "resources": resources}],
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        # The API server's initial taint on new nodes is never removed, because no controller runs.
        "tolerations": [{"operator": "Exists"}],
    }
    if row.claim is not None:
        spec["resourceClaims"] = [{"name": "neurons", "resourceClaimName": name}]
        resources["claims"] = [{"name": "neurons"}]
    return {"metadata": {"name": name}, "spec": spec}


def scheduler_configuration(kubeconfig: Path) -> Object:
    """The KubeSchedulerConfiguration: the scheduler's own, but for the limits of its client."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 5000, "burst": 5000},
    }
