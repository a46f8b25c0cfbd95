"""Builds the driver's image without access to a registry: on a base made with debootstrap, with buildah."""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab import files, hostsettings
from lab.errors import LabError
from lab.machine import bootstrap
from lab.progress import Progress
from lab.settings import REPOSITORY, Settings

# The inputs of the image; the same list as in .dockerignore.
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
_PACKAGES = "python3,python3-venv,ca-certificates"
_DIFFERING = (
    "etc/apt/sources.list*",
    "etc/apt/sources.list.d/*",
    "etc/hostname",
    "etc/machine-id",
    "etc/resolv.conf",
    "var/cache/debconf/*-old",
    "var/cache/ldconfig/aux-cache",
    "var/lib/dpkg/*-old",
)
_BASE_EPOCH = 0
_BASE_FORMAT = 2
"""Raised when `_strip` or the way of packing changes, so that a base that was made before is not used again."""
_KEPT_IMAGES = 4
_ERROR_LINES = 30


class ImageBuilder:
    """Builds images, and caches them and the base."""

    def __init__(
        self, settings: Settings, progress: Progress, repository: Path = REPOSITORY, epoch: int | None = None
    ) -> None:
        """Take the inputs from `repository`.

        With `epoch` (seconds, Unix time), all files and the image itself bear that date, so that every build gives the
        same bytes; but then buildah reuses no layers, and each build downloads what the driver needs.
        """
        self._directory = settings.cache / "images"
        self._progress = progress
        self._repository = repository
        self._epoch = epoch

    def build(self, tag: str, output: Path, base: str | None = None) -> None:
        """Write the driver's image as a docker archive, rebuilt only if one of its inputs has changed.

        Args:
            tag: The image's name in the archive.
            output: The archive.
            base: A base image that buildah can pull; None to make one on this machine.

        Raises:
            LabError: It cannot be built; the message has the last lines of the failed step's output.
        """
        inputs = input_files(self._repository)
        contents = {str(path.relative_to(self._repository)): path.read_bytes() for path in inputs}
        key = image_key(contents, f"{tag} {self._epoch}", base or self._base_name())
        final = self._directory / f"driver-{key}.tar"
        with files.lock(self._directory / ".lock", "builds an image", self._progress):
            if final.exists():
                self._progress.say(f"{tag}: nothing has changed since it was built")
                final.touch()
            else:
                self._forget_old()
                self._build(tag, final, contents, base)
            output.parent.mkdir(parents=True, exist_ok=True)
            output.unlink(missing_ok=True)
            shutil.copyfile(final, output)

    def _build(self, tag: str, final: Path, contents: Mapping[str, bytes], base: str | None) -> None:
        bootstrap("image")
        buildah = Buildah(self._storage(contents, base), self._epoch)
        if base is None:
            base = f"localhost/ndl-base:{self._base_name()}"
            rootfs = self._base()
            if not buildah.has(base):
                with self._progress.step("importing the base image"):
                    buildah.import_base(rootfs, base)
        with tempfile.TemporaryDirectory(dir=self._directory, prefix=".build-") as name:
            work = Path(name)
            for path, content in contents.items():
                target = work / "context" / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
            recipe = Recipe(
                context=work / "context",
                arguments={"BASE_IMAGE": base, "VERSION": _driver_version(contents)},
                mounts=hostsettings.pip_mounts(work),
            )
            with self._progress.step("building the image: what the driver needs, from PyPI"):
                buildah.build(recipe, "localhost/ndl-dependencies:latest", stage="dependencies")
            with self._progress.step(f"building the image: the driver, as {tag}"):
                buildah.build(recipe, tag)
            with self._progress.step("writing the image archive"):
                buildah.push(tag, work / "image.tar")
            buildah.forget(tag)
            (work / "image.tar").replace(final)

    def _storage(self, contents: Mapping[str, bytes], base: str | None) -> Path:
        """Return buildah's storage, which is kept as long as the base and the dependencies stay the same."""
        lasting = {
            name: content for name, content in contents.items() if name.startswith(("Dockerfile", "requirements/"))
        }
        storage = self._directory / f"storage-{image_key(lasting, '', base or self._base_name())}"
        for other in self._directory.glob("storage-*"):
            if other != storage:
                shutil.rmtree(other)
        return storage

    def _base_name(self) -> str:
        release = hostsettings.this_release()
        inputs = f"{_PACKAGES} {_BASE_FORMAT}"
        return f"{release.suite}-{platform.machine()}-{hashlib.sha256(inputs.encode()).hexdigest()[:8]}"

    def _base(self) -> Path:
        """Return the base's file tree as a tar file, created with debootstrap the first time."""
        final = self._directory / f"base-{self._base_name()}.tar"
        if final.exists():
            return final
        release = hostsettings.this_release()
        text = f"making the base image from {release.suite}'s packages with debootstrap; about a minute"
        with (
            self._progress.step(text),
            tempfile.TemporaryDirectory(dir=self._directory, prefix=".base-") as name,
        ):
            root, archive = Path(name) / "root", Path(name) / "base.tar"
            mirror = [release.mirror] if release.mirror else []
            # Its mounts must not outlive it, however it ends.
            own = ["unshare", "--mount", "--propagation", "private"]
            # Days of password changes are those of this date instead of today's.
            own += ["env", f"SOURCE_DATE_EPOCH={_BASE_EPOCH}"]
            _run(
                [*own, "debootstrap", "--variant=minbase", f"--include={_PACKAGES}", release.suite, str(root), *mirror]
            )
            _strip(root)
            same = ["--sort=name", f"--mtime=@{_BASE_EPOCH}", "--numeric-owner"]
            _run(["tar", "--create", *same, f"--file={archive}", f"--directory={root}", "."])
            archive.replace(final)
        return final

    def _forget_old(self) -> None:
        for pattern in (".build-*", ".base-*"):  # left by killed runs
            for unfinished in self._directory.glob(pattern):
                shutil.rmtree(unfinished)
        images = sorted(self._directory.glob("driver-*.tar"), key=lambda path: path.stat().st_mtime, reverse=True)
        for image in images[_KEPT_IMAGES - 1 :]:
            image.unlink()


@dataclass(frozen=True)
class Recipe:
    """What an image is built from.

    Attributes:
        context: Directory with the Dockerfile and its inputs.
        arguments: Build arguments.
        mounts: Files and directories (source, target) that are readable during the build.
    """

    context: Path
    arguments: Mapping[str, str]
    mounts: Sequence[tuple[Path, str]]


class Buildah:
    """Buildah with its own storage, in its own mount namespace so that it leaves no mounts behind."""

    def __init__(self, storage: Path, epoch: int | None) -> None:
        self._dated = [] if epoch is None else [f"--timestamp={epoch}"]
        storage.mkdir(parents=True, exist_ok=True)
        # Otherwise buildah would create /etc/cni on this machine.
        settings = storage / "containers.conf"
        files.write(settings, f'[network]\nnetwork_config_dir = "{storage}/cni"\n')
        self._command = ["unshare", "--mount", "--propagation", "private"]
        self._command += ["env", f"CONTAINERS_CONF={settings}", "buildah"]
        self._command += ["--root", str(storage / "root"), "--runroot", str(storage / "run")]
        self._command += ["--storage-driver", _storage_driver(storage)]
        _run([*self._command, "rm", "--all"])  # left by killed runs

    def has(self, name: str) -> bool:
        """Return whether an image is in the storage."""
        command = [*self._command, "inspect", "--type=image", name]
        return subprocess.run(command, check=False, capture_output=True).returncode == 0

    def import_base(self, rootfs: Path, name: str) -> None:
        """Create a base image of one layer from a tar file."""
        container = _run([*self._command, "from", "scratch"]).strip()
        _run([*self._command, "add", container, str(rootfs), "/"])
        _run([*self._command, "commit", "--rm", *self._dated, container, name])

    def build(self, recipe: Recipe, tag: str, stage: str | None = None) -> None:
        """Build the Dockerfile, or one of its stages."""
        options = [f"--build-arg={name}={value}" for name, value in recipe.arguments.items()]
        options += [f"--volume={source}:{target}:ro" for source, target in recipe.mounts]
        options += [f"--target={stage}"] if stage else []
        # Isolation by chroot needs no control groups; pip needs this machine's network.
        common = ["build", "--layers", *self._dated, "--isolation=chroot", "--network=host"]
        _run([*self._command, *common, *options, "--tag", tag, str(recipe.context)])

    def forget(self, tag: str) -> None:
        """Remove an image and all layers that no other image uses."""
        _run([*self._command, "rmi", tag])
        _run([*self._command, "rmi", "--prune"])

    def push(self, tag: str, archive: Path) -> None:
        """Write the image as a docker archive."""
        _run([*self._command, "push", tag, f"docker-archive:{archive}:{tag}"])


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
    return digest.hexdigest()[:16]


def _driver_version(contents: Mapping[str, bytes]) -> str:
    found = re.search(rb'^VERSION = "([^"]+)"', contents.get("dra_driver/version.py", b""), re.MULTILINE)
    return found.group(1).decode() if found else "dev"


def _strip(root: Path) -> None:
    """Remove what differs between two runs or machines, or can be downloaded; packages keep their licences."""
    for pattern in _DIFFERING:
        for path in root.glob(pattern):
            if path.is_file():
                path.unlink()
    for directory in ("var/lib/apt/lists", "var/cache/apt", "var/log", "usr/share/locale"):
        for child in (root / directory).glob("*"):
            if child.is_dir() and not child.is_symlink():
                shutil.rmtree(child)
            else:
                child.unlink()
    for path in (root / "usr/share/doc").glob("*/**/*"):
        if path.name != "copyright" and not path.is_dir():
            path.unlink()


def _storage_driver(directory: Path) -> str:
    kind = subprocess.run(["stat", "-f", "-c", "%T", str(directory)], check=True, capture_output=True, text=True)
    return "vfs" if kind.stdout.strip() == "overlayfs" else "overlay"


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-_ERROR_LINES:])
        raise LabError(f"'{' '.join(command[:12])} ...' failed, so there is no image. Its last lines:\n{last}")
    return done.stdout
