"""What kubelet's device manager remembers of device plugins: which container has which ids, and the plugin's answer.

kubelet writes the file after each allocation, before it asks for the next one, and reads it when it starts. It is the
only place that tells of init containers, and of pods by UID; PodResources tells of neither. It is no API, so whoever
reads it must do without it where it says something else.

Source: Kubernetes 1.33 to 1.37, ``pkg/kubelet/cm/devicemanager/checkpoint/checkpoint.go``.
"""

from __future__ import annotations

import base64
import binascii
import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from google.protobuf.message import DecodeError

from dra_driver.kube.kubelet.api import deviceplugin_v1beta1_pb2 as api
from dra_driver.kube.kubelet.deviceplugin import ContainerDevices, PluginDeviceNode
from dra_driver.util.errors import DriverError
from dra_driver.util.files import open_regular

FILE: Final = "kubelet_internal_checkpoint"
"""Beside the sockets of device plugins."""
MAX_BYTES: Final = 32 << 20
"""Some 300 a container, and 6 for each device. kubelet itself writes all of it at each allocation."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AllocatedContainer:
    """What a container was given of one resource.

    Attributes:
        pod: UID.
        container: name.
        resource: name.
        ids: that kubelet counts.
        response: of the plugin, as it stands in the file.
    """

    pod: str
    container: str
    resource: str
    ids: frozenset[str]
    response: str

    @property
    def answer(self) -> ContainerDevices | None:
        """What the plugin said; None if that cannot be read."""
        try:
            answer = api.ContainerAllocateResponse.FromString(base64.b64decode(self.response, validate=True))
        except (binascii.Error, ValueError, DecodeError):
            return None
        return ContainerDevices(
            dict(answer.envs),
            tuple(PluginDeviceNode(node.container_path, node.host_path) for node in answer.devices),
            tuple(device.name for device in answer.cdi_devices),
        )


class _Entry(msgspec.Struct, rename="pascal"):
    pod_uid: str = msgspec.field(name="PodUID")
    container_name: str
    resource_name: str
    device_ids: dict[str, tuple[str, ...] | None] = msgspec.field(name="DeviceIDs", default_factory=dict)
    """By NUMA node."""
    alloc_resp: str | None = None


class _ResourceOnly(msgspec.Struct, rename="pascal"):
    resource_name: str


class _Data(msgspec.Struct, rename="pascal"):
    pod_device_entries: list[msgspec.Raw] | None = None


class _File(msgspec.Struct, rename="pascal"):
    data: _Data


class DeviceCheckpoint:
    """The file of one kubelet, read again when it has changed.

    Args:
        directory: of kubelet's device plugins.
        resources: whose containers are of interest, by name.
    """

    def __init__(self, directory: Path, resources: Iterable[str]) -> None:
        self._path = directory / FILE
        self._resources = frozenset(resources)
        self._read: tuple[int, int, int] | None = None
        """Which file that was: inode, time of change and size."""
        self._containers: tuple[AllocatedContainer, ...] = ()
        self._warned = False

    def containers(self) -> tuple[AllocatedContainer, ...]:
        """Those that have something of the resources; () if there is no file, or none that can be understood.

        Raises:
            DriverError: it is too long, so that it is not known what containers have. The entries are those of all
                device plugins, so tenants have a say in that.
        """
        try:
            with open(open_regular(self._path, os.O_RDONLY), "rb", buffering=0) as file:  # noqa: PTH123 - without following links
                status = os.fstat(file.fileno())
                version = (status.st_ino, status.st_mtime_ns, status.st_size)
                if version == self._read:
                    return self._containers
                if status.st_size > MAX_BYTES:
                    raise DriverError(
                        f"{self._path} has {status.st_size:,} bytes, more than the {MAX_BYTES:,} that are read",
                        consequence="it is not known which devices containers have, so none are given",
                        remedy="end pods with thousands of containers or devices, of any device plugin",
                    )
                containers = self._entries(file.read(status.st_size))  # kubelet replaces the file as a whole
        except FileNotFoundError:
            return ()
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            if not self._warned:
                log.warning("kubelet's checkpoint of devices cannot be used: %s: %s", self._path, error)
            self._warned = True
            return ()
        self._read, self._containers, self._warned = version, containers, False
        return containers

    def _entries(self, data: bytes) -> tuple[AllocatedContainer, ...]:
        # Those of other resources, of which a container may have thousands, are passed over without being decoded.
        raw = msgspec.json.decode(data, type=_File).data.pod_device_entries or ()
        ours = (one for one in raw if msgspec.json.decode(one, type=_ResourceOnly).resource_name in self._resources)
        return tuple(map(_container, ours))


def _container(raw: msgspec.Raw) -> AllocatedContainer:
    entry = msgspec.json.decode(raw, type=_Entry)
    ids = frozenset(text for ids in entry.device_ids.values() for text in ids or ())
    return AllocatedContainer(entry.pod_uid, entry.container_name, entry.resource_name, ids, entry.alloc_resp or "")
