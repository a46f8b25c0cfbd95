"""Claims on a file system without room: what needs none works, the rest says why, and all is well once there is room.

The file systems are real, small and filled to the brim. Mounting them takes root.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.util.errors import DriverError
from tests.builders.agent import agent, free_port, health
from tests.builders.agent import node as world_at
from tests.builders.claims import ApiServer, Node, claim, uid
from tests.doubles.kubelet import KubeletError
from tests.eventually import eventually
from tests.golden import golden, golden_error

pytestmark = pytest.mark.slow

Mount = Callable[[Path], None]


def tmpfs(path: Path) -> None:
    mount("-t", "tmpfs", "-o", "size=256k", "none", str(path))


def ext4(path: Path) -> None:
    image = path.with_name("image")
    with image.open("wb") as file:
        file.truncate(2 << 20)
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("mkfs.ext4 is not installed")
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True, capture_output=True)
    mount("-o", "loop", str(image), str(path))


def mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")


@contextmanager
def mounted(how: Mount, path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a file system takes root")
    path.mkdir(parents=True)
    how(path)
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def fill(directory: Path) -> Path:
    """Take all room that is left; what to remove to have it back."""
    filler = directory / "filler"
    descriptor = os.open(filler, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        for size in (65536, 4096, 1):
            while True:
                try:
                    os.write(descriptor, b"x" * size)
                except OSError as error:
                    assert error.errno == errno.ENOSPC
                    break
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return filler


@pytest.fixture(params=[tmpfs, ext4])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Node]:
    with mounted(request.param, tmp_path / "root" / "state"):
        made = Node(tmp_path / "root", ApiServer())
        yield made
        made.checkpoint.close()


def test_on_a_full_disk_nothing_is_prepared_and_everything_can_be_unprepared(node: Node) -> None:
    items = [node.api.put(claim(number, [number])) for number in (1, 2, 3)]
    for item in items[:2]:
        node.prepare(item)
    filler = fill(node.root / "state")
    with golden_error(DriverError):
        node.prepare(items[2])
    node.unprepare(items[2])
    node.unprepare(items[0])
    assert node.checkpointed() == {uid(2): (2,)}
    node.restart()
    node.unprepare(items[1])
    assert node.checkpointed() == {}
    filler.unlink()
    assert node.prepare(items[2])
    assert node.checkpointed() == {uid(3): (3,)}


def test_an_unprepare_on_a_full_disk_needs_no_room_even_if_somebody_removed_the_lock_file(node: Node) -> None:
    item = node.api.put(claim(1, [1]))
    node.prepare(item)
    node.restart()
    (node.root / "state" / "journal.lock").unlink()
    fill(node.root / "state")
    node.unprepare(item)
    assert node.checkpointed() == {}


@pytest.mark.parametrize("end", ["unprepare of the claim that failed", "prepare of a claim that is prepared"])
def test_a_failed_write_is_over_with_the_next_operation_that_succeeds(node: Node, end: str) -> None:
    kept, failed = (node.api.put(claim(number, [number])) for number in (1, 2))
    node.prepare(kept)
    filler = fill(node.root / "state")
    with golden_error(DriverError):
        node.prepare(failed)
    golden(str(node.checkpoint.unwritable))
    assert node.checkpoint.unusable is None
    filler.unlink()
    if end.startswith("unprepare"):
        node.unprepare(failed)
    else:
        node.prepare(kept)
    assert node.checkpoint.unwritable is None


def test_a_full_disk_is_told_by_readiness_alone_and_only_until_an_operation_succeeds() -> None:
    port = free_port()
    # A short path: sockets lie below it, and theirs may have 107 bytes.
    with tempfile.TemporaryDirectory(prefix="a-") as name, world_at(Path(name)) as world:
        state = world.kubelet.plugins_dir / DRIVER_NAME
        options = ("--healthcheck-port", str(port), "--healthcheck-address", "127.0.0.1")
        with mounted(tmpfs, state), agent(world, *options) as running:
            running.ready()
            wanted = world.add_claim("default", "claim", devices=[("n", "neuron-device-0")])
            filler = fill(state)
            with golden_error(KubeletError):
                world.kubelet.prepare("pod", [wanted])
            eventually(lambda: health(port, "readiness") == "NOT_SERVING", what="the truth")
            assert health(port, "liveness") == "SERVING", "a restart makes no room"
            filler.unlink()
            # The pod is deleted; kubelet unprepares what it tried to prepare.
            world.kubelet.unprepare("pod")
            eventually(lambda: health(port, "readiness") == "SERVING", what="readiness")
            running.kill()
