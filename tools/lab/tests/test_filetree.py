"""Trees of files: layers on top of each other, and archives of them."""

import io
import tarfile

import pytest

from lab import filetree
from lab.errors import LabError
from lab.filetree import Entry, directory, link


def test_a_layer_removes_what_its_whiteouts_name_and_follows_links_of_directories() -> None:
    lower = {
        "lib": link("usr/lib"),
        "usr/lib": directory(),
        "usr/lib/old": Entry(content=b"old"),
        "gone/deep/file": Entry(),
        "opaque/below": Entry(),
    }
    upper = {
        "lib": directory(),
        "lib/new": Entry(content=b"new"),
        ".wh.gone": Entry(),
        "opaque/.wh..wh..opq": Entry(),
        "opaque/fresh": Entry(),
    }
    assert filetree.overlay(lower, upper) == {
        "lib": link("usr/lib"),
        "usr/lib": directory(),
        "usr/lib/old": Entry(content=b"old"),
        "usr/lib/new": Entry(content=b"new"),
        "opaque/fresh": Entry(),
    }


def test_links_are_followed_within_the_tree_and_not_in_circles() -> None:
    tree = {"a": link("/b/c"), "b/c": link("../../../d"), "d/e": Entry(content=b"x"), "x": link("y"), "y": link("x")}
    assert filetree.real_path(tree, "a/e") == "d/e"
    assert filetree.read_file(tree, "a/e") == b"x"
    assert filetree.read_file(tree, "a/none") == b""
    with pytest.raises(LabError, match="circle"):
        filetree.real_path(tree, "x/z")


def archive(*members: tarfile.TarInfo) -> tarfile.TarFile:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as written:
        for member in members:
            written.addfile(member, io.BytesIO(b"x" * member.size))
    buffer.seek(0)
    return tarfile.open(fileobj=buffer)


def test_a_packed_tree_is_read_as_it_was_with_one_date_and_the_same_bytes() -> None:
    tree = {
        "tmp": directory(0o1777),
        "usr": directory(),
        "usr/mail": Entry(mode=0o2755, content=b"x", group=8),
        "usr/post": link("mail"),
    }
    packed = filetree.pack(tree, 1_700_000_000)
    assert packed == filetree.pack(dict(reversed(tree.items())), 1_700_000_000)
    with tarfile.open(fileobj=io.BytesIO(packed)) as opened:
        assert {(member.mtime, member.uid) for member in opened} == {(1_700_000_000, 0)}
    with tarfile.open(fileobj=io.BytesIO(packed)) as opened:
        assert filetree.read_tar(opened) == tree


def test_hard_links_are_copies_and_devices_are_left_out() -> None:
    file, hard, device = tarfile.TarInfo("./a"), tarfile.TarInfo("b"), tarfile.TarInfo("dev/null")
    file.mode |= 0o100000  # as Go's programs write it
    file.size, hard.type, hard.linkname, device.type = 1, tarfile.LNKTYPE, "./a", tarfile.CHRTYPE
    with archive(file, hard, device) as opened:
        assert filetree.read_tar(opened) == {"a": Entry(content=b"x"), "b": Entry(content=b"x")}


@pytest.mark.parametrize("name", ["../x", "a/../../x", "./../x"])
def test_a_path_that_leads_out_is_refused(name: str) -> None:
    with archive(tarfile.TarInfo(name)) as opened, pytest.raises(LabError, match="leads out"):
        filetree.read_tar(opened)
