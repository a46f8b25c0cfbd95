"""What the lab changes on the machine outside its own directory, and how that is restored.

Addresses, bridges and ip_forward belong to the network namespace of the process that starts the cluster; clusters in
different namespaces can be up at the same time. Mount points and the kernel's other settings are machine-wide: the
first cluster records them, the last one restores them.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lab import files, process
from lab.errors import LabError
from lab.layout import API_ADDRESS, ClusterLayout
from lab.settings import REPOSITORY

# Changed by kubelet.
_SYSCTLS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
# Changed by the CNI bridge.
_NETWORK_SYSCTLS = ("net/ipv4/ip_forward",)
# Changed by the lab: kubelet and containerd need about ten per node, and the kernel's default is 128 in total.
_INOTIFY = "fs/inotify/max_user_instances"
_INOTIFY_INSTANCES = 1024
_SYS = Path("/proc/sys")


def network() -> str:
    """Return an identifier of this process's network namespace."""
    return str(Path("/proc/self/ns/net").readlink())


def prepare(layout: ClusterLayout, nodes: int, targets: Sequence[str]) -> None:
    """Record what must be restored, then create the mount points and the addresses.

    Args:
        layout: The cluster.
        nodes: Number of nodes.
        targets: Paths on which the nodes' directories will be bound in their mount namespaces.
    """
    if not layout.machine_file.exists():
        missing = missing_directories(targets)
        notes = {
            "boot": process.boot_id(),
            "sysctls": _sysctls(*_SYSCTLS, _INOTIFY),
            "directories": missing,
        }
        files.write(layout.machine_file, json.dumps(notes, indent=1))
    for directory in missing_directories(targets):
        Path(directory).mkdir(exist_ok=True)
    if int((_SYS / _INOTIFY).read_text()) < _INOTIFY_INSTANCES:
        (_SYS / _INOTIFY).write_text(str(_INOTIFY_INSTANCES))
    addresses = [API_ADDRESS, *(layout.node(index).address for index in range(1, nodes + 1))]
    undo = {
        "boot": process.boot_id(),
        "network": network(),
        "sysctls": _sysctls(*_NETWORK_SYSCTLS),
        "addresses": addresses,
        "links": [layout.node(index).bridge for index in range(1, nodes + 1)],
    }
    files.write(layout.undo_file, json.dumps(undo, indent=1))
    for address in addresses:
        # A killed run whose record is lost may have left the address; it belongs to the lab in any case.
        _ip("address", "replace", f"{address}/32", "dev", "lo")


def missing_directories(targets: Sequence[str]) -> list[str]:
    """Return the directories that must be created for `targets` to exist, parents first."""
    missing: list[str] = []
    for target in targets:
        path = Path(target)
        chain = [str(part) for part in (*reversed(path.parents), path) if not part.exists()]
        missing += [part for part in chain if part not in missing]
    return missing


def restore(layout: ClusterLayout) -> None:
    """Restore what `prepare` recorded for this cluster; does nothing without a record.

    Raises:
        LabError: An interface, address or setting cannot be restored.
    """
    undo = _notes(layout.undo_file)
    # Changes in another network namespace vanish together with that namespace.
    if undo is None or undo["network"] != network():
        return
    _restore_sysctls(undo)
    for link in undo["links"]:
        delete_link(link)
    for address in undo["addresses"]:
        if _lo_has(address):
            _ip("address", "delete", f"{address}/32", "dev", "lo")


def shares_network(layout: ClusterLayout) -> bool:
    """Return whether the cluster is in this process's network namespace."""
    undo = _notes(layout.undo_file)
    return undo is None or undo["network"] == network()


def restore_machine(notes_file: Path) -> None:
    """Restore what was recorded for all clusters, after the last of them; does nothing without a record.

    Raises:
        LabError: A setting cannot be restored.
    """
    notes = _notes(notes_file)
    if notes is None:
        return
    _restore_sysctls(notes)
    for directory in reversed(notes["directories"]):
        with suppress(OSError):  # in use by something else now
            Path(directory).rmdir()
    notes_file.unlink()


def _notes(path: Path) -> dict[str, Any] | None:
    try:
        notes: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        text = f"{path} is damaged: {error}. Remove it to go on without putting settings back."
        raise LabError(text) from error
    return notes


def _sysctls(*names: str) -> dict[str, str]:
    return {name: (_SYS / name).read_text().strip() for name in names if (_SYS / name).exists()}


def _restore_sysctls(notes: dict[str, Any]) -> None:
    if notes["boot"] == process.boot_id():
        for name, value in notes["sysctls"].items():
            _restore_sysctl(_SYS / name, value)


def delete_link(name: str) -> None:
    """Delete a network interface of the lab; a missing one is not an error."""
    shown = subprocess.run(["ip", "link", "show", "dev", name], check=False, capture_output=True)
    if shown.returncode == 0:
        _ip("link", "delete", name)


def unmount_below(directory: Path) -> None:
    """Unmount everything that a killed run left mounted below the cluster's own directory."""
    points = [point for point in mount_points() if point.startswith(f"{directory}/")]
    for point in sorted(points, reverse=True):
        subprocess.run(["umount", "--lazy", point], check=False, capture_output=True)


def mount_points() -> list[str]:
    """Return the mount points visible to this process."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line.split()[4].replace("\\040", " ") for line in lines]


def require_root(why: str) -> None:
    """Refuse to continue without root.

    Raises:
        LabError: This process does not run as root.
    """
    if os.geteuid() != 0:
        raise LabError(f"This needs root: {why}. Nothing was done. Run it as root, for example with sudo -E.")


def bootstrap(part: str) -> None:
    """Install what is missing of the system packages of a part of the project, as `scripts/bootstrap.sh` names it.

    Raises:
        LabError: They cannot be installed.
    """
    done = subprocess.run([str(REPOSITORY / "scripts/bootstrap.sh"), part], check=False)
    if done.returncode != 0:
        raise LabError("System packages are missing, see above; nothing was started. Install them and try again.")


def _restore_sysctl(path: Path, value: str) -> None:
    with suppress(FileNotFoundError):
        if path.read_text().strip() != value:
            path.write_text(value)


def _lo_has(address: str) -> bool:
    shown = subprocess.run(["ip", "-json", "address", "show", "dev", "lo"], check=True, capture_output=True, text=True)
    links = json.loads(shown.stdout)
    return any(entry.get("local") == address for link in links for entry in link.get("addr_info", ()))


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise LabError(f"'ip {' '.join(arguments)}' failed: {done.stderr.strip()}. The cluster cannot go on.")
