"""Python packages of an image: wheels by their pins, for any architecture, of which nothing is run."""

from __future__ import annotations

import base64
import hashlib
import io
import posixpath
import re
import subprocess
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.errors import LabError
from lab.filetree import Entry, link

_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
# The oldest glibc for which wheels were made is 2.5; three names from before they bore its version.
_OLDEST_GLIBC = 5
_OLD_NAMES = ("manylinux2014", "manylinux2010", "manylinux1")
_PIN = re.compile(r"([A-Za-z0-9._-]+)==([^\s;\\]+)")
_SCRIPT = """\
#!/{prefix}/bin/python
import sys

from {module} import {attribute}

if __name__ == "__main__":
    sys.exit({function}())
"""


@dataclass(frozen=True)
class Platform:
    """What a wheel must fit.

    Attributes:
        architecture: Its name in images, `amd64` or `arm64`.
        python: Python's version, such as `3.13`.
        glibc: The minor version of glibc.
    """

    architecture: str
    python: str
    glibc: int

    @property
    def tags(self) -> list[str]:
        """Return the names of platforms whose wheels run there, the newest first."""
        machine = _MACHINES[self.architecture]
        numbered = [f"manylinux_2_{minor}" for minor in range(self.glibc, _OLDEST_GLIBC - 1, -1)]
        return [f"{name}_{machine}" for name in (*numbered, *_OLD_NAMES)]


@dataclass(frozen=True)
class Environment:
    """A virtual environment in an image.

    Attributes:
        prefix: Its directory, without a slash at its beginning, such as `opt/node`.
        python_directory: The directory of the base's `python3`, such as `/usr/bin`.
        python_version: Such as `3.13.5`.
    """

    prefix: str
    python_directory: str
    python_version: str

    @property
    def minor(self) -> str:
        """Return Python's version as in the names of directories."""
        return ".".join(self.python_version.split(".")[:2])

    @property
    def packages(self) -> str:
        """Return the directory of its packages."""
        return f"{self.prefix}/lib/python{self.minor}/site-packages"

    def empty(self) -> dict[str, Entry]:
        """Return what `python3 -I -m venv --without-pip` makes, without the scripts for shells of people."""
        settings = (
            f"home = {self.python_directory}\ninclude-system-site-packages = false\nversion = {self.python_version}\n"
            f"executable = {self.python_directory}/python{self.minor}\n"
        )
        binaries = f"{self.prefix}/bin"
        return {
            f"{self.prefix}/pyvenv.cfg": Entry(content=settings.encode()),
            f"{binaries}/python3": link(f"{self.python_directory}/python3"),
            f"{binaries}/python": link("python3"),
            f"{binaries}/python{self.minor}": link("python3"),
            f"{self.prefix}/lib64": link("lib"),
        }


def pins(requirements: str) -> dict[str, str]:
    """Return the pinned packages of a requirements file: name to version."""
    return {match[1]: match[2] for match in map(_PIN.match, requirements.splitlines()) if match}


def without(requirements: str, others: Mapping[str, str]) -> str:
    """Return a requirements file without the packages that `others` pin alike."""
    left = []
    for block in re.split(r"(?m)^(?=\S)", requirements):
        match = _PIN.match(block)
        if match and others.get(match[1]) != match[2]:
            left.append(block)
    return "".join(left)


def fetch(pip: Path, requirements: str, python: str, tags: Sequence[str], directory: Path) -> list[Path]:
    """Download the wheels of pins to a new directory, for any platform, and return them.

    Args:
        pip: An interpreter of this machine that has pip.
        requirements: Pins with hashes of all that is needed.
        python: The version of Python that they are for, such as `3.13`.
        tags: What wheels call the platform.
        directory: Where they go.

    Raises:
        LabError: There is no wheel of a package, or it is another one than the pin says; the message is pip's.
    """
    directory.mkdir()
    file = directory.with_name(f"{directory.name}.txt")
    file.write_text(requirements)
    # Wheels only: the build of a source archive would run now, with build requirements that no hash pins.
    options = ["--quiet", "--disable-pip-version-check", "--require-hashes", "--no-deps"]
    options += ["--implementation", "cp", "--python-version", python, *(f"--platform={tag}" for tag in tags)]
    command = [str(pip), "-I", "-m", "pip", "download", "--only-binary", ":all:", *options]
    command += [f"--dest={directory}", f"--requirement={file}"]
    done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise LabError(done.stderr.strip()[-3000:])
    return sorted(directory.glob("*.whl"))


def download(pip: Path, requirements: str, wanted: Platform, scratch: Path) -> dict[str, bytes]:
    """Return the wheels of a requirements file, by name, that fit a platform; see `fetch`."""
    with tempfile.TemporaryDirectory(dir=scratch, prefix=".wheels-") as name:
        try:
            wheels = fetch(pip, requirements, wanted.python, wanted.tags, Path(name) / "wheels")
        except LabError as error:
            raise LabError(
                f"The pinned packages cannot be had for Python {wanted.python} on {wanted.architecture}, so there is "
                "no image. If no matching distribution was found, there is no wheel for them, and nothing else is "
                "installed: choose a base with glibc and Python 3.11 to 3.14. If hashes do not match, ask who "
                f"runs the package index. pip says:\n{error}"
            ) from error
        return {path.name: path.read_bytes() for path in wheels}


def install(wheel: bytes, environment: Environment) -> dict[str, Entry]:
    """Return what a wheel puts into an environment, as pip would.

    Raises:
        LabError: It is no wheel, or has a path that leads out of the environment.
    """
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        contents = {
            item.filename: (archive.read(item), item.external_attr >> 16)
            for item in archive.infolist()
            if not item.is_dir()
        }
    (record,) = [name for name in contents if name.endswith(".dist-info/RECORD") and name.count("/") == 1]
    information = posixpath.dirname(record)
    data = f"{information.removesuffix('.dist-info')}.data/"
    tree = {
        _placed(name, data, environment): _entry(name, content, mode, data, environment)
        for name, (content, mode) in contents.items()
        if name != record
    }
    commands = contents.get(f"{information}/entry_points.txt", (b"", 0))[0].decode()
    tree |= scripts(commands, environment)
    tree[f"{environment.packages}/{information}/INSTALLER"] = Entry(content=b"pip\n")
    tree[f"{environment.packages}/{record}"] = _record(tree, f"{environment.packages}/{record}", environment)
    return tree


def scripts(entry_points: str, environment: Environment) -> dict[str, Entry]:
    """Return the commands that an `entry_points.txt` names."""
    section = re.search(r"(?ms)^\[console_scripts\]\s*$(.*?)(?=^\[|\Z)", entry_points)
    commands = re.findall(r"(?m)^\s*([\w.-]+)\s*=\s*([\w.]+)\s*:\s*([\w.]+)", section[1] if section else "")
    tree = {}
    for name, module, function in commands:
        text = _SCRIPT.format(
            prefix=environment.prefix, module=module, attribute=function.split(".")[0], function=function
        )
        tree[f"{environment.prefix}/bin/{name}"] = Entry(mode=0o755, content=text.encode())
    return tree


def _placed(name: str, data: str, environment: Environment) -> str:
    """Where a file of a wheel goes."""
    path = f"{environment.packages}/{name}"
    if name.startswith(data):
        kind, _, rest = name.removeprefix(data).partition("/")
        places = {
            "purelib": environment.packages,
            "platlib": environment.packages,
            "scripts": f"{environment.prefix}/bin",
            "data": environment.prefix,
            "headers": f"{environment.prefix}/include/site/python{environment.minor}",
        }
        path = f"{places[kind]}/{rest}"
    final = posixpath.normpath(path)
    if not final.startswith(f"{environment.prefix}/"):
        raise LabError(f"A wheel has the path {name!r}, which leads out of its environment; no image was built.")
    return final


def _entry(name: str, content: bytes, mode: int, data: str, environment: Environment) -> Entry:
    placeholder = b"#!python"
    if name.startswith(f"{data}scripts/") and content.startswith(placeholder):
        content = f"#!/{environment.prefix}/bin/python".encode() + content.removeprefix(placeholder)
    return Entry(mode=0o755 if mode & 0o111 else 0o644, content=content)


def _record(tree: Mapping[str, Entry], own: str, environment: Environment) -> Entry:
    lines = [
        f"{_quoted(posixpath.relpath(path, environment.packages))},sha256={_hash(entry.content)},{len(entry.content)}\n"
        for path, entry in sorted(tree.items())
    ]
    lines.append(f"{posixpath.relpath(own, environment.packages)},,\n")
    return Entry(content="".join(lines).encode())


def _quoted(path: str) -> str:
    return f'"{path}"' if "," in path else path


def _hash(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def merged(trees: Iterable[Mapping[str, Entry]]) -> dict[str, Entry]:
    """Return one tree of several.

    Raises:
        LabError: Two of them have different files at one path.
    """
    tree: dict[str, Entry] = {}
    for other in trees:
        for path, entry in other.items():
            if tree.setdefault(path, entry) != entry:
                raise LabError(f"Two packages have different files /{path}; no image was built.")
    return tree
