"""An emulated host in memory is the one that would be read from the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra_driver.neuron.emulation.memory import TreeFiles, emulated_inventory
from dra_driver.neuron.emulation.tree import SymbolicLink, TextFile
from dra_driver.neuron.emulation.ultraservers import Servers
from dra_driver.neuron.emulation.writer import EmulationOptions, write_host
from dra_driver.neuron.host.discover import discover
from dra_driver.neuron.host.sysfs import HostFiles
from dra_driver.neuron.topology.instance_types import resolve_emulation
from dra_driver.neuron.topology.ultraserver import Mode
from dra_driver.util.errors import DriverError
from tests.golden import golden_error

CASES = [
    ("trn1.32xlarge", EmulationOptions()),
    ("trn2.48xlarge", EmulationOptions(missing=frozenset({3}), ecc={5: {"sram": 1}}, logical_nc_config=1)),
    ("inf1.24xlarge", EmulationOptions()),
    ("inf2.48xlarge", EmulationOptions(driver_version="2.20.1.0")),
    ("trn2u.48xlarge", EmulationOptions(busy=True)),
    ("trn2u.48xlarge", EmulationOptions(ultraserver_modes=(Mode.X1,))),
    ("trn2u.48xlarge", Servers(2, 4).options(resolve_emulation("trn2u.48xlarge"), 7)),
]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_the_inventory_is_that_of_the_written_host(tmp_path: Path, name: str, options: EmulationOptions) -> None:
    kind = resolve_emulation(name)
    write_host(tmp_path / "host", kind, options)
    assert emulated_inventory(kind, options) == discover(tmp_path / "host")


def test_impossible_options_are_refused() -> None:
    with golden_error(DriverError):
        emulated_inventory(resolve_emulation("trn2.48xlarge"), EmulationOptions(missing=frozenset({99})))


def test_links_that_lead_nowhere_or_in_circles_are_nothing() -> None:
    files = TreeFiles(
        {"a/x": SymbolicLink("../b/y"), "b/y": SymbolicLink("../a/x"), "c": SymbolicLink("d"), "e": TextFile("text\n")}
    )
    assert files.status("a/x") is None
    assert files.read("c").missing
    assert files.names("a") == ("x",)
    assert files.names("c") == ()
    assert files.read("a/../e").text == "text"


def test_links_are_followed_as_on_a_disk(tmp_path: Path) -> None:
    """An absolute target starts at the host's root; nothing leads out of it."""
    links = {"a/b/absolute": "/x/file", "a/b/relative": "../../x/file", "a/b/above": "../../../../x/file"}
    (tmp_path / "x").mkdir()
    (tmp_path / "x/file").write_text("text\n")
    (tmp_path / "a/b").mkdir(parents=True)
    for path, target in links.items():
        (tmp_path / path).symlink_to(target)
    tree = TreeFiles({"x/file": TextFile("text\n"), **{path: SymbolicLink(target) for path, target in links.items()}})
    disk = HostFiles(tmp_path)
    for path in links:
        assert tree.read(path) == disk.read(path)
        assert tree.read(path).text == "text"
