"""The driver's image: a base, the two environments of the Dockerfile, and the driver, put together without a container.

Nothing of another architecture is run, so that one machine makes the images of all: packages are unpacked, wheels are
installed by their pins, and Python's files, which are the same everywhere, are compiled by the base's own Python of
this machine's architecture. The Dockerfile makes the same for those who build with Docker; a test compares the two.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from lab import basepython, bases, debian, debianpins, dockerfile, files, filetree, hostsettings, oci, wheels
from lab.basepython import BasePython
from lab.bases import Base
from lab.errors import LabError
from lab.filetree import Entry, Tree, link
from lab.machine import bootstrap
from lab.oci import Descriptor, Layer, Layout
from lab.progress import Progress
from lab.settings import REPOSITORY, Settings
from lab.wheels import Environment

# The inputs of the Dockerfile's image; the same list as in .dockerignore.
INPUTS = (
    "Dockerfile",
    "LICENSE",
    "README.md",
    "pyproject.toml",
    "requirements/build.txt",
    "requirements/commands.txt",
    "requirements/node.txt",
    "dra_driver",
)
ARCHITECTURES = ("amd64", "arm64")
# As in the Dockerfile, which says why.
_NODE, _COMMANDS = "opt/node", "opt/commands"
_SERVICES = ("autoscaling", "cloudwatch", "ec2", "sts")
_UNUSED = re.compile(rf"botocore/data/(?!(?:{'|'.join(_SERVICES)})/)[^/]+/.*|kubernetes/aio(/.*)?")
_KEPT_IMAGES = 4
_KEPT_LAYERS = 16
_KEPT_BASES = 2
# An image is made anew when what makes it changes.
_MAKERS = ("bases", "basepython", "debian", "dockerfile", "filetree", "images", "oci", "wheels")


class ImageBuilder:
    """Builds images, and caches them, their layers, and the packages that these are made of."""

    def __init__(
        self, settings: Settings, progress: Progress, repository: Path = REPOSITORY, epoch: int | None = None
    ) -> None:
        """Take the inputs from `repository`; `epoch` (seconds, Unix time) is the date that the image bears."""
        self._directory = settings.cache / "images"
        self._progress = progress
        self._repository = repository
        self._epoch = epoch or 0

    def build(self, tag: str, output: Path, base: str | None = None, *, or_newest: bool = False) -> None:
        """Write the image of this machine's architecture as an archive for containerd and Docker.

        Args:
            tag: The image's name in the archive.
            output: The archive.
            base: A base by the digest of its index, from a registry; None for packages of Debian by their pins.
            or_newest: Take today's packages where mirrors have not got the pinned ones any more: for images that are
                no release.

        Raises:
            LabError: It cannot be built; the message says why.
        """
        architecture = basepython.native_architecture()
        inputs = input_contents(self._repository)
        pins = debian.pins_file(self._repository, architecture).read_text()
        key = image_key(inputs, f"{tag} {architecture} {self._epoch}", base or pins)
        final = self._directory / f"driver-{key}.tar"
        with files.lock(self._directory / ".lock", "builds an image", self._progress):
            if final.exists():
                self._progress.say(f"{tag}: nothing has changed since it was built")
                final.touch()
            else:
                self._forget_old()
                layout = Layout()
                chosen = self.base(base, or_newest=or_newest)
                (manifest,) = self._add_images(layout, (architecture,), chosen, inputs, {})
                layout.write_archive(final, manifest, (tag,))
            output.parent.mkdir(parents=True, exist_ok=True)
            output.unlink(missing_ok=True)
            shutil.copyfile(final, output)

    def write_layout(
        self, layout_directory: Path, architectures: Sequence[str], base: str | None, labels: Mapping[str, str]
    ) -> str:
        """Write an image index of all architectures to a new directory, in the OCI's layout; returns its digest.

        Raises:
            LabError: It cannot be built; the message says why.
        """
        inputs = input_contents(self._repository)
        with files.lock(self._directory / ".lock", "builds an image", self._progress):
            self._forget_old()
            layout = Layout()
            manifests = self._add_images(layout, architectures, self.base(base), inputs, labels)
            index = layout.add_index(manifests, _labels(self._settings(inputs, {}, labels)))
            return layout.write_directory(layout_directory, index)

    def _add_images(
        self,
        layout: Layout,
        architectures: Sequence[str],
        base: Base,
        inputs: Mapping[str, bytes],
        labels: Mapping[str, str],
    ) -> list[Descriptor]:
        """Add the images of all architectures; the base of this machine's architecture is needed in any case."""
        with self._progress.step("unpacking the base"):
            tree = base.tree(basepython.native_architecture())
        with basepython.unpacked(tree, self._directory) as python, ThreadPoolExecutor() as pool:
            with self._progress.step("building the driver's wheel"):
                driver = self._driver(inputs, python)
            below = pool.map(lambda architecture: self._layers(base, architecture, python, inputs), architectures)
            return [
                layout.add_image(
                    architecture,
                    [*layers, driver],
                    self._settings(inputs, base.settings(architecture), labels),
                    self._epoch,
                )
                for architecture, layers in zip(architectures, below, strict=True)
            ]

    def base(self, name: str | None, *, or_newest: bool = False) -> Base:
        """Return what an image stands on; see `build`."""
        if name is not None:
            return bases.pull(name, self._directory / "bases")
        mirrors, snapshots = hostsettings.debian_mirrors(), os.environ.get("DEBIAN_SNAPSHOTS", "")
        archive = debian.Archive(self._directory / "packages", mirrors, snapshots)
        base = bases.DebianBase(
            lambda architecture: debian.pins_file(self._repository, architecture).read_text(), archive
        )
        if not or_newest:
            return base
        try:
            archive.fetch(debian.read_pins(base.key(basepython.native_architecture())))
        except debian.GoneError as error:
            bootstrap("pins")
            now = datetime.now(UTC).strftime(debian.SNAPSHOT_FORMAT)
            self._progress.say(f"{error}\nThe newest packages are taken, so that this image is none of a release.")
            return bases.DebianBase(cache(lambda name: debianpins.newest(name, mirrors, now)), archive)
        return base

    def _layers(self, base: Base, architecture: str, python: BasePython, inputs: Mapping[str, bytes]) -> list[Layer]:
        """The layers below the driver, which stay the same as long as the pins do."""
        platform = f"{architecture} {python.directory} {python.version} {python.glibc}"
        lower = self._kept(
            image_key({}, platform, base.key(architecture)),
            f"making the base for {architecture}",
            lambda: base.layers(architecture, python),
        )
        upper = self._kept(
            image_key(_requirements(inputs), platform, ""),
            f"installing Python's packages for {architecture}",
            lambda: [
                oci.pack_layer(
                    self._environment(name, architecture, python, inputs), architecture, bases.PINS_EPOCH, f"/{name}"
                )
                for name in (_COMMANDS, _NODE)
            ],
        )
        return [*lower, *upper]

    def _kept(self, key: str, step: str, make: Callable[[], list[Layer]]) -> list[Layer]:
        """Layers of the cache; made, and kept there, if it has none by this key."""
        kept = self._directory / "layers" / key
        if kept.exists():
            kept.touch()
            return [_kept_layer(path) for path in sorted(kept.iterdir())]
        with self._progress.step(step):
            layers = make()
        with files.complete_directory(kept) as unfinished:
            for number, layer in enumerate(layers):
                _keep_layer(layer, unfinished, number)
        return layers

    def _environment(self, prefix: str, architecture: str, python: BasePython, inputs: Mapping[str, bytes]) -> Tree:
        """One of the two environments; that of the commands finds in the node's what both pin alike."""
        node, commands = (inputs[f"requirements/{name}.txt"].decode() for name in ("node", "commands"))
        requirements = node if prefix == _NODE else wheels.without(commands, wheels.pins(node))
        environment = _environment(prefix, python)
        platform = wheels.Platform(architecture, python.minor, python.glibc)
        downloaded = wheels.download(self._pip(), requirements, platform, self._directory)
        tree = wheels.merged(
            [environment.empty(), *(wheels.install(wheel, environment) for wheel in downloaded.values())]
        )
        if prefix == _NODE:
            tree[f"{_NODE}/commands"] = link(f"/{_COMMANDS}")
        else:
            others = _environment(_NODE, python).packages
            tree[f"{environment.packages}/node.pth"] = Entry(content=f"/{others}\n".encode())
        unused = f"{environment.packages}/"
        used = {path: entry for path, entry in tree.items() if not _UNUSED.fullmatch(path.removeprefix(unused))}
        return used | python.compile(used)

    def _driver(self, inputs: Mapping[str, bytes], python: BasePython) -> Layer:
        """The driver itself."""
        with tempfile.TemporaryDirectory(dir=self._directory, prefix=".build-") as name:
            source, wheel_directory = Path(name) / "source", Path(name) / "wheels"
            filetree.write({path: Entry(content=content) for path, content in inputs.items()}, source)
            options = ["--quiet", "--no-deps", "--no-build-isolation", f"--wheel-dir={wheel_directory}"]
            _run([str(self._pip()), "-P", "-m", "pip", "wheel", *options, str(source)])
            (wheel,) = wheel_directory.iterdir()
            tree = wheels.install(wheel.read_bytes(), _environment(_NODE, python))
        return oci.pack_layer(tree | python.compile(tree), None, self._epoch, "the driver")

    def _settings(
        self, inputs: Mapping[str, bytes], base: Mapping[str, object], labels: Mapping[str, str]
    ) -> dict[str, object]:
        """The base's settings with those of the Dockerfile, and with the labels that are given."""
        own = dockerfile.settings(inputs["Dockerfile"].decode(), {"VERSION": driver_version(inputs)})
        created = {"org.opencontainers.image.created": oci.timestamp(self._epoch)}
        variables = {pair.partition("=")[0]: pair for pair in (*_list(base, "Env"), *_list(own, "Env"))}
        return {
            **base,
            **own,
            "Env": list(variables.values()),
            "ExposedPorts": {**_mapping(base, "ExposedPorts"), **_mapping(own, "ExposedPorts")},
            "Labels": {**_labels(base), **_labels(own), **created, **labels},
        }

    def _pip(self) -> Path:
        """The interpreter of an environment with pip and the driver's build backend, made at the first use."""
        requirements = self._repository / "requirements/build.txt"
        key = hashlib.sha256(f"{sys.executable} {sys.version} {requirements.read_text()}".encode()).hexdigest()[:12]
        final = self._directory / f"pip-{key}"
        if not (final / "complete").exists():
            bootstrap("venv")
            _run([sys.executable, "-P", "-m", "venv", "--clear", str(final)])
            install = ["pip", "install", "--quiet", "--require-hashes", "--only-binary", ":all:"]
            _run([str(final / "bin/python"), "-P", "-m", *install, "-r", str(requirements)])
            (final / "complete").touch()
        return final / "bin/python"

    def _forget_old(self) -> None:
        for pattern in (".build-*", ".base-*", ".wheels-*"):  # left by killed runs
            for unfinished in self._directory.glob(pattern):
                shutil.rmtree(unfinished)
        for pattern, number in (("driver-*.tar", _KEPT_IMAGES), ("layers/*", _KEPT_LAYERS), ("bases/*", _KEPT_BASES)):
            kept = sorted(self._directory.glob(pattern), key=lambda path: path.stat().st_mtime, reverse=True)
            for path in kept[number - 1 :]:
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()


def input_contents(repository: Path) -> dict[str, bytes]:
    """Return the contents of the image's input files, by their path in the repository."""
    return {str(path.relative_to(repository)): path.read_bytes() for path in input_files(repository)}


def input_files(repository: Path) -> list[Path]:
    """Return the input files of the image, sorted: those of `INPUTS` that git does not ignore.

    Raises:
        LabError: One of `INPUTS` is missing.
    """
    missing = [name for name in INPUTS if not (repository / name).exists()]
    if missing:
        raise LabError(f"Not there: {', '.join(missing)}; no image was built. Restore them from the repository.")
    listed = [path for name in INPUTS for path in _files_below(repository / name)]
    return sorted(path for path in listed if "__pycache__" not in path.parts and path.suffix != ".pyc")


def _files_below(path: Path) -> list[Path]:
    return [path] if path.is_file() else [child for child in path.rglob("*") if child.is_file()]


def image_key(contents: Mapping[str, bytes], tag: str, base: str) -> str:
    """Return a hash of everything that determines the image."""
    digest = hashlib.sha256(f"{tag}\0{base}\0".encode())
    for name, content in sorted(contents.items()):
        digest.update(f"{name}\0{hashlib.sha256(content).hexdigest()}\0".encode())
    for name in _MAKERS:
        digest.update(Path(__file__).with_name(f"{name}.py").read_bytes())
    return digest.hexdigest()[:16]


def driver_version(contents: Mapping[str, bytes]) -> str:
    """Return the driver's version from its sources."""
    match = re.search(rb'^VERSION = "([^"]+)"', contents.get("dra_driver/version.py", b""), re.MULTILINE)
    return match.group(1).decode() if match else "dev"


def _requirements(inputs: Mapping[str, bytes]) -> dict[str, bytes]:
    return {name: content for name, content in inputs.items() if name.startswith("requirements/")}


def _environment(prefix: str, python: BasePython) -> Environment:
    return Environment(prefix, python.directory, python.version)


def _labels(settings: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in _mapping(settings, "Labels").items()}


def _mapping(settings: Mapping[str, object], name: str) -> dict[str, object]:
    value = settings.get(name)
    return dict(value) if isinstance(value, Mapping) else {}


def _list(settings: Mapping[str, object], name: str) -> list[str]:
    value = settings.get(name)
    return [str(item) for item in value] if isinstance(value, list) else []


def _keep_layer(layer: Layer, directory: Path, number: int) -> None:
    """Write a layer to the cache; the file's name has all that is not in it."""
    packed = "gz" if layer.media_type == oci.TAR_GZ else "tar"
    history = layer.history.replace("/", "%")
    files.write(directory / f"{number:02},{layer.diff_id},{history},{packed}", layer.blob, mode=0o644)


def _kept_layer(path: Path) -> Layer:
    _, diff_id, history, packed = path.name.split(",")
    return Layer(path.read_bytes(), diff_id, oci.TAR_GZ if packed == "gz" else oci.TAR, history.replace("%", "/"))


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        last = (done.stdout + done.stderr)[-3000:]
        raise LabError(f"'{' '.join(command[:8])} ...' failed, so there is no image. Its last lines:\n{last}")
