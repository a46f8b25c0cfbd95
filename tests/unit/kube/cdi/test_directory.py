from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from dra_driver.kube.cdi import CdiDevice, ContainerEdits, Spec, SpecDirectory, encode
from dra_driver.util.errors import DriverError
from tests.golden import golden_error

KIND = "k8s.example.com/claim"
OWNER = "8d0a5c7e-0000-4000-8000-000000000001"


def spec(value: str = "1") -> Spec:
    return Spec("0.5.0", KIND, (CdiDevice(f"{OWNER}-a", ContainerEdits(env=(f"A={value}",))),))


@pytest.fixture
def directory(tmp_path: Path) -> SpecDirectory:
    return SpecDirectory(tmp_path / "run" / "cdi", KIND)


def test_a_spec_is_written_under_the_name_of_kind_and_owner(directory: SpecDirectory) -> None:
    assert directory.write(OWNER, spec())
    path = directory.path / f"k8s.example.com-claim_{OWNER}.json"
    assert json.loads(path.read_bytes())["kind"] == KIND
    assert directory.file(OWNER) == path
    assert directory.list() == {OWNER: path}
    assert directory.read(OWNER) == spec()


def test_what_is_no_file_under_such_a_name_is_none_of_ours(directory: SpecDirectory, tmp_path: Path) -> None:
    directory.path.mkdir(parents=True)
    directory.file(OWNER).mkdir()
    another = OWNER.replace("1", "2")
    (tmp_path / "elsewhere").write_bytes(encode(spec()))
    directory.file(another).symlink_to(tmp_path / "elsewhere")
    assert directory.list() == {}
    assert {path.name for path in directory.others([])} == {directory.file(owner).name for owner in (OWNER, another)}


def test_directory_and_file_can_be_read_by_every_runtime(directory: SpecDirectory) -> None:
    before = os.umask(0o077)
    try:
        directory.path.parent.mkdir()
        directory.path.parent.chmod(0o755)
        directory.write(OWNER, spec())
    finally:
        os.umask(before)
    assert stat.S_IMODE(directory.file(OWNER).stat().st_mode) == 0o644
    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o755


def test_the_same_bytes_are_not_written_twice(directory: SpecDirectory) -> None:
    directory.write(OWNER, spec())
    before = directory.file(OWNER).stat()
    assert not directory.write(OWNER, spec())
    assert directory.file(OWNER).stat().st_ino == before.st_ino
    assert directory.write(OWNER, spec("2"))
    assert directory.read(OWNER) == spec("2")


def test_a_reader_with_the_old_file_open_keeps_it_whole(directory: SpecDirectory) -> None:
    directory.write(OWNER, spec("1" * 1000))
    with directory.file(OWNER).open("rb") as reader:
        directory.write(OWNER, spec("2"))
        assert reader.read() == encode(spec("1" * 1000))


def test_removing_says_whether_there_was_anything(directory: SpecDirectory) -> None:
    assert not directory.remove(OWNER)
    directory.write(OWNER, spec())
    assert directory.remove(OWNER)
    assert directory.list() == {}
    assert directory.read(OWNER) is None


def test_files_of_others_are_neither_listed_nor_touched(directory: SpecDirectory) -> None:
    directory.write(OWNER, spec())
    others = [
        "k8s.example.com-gpu_1.json",
        "k8s.example.com-claim_.json",
        "k8s.example.com-claim_..json",
        "k8s.example.com-claim_a b.json",
        "k8s.example.com-claim_1.yaml",
        "spec.123.tmp",
        "spec.k8s.example.com-gpu_1.tmp",
        "nvidia.yaml",
    ]
    for name in others:
        (directory.path / name).write_text("{}")
    assert set(directory.list()) == {OWNER}
    assert directory.remove_temporary() == 0
    assert all((directory.path / name).exists() for name in others)


def test_what_a_killed_writer_left_is_removed_or_overwritten(directory: SpecDirectory) -> None:
    directory.write(OWNER, spec())
    left = directory.path / f"spec.k8s.example.com-claim_{OWNER}.tmp"
    left.write_bytes(b"{half")
    directory.write(OWNER, spec("2"))
    assert not left.exists()
    left.write_bytes(b"{half")
    assert directory.remove_temporary() == 1
    assert not left.exists()
    assert directory.read(OWNER) == spec("2")


def test_no_file_is_left_behind_when_a_write_fails(directory: SpecDirectory) -> None:
    directory.file(OWNER).mkdir(parents=True)
    (directory.file(OWNER) / "in-the-way").touch()
    with golden_error(DriverError):
        directory.write(OWNER, spec())
    assert [path.name for path in directory.path.iterdir()] == [directory.file(OWNER).name]


def test_links_are_replaced_and_never_followed(directory: SpecDirectory, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(encode(spec()))
    directory.path.mkdir(parents=True)
    directory.file(OWNER).symlink_to(victim)
    (directory.path / f"spec.k8s.example.com-claim_{OWNER}.tmp").symlink_to(victim)
    assert directory.read(OWNER) is None
    assert directory.write(OWNER, spec("2"))
    assert not directory.file(OWNER).is_symlink()
    assert victim.read_bytes() == encode(spec())
    directory.file(OWNER).unlink()
    directory.file(OWNER).symlink_to(victim)
    assert directory.remove(OWNER)
    assert victim.exists()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"cdiVersion": 1}', b"\xff\xfe", b"[" * 100_000, b"x" * (2 << 20)]
)
def test_a_file_that_is_no_spec_reads_as_none_and_is_replaced(directory: SpecDirectory, content: bytes) -> None:
    directory.path.mkdir(parents=True)
    directory.file(OWNER).write_bytes(content)
    assert directory.read(OWNER) is None
    assert directory.write(OWNER, spec())
    assert directory.read(OWNER) == spec()


@pytest.mark.parametrize("owner", ["", "../x", "a/b", ".hidden", "a b", "a\n", "-a", "x" * 200])
def test_an_owner_that_is_no_name_is_refused(directory: SpecDirectory, owner: str) -> None:
    with golden_error(DriverError):
        directory.write(owner, spec())
    for call in (directory.remove, directory.read, directory.file):
        with pytest.raises(DriverError):
            call(owner)
    assert not directory.path.exists()


def test_a_directory_that_is_none_is_explained(tmp_path: Path) -> None:
    (tmp_path / "cdi").write_text("a file")
    directory = SpecDirectory(tmp_path / "cdi", KIND)
    with golden_error(DriverError):
        directory.list()
    with golden_error(DriverError):
        directory.write(OWNER, spec())


def test_qualified_names_carry_the_kind(directory: SpecDirectory) -> None:
    assert directory.qualified("a") == "k8s.example.com/claim=a"
