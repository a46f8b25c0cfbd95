"""Trees of files as values: what an image's layers are made of, read from archives and written to them."""

from __future__ import annotations

import io
import posixpath
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lab.errors import LabError

_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
_ELF = b"\x7fELF"
_MAX_LINKS = 40  # as Linux allows


@dataclass(frozen=True)
class Entry:
    """A file, a directory or a symbolic link; all belong to root.

    Attributes:
        mode: Permissions.
        content: A file's bytes.
        target: Where a symbolic link leads; None for the others.
        is_directory: Whether it is a directory.
        group: Number of its group.
    """

    mode: int = 0o644
    content: bytes = b""
    target: str | None = None
    is_directory: bool = False
    group: int = 0


Tree = Mapping[str, Entry]
"""Entries by their path, which has no slash at its beginning."""


def link(target: str) -> Entry:
    """Return a symbolic link."""
    return Entry(mode=0o777, target=target)


def directory(mode: int = 0o755) -> Entry:
    """Return a directory."""
    return Entry(mode=mode, is_directory=True)


def with_parents(tree: Tree) -> dict[str, Entry]:
    """Return the tree with an entry for each directory above its entries."""
    paths = {str(parent) for path in tree for parent in Path(path).parents} - {"."}
    return {path: directory() for path in sorted(paths)} | dict(tree)


def read_tar(archive: tarfile.TarFile) -> dict[str, Entry]:
    """Return the files, directories and links of an archive; hard links are copies, devices are left out.

    Raises:
        LabError: A path leads out of the tree.
    """
    tree: dict[str, Entry] = {}
    for member in archive:
        path = _inside(member.name)
        if path == ".":
            continue
        mode = member.mode & 0o7777  # some programs write the file's kind there too
        if member.isdir():
            tree[path] = Entry(mode=mode, is_directory=True, group=member.gid)
        elif member.issym():
            tree[path] = link(member.linkname)
        elif member.islnk():
            tree[path] = tree[_inside(member.linkname)]
        elif member.isfile():
            stream = archive.extractfile(member)
            content = b"" if stream is None else stream.read()
            tree[path] = Entry(mode=mode, content=content, group=member.gid)
    return tree


def _inside(name: str) -> str:
    path = posixpath.normpath(name.lstrip("/") or ".")
    if path.split("/")[0] == "..":
        raise LabError(f"An archive has the path {name!r}, which leads out of its tree; nothing of it was used.")
    return path


def overlay(lower: Tree, upper: Tree) -> dict[str, Entry]:
    """Return a layer's tree on top of another one, as container runtimes do it: with whiteouts and through links."""
    tree = dict(lower)
    for path, entry in upper.items():
        parent, name = posixpath.split(path)
        parent = real_path(tree, parent)
        if name == _OPAQUE:
            _remove_below(tree, parent)
        elif name.startswith(_WHITEOUT):
            gone = posixpath.join(parent, name.removeprefix(_WHITEOUT))
            tree.pop(gone, None)
            _remove_below(tree, gone)
        else:
            final = posixpath.join(parent, name)
            kept = tree.get(final)
            if entry.is_directory and kept is not None and kept.target is not None:
                continue  # such as lib, which is a link to usr/lib
            tree[final] = entry
    return tree


def _remove_below(tree: dict[str, Entry], directory_path: str) -> None:
    for path in [path for path in tree if path.startswith(f"{directory_path}/")]:
        del tree[path]


def real_path(tree: Tree, path: str) -> str:
    """Return a path with all symbolic links on its way, and at its end, followed within the tree.

    Raises:
        LabError: The links lead in a circle.
    """
    done, left, followed = "", path.split("/"), 0
    while left:
        step = left.pop(0)
        if step in {"", "."}:
            continue
        if step == "..":
            done = posixpath.dirname(done)
            continue
        here = posixpath.join(done, step)
        target = tree[here].target if here in tree else None
        if target is None:
            done = here
            continue
        followed += 1
        if followed > _MAX_LINKS:
            raise LabError(f"The link {here} leads in a circle; no image was built.")
        done = "" if target.startswith("/") else done
        left = [*target.split("/"), *left]
    return done


def read_file(tree: Tree, path: str) -> bytes:
    """Return a file's content, which may be reached through links; nothing if there is none."""
    entry = tree.get(real_path(tree, path))
    return b"" if entry is None else entry.content


def write(tree: Tree, root: Path) -> None:
    """Write the tree below a directory, with permissions that let its owner change and delete everything."""
    root.mkdir(parents=True, exist_ok=True)
    for path, entry in sorted(with_parents(tree).items()):
        target = root / path
        if entry.is_directory:
            target.mkdir(parents=True, exist_ok=True)
        elif entry.target is not None:
            target.symlink_to(entry.target)
        else:
            target.write_bytes(entry.content)
            target.chmod(entry.mode & 0o777 | 0o600)


def foreign_programs(tree: Tree, machine: int | None) -> list[str]:
    """Return the programs and libraries of a tree that are not for a machine, by its number in ELF files; None: all."""
    return [
        path
        for path, entry in sorted(tree.items())
        if entry.content.startswith(_ELF) and int.from_bytes(entry.content[18:20], "little") != machine
    ]


def pack(tree: Tree, epoch: int) -> bytes:
    """Return the tree as a tar archive whose files bear one date; equal trees give equal bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path, entry in sorted(with_parents(tree).items()):
            member = tarfile.TarInfo(path)
            member.mode, member.mtime, member.gid = entry.mode, epoch, entry.group
            if entry.is_directory:
                member.type = tarfile.DIRTYPE
            elif entry.target is not None:
                member.type, member.linkname = tarfile.SYMTYPE, entry.target
            member.size = len(entry.content)
            archive.addfile(member, io.BytesIO(entry.content))
    return buffer.getvalue()
