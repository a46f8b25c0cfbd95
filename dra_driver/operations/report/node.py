"""What a node says for a report: its devices as the driver sees them, and the driver's state directory."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import msgspec

from dra_driver.driver.claims.files import decoded
from dra_driver.neuron.health.memory import FILE as HEALTH_FILE
from dra_driver.neuron.health.memory import decoded as decoded_health
from dra_driver.neuron.host.discover import BOOT_ID, discover
from dra_driver.operations.report.archive import Collected, File
from dra_driver.util.errors import DriverError
from dra_driver.util.files import is_uid, open_regular, read_file

MAX_CLAIMS: Final = 1024
_INVENTORY: Final = (
    "instance_type",
    "driver_version",
    "devices",
    "expected_devices",
    "default_lnc",
    "network_layers",
    "ultraserver",
    "emulated",
    "settling",
    "findings",
)


def read(found: Collected, root: Path, state: Path, health: Path) -> None:
    """Add what is on the host below ``root``, in the driver's directory ``state``, and in its directory ``health``.

    Neither raises nor writes; what cannot be read is noted.
    """
    try:
        inventory = discover(root)
    except (DriverError, OSError) as error:
        found.missing.append(("the node's devices", str(error)))
    else:
        document = {name: value for name, value in asdict(inventory).items() if name in _INVENTORY}
        document["devices"] = [
            {name: value for name, value in device.items() if name != "serial_number"} for device in document["devices"]
        ]
        found.files.append(File("node/inventory.json", "the node's devices as the driver sees them", document))
    _line(found, root / "proc/sys/kernel/osrelease", "node/kernel.txt", "version of the kernel")
    _line(found, root / BOOT_ID, "node/boot.txt", "id of the boot")
    _health(found, health / HEALTH_FILE)
    _claims(found, state)


def _line(found: Collected, path: Path, name: str, why: str) -> None:
    try:
        # The disk may be one of another machine: a link there means a file of this one.
        with open(open_regular(path, os.O_RDONLY), "rb") as file:  # noqa: PTH123 # opened without following links
            text = file.read(200).decode("ascii", "replace").strip()
    except OSError as error:
        found.missing.append((name, error.strerror or "it cannot be read"))
    else:
        found.files.append(File(name, why, text))


def _health(found: Collected, path: Path) -> None:
    try:
        data = read_file(path)
        if data is None:
            found.missing.append(("the record of the chips' health", "there is none"))
            return
        memory = decoded_health(data)
    except (OSError, ValueError) as error:
        found.missing.append(("the record of the chips' health", str(error)))
        return
    document = msgspec.to_builtins(memory, str_keys=True)
    for chip in document.get("chips", ()):
        chip.pop("serial", None)
    found.files.append(File("node/state/health.json", "what the driver remembers of the chips' health", document))


def _claims(found: Collected, state: Path) -> None:
    """The checkpoint: what was prepared, and which files of it cannot be used (by name alone)."""
    directory, quarantine = state / "claims", state / "quarantine"
    try:
        names = sorted(entry.name for entry in directory.iterdir() if entry.name.endswith(".json"))
        aside = sorted(entry.name for entry in quarantine.iterdir()) if quarantine.is_dir() else []
    except OSError as error:
        found.missing.append(("the driver's checkpoint of claims", error.strerror or "it cannot be read"))
        return
    entries: list[Any] = []
    for name in names[:MAX_CLAIMS]:
        uid = name.removesuffix(".json")
        try:
            if not is_uid(uid):
                raise ValueError("it is not one of the driver's files")
            entry = decoded(read_file(directory / name), uid)
        except (OSError, ValueError) as error:
            found.missing.append((f"{name if is_uid(uid) else 'a file'} of the checkpoint", str(error)))
            continue
        plain = msgspec.to_builtins(entry)
        for part in (plain["plan"], *plain["plan"]["devices"]):
            if "env" in part:
                part["env"] = {key: value for key, value in part["env"].items() if key.startswith("NEURON_")}
        found.add_name("namespace", entry.plan.namespace)
        found.add_name("claim", entry.plan.name, entry.plan.pod_claim)
        found.add_name("pod", *entry.plan.consumers)
        found.add_name("node", *(device.pool for device in entry.plan.devices))
        entries.append(plain)
    content = {"claims": entries, "quarantine": [name for name in aside if is_uid(name.removesuffix(".json"))]}
    found.files.append(File("node/state/claims.json", "the driver's checkpoint: what it has prepared", content))
