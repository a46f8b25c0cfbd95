"""Images: hand-written archives, and when the driver's image is rebuilt."""

import fnmatch
import json
import tarfile
from pathlib import Path

import pytest

from lab import hostsettings, images, oci
from lab.errors import LabError
from lab.settings import REPOSITORY


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


def test_pip_takes_over_this_machines_settings_the_environments_last() -> None:
    listed = (
        ":env:.cert='/a/ca.crt'\nglobal.cert='/b/ca.crt'\nglobal.find-links='x\\ny'\nlist.format='json'\nnonsense\n"
    )
    assert hostsettings.pip_settings(listed) == {"cert": "/a/ca.crt", "find-links": "x\n    y"}


def test_the_mirror_is_the_one_that_apt_uses_for_the_release_itself() -> None:
    targets = (
        "Packages stable-security main https://security.example/\n"
        "Translations stable main https://wrong.example/\n"
        "Packages stable contrib https://wrong.example/\n"
        "Packages stable main https://mirror.example/debian/\n"
    )
    assert hostsettings.mirror_of(targets, "stable") == "https://mirror.example/debian/"
    assert hostsettings.mirror_of(targets, "other") is None
