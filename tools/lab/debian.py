"""The image's base: packages of Debian by their pins, unpacked without running any program of theirs."""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from lab import files, filetree
from lab.errors import LabError
from lab.filetree import Entry, Tree

RENEWAL = "scripts/build-image --renew-base"
SNAPSHOT_FORMAT = "%Y%m%dT%H%M%SZ"
_ARCHIVES = ("debian", "debian-security")
_TIMEOUT_SECONDS = 60.0
_DOWNLOADS = 4
_LINE = re.compile(
    r"(?P<name>[a-z0-9][a-z0-9+.-]+)=(?P<version>\S+) sha256:(?P<sha256>[0-9a-f]{64}) (?P<path>pool/\S+)"
)
_SNAPSHOT_LINE = re.compile(r"# Snapshot: (\d{8}T\d{6}Z)")
# Documentation that is no licence, translations and manual pages: a third of all.
_LEFT_OUT = re.compile(r"usr/share/(doc/[^/]+/(?!copyright$).+|(locale|man|info|lintian|bug|doc-base|menu|pixmaps)/.*)")
_CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"


@dataclass(frozen=True)
class Package:
    """A package by its pin.

    Attributes:
        path: Where it is in Debian's archive, such as `pool/main/d/dash/dash_0.5.12-12_amd64.deb`.
    """

    name: str
    version: str
    sha256: str
    path: str

    @property
    def archive(self) -> str:
        """Return which of Debian's archives has it."""
        return _ARCHIVES[self.path.startswith("pool/updates/")]

    def __str__(self) -> str:
        """Return the line of its pin."""
        return f"{self.name}={self.version} sha256:{self.sha256} {self.path}"


@dataclass(frozen=True)
class Pins:
    """All packages of a base, and a moment at which Debian's archive had all of them, such as `20261130T070000Z`."""

    snapshot: str
    packages: Sequence[Package]


def pins_file(repository: Path, architecture: str) -> Path:
    """Return the file with an architecture's pins."""
    return repository / f"requirements/base-{architecture}.txt"


def read_pins(text: str) -> Pins:
    """Read a file of pins.

    Raises:
        LabError: A line is no pin, or the file has none.
    """
    snapshot = ""
    packages: list[Package] = []
    for line in text.splitlines():
        if match := _SNAPSHOT_LINE.fullmatch(line):
            snapshot = match[1]
        elif match := _LINE.fullmatch(line):
            packages.append(Package(**match.groupdict()))
        elif line and not line.startswith("#"):
            raise LabError(f"{line!r} is no pin of a package of the image's base. Write the file again: {RENEWAL}")
    if not packages or not snapshot:
        raise LabError(f"The pins of the image's base have no packages, or no date. Write the file again: {RENEWAL}")
    return Pins(snapshot, packages)


class GoneError(LabError):
    """No mirror has a package of a pin any more."""


class Archive:
    """Debian's packages: from a mirror as long as it has them, then from Debian's archive of all that ever was."""

    def __init__(self, cache: Path, mirrors: Mapping[str, str], snapshots: str = "") -> None:
        """Keep packages in `cache`.

        Args:
            cache: A directory.
            mirrors: By `debian` and `debian-security`.
            snapshots: Address of Debian's archive of all versions, or "".
        """
        self._cache = cache
        self._mirrors = mirrors
        self._snapshots = snapshots.rstrip("/")

    def fetch(self, pins: Pins) -> list[bytes]:
        """Return the packages, whatever the mirror sends: each is the one of its pin.

        Raises:
            GoneError: A package cannot be had.
            LabError: It is another one than its pin says.
        """
        with ThreadPoolExecutor(_DOWNLOADS) as pool:
            return list(pool.map(lambda package: self._package(package, pins.snapshot), pins.packages))

    def _package(self, package: Package, snapshot: str) -> bytes:
        kept = self._cache / f"{package.sha256}.deb"
        if kept.exists() and _sha256(content := kept.read_bytes()) == package.sha256:
            return content
        addresses = [f"{self._mirrors[package.archive].rstrip('/')}/{package.path}"]
        if self._snapshots:
            addresses.append(f"{self._snapshots}/{package.archive}/{snapshot}/{package.path}")
        problems = []
        for address in addresses:
            try:
                content = read_url(address)
            except (OSError, ValueError) as error:
                problems.append(f"{address}: {error}")
                continue
            if _sha256(content) != package.sha256:
                raise LabError(
                    f"{address} is not the package that the pin of {package.name} {package.version} names: its SHA-256 "
                    f"is {_sha256(content)}, the pin's {package.sha256}. No image was built. Ask who runs the mirror; "
                    "a pin whose hash is wrong is one that somebody changed."
                )
            files.write(kept, content, mode=0o644)
            return content
        raise GoneError(
            f"{package.name} {package.version} cannot be had, so there is no image: {'; '.join(problems)}. Mirrors "
            f"keep the newest versions only: if they have a newer one now, renew the pins: {RENEWAL}. To build with "
            "these, give DEBIAN_SNAPSHOTS the address of Debian's archive of all versions."
        )


def read_url(address: str) -> bytes:
    """Return what an address has.

    Raises:
        OSError: It cannot be had.
    """
    with urllib.request.urlopen(address, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310 - Debian's mirror
        content: bytes = answer.read()
        return content


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def base(packages: Sequence[bytes]) -> dict[str, Entry]:
    """Return the tree of packages, with dpkg's status and what their maintainer scripts would have made.

    Raises:
        LabError: A package is damaged.
    """
    opened = [_open(content) for content in packages]
    tree: dict[str, Entry] = {}
    # Links of directories such as /lib come with base-files; all other packages are unpacked through them.
    for _, contents in sorted(opened, key=lambda parts: "bin" not in parts[1]):
        tree = filetree.overlay(tree, contents)
    status = []
    for control, contents in opened:
        fields = control["control"].content.decode().strip()
        name, architecture = _field(fields, "Package"), _field(fields, "Architecture")
        head, _, rest = fields.partition("\n")
        status.append(f"{head}\nStatus: install ok installed\n{rest}\n")
        stem = f"var/lib/dpkg/info/{name}" + (f":{architecture}" if "Multi-Arch: same" in fields else "")
        listed = "".join(f"/{path}\n" for path in sorted(filetree.with_parents(contents)))
        tree[f"{stem}.list"] = Entry(content=f"/.\n{listed}".encode())
        if "md5sums" in control:
            tree[f"{stem}.md5sums"] = Entry(content=control["md5sums"].content)
    tree["var/lib/dpkg/status"] = Entry(content="\n".join(sorted(status)).encode())
    tree |= _configured(tree)
    return {path: entry for path, entry in tree.items() if not _LEFT_OUT.fullmatch(path)}


def _configured(tree: Tree) -> dict[str, Entry]:
    """What the maintainer scripts of base-passwd, libc-bin, base-files and ca-certificates would have made."""
    certificates = [
        tree[path].content.strip() + b"\n"
        for path in sorted(tree)
        if path.startswith("usr/share/ca-certificates/") and path.endswith(".crt")
    ]
    switch = next(
        (
            tree[path]
            for path in ("usr/share/libc-bin/nsswitch.conf", "usr/share/base-files/nsswitch.conf")
            if path in tree
        ),
        Entry(content=b"passwd: files\ngroup: files\nhosts: files dns\n"),
    )
    return {
        "etc/passwd": Entry(content=filetree.read_file(tree, "usr/share/base-passwd/passwd.master")),
        "etc/group": Entry(content=filetree.read_file(tree, "usr/share/base-passwd/group.master")),
        "etc/nsswitch.conf": switch,
        "etc/dpkg/origins/default": filetree.link("debian"),
        # Programs and mounts use both names.
        "var/run": filetree.link("/run"),
        "var/lock": filetree.link("/run/lock"),
        "run/lock": filetree.directory(0o1777),
        **{path: filetree.directory() for path in ("media", "mnt", "opt", "srv")},
        _CERTIFICATES: Entry(content=b"".join(certificates)),
        # Where OpenSSL looks when nobody tells it a file.
        "usr/lib/ssl/cert.pem": filetree.link(f"/{_CERTIFICATES}"),
        "usr/lib/ssl/certs": filetree.link("/etc/ssl/certs"),
    }


def _field(fields: str, name: str) -> str:
    match = re.search(rf"(?m)^{name}: *(\S+)", fields)
    return match[1] if match else ""


def _open(package: bytes) -> tuple[dict[str, Entry], dict[str, Entry]]:
    """The control files and the files of a package, whose format is an `ar` archive of two tar archives."""
    control, contents = (_member(package, name) for name in ("control.tar", "data.tar"))
    return control, contents


def _member(package: bytes, wanted: str) -> dict[str, Entry]:
    position = 8  # after the signature
    while position + 60 <= len(package):
        header = package[position : position + 60]
        name, size = header[:16].decode().strip().rstrip("/"), int(header[48:58])
        content = package[position + 60 : position + 60 + size]
        if name.startswith(wanted) and len(content) == size:
            try:
                with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                    return filetree.read_tar(archive)
            except (tarfile.TarError, EOFError, OSError) as error:
                raise LabError(f"{name} of a package cannot be read ({error}); no image was built.") from error
        position += 60 + size + size % 2
    raise LabError(f"A package has no whole {wanted}; no image was built. It is damaged, or no package of Debian.")
