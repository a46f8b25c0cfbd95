"""What the device plugin asks and writes about its node: pods, the Node object, and what kubelet tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from dra_driver.kube.api import Collection, ResourceApi
from dra_driver.kube.client import Transport
from dra_driver.kube.errors import ApiError
from dra_driver.kube.types import NODES
from dra_driver.kube.watch import Informer
from dra_driver.kubeletplugin.podresources import PodDevices, list_pods
from dra_driver.legacy.deviceplugin.offer import Offer
from dra_driver.legacy.deviceplugin.pods import PODS, PartialPod
from dra_driver.legacy.deviceplugin.recording import Record, unusable_annotations
from dra_driver.legacy.deviceplugin.settings import DevicePluginSettings
from dra_driver.worker import Worker

REQUEST_SECONDS: Final = 3.0
"""kubelet waits meanwhile, and no other pod starts."""


class NodeSources:
    """The edges of the allocator (``allocator.Sources``) and of the agent.

    Args:
        settings: of the plugin.
        transport: the API server.
        offered: what the node has now.
        changed: called when a pod changes.
    """

    def __init__(
        self,
        settings: DevicePluginSettings,
        transport: Transport,
        offered: Callable[[], Offer | None],
        changed: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._offered = offered
        query = (("fieldSelector", f"spec.nodeName={settings.node_name}"),)
        self._pods = Collection(transport, PODS, query, REQUEST_SECONDS)
        self._nodes = Collection(transport, NODES, (), REQUEST_SECONDS)
        self._informer = Informer("pods of this node", Collection(transport, PODS, query), changed)
        self._labels: Mapping[str, str] | None = None
        self.api = ResourceApi(transport)

    def start(self) -> None:
        """Begin to follow the pods."""
        self._informer.start()

    def stop(self, timeout: float) -> None:
        """End within ``timeout`` seconds."""
        self._informer.stop(timeout)

    @property
    def worker(self) -> Worker:
        """The loop that follows the pods, for health reports."""
        return self._informer.worker

    def problems(self) -> list[str]:
        """Why the pods of the node are not known; [] when they are."""
        if self._informer.current:
            return []
        return [f"the pods of the node are not followed: {self._informer.last_error or 'not read yet'}"]

    @property
    def followed(self) -> bool:
        """Whether the pods are known and followed."""
        return self._informer.current

    def labels(self) -> Mapping[str, str]:
        """Labels of the Node, read once: what is used of them never changes. ApiError while they are unknown."""
        if self._labels is None:
            self._labels = dict(self._nodes.get("", self._settings.node_name).metadata.labels or {})
        return self._labels

    def write_unusable(self, unusable: tuple[int, ...]) -> bool:
        """Make the Node's annotations name these chips; whether that took a write. ApiError."""
        node = self._nodes.get("", self._settings.node_name)
        change = unusable_annotations(node.metadata.annotations or {}, unusable)
        if change:
            meta = {"uid": node.metadata.uid, "annotations": change}
            self._nodes.patch("", self._settings.node_name, {"metadata": meta})
        return bool(change)

    # allocator.Sources

    def pods(self) -> Sequence[PartialPod]:
        """Pods as the watch has told."""
        return self._informer.objects()

    def list_pods(self) -> Sequence[PartialPod]:
        """Pods as stored now."""
        return self._pods.list_all()[0]

    def get_pod(self, namespace: str, name: str) -> PartialPod:
        """One pod as stored now."""
        return self._pods.get(namespace, name)

    def listed(self) -> Sequence[PodDevices]:
        """What kubelet tells."""
        return list_pods(self._settings.kubelet_directory)

    def offer(self) -> Offer | None:
        """What the node has."""
        return self._offered()

    def record(self, record: Record) -> None:
        """Write annotations of a pod, and no others; a pod of that name with another UID is left alone."""
        change = {"metadata": {"uid": record.pod.uid, "annotations": dict(record.annotations)}}
        try:
            self._informer.wrote(self._pods.patch(record.pod.namespace, record.pod.name, change))
        except ApiError as error:
            if not (error.object_missing or error.status == 409):  # it has ended; nothing is to be recorded
                raise
