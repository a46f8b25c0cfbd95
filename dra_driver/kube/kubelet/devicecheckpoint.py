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
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from google.protobuf.message import DecodeError

from dra_driver.kube.kubelet.api import deviceplugin_v1beta1_pb2 as api
from dra_driver.kube.kubelet.deviceplugin import ContainerDevices, PluginDeviceNode
from dra_driver.util.files import read_file

FILE: Final = "kubelet_internal_checkpoint"
"""Beside the sockets of device plugins."""
MAX_BYTES: Final = 16 << 20
"""Some 300 a container."""

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


def allocated(directory: Path, resources: Iterable[str]) -> tuple[AllocatedContainer, ...] | None:
    """The containers that have something of some resources; None if the file is missing or cannot be read.

    Args:
        directory: of kubelet's device plugins.
        resources: by name.
    """
    try:
        data = read_file(directory / FILE, MAX_BYTES)
        if data is None:
            return None
        # Entries of other resources, of which one may have thousands of ids, are passed over without being decoded.
        file = msgspec.json.decode(data, type=_File)
        wanted = frozenset(resources)
        entries = [
            msgspec.json.decode(raw, type=_Entry)
            for raw in file.data.pod_device_entries or ()
            if msgspec.json.decode(raw, type=_ResourceOnly).resource_name in wanted
        ]
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        log.debug("kubelet's checkpoint of devices cannot be read: %s", error)
        return None
    return tuple(
        AllocatedContainer(
            entry.pod_uid,
            entry.container_name,
            entry.resource_name,
            frozenset(text for ids in entry.device_ids.values() for text in ids or ()),
            entry.alloc_resp or "",
        )
        for entry in entries
    )
