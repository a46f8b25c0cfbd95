"""The Python of an image's base, run on this machine where it is of this machine's architecture.

It compiles what is put on the base, and tells which wheels fit. No container is needed for that, and no root: the
dynamic loader of the base starts it with the base's own libraries.
"""

from __future__ import annotations

import platform
import posixpath
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab import filetree
from lab.errors import LabError
from lab.filetree import Entry, Tree

_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_LOADERS = {"amd64": "lib64/ld-linux-x86-64.so.2", "arm64": "lib/ld-linux-aarch64.so.1"}
_LIBRARIES = ("usr/local/lib", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib", "usr/lib64")
_BINARIES = ("usr/local/bin", "usr/bin")
_OLDEST = (3, 11)
_FACTS = "import platform, sys; print(platform.python_version(), platform.libc_ver()[1])"


@dataclass(frozen=True)
class BasePython:
    """The interpreter of a base.

    Attributes:
        root: Where the base is unpacked.
        command: What starts it on this machine.
        directory: The directory of `python3` in the image, such as `/usr/bin`.
        version: Such as `3.13.5`.
        glibc: The minor version of glibc, such as 41.
    """

    root: Path
    command: Sequence[str]
    directory: str
    version: str
    glibc: int

    @property
    def minor(self) -> str:
        """Return its version as in the names of directories, such as `3.13`."""
        return ".".join(self.version.split(".")[:2])

    def compile(self, sources: Tree) -> dict[str, Entry]:
        """Return the compiled files of a tree's Python files, which bear no date and are never checked again.

        Raises:
            LabError: A file cannot be compiled.
        """
        with tempfile.TemporaryDirectory(dir=self.root.parent, prefix="compiled-") as name:
            root = Path(name)
            filetree.write({path: entry for path, entry in sources.items() if path.endswith(".py")}, root)
            # One process and always the same seed: what is shared within a compiled file depends on what the process
            # did before.
            command = [*self.command, "-m", "compileall", "-q", "-j1", "--invalidation-mode", "unchecked-hash"]
            _run([*command, "-s", str(root), "-p", "/", str(root)], self.root, self.directory)
            return {
                str(path.relative_to(root)): Entry(content=path.read_bytes()) for path in sorted(root.rglob("*.pyc"))
            }


@contextmanager
def unpacked(tree: Tree, scratch: Path) -> Iterator[BasePython]:
    """Unpack a base of this machine's architecture in a directory of `scratch`.

    Raises:
        LabError: The base has no glibc, or no Python that is new enough.
    """
    loader, python = _loader(tree), _python(tree)
    with tempfile.TemporaryDirectory(dir=scratch, prefix=".base-") as name:
        root = Path(name) / "root"
        filetree.write(tree, root)
        libraries = ":".join(str(root / library) for library in _LIBRARIES)
        command = [str(root / loader), "--library-path", libraries, str(root / filetree.real_path(tree, python)), "-sS"]
        directory = f"/{posixpath.dirname(python)}"
        version, glibc = _run([*command, "-c", _FACTS], root, directory).split()
        if tuple(int(number) for number in version.split(".")[:2]) < _OLDEST:
            raise LabError(f"The base has Python {version}; no image was built. Choose one with Python 3.11 or later.")
        yield BasePython(root, command, directory, version, int(glibc.split(".")[1]))


def native_architecture() -> str:
    """Return this machine's architecture by its name in images.

    Raises:
        LabError: No image is made for it.
    """
    architecture = _MACHINES.get(platform.machine())
    if architecture is None:
        raise LabError(f"Images are made on x86_64 and aarch64; this machine is {platform.machine()}.")
    return architecture


def _loader(tree: Tree) -> str:
    path = filetree.real_path(tree, _LOADERS[native_architecture()])
    if path not in tree:
        raise LabError("The base has no glibc, for which the driver's wheels are made; no image was built. Not Alpine.")
    return path


def _python(tree: Tree) -> str:
    for directory in _BINARIES:
        if filetree.real_path(tree, f"{directory}/python3") in tree:
            return f"{directory}/python3"
    raise LabError("The base has no python3 in /usr/local/bin or /usr/bin; no image was built. Choose one that has it.")


def _run(command: Sequence[str], root: Path, directory: str) -> str:
    home = f"{root}{posixpath.dirname(directory)}"
    environment = {"PYTHONHOME": home, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment
    )
    if done.returncode != 0:
        raise LabError(
            f"The base's Python failed, so there is no image. It says:\n{(done.stdout + done.stderr)[-3000:]}"
        )
    return done.stdout
