"""Images: hand-written archives, and when the driver's image is rebuilt."""

import fnmatch
import gzip
import json
import tarfile
from pathlib import Path

import pytest

from lab import bases, debian, debianpins, dockerfile, hostsettings, images, oci
from lab.errors import LabError
from lab.filetree import Entry
from lab.progress import Progress
from lab.settings import REPOSITORY, Settings


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name in images.INPUTS:
        path = tmp_path / name
        if name == "dra_driver":
            (path / "__pycache__").mkdir(parents=True)
            (path / "__pycache__" / "x.pyc").write_bytes(b"compiled")
            (path / "version.py").write_text('VERSION = "0.1.0"\n')
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(name)
    return tmp_path


def contents(repository: Path) -> dict[str, bytes]:
    return {str(path.relative_to(repository)): path.read_bytes() for path in images.input_files(repository)}


def test_an_image_is_built_anew_when_a_file_of_it_changes_and_not_for_compiled_files(repository: Path) -> None:
    before = images.image_key(contents(repository), "a:b", "base")
    (repository / "dra_driver" / "__pycache__" / "y.pyc").write_bytes(b"more")
    (repository / "docs.md").write_text("not in the image")
    assert images.image_key(contents(repository), "a:b", "base") == before
    (repository / "dra_driver" / "new.py").write_text("")
    assert images.image_key(contents(repository), "a:b", "base") != before
    assert images.image_key(contents(repository), "other:b", "base") != images.image_key(
        contents(repository), "a:b", "base"
    )


def test_a_missing_input_is_named(repository: Path) -> None:
    (repository / "LICENSE").unlink()
    with pytest.raises(LabError, match="LICENSE"):
        images.input_files(repository)


def test_the_dockerfile_copies_only_what_its_context_has() -> None:
    sources = [
        word
        for line in (REPOSITORY / "Dockerfile").read_text().splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for word in line.split()[1:-1]
    ]
    assert sources
    assert set(sources) <= set(images.INPUTS)
    ignored = (REPOSITORY / ".dockerignore").read_text().splitlines()
    kept = [pattern[1:] for pattern in ignored if pattern.startswith("!")]
    assert all(any(fnmatch.fnmatch(name.split("/")[0], pattern) for pattern in kept) for name in images.INPUTS)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    program = tmp_path / "program"
    program.write_bytes(b"#!/bin/sh\n")
    image = oci.Image(
        programs={"bin/busybox": program}, links={"usr/bin/env": "../../bin/busybox"}, command=("/bin/x",)
    )
    oci.write_archive(image, ("tools", "public.ecr.aws/ubuntu/ubuntu:22.04"), tmp_path / "image.tar")
    return tmp_path / "image.tar"


def test_an_archive_bears_every_name_and_its_layer_holds_the_programs(archive: Path, tmp_path: Path) -> None:
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path / "opened", filter="data")
    members = {
        str(path.relative_to(tmp_path / "opened")): path.read_bytes()
        for path in (tmp_path / "opened").rglob("*")
        if path.is_file()
    }
    index = json.loads(members["index.json"])
    names = [entry["annotations"]["io.containerd.image.name"] for entry in index["manifests"]]
    assert names == ["docker.io/library/tools:latest", "public.ecr.aws/ubuntu/ubuntu:22.04"]
    manifest = json.loads(members["blobs/sha256/" + index["manifests"][0]["digest"].partition(":")[2]])
    layer = tmp_path / "layer.tar"
    layer.write_bytes(members["blobs/sha256/" + manifest["layers"][0]["digest"].partition(":")[2]])
    with tarfile.open(layer) as opened:
        assert opened.getmember("bin/busybox").mode == 0o755
        assert opened.getmember("usr/bin/env").linkname == "../../bin/busybox"
        assert opened.getmember("tmp").mode == 0o1777
    config = json.loads(members["blobs/sha256/" + manifest["config"]["digest"].partition(":")[2]])
    assert config["config"]["Cmd"] == ["/bin/x"]
    assert config["rootfs"]["diff_ids"] == [manifest["layers"][0]["digest"]]


def test_the_same_image_gives_the_same_bytes(archive: Path, tmp_path: Path) -> None:
    first = archive.read_bytes()
    image = oci.Image(
        programs={"bin/busybox": tmp_path / "program"}, links={"usr/bin/env": "../../bin/busybox"}, command=("/bin/x",)
    )
    oci.write_archive(image, ("tools", "public.ecr.aws/ubuntu/ubuntu:22.04"), tmp_path / "again.tar")
    assert (tmp_path / "again.tar").read_bytes() == first


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("busybox", "docker.io/library/busybox:latest"),
        ("a/b:1", "docker.io/a/b:1"),
        ("localhost/x:1", "localhost/x:1"),
        ("registry.example:5000/x", "registry.example:5000/x:latest"),
        ("r.example/x@sha256:0", "r.example/x@sha256:0"),
    ],
)
def test_names_are_completed_as_container_runtimes_do(name: str, full: str) -> None:
    assert oci.full_name(name) == full


def test_mirrors_are_those_that_apt_uses_for_debian_itself() -> None:
    targets = (
        "Packages main https://other.example/ Docker\n"
        "Translations main https://wrong.example/ Debian\n"
        "Packages contrib https://wrong.example/ Debian\n"
        "Packages main https://mirror.example/debian/ Debian\n"
        "Packages main https://mirror.example/updates/ Debian\n"
        "Packages main https://mirror.example/security/ Debian-Security\n"
    )
    assert hostsettings.mirrors_of(targets) == {
        "debian": "https://mirror.example/debian/",
        "debian-security": "https://mirror.example/security/",
    }


def test_a_system_that_is_not_debian_has_the_mirror_of_its_own_list_or_the_one_that_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no apt
    monkeypatch.delenv("DEBIAN_MIRROR", raising=False)
    template = tmp_path / "Debian.info"
    with pytest.raises(LabError, match="Name one in DEBIAN_MIRROR"):
        hostsettings.debian_mirrors(template)
    template.write_text("Suite: {series}\nBaseURI: https://mirror.example/debian/\nBaseURI: https://other.example/\n")
    assert hostsettings.debian_mirrors(template) == {
        "debian": "https://mirror.example/debian/",
        "debian-security": "https://mirror.example/debian-security/",
    }
    monkeypatch.setenv("DEBIAN_MIRROR", "https://named.example/mirrors")
    assert hostsettings.debian_mirrors(template) == {
        "debian": "https://named.example/mirrors/debian/",
        "debian-security": "https://named.example/mirrors/debian-security/",
    }


def test_where_a_pinned_package_is_gone_the_newest_are_taken_but_for_no_release(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def gone(_: debian.Archive, pins: debian.Pins) -> list[bytes]:
        raise debian.GoneError(f"{pins.packages[0].name} cannot be had")

    monkeypatch.setattr(debian.Archive, "fetch", gone)
    monkeypatch.setattr(images, "bootstrap", lambda _: None)
    monkeypatch.setattr(debianpins, "newest", lambda architecture, *_: f"newest for {architecture}")
    builder = images.ImageBuilder(Settings.from_environment({"XDG_CACHE_HOME": str(tmp_path)}), Progress())
    assert builder.base(None, or_newest=True).key("amd64") == "newest for amd64"
    pins = debian.pins_file(REPOSITORY, "amd64").read_text()
    assert builder.base(None).key("amd64") == pins


def test_the_settings_of_the_image_are_those_of_the_dockerfiles_last_stage() -> None:
    settings = dockerfile.settings((REPOSITORY / "Dockerfile").read_text(), {"VERSION": "1.2.3"})
    assert settings["Entrypoint"] == ["dra-driver"]
    assert settings["Cmd"] == ["--help"]
    assert settings["ExposedPorts"] == {"51515/tcp": {}}
    assert isinstance(settings["Env"], list)
    assert settings["Env"][0].startswith("PATH=/opt/node/bin:")
    assert isinstance(settings["Labels"], dict)
    assert settings["Labels"]["org.opencontainers.image.version"] == "1.2.3"
    assert all(settings["Labels"].values())
    assert set(settings) == {"Entrypoint", "Cmd", "Env", "ExposedPorts", "Labels"}


def test_a_layer_with_programs_of_another_architecture_is_refused() -> None:
    programs = {"amd64": 62, "arm64": 183}
    for architecture, number in programs.items():
        tree = {"opt/x.so": Entry(content=b"\x7fELF\2\1\1" + bytes(11) + number.to_bytes(2, "little"))}
        oci.pack_layer(tree, architecture, 0, "x")
        for other in {*programs, None} - {architecture}:
            with pytest.raises(LabError, match=r"/opt/x\.so"):
                oci.pack_layer(tree, other, 0, "x")


def test_a_layout_has_one_index_whose_images_name_their_platforms(tmp_path: Path) -> None:
    layout = oci.Layout()
    layer = oci.pack_layer({"a/b": Entry(content=b"x")}, None, 7, "x")
    assert layer == oci.pack_layer({"a/b": Entry(content=b"x")}, None, 7, "x")
    assert oci.digest(gzip.decompress(layer.blob)) == layer.diff_id
    images_of_it = [layout.add_image(name, [layer], {"Cmd": ["x"]}, 7) for name in ("amd64", "arm64")]
    index = layout.add_index(images_of_it, {"org.opencontainers.image.title": "x"})
    layout.write_directory(tmp_path / "layout", index)
    pulled = bases.PulledBase(tmp_path / "layout")
    assert {name: pulled.tree(name)["a/b"].content for name in ("amd64", "arm64")} == {"amd64": b"x", "arm64": b"x"}
    assert pulled.settings("arm64") == {"Cmd": ["x"]}
    with pytest.raises(LabError, match="riscv64"):
        pulled.settings("riscv64")
    blob = tmp_path / "layout/blobs" / oci.digest(layer.blob).replace(":", "/")
    blob.write_bytes(layer.blob + b"x")
    with pytest.raises(LabError, match="another one"):
        pulled.tree("arm64")
