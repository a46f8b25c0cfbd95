"""The image's base: packages of Debian by their pins."""

import hashlib
import io
import random
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal

import pytest

from lab import debian, debianpins
from lab.debian import Package, Pins
from lab.errors import LabError
from lab.filetree import Entry, link

SNAPSHOT = "20260102T030405Z"


def tar(files: Mapping[str, str], mode: Literal["w:gz", "w:xz"]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"./{name}")
            if name.endswith("/"):
                member.type = tarfile.DIRTYPE
                archive.addfile(member)
            elif content.startswith("-> "):
                member.type, member.linkname = tarfile.SYMTYPE, content.removeprefix("-> ")
                archive.addfile(member)
            else:
                member.size = len(content.encode())
                archive.addfile(member, io.BytesIO(content.encode()))
    return buffer.getvalue()


def deb(name: str, files: Mapping[str, str], *, version: str = "1", extra: str = "") -> bytes:
    """A package in the format of Debian's."""
    fields = f"Package: {name}\nVersion: {version}\nArchitecture: amd64\n{extra}Description: x\n long\n"
    control = tar({"control": fields, "md5sums": "0  x\n", "postinst": "#!/bin/sh\nexit 1\n"}, "w:gz")
    package = b"!<arch>\n"
    for member, content in (
        ("debian-binary", b"2.0\n"),
        ("control.tar.gz", control),
        ("data.tar.xz", tar(files, "w:xz")),
    ):
        package += f"{member:16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
        package += content + b"\n" * (len(content) % 2)
    return package


BASE_FILES = deb("base-files", {"bin": "-> usr/bin", "lib": "-> usr/lib", "usr/bin/arch": "x", "var/run/": ""})


def test_packages_are_unpacked_and_configured_and_dpkg_knows_them() -> None:
    packages = [
        deb("aaa", {"bin/sh": "shell", "usr/share/doc/aaa/copyright": "GPL", "usr/share/doc/aaa/README": "x"}),
        BASE_FILES,
        deb("base-passwd", {"usr/share/base-passwd/passwd.master": "root", "usr/share/base-passwd/group.master": "g"}),
        deb("ca-certificates", {f"usr/share/ca-certificates/m/{name}.crt": name for name in "ba"}, version="2"),
        deb("libx", {"usr/lib/x.so": "x", "usr/share/man/man1/x": "x"}, extra="Multi-Arch: same\n"),
    ]
    tree = debian.base(packages)
    assert tree["usr/bin/sh"] == Entry(content=b"shell")
    assert tree["bin"] == link("usr/bin")
    assert "bin/sh" not in tree
    assert (tree["var/run"], tree["var/lock"]) == (link("/run"), link("/run/lock"))
    assert tree["etc/passwd"].content + tree["etc/group"].content == b"rootg"
    assert tree["etc/ssl/certs/ca-certificates.crt"].content == b"a\nb\n"
    assert b"dns" in tree["etc/nsswitch.conf"].content
    assert "usr/share/doc/aaa/copyright" in tree
    assert not {"usr/share/doc/aaa/README", "usr/share/man/man1/x"} & set(tree)
    status = tree["var/lib/dpkg/status"].content.decode().split("\n\n")
    assert len(status) == len(packages)
    assert all("\nStatus: install ok installed\n" in paragraph for paragraph in status)
    assert "Package: ca-certificates\n" in status[3]
    assert "Version: 2" in status[3]
    listed = tree["var/lib/dpkg/info/libx:amd64.list"].content.decode().splitlines()
    assert listed[:4] == ["/.", "/usr", "/usr/lib", "/usr/lib/x.so"]
    assert "var/lib/dpkg/info/aaa.md5sums" in tree
    assert not [path for path in tree if "postinst" in path]
    assert debian.base(list(reversed(packages))) == tree


@pytest.mark.parametrize("damaged", [b"", b"!<arch>\n", BASE_FILES[:-40], BASE_FILES.replace(b"data.tar", b"note.tar")])
def test_a_damaged_package_is_refused(damaged: bytes) -> None:
    with pytest.raises(LabError, match="no image was built"):
        debian.base([damaged])


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A directory and its address on loopback."""
    directory = tmp_path / "mirror"
    directory.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(directory)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield directory, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def pinned(content: bytes, path: str = "pool/main/b/base-files/base-files_1_amd64.deb") -> Pins:
    return Pins(SNAPSHOT, [Package("base-files", "1", hashlib.sha256(content).hexdigest(), path)])


@pytest.mark.parametrize("path", ["pool/main/b.deb", "pool/updates/main/b.deb"])
def test_a_package_is_kept_and_downloaded_once(mirror: tuple[Path, str], tmp_path: Path, path: str) -> None:
    directory, address = mirror
    archive_name = "debian-security" if "updates" in path else "debian"
    file = directory / archive_name / path
    file.parent.mkdir(parents=True)
    file.write_bytes(BASE_FILES)
    mirrors = {name: f"{address}/{name}" for name in ("debian", "debian-security")}
    archive = debian.Archive(tmp_path / "cache", mirrors)
    assert archive.fetch(pinned(BASE_FILES, path)) == [BASE_FILES]
    file.unlink()
    assert archive.fetch(pinned(BASE_FILES, path)) == [BASE_FILES]


def test_a_package_that_is_not_the_one_of_its_pin_is_refused_and_not_kept(
    mirror: tuple[Path, str], tmp_path: Path
) -> None:
    directory, address = mirror
    pins = pinned(BASE_FILES)
    file = directory / pins.packages[0].path
    file.parent.mkdir(parents=True)
    file.write_bytes(BASE_FILES.replace(b"amd64", b"amd46", 1) + b"x")
    archive = debian.Archive(tmp_path / "cache", {"debian": address})
    with pytest.raises(LabError, match="is not the package that the pin of base-files 1 names"):
        archive.fetch(pins)
    assert not list((tmp_path / "cache").glob("*"))


def test_a_kept_package_that_somebody_has_changed_is_downloaded_again(mirror: tuple[Path, str], tmp_path: Path) -> None:
    directory, address = mirror
    pins = pinned(BASE_FILES)
    (package,) = pins.packages
    file = directory / package.path
    file.parent.mkdir(parents=True)
    file.write_bytes(BASE_FILES)
    (tmp_path / f"{package.sha256}.deb").write_bytes(b"changed")
    assert debian.Archive(tmp_path, {"debian": address}).fetch(pins) == [BASE_FILES]


def test_what_the_mirror_no_longer_has_comes_from_the_archive_of_all_versions(
    mirror: tuple[Path, str], tmp_path: Path
) -> None:
    directory, address = mirror
    pins = pinned(BASE_FILES)
    file = directory / f"archive/debian/{SNAPSHOT}" / pins.packages[0].path
    file.parent.mkdir(parents=True)
    file.write_bytes(BASE_FILES)
    archive = debian.Archive(tmp_path / "cache", {"debian": address}, f"{address}/archive")
    assert archive.fetch(pins) == [BASE_FILES]
    with pytest.raises(debian.GoneError, match=r"renew the pins: scripts/build-image --renew-base"):
        archive.fetch(pinned(b"never was"[:5], "pool/main/never.deb"))


def test_pins_are_read_as_they_are_written_and_nothing_else_is() -> None:
    pins = Pins(SNAPSHOT, [Package("libx", "1:2-3+b1~x", "0" * 64, "pool/main/x.deb")])
    assert debian.read_pins(debianpins.pins_text(pins, "amd64")) == pins
    for text in (
        "",
        "libx=1\n",
        debianpins.pins_text(pins, "amd64").replace("sha256:00", "sha256:"),
        f"# Snapshot: {SNAPSHOT}\n",
    ):
        with pytest.raises(LabError, match="--renew-base"):
            debian.read_pins(text)


INDEX = """\
Package: python3
Version: 3.13-1
Filename: pool/main/p.deb
SHA256: aa
Depends: mime | media, libx (>= 1), debconf (>= 0.5) | debconf-2.0
Description: x
 Package: no

Package: libx
Version: 1
Filename: pool/main/x.deb
SHA256: bb
Pre-Depends: libx:any

Package: media
Version: 2
Filename: pool/main/m.deb
SHA256: cc
Depends: gone
"""


def test_what_is_pinned_is_what_is_needed_and_all_that_it_depends_on() -> None:
    packages = debianpins.paragraphs(INDEX)
    with pytest.raises(LabError, match="no package gone"):
        debianpins.closure(["python3"], packages)
    packages["media"] = {**packages["media"], "Depends": "libx"}
    assert [package.name for package in debianpins.closure(["python3"], packages)] == ["libx", "media", "python3"]


def test_an_index_that_debian_has_not_signed_is_refused(mirror: tuple[Path, str], tmp_path: Path) -> None:
    directory, address = mirror
    (directory / "dists/trixie").mkdir(parents=True)
    (directory / "dists/trixie/InRelease").write_text("Suite: stable\n")
    with pytest.raises(LabError, match="not signed"):
        debianpins.renew(tmp_path, ["amd64"], {"debian": address}, SNAPSHOT)
    assert not (tmp_path / "requirements").exists()


def test_an_index_whose_hash_is_not_in_the_signed_one_is_refused(
    mirror: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, address = mirror
    monkeypatch.setattr(debianpins, "signed_text", lambda content, _: content.decode())
    file = directory / "dists/trixie/main/binary-amd64/Packages.xz"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"x")
    (directory / "dists/trixie/InRelease").write_text(f"SHA256:\n {'0' * 64} 1 main/binary-amd64/Packages.xz\n")
    with pytest.raises(LabError, match="is not the index that Debian has signed"):
        debianpins.index("amd64", {"debian": address})


VERSIONS = (
    "1.0",
    "1.0-0",
    "1.0-1",
    "1.0~rc1",
    "1.0a",
    "1.0+b",
    "0:1.0",
    "1:0",
    "1.0-1~",
    "10",
    "9",
    "1.0~~",
    "0",
    "00",
)


def test_versions_are_ordered_as_dpkg_orders_them() -> None:
    if shutil.which("dpkg") is None:
        pytest.skip("there is no dpkg here")
    chance = random.Random(7)
    drawn = [
        f"{chance.randint(0, 2)}{''.join(chance.choices('0123a.+~z', k=chance.randint(0, 4)))}"
        f"{chance.choice(['', '-1', '-1~b', '-0'])}"
        for _ in range(60)
    ]
    versions = [*VERSIONS, *drawn]
    for _ in range(150):
        one, other = chance.choice(versions), chance.choice(versions)
        first, second = debianpins.version_key(one), debianpins.version_key(other)
        relation = "eq" if first == second else "lt" if first < second else "gt"
        subprocess.run(["dpkg", "--compare-versions", one, relation, other], check=True)
