"""Pins of the image's base: the packages that it needs, from the indexes that Debian has signed."""

from __future__ import annotations

import hashlib
import lzma
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from lab import debian, files
from lab.debian import Package, Pins
from lab.errors import LabError

SUITE = "trixie"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# The interpreter and certificates; what wheels for manylinux expect of a system; a shell and the tools with which
# people, and the chart's test, look around in a container (tar is for kubectl cp).
PACKAGES = (
    *("python3", "ca-certificates", "libstdc++6", "base-files", "base-passwd", "libc-bin"),
    *("dash", "coreutils", "grep", "sed", "findutils", "tar"),
)
# What only maintainer scripts use, or programs that nothing of the driver starts.
_NOT_NEEDED = {"awk", "debconf", "debianutils", "dpkg", "libdebconfclient0", "openssl", "readline-common"}
# Archive, suite, and the component's directory in the signed index.
_SUITES = (("debian", SUITE), ("debian-security", f"{SUITE}-security"))

Fields = Mapping[str, str]


def renew(repository: Path, architectures: Iterable[str], mirrors: Mapping[str, str], snapshot: str) -> list[Path]:
    """Write the pins of all architectures anew and return their files.

    Args:
        repository: The directory that has `requirements/`.
        architectures: Debian's names of them.
        mirrors: This machine's mirrors, by `debian` and `debian-security`.
        snapshot: Now, as Debian's archive of all packages writes it.

    Raises:
        LabError: An index cannot be had, is not signed by Debian, or lacks a package.
    """
    written = []
    for architecture in architectures:
        path = debian.pins_file(repository, architecture)
        files.write(path, newest(architecture, mirrors, snapshot), mode=0o644)
        written.append(path)
    return written


def newest(architecture: str, mirrors: Mapping[str, str], snapshot: str) -> str:
    """Return the text of the pins as they are now; see `renew`."""
    return pins_text(Pins(snapshot, closure(PACKAGES, index(architecture, mirrors))), architecture)


def pins_text(pins: Pins, architecture: str) -> str:
    """Return a file of pins."""
    return (
        f"# The packages of Debian {SUITE} that the image's base for {architecture} is made of.\n"
        f"# Made with: {debian.RENEWAL}\n"
        f"# Snapshot: {pins.snapshot}\n" + "".join(f"{package}\n" for package in pins.packages)
    )


def index(architecture: str, mirrors: Mapping[str, str]) -> dict[str, Fields]:
    """Return the newest version of every package, by name, from indexes whose signatures and hashes are right."""
    packages: dict[str, Fields] = {}
    for archive, suite in _SUITES:
        root = f"{mirrors[archive].rstrip('/')}/dists/{suite}"
        release = signed_text(_get(f"{root}/InRelease"), KEYRING)
        name = f"main/binary-{architecture}/Packages.xz"
        content = _get(f"{root}/{name}")
        digest = hashlib.sha256(content).hexdigest()
        if not re.search(rf"(?m)^ {digest} +\d+ {re.escape(name)}$", release):
            raise LabError(
                f"{root}/{name} is not the index that Debian has signed. No pin was changed. If the mirror is just "
                "being updated, try again in a minute; otherwise ask who runs it."
            )
        for package, fields in paragraphs(lzma.decompress(content).decode()).items():
            other = packages.get(package)
            if other is None or version_key(other["Version"]) < version_key(fields["Version"]):
                packages[package] = fields
    return packages


def paragraphs(text: str) -> dict[str, Fields]:
    """Return the fields of each package of an index."""
    packages: dict[str, Fields] = {}
    for paragraph in text.split("\n\n"):
        lines = [line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " "]
        fields = dict(lines)
        if "Package" in fields:
            packages[fields["Package"]] = fields
    return packages


VersionKey = tuple[int, tuple[tuple[tuple[int, ...], int], ...], tuple[tuple[tuple[int, ...], int], ...]]


def version_key(version: str) -> VersionKey:
    """Return what orders versions as dpkg does: the epoch, upstream's version, Debian's revision."""
    epoch, colon, rest = version.partition(":")
    upstream, _, revision = rest.rpartition("-") if colon else version.rpartition("-")
    if not upstream:
        upstream, revision = revision, ""
    return int(epoch) if colon else 0, _part_key(upstream), _part_key(revision or "0")


def _part_key(part: str) -> tuple[tuple[tuple[int, ...], int], ...]:
    """Text and numbers by turns; in text `~` comes before its end, and letters before all other signs."""
    pairs = re.findall(r"(\D*)(\d*)", part)
    return tuple(
        ((*(-1 if sign == "~" else ord(sign) + (0 if sign.isalpha() else 256) for sign in text), 0), int(number or 0))
        for text, number in pairs
    )


def closure(names: Sequence[str], packages: Mapping[str, Fields]) -> list[Package]:
    """Return the packages and all that they depend on, sorted; of alternatives the first that Debian has.

    Raises:
        LabError: One of them is not there.
    """
    chosen: dict[str, Package] = {}
    left = list(names)
    while left:
        name = left.pop()
        if name in chosen or name in _NOT_NEEDED:
            continue
        fields = packages.get(name)
        if fields is None:
            raise LabError(f"Debian {SUITE} has no package {name}; no pin was changed.")
        chosen[name] = Package(name, fields["Version"], fields["SHA256"], fields["Filename"])
        left += dependencies(fields, packages)
    return [chosen[name] for name in sorted(chosen)]


def dependencies(fields: Fields, packages: Mapping[str, Fields]) -> list[str]:
    """Return the names of the packages that must be there with a package."""
    names = []
    for kind in ("Pre-Depends", "Depends"):
        for group in filter(None, fields.get(kind, "").split(", ")):
            alternatives = [re.split(r"[ (:]", alternative.strip())[0] for alternative in group.split("|")]
            names.append(next((name for name in alternatives if name in packages), alternatives[0]))
    return names


def signed_text(content: bytes, keyring: Path) -> str:
    """Return the text of an index that a key of the ring has signed.

    Raises:
        LabError: The signature is missing or wrong.
    """
    with tempfile.TemporaryDirectory(prefix="release-") as name:
        file, text = Path(name) / "InRelease", Path(name) / "text"
        file.write_bytes(content)
        done = subprocess.run(
            ["gpgv", "--keyring", str(keyring), "--output", str(text), str(file)],
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0 or not text.exists():
            raise LabError(
                f"The mirror's index is not signed by a key of {keyring}; no pin was changed. gpgv says:\n{done.stderr}"
            )
        return text.read_text()


def _get(address: str) -> bytes:
    try:
        return debian.read_url(address)
    except (OSError, ValueError) as error:
        raise LabError(f"{address} cannot be had: {error}. No pin was changed.") from error
