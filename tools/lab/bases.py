"""What the driver's image stands on: packages of Debian by their pins, or an image that a registry has."""

from __future__ import annotations

import io
import json
import re
import subprocess
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from lab import debian, files, filetree, oci
from lab.basepython import BasePython
from lab.errors import LabError
from lab.filetree import Tree
from lab.machine import bootstrap
from lab.oci import Layer

# Layers of pins bear no date of a release: they stay the same, and on the nodes, as long as the pins do.
PINS_EPOCH = 0
# Registries of this machine speak no TLS; the digest tells whether it is the right base.
_LOOPBACK = re.compile(r"(localhost|127\.[0-9.]+)(:\d+)?/")


class Base(Protocol):
    """A base for several architectures, which all have the same versions of Python and glibc."""

    def key(self, architecture: str) -> str:
        """Return what tells it from all others."""

    def tree(self, architecture: str) -> Tree:
        """Return its files."""

    def layers(self, architecture: str, python: BasePython) -> list[Layer]:
        """Return its layers; `python` is the one of this machine's architecture."""

    def settings(self, architecture: str) -> Mapping[str, Any]:
        """Return its variables and so on, by the names of the OCI."""


class DebianBase:
    """Packages of Debian by their pins.

    Args:
        pins: Gives the text of an architecture's pins.
        archive: Where packages come from.
    """

    def __init__(self, pins: Callable[[str], str], archive: debian.Archive) -> None:
        self._pins = pins
        self._archive = archive

    def key(self, architecture: str) -> str:
        """Return its pins."""
        return self._pins(architecture)

    def tree(self, architecture: str) -> Tree:
        """Return the files of the packages, which are downloaded if they are not kept."""
        return debian.base(self._archive.fetch(debian.read_pins(self.key(architecture))))

    def layers(self, architecture: str, python: BasePython) -> list[Layer]:
        """Return one layer, in which Python's own library is compiled, as Debian's maintainer scripts would do it."""
        tree = self.tree(architecture)
        library = f"usr/lib/python{python.minor}/"
        compiled = python.compile({path: entry for path, entry in tree.items() if path.startswith(library)})
        return [oci.pack_layer({**tree, **compiled}, architecture, PINS_EPOCH, "packages of Debian")]

    def settings(self, architecture: str) -> Mapping[str, Any]:  # noqa: ARG002 - a pulled base has some
        """Return nothing."""
        return {}


class PulledBase:
    """An image of a registry, named by digest, with an image for each architecture."""

    def __init__(self, layout: Path) -> None:
        """Take it from a layout in a directory, as `pull` makes it."""
        self._layout = layout
        (top,) = json.loads((layout / "index.json").read_text())["manifests"]
        self._index = json.loads(oci.read_blob(layout, top))

    @property
    def architectures(self) -> list[str]:
        """Return those that it has an image for."""
        return [entry["platform"]["architecture"] for entry in self._index.get("manifests", ())]

    def key(self, architecture: str) -> str:
        """Return the digest of its manifest."""
        return str(self._entry(architecture)["digest"])

    def tree(self, architecture: str) -> Tree:
        """Return its files, all layers on top of each other."""
        tree: Tree = {}
        for descriptor in self._manifest(architecture)["layers"]:
            with tarfile.open(fileobj=io.BytesIO(oci.read_blob(self._layout, descriptor))) as archive:
                tree = filetree.overlay(tree, filetree.read_tar(archive))
        return tree

    def layers(self, architecture: str, python: BasePython) -> list[Layer]:  # noqa: ARG002 - they are what they are
        """Return its layers."""
        described = zip(self._manifest(architecture)["layers"], self.diff_ids(architecture), strict=True)
        return [
            Layer(oci.read_blob(self._layout, layer), diff_id, oci.layer_type(layer["mediaType"]), "the base")
            for layer, diff_id in described
        ]

    def settings(self, architecture: str) -> Mapping[str, Any]:
        """Return its settings."""
        settings: Mapping[str, Any] = self._config(architecture).get("config") or {}
        return settings

    def diff_ids(self, architecture: str) -> list[str]:
        """Return the digests of its layers, uncompressed."""
        return [str(diff_id) for diff_id in self._config(architecture)["rootfs"]["diff_ids"]]

    def _config(self, architecture: str) -> Any:
        return json.loads(oci.read_blob(self._layout, self._manifest(architecture)["config"]))

    def _manifest(self, architecture: str) -> Any:
        return json.loads(oci.read_blob(self._layout, self._entry(architecture)))

    def _entry(self, architecture: str) -> Any:
        for entry in self._index.get("manifests", ()):
            platform = entry.get("platform", {})
            if (platform.get("os"), platform.get("architecture")) == ("linux", architecture):
                return entry
        raise LabError(
            f"The base has no image for {architecture}; no image was built. Name it by the digest of its index, which "
            "has all architectures."
        )


def pull(base: str, directory: Path) -> PulledBase:
    """Return a base, which is pulled if `directory` has not got it yet.

    Args:
        base: Its name with the digest of its index.
        directory: Where bases are kept.

    Raises:
        LabError: It cannot be pulled.
    """
    layout = directory / base.rpartition(":")[2]
    if not layout.exists():
        bootstrap("base")
        with files.complete_directory(layout) as unfinished:
            options = ["--all", "--preserve-digests"]
            options += ["--src-tls-verify=false"] if _LOOPBACK.match(base) else []
            command = ["skopeo", "copy", *options, f"docker://{base}", f"oci:{unfinished}"]
            done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True)
            if done.returncode != 0:
                raise LabError(f"The base {base} cannot be pulled, so there is no image:\n{done.stderr[-2000:]}")
    return PulledBase(layout)
