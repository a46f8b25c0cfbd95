"""Keeps the vendor's usage maps on the nodes, for those who read them. Nothing here reads them to decide."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from dra_driver.kube.api import Collection
from dra_driver.kube.client import Transport
from dra_driver.kube.election import REQUEST_SECONDS
from dra_driver.kube.errors import ApiError
from dra_driver.legacy.extender.cluster import Cluster
from dra_driver.legacy.extender.objects import NODES
from dra_driver.legacy.names import CORE_USAGE, DEVICE_USAGE

SETTLE_SECONDS: Final = 1.0
"""Nodes are written when nothing has changed on any of them for so long: a write for each pod of a burst, and the news
of it for everybody who watches nodes, would take processor time from those who schedule."""
LATEST_SECONDS: Final = 10.0
"""A node waits no longer than this."""
PAUSE_SECONDS: Final = 10.0
"""No node is written for so long after one could not be."""

log = logging.getLogger(__name__)


class UsageMaps:
    """Writes what is out of date, one node after the other.

    Args:
        transport: the API server.
        cluster: what is taken.
        may_act: asked before each write.
    """

    def __init__(self, transport: Transport, cluster: Cluster, may_act: Callable[[], bool]) -> None:
        self._nodes = Collection(transport, NODES, timeout=REQUEST_SECONDS)
        self._cluster = cluster
        self._may_act = may_act
        self._not_before = 0.0
        self.last_error = ""

    def write_due(self) -> None:
        """Bring the annotations of all nodes up to date; what cannot be written now is left for later."""
        now = time.monotonic()
        if now < self._not_before:
            return
        quiet = now - self._cluster.touched_at >= SETTLE_SECONDS
        for node, maps in self._cluster.stale_maps(now - (SETTLE_SECONDS if quiet else LATEST_SECONDS)):
            if not self._may_act():
                self._cluster.maps_not_written(node.name)
                return
            annotations = dict(zip((DEVICE_USAGE, CORE_USAGE), maps, strict=True))
            metadata = {"uid": node.uid, "annotations": annotations}
            try:
                self._nodes.patch("", node.name, {"metadata": metadata})
                self.last_error = ""
            except ApiError as error:
                self._cluster.maps_not_written(node.name)
                if error.object_missing or error.status == 409:
                    continue
                self.last_error = str(error)
                self._not_before = now + max(PAUSE_SECONDS, error.retry_after or 0.0)
                log.warning("the usage maps of node %s could not be written: %s", node.name, error)
                return
