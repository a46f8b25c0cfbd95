"""Opens chips, to see that they can be opened and by whom. Only where the user asks for it (``--probe``).

Nodes are opened for writing only, and nothing is written: the Neuron kernel driver then attaches nothing to the chip
and waits for no reset, so that programs which look do not disturb those which work (aws-neuron-driver, the way its own
tools open a chip). Nobody has run this on hardware, so a chip that any process has open is left alone all the same.
Each opening is a process of its own with a limit of time, since an opening may hang in the kernel.
"""

from __future__ import annotations

import errno
import os
import re
import select
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from dra_driver.operations.verification.evidence import LEFT_ALONE, ContainerView, Evidence, Opened
from dra_driver.operations.verification.hostfiles import DEVICES, PLACES
from dra_driver.util.errors import UsageError

SECONDS: Final = 5.0
"""An opening takes microseconds; one that takes so long hangs."""
INITIAL_PID_NAMESPACE: Final = 0xEFFFFFFC
"""Inode of the namespace that shows all processes of the host (Linux, ``include/linux/proc_ns.h``)."""

_OPEN: Final = """
import os, sys
try:
    descriptor = os.open(sys.argv[1], os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
except OSError as error:
    print(os.strerror(error.errno), flush=True)
else:
    print("ok", flush=True)
    sys.stdin.read()
    os.close(descriptor)
"""


def probe_host(root: Path, evidence: Evidence) -> Opened:
    """Open the node of each chip that nobody uses: once, and once more while the first process has it open.

    Args:
        root: of the host; its ``/dev`` must be the host's.
        evidence: of this host: whether it is emulated, and which device number each chip has.
    """
    once: dict[int, str] = {}
    twice: dict[int, str] = {}
    used = set() if evidence.emulated else _used_numbers()
    for chip in evidence.chips:
        path, node = root / f"dev/neuron{chip}", evidence.files.get(f"dev/neuron{chip}")
        if node is None:
            continue
        reason = used if isinstance(used, str) else "in use" if node.number in used else ""
        if not reason and evidence.text(f"{DEVICES}/neuron{chip}/dev") != node.number and not evidence.emulated:
            reason = "its number is not that of sysfs"
        once[chip], twice[chip] = (f"{LEFT_ALONE}: {reason}",) * 2 if reason else _open_both(path)
    return Opened(once, twice)


def _used_numbers() -> set[str] | str:
    """Numbers of devices that some process has open; a text: why that cannot be told."""
    try:
        if os.stat("/proc/self/ns/pid").st_ino != INITIAL_PID_NAMESPACE:  # noqa: PTH116 # as the others here
            return "a container does not see who uses it"
        if os.geteuid() != 0:
            return "only root sees who uses it"
        found = set()
        for process in Path("/proc").iterdir():
            if process.name.isdecimal():
                found |= _open_devices(process)
    except OSError as error:
        return f"who uses it cannot be determined ({error.strerror})"
    return found


def _open_devices(process: Path) -> set[str]:
    numbers = set()
    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
        for descriptor in (process / "fd").iterdir():
            with suppress(FileNotFoundError):
                numbers.add(_number(descriptor))
    return numbers - {""}


def _open_both(path: Path) -> tuple[str, str]:
    with _opened(path) as once:
        if once != "ok":
            return once, f"{LEFT_ALONE}: it could not be opened once"
        with _opened(path) as twice:
            return once, twice


@contextmanager
def _opened(path: Path) -> Iterator[str]:
    """What became of opening a node in a process of its own, which has it open until the block ends."""
    process = subprocess.Popen(  # noqa: S603 # this interpreter, with a program of our own
        [sys.executable, "-I", "-S", "-c", _OPEN, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None  # noqa: S101 # pipes, see above
    assert process.stdout is not None  # noqa: S101
    try:
        if select.select([process.stdout], [], [], SECONDS)[0]:
            yield process.stdout.readline().strip()[:64] or "the process that was to open it ended"
        else:
            yield f"it hangs for {SECONDS:.0f} s"
    finally:
        # This ends it. One that hangs in the kernel is left behind, as nothing can end it.
        process.stdin.close()
        process.stdout.close()
        try:
            process.wait(1.0)
        except subprocess.TimeoutExpired:
            process.kill()


def probe_container(evidence: Evidence, dev: Path = Path("/dev")) -> ContainerView:
    """What this container can open: its own chips by their nodes, others by nodes that it tries to make.

    Args:
        evidence: of the host as the container's /sys shows it: the device numbers of the chips.
        dev: the container's.

    Raises:
        UsageError: there is no node of a chip and none in sysfs, so this is no container with chips.
    """
    own = sorted(path for path in dev.glob("neuron*") if re.fullmatch(PLACES["<chip>"][0], path.name))[:64]
    nodes = {int(path.name.removeprefix("neuron")): _number(path) for path in own}
    if not nodes and not evidence.chips:
        raise UsageError(
            f"there is no chip in {dev}, and none in /sys",
            remedy="run --probe container in a pod whose claim was given chips",
        )
    opened = {index: _open_both(dev / f"neuron{index}")[0] for index in sorted(nodes)}
    numbers = {
        device.index: (device.major, device.minor)
        for device in evidence.inventory.devices
        if device.major is not None and device.minor is not None
    }
    shared = len({*numbers.values()}) < len(numbers)
    others = {chip: number for chip, number in numbers.items() if "{}:{}".format(*number) not in nodes.values()}
    return ContainerView(nodes, opened, {} if shared else _open_others(others))


def _number(path: Path) -> str:
    """Of a device; "" for something else."""
    status = path.stat()
    return f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}" if stat.S_ISCHR(status.st_mode) else ""


def _open_others(numbers: Mapping[int, tuple[int, int]]) -> dict[int, str]:
    found: dict[int, str] = {}
    with tempfile.TemporaryDirectory() as directory:
        for chip, number in numbers.items():
            path = Path(directory) / f"neuron{chip}"
            try:
                os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(*number))
            except OSError as error:
                found[chip] = f"no node can be made: {errno.errorcode.get(error.errno or 0, 'unknown')}"
            else:
                found[chip] = _open_both(path)[0]
    return found
