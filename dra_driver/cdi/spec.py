"""Container Device Interface specs as values (CDI 1.1.0, cncf-tags/container-device-interface SPEC.md)."""

from __future__ import annotations

import msgspec


class DeviceNode(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A device node in the container. With type, major and minor the runtime never looks at the host's node."""

    path: str
    host_path: str | None = None
    type: str | None = None
    major: int | None = None
    minor: int | None = None
    file_mode: int | None = None
    permissions: str | None = None
    uid: int | None = None
    gid: int | None = None


class Mount(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A bind mount."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str | None = None


class ContainerEdits(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What is changed in a container; ``env`` entries are ``KEY=value``, later ones win."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()


class Device(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One CDI device; ``container_edits`` must not be empty."""

    name: str
    container_edits: ContainerEdits


class Spec(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A CDI spec file."""

    cdi_version: str
    kind: str
    devices: tuple[Device, ...]
    container_edits: ContainerEdits | None = None
