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


def encode(spec: Spec) -> bytes:
    """The JSON file of a spec. Equal specs give equal bytes."""
    return msgspec.json.encode(spec) + b"\n"


def decode(data: bytes) -> Spec:
    """A spec from its JSON file. Raises ValueError (RecursionError for absurd nesting) for anything else."""
    return _DECODER.decode(data)


def minimum_version(spec: Spec) -> str:
    """The lowest CDI version that has everything the spec uses; a runtime refuses a spec that declares less.

    Source: SPEC.md of cncf-tags/container-device-interface, table of versions. Of what the structs here can say, 0.4.0
    brought ``mounts[].type``, 0.5.0 ``hostPath`` of device nodes and device names that start with a digit, and 0.6.0
    dots in the class.
    """
    edits = [device.container_edits for device in spec.devices]
    if spec.container_edits is not None:
        edits.append(spec.container_edits)
    needs = (
        ("0.6.0", "." in spec.kind.partition("/")[2]),
        ("0.5.0", any(device.name[:1].isdigit() for device in spec.devices)),
        ("0.5.0", any(node.host_path is not None for edit in edits for node in edit.device_nodes)),
        ("0.4.0", any(mount.type is not None for edit in edits for mount in edit.mounts)),
    )
    return next((version for version, needed in needs if needed), "0.3.0")


_DECODER = msgspec.json.Decoder(Spec)
