"""What the lab changes on the machine outside of its own directory, and how that is put back."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from lab import files, process
from lab.errors import LabError
from lab.layout import API_ADDRESS, ClusterLayout
from lab.settings import REPOSITORY

# Changed by kubelet (vm, kernel) and by the CNI bridge (ip_forward).
_SYSCTLS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
    "net/ipv4/ip_forward",
)
_SYS = Path("/proc/sys")


def prepare(layout: ClusterLayout, nodes: int, targets: Sequence[str]) -> None:
    """Note what must be put back, then make the mount points and the addresses.

    Args:
        layout: The cluster.
        nodes: Number of nodes.
        targets: Paths on which the nodes' directories will be bound in their mount namespaces.
    """
    addresses = [API_ADDRESS, *(layout.node(index).address for index in range(1, nodes + 1))]
    missing = missing_directories(targets)
    undo = {
        "boot": process.boot_id(),
        "sysctls": {name: (_SYS / name).read_text().strip() for name in _SYSCTLS if (_SYS / name).exists()},
        "directories": missing,
        "addresses": addresses,
        "links": [layout.node(index).bridge for index in range(1, nodes + 1)],
    }
    files.write(layout.undo_file, json.dumps(undo, indent=1))
    for directory in missing:
        Path(directory).mkdir(exist_ok=True)
    for address in addresses:
        # A killed run whose notes are lost may have left the address; it is ours in any case.
        _ip("address", "replace", f"{address}/32", "dev", "lo")


def missing_directories(targets: Sequence[str]) -> list[str]:
    """Return the directories that must be made for `targets` to exist, parents first."""
    missing: list[str] = []
    for target in targets:
        path = Path(target)
        chain = [str(part) for part in (*reversed(path.parents), path) if not part.exists()]
        missing += [part for part in chain if part not in missing]
    return missing


def restore(layout: ClusterLayout) -> None:
    """Put back what `prepare` noted; nothing to do when there are no notes.

    Raises:
        LabError: An interface, address or setting cannot be put back.
    """
    try:
        undo = json.loads(layout.undo_file.read_text())
    except FileNotFoundError:
        return
    except ValueError as error:
        text = f"{layout.undo_file} is damaged: {error}. Remove it to go on without putting settings back."
        raise LabError(text) from error
    if undo["boot"] == process.boot_id():
        for name, value in undo["sysctls"].items():
            _restore_sysctl(_SYS / name, value)
    for link in undo["links"]:
        delete_link(link)
    for address in undo["addresses"]:
        if _lo_has(address):
            _ip("address", "delete", f"{address}/32", "dev", "lo")
    for directory in reversed(undo["directories"]):
        with suppress(OSError):  # somebody else uses it by now
            Path(directory).rmdir()


def delete_link(name: str) -> None:
    """Delete a network interface of the lab; one that is not there is no error."""
    shown = subprocess.run(["ip", "link", "show", "dev", name], check=False, capture_output=True)
    if shown.returncode == 0:
        _ip("link", "delete", name)


def unmount_below(directory: Path) -> None:
    """Unmount whatever a killed run left mounted below the cluster's own directory."""
    points = [point for point in mount_points() if point.startswith(f"{directory}/")]
    for point in sorted(points, reverse=True):
        subprocess.run(["umount", "--lazy", point], check=False, capture_output=True)


def mount_points() -> list[str]:
    """Return the mount points that this process sees."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line.split()[4].replace("\\040", " ") for line in lines]


def require_root(why: str) -> None:
    """Refuse to go on without root.

    Raises:
        LabError: This process is not root's.
    """
    if os.geteuid() != 0:
        raise LabError(f"This needs root: {why}. Nothing was done. Run it as root, for example with sudo -E.")


def bootstrap(part: str) -> None:
    """Install the system packages that a part of the project (`lab` or `image`) needs, where they are missing.

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
