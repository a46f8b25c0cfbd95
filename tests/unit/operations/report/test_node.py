"""What a report reads of a host's disk, which may be another machine's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dra_driver.neuron.host.discover import BOOT_ID
from dra_driver.operations.report.archive import Collected
from dra_driver.operations.report.node import read

KERNEL = "proc/sys/kernel/osrelease"


def collected(root: Path) -> dict[str, object]:
    found = Collected()
    read(found, root, root / "state", root / "health")
    return {file.path: file.content for file in found.files}


def test_the_version_of_the_kernel_and_the_boot_are_told(tmp_path: Path) -> None:
    for name, text in ((KERNEL, "6.1.0"), (BOOT_ID, "b")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    files = collected(tmp_path)
    assert (files["node/kernel.txt"], files["node/boot.txt"]) == ("6.1.0", "b")


@pytest.mark.timeout(20)
def test_neither_a_link_nor_a_pipe_is_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s3cret")
    (tmp_path / KERNEL).parent.mkdir(parents=True)
    (tmp_path / KERNEL).symlink_to(tmp_path / "secret")
    (tmp_path / BOOT_ID).parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(tmp_path / BOOT_ID)
    assert collected(tmp_path).keys().isdisjoint({"node/kernel.txt", "node/boot.txt"})
