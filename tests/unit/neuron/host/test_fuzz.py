"""Whatever is on the disk: discovery gives an inventory, opens nothing outside of the root, and changes nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.neuron.emulation.tree import DEVICES, MODULE_VERSION, host_files
from dra_driver.neuron.emulation.writer import EmulationOptions, TreeWriter
from dra_driver.neuron.host.discover import EMULATION_MARKER, discover
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES
from tests.generators.effort import examples

KIND = INSTANCE_TYPES["inf1.6xlarge"]
TREE = {
    path: entry
    for path, entry in host_files(KIND, EmulationOptions(logical_nc_config=1)).items()
    if "/neuron_core" not in path and "/stats/" not in path
}
DEVICE = "sys/devices/virtual/neuron_device/neuron2"
PATHS = [
    "sys",
    "sys/devices/virtual/neuron_device",
    "sys/class/neuron_device/neuron1",
    "sys/devices/virtual/dmi/id/product_name",
    "sys/module/neuron/version",
    "proc/devices",
    "dev",
    "dev/neuron2",
    "opt/aws/neuron/logical_nc_config",
    DEVICE,
    *(
        f"{DEVICE}/{name}"
        for name in ("dev", "core_count", "connected_devices", "reset", "info", "info/serial_number", "neuron_core0")
    ),
    f"{DEVICE}/info/architecture/device_name",
    "sys/devices/virtual/neuron_device/neuron77",
    "sys/devices/virtual/neuron_device/neuronx",
    "dev/neuron99",
]
SECRET = "inf1.secret"
TARGETS = [
    "{outside}/secret",
    "{outside}",
    "../../../../../../../../../../../../{outside}/secret",
    "/etc/hostname",
    "/",
    "..",
    ".",
    "neuron0",
    "/sys/devices/virtual/neuron_device/neuron0",
    "/dev/neuron0",
    "//sys//module/./neuron/../neuron/version",
    "core_count",
]

content = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"", b"busy\n", b"\n", b"0", b"2\n", b"1:3\n", b"1, 3\n", b"inf1.6xlarge\n", b"9" * 70000]),
)
change = st.one_of(
    st.tuples(st.just("write"), st.sampled_from(PATHS), content),
    st.tuples(st.just("link"), st.sampled_from(PATHS), st.sampled_from(TARGETS)),
    st.tuples(st.just("directory"), st.sampled_from(PATHS), st.none()),
    st.tuples(st.just("pipe"), st.sampled_from(PATHS), st.none()),
    st.tuples(st.just("remove"), st.sampled_from(PATHS), st.none()),
)


def apply(root: Path, outside: Path, action: str, path: str, value: bytes | str | None) -> None:
    """Do one change; one that an earlier change made impossible is left out."""
    target = root / path
    with contextlib.suppress(OSError):
        if not target.parent.resolve().is_relative_to(root):
            return  # an earlier link leads out of the root, and so would the change
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)
        if isinstance(value, bytes):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(value)
        elif isinstance(value, str):
            target.symlink_to(value.format(outside=outside))
        elif action == "directory":
            target.mkdir()
        elif action == "pipe":
            os.mkfifo(target)


@contextlib.contextmanager
def opened_files() -> Iterator[list[str]]:
    """Record what is opened, and refuse anything but reading."""
    paths: list[str] = []
    really_open = os.open

    def recording(path: str, flags: int) -> int:
        assert flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC) == 0
        paths.append(path)
        return really_open(path, flags)

    with mock.patch("dra_driver.neuron.host.sysfs.os.open", recording):
        yield paths


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(st.lists(change, min_size=1, max_size=6))
def test_any_tree_gives_an_inventory_from_inside_the_root(changes: list[tuple[str, str, bytes | str | None]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root, outside = Path(directory).resolve() / "host", Path(directory).resolve() / "outside"
        TreeWriter(root, EMULATION_MARKER, whole_below=DEVICES, commit=MODULE_VERSION).write(TREE)
        outside.mkdir()
        (outside / "secret").write_text(f"{SECRET}\n")
        for action, path, value in changes:
            apply(root, outside, action, path, value)
        with opened_files() as opened:
            first = discover(root)
            second = discover(root, {}, first)

        assert all(Path(path).resolve().is_relative_to(root) for path in opened)
        assert SECRET not in repr(first)
        assert second == first
        indexes = [device.index for device in first.devices]
        assert indexes == sorted(set(indexes))
        for device in first.devices:
            assert (device.major is None) == (device.minor is None)


@settings(max_examples=examples(100))
@given(
    st.dictionaries(
        st.sampled_from(
            [
                "node.kubernetes.io/instance-type",
                "topology.k8s.aws/network-node-layer-1",
                "topology.k8s.aws/capacity-block-id",
            ]
        ),
        st.text(max_size=80),
    )
)
def test_any_labels_give_an_inventory(labels: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        assert isinstance(discover(Path(directory), labels), NodeInventory)
