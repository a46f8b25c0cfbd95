"""The whole program, on a host whose kernel driver stops responding as soon as a certain file exists.

Run as a program with the path of that file and the arguments of ``dra-driver``. A sysfs read that hangs in the kernel
cannot be produced on a test machine, so the one function that reads the host's files blocks forever instead.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from dra_driver.cli.main import main
from dra_driver.neuron.host import sysfs


def hang_when(hanging: Path) -> None:
    """From now on, reads of the kernel driver's files block while ``hanging`` exists."""
    read = sysfs._read_all

    def read_or_hang(path: str) -> bytes:
        while "/neuron_device/" in path and hanging.exists():
            time.sleep(0.05)
        return read(path)

    sysfs._read_all = read_or_hang


if __name__ == "__main__":
    hang_when(Path(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
