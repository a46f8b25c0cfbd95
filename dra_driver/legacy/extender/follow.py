"""Tells the picture of the cluster what the API server's watches say of pods and nodes."""

from __future__ import annotations

import time
from typing import Any

from dra_driver.backoff import Backoff
from dra_driver.kube.api import Collection, WatchEvent
from dra_driver.kube.client import Transport
from dra_driver.kube.watch import Reflector
from dra_driver.legacy.extender.cluster import Cluster
from dra_driver.legacy.extender.objects import NODES, PODS, RUNNING, PartialNode, PartialPod
from dra_driver.worker import Worker


class Followers:
    """One thread for pods, one for nodes.

    Args:
        transport: the API server.
        cluster: what to tell.
    """

    def __init__(self, transport: Transport, cluster: Cluster) -> None:
        self._cluster = cluster
        self._pods = Collection(transport, PODS, RUNNING, timeout=60.0)
        self._nodes = Collection(transport, NODES, timeout=60.0)
        self._started = 0.0
        self._over = False
        self._reflectors: tuple[Reflector[Any], ...] = (
            Reflector(
                "pods",
                self._list_pods,
                self._pods.watch,
                self._pods_listed,
                self._pod_changed,
                backoff=Backoff(cap=10.0),
            ),
            Reflector(
                "nodes",
                self._nodes.list_all,
                self._nodes.watch,
                self._nodes_listed,
                self._node_changed,
                backoff=Backoff(cap=10.0),
            ),
        )

    def start(self) -> None:
        """Begin to follow."""
        for reflector in self._reflectors:
            reflector.start()

    def stop(self) -> None:
        """End, without waiting: what a thread tells from now on is not heard."""
        self._over = True
        for reflector in self._reflectors:
            reflector.stop(0)

    @property
    def workers(self) -> list[Worker]:
        """Its loops, for health reports."""
        return [reflector.worker for reflector in self._reflectors]

    def problems(self) -> list[str]:
        """Why something is not followed now."""
        return [reflector.last_error for reflector in self._reflectors if reflector.last_error]

    def _list_pods(self) -> tuple[list[PartialPod], str]:
        # Called in the same thread as `_pods_listed`, before it.
        self._started = time.monotonic()
        return self._pods.list_all()

    def _pods_listed(self, items: list[PartialPod]) -> None:
        if not self._over:
            self._cluster.pods_listed(items, self._started)

    def _pod_changed(self, event: WatchEvent[PartialPod]) -> None:
        if event.object is not None and not self._over:
            self._cluster.pod_changed(event.object, gone=event.type == "DELETED")

    def _nodes_listed(self, items: list[PartialNode]) -> None:
        if not self._over:
            self._cluster.nodes_listed(items)

    def _node_changed(self, event: WatchEvent[PartialNode]) -> None:
        if event.object is not None and not self._over:
            self._cluster.node_changed(event.object, gone=event.type == "DELETED")
