"""Joining what several sources gave, and making a cluster for the allocator of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from dra_driver.simulator.allocator import NodeView, Usage, World
from dra_driver.simulator.manifests.errors import ManifestError
from dra_driver.simulator.manifests.expressions import selectors
from dra_driver.simulator.manifests.values import Manifests, PodWithClaims

T = TypeVar("T")


def merge(first: Manifests, second: Manifests) -> Manifests:
    """Both together. An object that is in both is taken from ``second``, as when it is applied to the cluster."""
    replaced = {_pod(pod) for pod in second.pods}
    return Manifests(
        nodes=_joined(first.nodes, second.nodes),
        slices=_joined(first.slices, second.slices),
        taint_rules=_joined(first.taint_rules, second.taint_rules),
        classes=_joined(first.classes, second.classes),
        templates=_joined(first.templates, second.templates),
        claims=_joined(first.claims, second.claims),
        pods=_joined(first.pods, second.pods, key=_pod),
        running=tuple(pod for pod in _joined(first.running, second.running, key=_pod) if _pod(pod) not in replaced),
        not_considered=tuple(dict.fromkeys((*first.not_considered, *second.not_considered))),
        standby=first.standby - {_name(item) for item in second.claims} | second.standby,
        inventories={**first.inventories, **second.inventories},
        origins={**first.origins, **second.origins},
    )


def _name(item: Any) -> tuple[str, str]:
    return item.metadata.namespace, item.metadata.name


def _pod(pod: PodWithClaims) -> tuple[str, str]:
    return pod.namespace, pod.name


def _joined(first: Iterable[T], second: Iterable[T], key: Callable[[T], Any] = _name) -> tuple[T, ...]:
    return tuple({key(item): item for item in (*first, *second)}.values())


def cluster_of(manifests: Manifests, kubernetes: str) -> tuple[World, tuple[NodeView, ...]]:
    """The cluster with the devices of allocated claims in use, and its nodes by name.

    Raises:
        ManifestError: there is no node, or consumed capacity of an allocation is no quantity.
        DriverError: a release that the simulator does not know, or CEL's parser is not installed.
    """
    if not manifests.nodes:
        raise ManifestError("there is no node", remedy="give --node TYPE, or the cluster's Node objects")
    usage = Usage(manifests.claims)
    world = World(
        manifests.slices, manifests.classes, selectors(kubernetes), usage, kubernetes, taint_rules=manifests.taint_rules
    )
    views = (NodeView(node.metadata.name, node.metadata.labels) for node in manifests.nodes)
    return world, tuple(sorted(views, key=lambda view: view.name))


def waiting_left_out(cluster: Manifests) -> Manifests:
    """The cluster without what waits in it, for when something else is asked about; it is listed as not considered.

    Its claims without an allocation stay, since a pod that is asked about may use them.
    """
    waiting = sum(not pod.node_name for pod in cluster.pods)
    return replace(
        cluster,
        pods=(),
        running=(*cluster.running, *(pod for pod in cluster.pods if pod.node_name)),
        standby=frozenset((item.metadata.namespace, item.metadata.name) for item in cluster.claims),
        not_considered=(*cluster.not_considered, *((f"pods of the cluster: {waiting}",) if waiting else ())),
    )
