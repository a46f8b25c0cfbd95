"""The plugin of kubectl as a release packs it, from packages that are here: tests ask no index."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import sys
import zipfile
from collections.abc import Mapping
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from releasing import plugin

from dra_driver.version import VERSION
from tests.paths import ROOT

DRIVER = f"neuron_dra_driver-{VERSION}-py3-none-any.whl"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


class Index:
    """A directory of wheels, and the file tree of a release that pins them."""

    def __init__(self, directory: Path) -> None:
        self.wheels, self.tree, self.made = (directory / name for name in ("index", "tree", "made"))
        for folder in (self.wheels, self.tree / "requirements", self.made):
            folder.mkdir(parents=True)
        shutil.copy(ROOT / "LICENSE", self.tree)
        self.pins = self.tree / "requirements/commands.txt"
        self.pins.write_text("# Made with: a test.\n")
        self.driver = directory / DRIVER

    def add(self, name: str, version: str, tag: str, files: Mapping[str, bytes]) -> Path:
        """Make a wheel."""
        file_name = name.replace("-", "_")
        path = self.wheels / f"{file_name}-{version}-{tag}.whl"
        about = {
            "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            "WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
        }
        by_default = {f"{file_name}-{version}.dist-info/{key}": text.encode() for key, text in about.items()}
        _zip(path, by_default | dict(files))
        return path

    def pin(self, name: str, version: str, *wheels: Path) -> None:
        """Pin a package to these wheels."""
        hashes = "".join(f" \\\n    --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}" for path in wheels)
        with self.pins.open("a") as file:
            file.write(f"{name}=={version}{hashes}\n")

    def drive(self, files: Mapping[str, bytes]) -> None:
        """Make the wheel of the driver."""
        metadata = f"neuron_dra_driver-{VERSION}.dist-info/METADATA"
        _zip(self.driver, {metadata: b"Name: neuron-dra-driver\n", **files})

    def settings(self) -> dict[str, str]:
        """What makes pip ask this index, and no other."""
        return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheels), "PIP_CONFIG_FILE": os.devnull}


def _zip(path: Path, files: Mapping[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)


def here() -> plugin.Platform:
    """The platform of this machine; skips the test if there is no plugin for it."""
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    wanted = f"{platform.system().lower()}-{architecture}"
    for candidate in plugin.PLATFORMS:
        if candidate.name == wanted and PYTHON in plugin.PYTHONS:
            return candidate
    pytest.skip(f"there is no plugin for {wanted} and Python {PYTHON}")


def plugin_of_here(directory: Path, patch: pytest.MonkeyPatch) -> Path:
    """The archive for this machine and this Python, from the packages that are installed here."""
    index = Index(directory)
    for name in plugin.needed((ROOT / "requirements/commands.txt").read_text()):
        package = distribution(name)
        tags = re.findall(r"(?m)^Tag: (\S+)", package.read_text("WHEEL") or "")
        tag = next((tag for tag in tags if tag.startswith("py3")), f"{tags[0].rpartition('-')[0]}-{here().tags[-1]}")
        index.pin(name, package.version, index.add(name, package.version, tag, _files(package)))
    driver = {str(path.relative_to(ROOT)): path.read_bytes() for path in (ROOT / "dra_driver").rglob("*.py")}
    index.drive(driver)
    for key, value in index.settings().items():
        patch.setenv(key, value)
    (archive,) = plugin.pack_plugins(index.tree, index.driver, index.made, 7, platforms=[here()], pythons=[PYTHON])
    return archive


def _files(package: Distribution) -> dict[str, bytes]:
    """What was in its wheel, without programs, bytecode and the large part that no archive has."""
    listed = (
        file
        for file in package.files or ()
        if ".." not in file.parts and file.suffix != ".pyc" and file.parts[:2] != ("kubernetes", "aio")
    )
    return {str(file): Path(str(package.locate_file(file))).read_bytes() for file in listed}
