"""``kubectl neuron`` as krew installs it: an archive for each platform, and the manifest that names them.

An archive has the packages unpacked in `lib/`, so that nothing is downloaded or built where it is installed. Pure
modules are there once, for all versions of Python; native ones lie beside each other, since their names carry the
version. Nothing of another platform is run: what is packed is checked file by file. There is no bytecode: it would be
that of the Pythons that the release is made with, 10 MB for each.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Final

import yaml
from lab.errors import LabError
from lab.wheels import fetch

from dra_driver.version import VERSION

LAUNCHER: Final = Path(__file__).with_name("kubectl-neuron")
START: Final = Path(__file__).with_name("kubectl_neuron.py")
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
"""What the archives have native modules for. The launcher's texts name the first and the last."""
DESCRIPTION: Final = (
    "Shows the Neuron chips of a cluster: which pods hold them, how they are connected and how healthy they are, why a "
    "pod waits for chips, what a change of a manifest would do, and collects what a bug report needs. Nothing is "
    "changed in the cluster. Works with the DRA driver; migrate and explain also read pods that ask AWS's device "
    "plugin for chips."
)
CAVEATS: Final = (
    f"Needs CPython {PYTHONS[0]} to {PYTHONS[-1]}, which it looks for as python3 and python{PYTHONS[-1]} to "
    f"python{PYTHONS[0]}; to name another, set PYTHON. On Linux it needs glibc 2.28 or later, on macOS version 13 or "
    "later. It brings all its packages, and downloads nothing.\n"
)
LEFT_OUT: Final = {
    "aiohappyeyeballs": "of aiohttp",
    "aiohttp": "the extender and kubernetes.aio",
    "aiohttp-retry": "kubernetes.aio",
    "aiosignal": "of aiohttp",
    "attrs": "of aiohttp",
    "boto3": "recover",
    "botocore": "of boto3",
    "frozenlist": "of aiohttp",
    "grpcio": "what nodes run",
    "h2": "what nodes run",
    "hpack": "of h2",
    "hyperframe": "of h2",
    "jmespath": "of boto3, and the code of celpy, of which only the grammar is read",
    "multidict": "of aiohttp",
    "pendulum": "the code of celpy",
    "propcache": "of aiohttp",
    "protobuf": "what nodes run",
    "s3transfer": "of boto3",
    "tzdata": "of pendulum",
    "yarl": "of aiohttp",
}
"""Pinned packages that no command of kubectl neuron loads, and who does."""
_FOLDERS_LEFT_OUT: Final = ("kubernetes/aio/",)
"""Half of the client of Kubernetes, a second client that nothing loads."""
_PIN: Final = re.compile(r"(?m)^([A-Za-z0-9._-]+)==[^\\\n]*(?:\\\n[^\\\n]*)*\n")
_OF_ONE_WHEEL: Final = re.compile(r"[^/]+\.dist-info/(RECORD|WHEEL|sboms/.*)")
"""What says how a wheel was built and packed: no two wheels have it alike, and nothing reads it."""
_PROGRAMS: Final = re.compile(r"[^/]+\.data/(scripts|headers|data)/")


@dataclass(frozen=True)
class Platform:
    """A system that krew installs plugins on.

    Attributes:
        system: Its name, as krew and Go have it.
        architecture: Likewise.
        tags: What pip calls the oldest such system that all native packages run on.
    """

    system: str
    architecture: str
    tags: tuple[str, ...]

    @property
    def name(self) -> str:
        """As it is in the name of an archive."""
        return f"{self.system}-{self.architecture}"


PLATFORMS: Final = (
    *(
        Platform("linux", ours, (f"manylinux_2_28_{theirs}", f"manylinux_2_17_{theirs}", f"manylinux2014_{theirs}"))
        for ours, theirs in (("amd64", "x86_64"), ("arm64", "aarch64"))
    ),
    *(
        Platform("darwin", ours, (f"macosx_13_0_{theirs}",))
        for ours, theirs in (("amd64", "x86_64"), ("arm64", "arm64"))
    ),
)
_ELF_MACHINES: Final = {62: "amd64", 183: "arm64"}
_MACHO_TYPES: Final = {0x01000007: "amd64", 0x0100000C: "arm64"}
_NATIVE_SUFFIXES: Final = (".so", ".dylib", ".dll", ".pyd", ".exe")


def pack_plugins(
    tree: Path,
    wheel: Path,
    made: Path,
    epoch: int,
    *,
    platforms: Sequence[Platform] = PLATFORMS,
    pythons: Sequence[str] = PYTHONS,
) -> list[Path]:
    """Write an archive for each platform to the directory ``made``, the same bytes in each run.

    Args:
        tree: The file tree of the release, with the pins of the packages.
        wheel: The driver, built from that tree.
        made: Where the archives are to be.
        epoch: The date of all files in them.
        platforms: Those to make archives for.
        pythons: Whose native modules they are to have.

    Raises:
        ValueError: A package has no wheel for a platform and version of Python, or a wheel has what does not belong.
        OSError: A file cannot be read or written.
    """
    pins = needed((tree / "requirements/commands.txt").read_text())
    with tempfile.TemporaryDirectory(prefix="wheels-") as name, ThreadPoolExecutor(4) as pool:
        directory = Path(name)
        pure, natives = _by_kind(pins, download(pins, directory / "all", platforms[0], pythons[0]))
        fetched = {
            platform: [
                pool.submit(download, natives, directory / f"{platform.name}-{python}", platform, python)
                for python in (pythons if natives else ())
            ]
            for platform in platforms
        }
        common = [wheel, *pure]
        return [
            _packed(tree, [*common, *(path for done in downloads for path in done.result())], made, epoch, platform)
            for platform, downloads in fetched.items()
        ]


def _packed(tree: Path, wheels: Sequence[Path], made: Path, epoch: int, platform: Platform) -> Path:
    packages = unpacked(wheels)
    for name, content in packages.items():
        check(name, content, platform)
    files = {path.name: path.read_bytes() for path in (LAUNCHER, START, tree / "LICENSE")}
    files |= {f"lib/{name}": content for name, content in packages.items()}
    archive = made / f"kubectl-neuron-{VERSION}-{platform.name}.tar.gz"
    _write(archive, files, epoch)
    return archive


def needed(pins: str) -> dict[str, str]:
    """The pins, with their hashes, of the packages that kubectl neuron loads, by name."""
    return {match[1]: match[0] for match in _PIN.finditer(pins) if match[1] not in LEFT_OUT}


def download(pins: Mapping[str, str], directory: Path, platform: Platform, python: str) -> list[Path]:
    """The wheels of pins for a platform and a version of Python; ValueError if one cannot be had."""
    try:
        return fetch(Path(sys.executable), "".join(pins.values()), python, platform.tags, directory)
    except LabError as error:
        raise ValueError(
            f"packages of kubectl neuron for {platform.name} and Python {python} cannot be had, so none is packed; "
            "if one has no wheel, pin a version that has, or take that Python out of PYTHONS in "
            f"tools/releasing/plugin.py. pip says:\n{error}"
        ) from error


def _by_kind(pins: Mapping[str, str], wheels: Iterable[Path]) -> tuple[list[Path], dict[str, str]]:
    """The pure wheels, which are for all platforms and versions, and the pins of the others."""
    pure = [wheel for wheel in wheels if wheel.stem.endswith("-none-any")]
    names = {re.sub(r"[-_.]+", "-", wheel.name.partition("-")[0]).lower() for wheel in pure}
    return pure, {name: pin for name, pin in pins.items() if name not in names}


def unpacked(wheels: Iterable[Path]) -> dict[str, bytes]:
    """The files of wheels that are to be imported from one directory; ValueError if two have different ones."""
    files: dict[str, bytes] = {}
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                name = member.filename
                if member.is_dir() or _OF_ONE_WHEEL.fullmatch(name) or _PROGRAMS.match(name):
                    continue
                if name.startswith(_FOLDERS_LEFT_OUT):
                    continue
                if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or ".data/" in name:
                    raise ValueError(f"{wheel.name} has {name}, for which an archive of kubectl neuron has no place")
                content = archive.read(member)
                if files.setdefault(name, content) != content:
                    raise ValueError(f"{wheel.name} has another {name} than a wheel before it: they need a place each")
    return files


def check(name: str, content: bytes, platform: Platform) -> None:
    """Refuse, with a ValueError, a native file that is not of the platform: by its content, whatever its name is."""
    kinds = native_kinds(content)
    if not kinds and name.endswith(_NATIVE_SUFFIXES):
        raise ValueError(f"{name} is named as a native file, but is none of {platform.name}")
    if kinds and (platform.system, platform.architecture) not in kinds:
        others = ", ".join("-".join(kind) for kind in sorted(kinds))
        raise ValueError(f"{name} is a native file of {others}, in an archive for {platform.name}")


def native_kinds(content: bytes) -> set[tuple[str, str]]:
    """Which systems and architectures a file is a native one of: none, or several for a universal one of macOS."""
    if content.startswith(b"\x7fELF"):
        machine = int.from_bytes(content[18:20], "big" if content[5:6] == b"\x02" else "little")
        return {("linux", _ELF_MACHINES.get(machine, f"machine {machine}"))}
    if content.startswith(b"\xcf\xfa\xed\xfe"):
        return {("darwin", _macho(int.from_bytes(content[4:8], "little")))}
    if content.startswith((b"\xce\xfa\xed\xfe", b"\xfe\xed\xfa\xce", b"\xfe\xed\xfa\xcf")):
        return {("darwin", "an architecture of the past")}
    if content.startswith((b"\xca\xfe\xba\xbe", b"\xca\xfe\xba\xbf")):
        size = 32 if content[3] == 0xBF else 20
        numbers = range(int.from_bytes(content[4:8], "big"))
        return {("darwin", _macho(int.from_bytes(content[8 + size * i : 12 + size * i], "big"))) for i in numbers}
    if content.startswith(b"MZ"):
        return {("windows", "any architecture")}
    return set()


def _macho(number: int) -> str:
    return _MACHO_TYPES.get(number, f"type {number:#x}")


def _write(archive: Path, files: Mapping[str, bytes], epoch: int) -> None:
    with (
        archive.open("wb") as raw,
        gzip.GzipFile("", "wb", 6, raw, epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name, content in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode = len(content), epoch, 0o755 if name == LAUNCHER.name else 0o644
            tar.addfile(member, BytesIO(content))


def manifest(archives: Iterable[Path], repository_url: str) -> str:
    """The plugin manifest of krew (``krew.googlecontainertools.github.com/v1alpha2``) for archives of platforms."""
    by_name = {archive.name.removesuffix(".tar.gz"): archive for archive in archives}
    platforms = [
        {
            "selector": {"matchLabels": {"os": platform.system, "arch": platform.architecture}},
            "uri": f"{repository_url}/releases/download/v{VERSION}/{archive.name}",
            "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
            "bin": LAUNCHER.name,
        }
        for platform in PLATFORMS
        if (archive := by_name.get(f"kubectl-neuron-{VERSION}-{platform.name}"))
    ]
    document = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "neuron"},
        "spec": {
            "version": f"v{VERSION}",
            "homepage": repository_url,
            "shortDescription": "Show Neuron chips, their health and who holds them",
            "description": DESCRIPTION,
            "caveats": CAVEATS,
            "platforms": platforms,
        },
    }
    return yaml.safe_dump(document, sort_keys=False)
