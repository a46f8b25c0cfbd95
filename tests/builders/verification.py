"""Evidence of hosts for tests: complete ones, with what no emulated host shows by itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from dra_driver.neuron.emulation.running import EmulatedHost
from dra_driver.neuron.emulation.writer import EmulationOptions
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES, InstanceType
from dra_driver.operations.verification.collect import collect
from dra_driver.operations.verification.evidence import ContainerView, Evidence, Opened, SeenFile

LOG_LINE = "NEURON_HW_ERR=DMA_ERROR instance-id=redacted hostname=redacted nd-id=0 nc-id=1 serial-num=0000000000000001"
KUBELET = "var/lib/kubelet"


def neuron_ls(kind: InstanceType, lnc: int | None = None) -> list[dict[str, Any]]:
    """What ``neuron-ls -j`` of a newer kind prints on a healthy host (aws-neuron-sdk, neuron-ls.rst)."""
    size = lnc or kind.default_lnc
    cores = kind.cores_per_device // size
    return [
        {
            "neuron_device": chip,
            "bdf": kind.pci_bus_ids[chip] if kind.pci_bus_ids else f"0000:00:{chip:02x}.0",
            "cpu_affinity": "0-7",
            "numa_node": str(kind.numa_nodes[chip]) if kind.numa_nodes else "-1",
            "connected_to": list(kind.fabric.neighbours(chip)) or None,
            "nc_count": cores,
            **({"logical_neuroncore_config": size} if len(kind.lnc_values) > 1 else {}),
            "memory_size": kind.device_memory_bytes,
            "neuroncore_ids": list(range(chip * cores, (chip + 1) * cores)),
            "neuron_processes": [{"pid": 4711, "command": "python secret.py", "neuron_runtime_version": "2.0"}],
            "instance_id": "i-0123456789abcdef0",
        }
        for chip in range(kind.devices or 0)
    ]


def emulated(root: Path, name: str, options: EmulationOptions | None = None, *faults: str) -> Path:
    """An emulated host, complete with PCI devices and counters."""
    host = EmulatedHost(root, INSTANCE_TYPES[name], options)
    host.write(host.parse(faults))
    return root


def furnished(root: Path, name: str, options: EmulationOptions | None = None) -> Path:
    """The same with kubelet's directories and an output of neuron-ls, as a host made of a report has them."""
    emulated(root, name, options)
    for path in ("plugins", "plugins_registry"):
        (root / KUBELET / path).mkdir(parents=True)
    for path in ("device-plugins", "pod-resources"):
        (root / KUBELET / path).mkdir()
        (root / KUBELET / path / "kubelet.sock").touch()
    kind = INSTANCE_TYPES[name]
    listed = neuron_ls(kind, options.logical_nc_config if options is not None else None)
    if kind.fabric.kind in ("switched", "unknown"):
        for entry, chip in zip(listed, range(kind.devices or 0), strict=True):
            file = root / f"sys/devices/virtual/neuron_device/neuron{chip}/connected_devices"
            entry["connected_to"] = [int(item) for item in file.read_text().split(",") if item.strip()]
    (root / "neuron-ls.json").write_text(json.dumps(listed))
    (root / "kernel.log").write_text(LOG_LINE + "\n")
    return root


def on_hardware(root: Path, name: str) -> Evidence:
    """What a host of this type would show on which all was looked at: device numbers of its own, and every probe."""
    host = collect(furnished(root, name))
    files = dict(host.files)
    for chip in host.chips:
        device = f"sys/devices/virtual/neuron_device/neuron{chip}"
        files[f"{device}/dev"] = SeenFile(text=f"245:{chip}", mode=0o444)
        files[f"dev/neuron{chip}"] = SeenFile(kind="device", number=f"245:{chip}", mode=0o666)
    files["proc/devices"] = SeenFile(text="245 neuron", mode=0o444)
    files["proc/sys/kernel/random/boot_id"] = SeenFile(text="00000000-0000-0000-0000-000000000000", mode=0o444)
    fine = dict.fromkeys(host.chips, "ok")
    return msgspec.structs.replace(
        host,
        emulated=False,
        files=dict(sorted(files.items())),
        container_chips=host.chips,
        waited_seconds=65,
        heartbeats=dict.fromkeys(host.chips, "2"),
        container_runtime="containerd://2.1.5",
        opened=Opened(fine, fine),
        container=ContainerView(
            nodes={0: "245:0", 1: "245:1"} if len(host.chips) > 1 else {0: "245:0"},
            opened={0: "ok", 1: "ok"} if len(host.chips) > 1 else {0: "ok"},
            others=dict.fromkeys(host.chips[2:], "no node can be made: EPERM"),
        ),
    )


def with_files(host: Evidence, texts: Mapping[str, str | None]) -> Evidence:
    """The host with other texts in these files; None: the file is not there."""
    files = dict(host.files)
    for path, text in texts.items():
        if text is None:
            del files[path]
        else:
            files[path] = msgspec.structs.replace(files.get(path, SeenFile(mode=0o444)), text=text)
    return msgspec.structs.replace(host, files=dict(sorted(files.items())))


Change = Callable[[Evidence], Evidence]
"""How a host is made another one."""


def files(texts: Mapping[str, str | None]) -> Change:
    """As ``with_files``."""
    return lambda host: with_files(host, texts)


def said(**values: Any) -> Change:
    """Other values of the evidence."""
    return lambda host: msgspec.structs.replace(host, **values)


def without(*parts: str) -> Change:
    """Without the files whose path has one of these parts."""

    def change(host: Evidence) -> Evidence:
        kept = {path: seen for path, seen in host.files.items() if not any(part in path for part in parts)}
        return msgspec.structs.replace(host, files=kept)

    return change


def container(**values: Any) -> Change:
    """Other values of what a container with chips sees."""

    def change(host: Evidence) -> Evidence:
        assert host.container is not None
        return msgspec.structs.replace(host, container=msgspec.structs.replace(host.container, **values))

    return change


def with_listed(host: Evidence, chip: int, **changes: Any) -> Evidence:
    """The host with something else said of one chip by neuron-ls."""
    listed = tuple(
        msgspec.structs.replace(entry, **changes) if entry.neuron_device == chip else entry
        for entry in host.neuron_ls or ()
    )
    return msgspec.structs.replace(host, neuron_ls=listed)
