from __future__ import annotations

import json
import os
import stat
import tempfile
from pathlib import Path
from random import Random

import pytest

from dra_driver.kube.cdi import CdiDevice, ContainerEdits, Spec, SpecDirectory, encode
from dra_driver.util.errors import DriverError
from tests.golden import golden_error

KIND = "k8s.example.com/claim"
OWNER = "8d0a5c7e-0000-4000-8000-000000000001"
OTHER = OWNER.replace("1", "2")


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
    (tmp_path / "elsewhere").write_bytes(encode(spec()))
    directory.file(OTHER).symlink_to(tmp_path / "elsewhere")
    assert directory.list() == {}
    assert {path.name for path in directory.others([])} == {directory.file(owner).name for owner in (OWNER, OTHER)}


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


# Boots


class Host:
    """A directory of specs over several boots, on a file system that outlives them unless the table says otherwise."""

    def __init__(self, root: Path) -> None:
        self.path = root / "cdi"
        self.mounts = root / "mountinfo"

    def boot(self, boot_id: str) -> SpecDirectory:
        return SpecDirectory(self.path, KIND, boot_id, mounts=self.mounts)

    def former(self) -> None:
        """What a version of the program does that knows nothing of boots: the same bytes in a new file."""
        temporary = self.path / f"spec.k8s.example.com-claim_{OWNER}.tmp"
        temporary.write_bytes(encode(spec()))
        temporary.replace(self.boot("").file(OWNER))

    @property
    def notes(self) -> Path:
        return self.path / "spec.k8s.example.com-claim_boots"


@pytest.fixture
def machine(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_spec_is_of_the_boot_in_which_it_was_written_last(machine: Host) -> None:
    assert not machine.boot("a").of_this_boot(OWNER), "there is none"
    machine.boot("a").write(OWNER, spec())
    assert machine.boot("a").of_this_boot(OWNER)
    assert not machine.boot("b").of_this_boot(OWNER)
    machine.boot("b").note_boots()
    assert not machine.boot("b").of_this_boot(OWNER), "a look does not make it one of this boot"
    assert machine.boot("b").write(OWNER, spec()), "the same bytes, in a new file"
    assert machine.boot("b").of_this_boot(OWNER)
    assert not machine.boot("c").of_this_boot(OWNER)


@pytest.mark.parametrize("moment", [0, 1, 1 << 40], ids=["1970", "a nanosecond later", "1970 too"])
def test_the_times_of_files_are_compared_with_no_clock(machine: Host, moment: int) -> None:
    machine.boot("a").write(OWNER, spec())
    os.utime(machine.boot("a").file(OWNER), ns=(moment, moment))
    assert machine.boot("a").of_this_boot(OWNER)
    assert machine.boot("b").of_this_boot(OWNER), "it is not the file that was noted"


def test_what_another_version_has_written_is_of_this_boot_until_one_that_was_noted_is_over(machine: Host) -> None:
    machine.boot("a").write(OWNER, spec())
    machine.former()
    assert machine.boot("b").of_this_boot(OWNER), "the note of boot a is about another file"
    machine.boot("b").note_boots()
    assert machine.boot("b").of_this_boot(OWNER)
    assert not machine.boot("c").of_this_boot(OWNER)


@pytest.mark.parametrize("left", [b"", b"{", b"[]", b'{"x": 1}', b"[" * 100_000, None])
def test_without_notes_that_can_be_read_specs_are_of_this_boot(machine: Host, left: bytes | None) -> None:
    machine.boot("a").write(OWNER, spec())
    if left is None:
        machine.notes.unlink()
    else:
        machine.notes.write_bytes(left)
    assert machine.boot("b").of_this_boot(OWNER)
    machine.boot("b").note_boots()
    assert machine.boot("b").of_this_boot(OWNER)
    assert not machine.boot("c").of_this_boot(OWNER)


def test_where_the_boot_is_not_known_every_spec_counts(machine: Host) -> None:
    machine.boot("").write(OWNER, spec())
    assert not machine.notes.exists()
    machine.boot("a").write(OWNER, spec("2"))
    assert machine.boot("").of_this_boot(OWNER)
    assert not machine.boot("b").of_this_boot(OWNER), "nor is a note lost by that"


@pytest.mark.parametrize(
    ("types", "of_this_boot"),
    [(["tmpfs"], True), (["ramfs"], True), (["ext4"], False), (["tmpfs", "ext4"], False), ([], False)],
)
def test_on_a_tmpfs_every_spec_is_of_this_boot(machine: Host, types: list[str], of_this_boot: bool) -> None:
    machine.boot("a").write(OWNER, spec())
    device = machine.path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    own = [f"{place} 1 {number} / /run/cdi rw shared:{place} - {name} none rw" for place, name in enumerate(types, 2)]
    machine.mounts.write_text("\n".join(["1 0 0:1 / / ro - tmpfs none rw", "a line", "", *own]) + "\n")
    assert machine.boot("b").of_this_boot(OWNER) is of_this_boot


def test_on_a_tmpfs_nothing_is_noted(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:  # a tmpfs
        directory = SpecDirectory(Path(name), KIND, "a")
        directory.write(OWNER, spec())
        assert [path.name for path in Path(name).iterdir()] == [directory.file(OWNER).name]
        assert SpecDirectory(Path(name), KIND, "b").of_this_boot(OWNER)


def test_notes_go_with_the_last_spec_and_are_no_hindrance(machine: Host) -> None:
    directory = machine.boot("a")
    directory.write(OWNER, spec())
    assert machine.notes.exists()
    assert directory.others([OWNER]) == [], "no version reports them as a stranger's"
    directory.remove(OWNER)
    assert list(machine.path.iterdir()) == []
    machine.notes.mkdir()
    assert directory.write(OWNER, spec()), "a spec that cannot be noted is written all the same"
    assert machine.boot("b").of_this_boot(OWNER)


def stored(machine: Host) -> dict[str, object]:
    """The notes by owner."""
    return json.loads(machine.notes.read_bytes()) if machine.notes.exists() else {}


def test_notes_are_the_same_whether_one_spec_is_looked_at_or_all(machine: Host) -> None:
    """Writes and removals note their own spec; a look at all of them then finds nothing to add."""
    random, owners = Random(5), [OWNER.replace("1", digit) for digit in "123456"]
    for step in range(300):
        directory, owner = machine.boot("abc"[step // 100]), random.choice(owners)
        if random.random() < 0.6:
            directory.write(owner, spec(random.choice("12")))
        else:
            directory.remove(owner)
        notes = stored(machine)
        directory.note_boots()
        assert directory.list().keys() == stored(machine).keys()
        assert stored(machine) == notes


def test_a_write_looks_at_its_own_spec_only(machine: Host) -> None:
    """Beside a hundred specs a look at all took more time than all else of a call."""
    machine.boot("a").write(OWNER, spec())
    machine.former()
    machine.boot("b").write(OTHER, spec())
    assert machine.boot("c").of_this_boot(OWNER), "nobody has looked at this one in boot b"
    assert not machine.boot("c").of_this_boot(OTHER)
