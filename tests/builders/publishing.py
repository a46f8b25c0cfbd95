"""Somebody who publishes what is here into a registry, with an image that is made quickly."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lab import oci
from lab.filetree import Entry
from lab.progress import Progress
from releasing import publish
from releasing.addresses import CHART
from releasing.main import LayoutWriter, main

from dra_driver.version import VERSION
from tests.paths import ROOT

CRANE = os.environ.get("CRANE")
URL = "https://git.example/neuron-dra-driver"
LATER = "0.2.0"


def small_image(
    tree: Path, layout: Path, epoch: int, progress: Progress, base: str | None, labels: Mapping[str, str]
) -> str:
    """An image of two architectures that has one package, and differs by version."""
    del epoch, progress, base
    written = oci.Layout()
    status = (
        f"Package: base\nStatus: install ok installed\nVersion: {(tree / 'dra_driver/version.py').read_text()[-8:]}"
    )
    manifests = []
    for architecture in ("amd64", "arm64"):
        content = f"{status}\nArchitecture: {architecture}\n".encode()
        layer = oci.pack_layer({"var/lib/dpkg/status": Entry(content=content)}, architecture, 0, "")
        manifests.append(written.add_image(architecture, [layer], {"Labels": dict(labels)}))
    return written.write_directory(layout, written.add_index(manifests, {}))


def packed_image(archive: Path) -> LayoutWriter:
    """What writes an image that was built before, an archive of the lab's, as the layout of a release."""

    def write(
        tree: Path, layout: Path, epoch: int, progress: Progress, base: str | None, labels: Mapping[str, str]
    ) -> str:
        del tree, epoch, progress, base
        unpacked = layout.with_name(f"{layout.name}-of-archive")
        shutil.unpack_archive(archive, unpacked, filter="data")
        (top,) = json.loads((unpacked / "index.json").read_text())["manifests"]
        manifest = json.loads(oci.read_blob(unpacked, top))
        config = json.loads(oci.read_blob(unpacked, manifest["config"]))
        layers = [
            oci.Layer(oci.read_blob(unpacked, layer), diff_id, layer["mediaType"])
            for layer, diff_id in zip(manifest["layers"], config["rootfs"]["diff_ids"], strict=True)
        ]
        written = oci.Layout()
        settings = {**config["config"], "Labels": dict(labels)}
        return written.write_directory(
            layout, written.add_index([written.add_image(config["architecture"], layers, settings)], {})
        )

    return write


def git(tree: Path, *arguments: str) -> str:
    """Run git as nobody in particular, at a fixed date."""
    names = {f"GIT_{who}_{what}": "x@git.example" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    dates = {f"GIT_{who}_DATE": "@1750000000 +0000" for who in ("AUTHOR", "COMMITTER")}
    environment = {**os.environ, **names, **dates, "GIT_CONFIG_GLOBAL": "/dev/null"}
    done = subprocess.run(["git", *arguments], cwd=tree, env=environment, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit_all(tree: Path) -> None:
    """Make a repository of one commit with what is here now."""
    listed = git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    for name in filter(None, listed):
        left_out = name.startswith(("tests/", "tools/")) and not name.startswith("tools/docsite/")
        if (ROOT / name).is_file() and not left_out:
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    git(tree, "init", "--quiet", "--initial-branch=main")
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--message=All")


def raise_version(tree: Path) -> None:
    """Commit the next version."""
    for name in ("dra_driver/version.py", f"{CHART}/Chart.yaml", "CHANGELOG.md"):
        path = tree / name
        path.write_text(path.read_text().replace(VERSION, LATER, 3))
    git(tree, "commit", "--quiet", "--all", "--message=Next")


@dataclass(frozen=True)
class Publisher:
    """Somebody who publishes a tree.

    Attributes:
        image: What writes the image's layout.
        tree: The checkout.
        place: Where to.
        output: Where the files go.
        without: Options for what takes long and a package index.
    """

    image: LayoutWriter
    tree: Path
    place: str
    output: Path
    without: tuple[str, ...] = ("--no-plugin", "--no-site")

    def run(self, *options: str) -> int:
        """Publish; returns the exit status."""
        where = ("--publish", self.place, "--repository-url", URL, "--output", str(self.output))
        return main((*where, *self.without, *options), self.tree, self.image)

    def digests(self) -> dict[str, str]:
        """The digests of image and chart in the registry."""
        place = publish.Place(self.place)
        return {name: crane("digest", f"{name}:{VERSION}") for name in (place.image, place.chart)}

    def sums(self) -> dict[str, str]:
        """The sums of the files."""
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(self.output.iterdir())}


def crane(*arguments: str) -> str:
    assert CRANE is not None
    return subprocess.run([CRANE, *arguments], check=True, capture_output=True, text=True).stdout.strip()
