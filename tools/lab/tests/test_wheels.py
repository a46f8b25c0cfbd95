"""Python packages of an image: wheels by their pins, installed as pip would."""

import base64
import csv
import hashlib
import io
import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from lab import wheels
from lab.errors import LabError
from lab.filetree import Entry, link
from lab.wheels import Environment, Platform

ENVIRONMENT = Environment("opt/node", "/usr/bin", "3.13.5")
SITE = "opt/node/lib/python3.13/site-packages"
AMD64 = Platform("amd64", "3.13", 41)
INFORMATION = {
    "thing-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n",
    "thing-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "thing-1.0.dist-info/entry_points.txt": "[console_scripts]\nthing = thing.cli:run.main [extra]\n[other]\na = b:c\n",
}


def wheel(files: Mapping[str, str]) -> bytes:
    """A wheel of these files with a right RECORD."""
    contents = {**files, **INFORMATION}
    lines = [
        f'"{name}",sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")},'
        f"{len(text.encode())}\n"
        for name, text in contents.items()
    ]
    contents["thing-1.0.dist-info/RECORD"] = "".join(lines) + "thing-1.0.dist-info/RECORD,,\n"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in contents.items():
            item = zipfile.ZipInfo(name)
            item.external_attr = (0o100755 if name.endswith((".so", "/tool")) else 0o100644) << 16
            archive.writestr(item, text)
    return buffer.getvalue()


FILES = {
    "thing/__init__.py": "",
    "thing/cli.py": "class run:\n    @staticmethod\n    def main():\n        print('it runs')\n",
    "thing/native.so": "x",
    "thing-1.0.data/scripts/tool": "#!python\nprint(1)\n",
    "thing-1.0.data/data/share/thing, x": "data",
    "thing-1.0.data/purelib/more.py": "",
}


def test_a_wheel_is_installed_where_pip_would_install_it(tmp_path: Path) -> None:
    """Pip itself is the oracle, for this machine's Python."""
    here = tmp_path / "environment"
    venv.create(here, with_pip=False)
    file = tmp_path / "thing-1.0-py3-none-any.whl"
    file.write_bytes(wheel(FILES))
    before = {path for path in here.rglob("*") if not path.is_dir()}
    pip = [sys.executable, "-P", "-m", "pip", "--python", str(here / "bin/python"), "install", "--quiet", "--no-index"]
    subprocess.run([*pip, "--no-compile", "--no-deps", str(file)], check=True)
    version = ".".join(str(number) for number in sys.version_info[:3])
    environment = Environment(str(here).lstrip("/"), "/usr/bin", version)
    tree = wheels.install(wheel(FILES), environment)
    byhand = {path for path in here.rglob("*") if not path.is_dir()} - before
    own = {"direct_url.json", "REQUESTED"}  # of an installation from a file, by name
    assert {f"/{path}" for path in tree} == {str(path) for path in byhand if path.name not in own}
    for path, entry in tree.items():
        installed = Path(f"/{path}")
        assert bool(entry.mode & 0o111) == os.access(installed, os.X_OK), path
        if not path.endswith(("/RECORD", "/bin/thing")):
            assert entry.content == installed.read_bytes(), path
        installed.write_bytes(entry.content)
    assert subprocess.run([here / "bin/thing"], check=True, capture_output=True, text=True).stdout == "it runs\n"


def test_the_record_names_every_file_with_its_hash() -> None:
    tree = wheels.install(wheel(FILES), ENVIRONMENT)
    record = f"{SITE}/thing-1.0.dist-info/RECORD"
    rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(tree[record].content.decode()))}
    assert {os.path.normpath(f"{SITE}/{name}") for name in rows} == set(tree)
    for name, (digest, size) in rows.items():
        content = tree[os.path.normpath(f"{SITE}/{name}")].content
        if size:
            hashed = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
            assert (digest, int(size)) == (f"sha256={hashed}", len(content))


@pytest.mark.parametrize("name", ["../../../../x", "/../../../../../x", "thing-1.0.data/data/../../x"])
def test_a_wheel_that_leads_out_of_its_environment_is_refused(name: str) -> None:
    with pytest.raises(LabError, match="leads out"):
        wheels.install(wheel({name: ""}), ENVIRONMENT)


def test_an_empty_environment_leads_to_the_bases_python() -> None:
    tree = ENVIRONMENT.empty()
    assert tree["opt/node/bin/python3"] == link("/usr/bin/python3")
    assert tree["opt/node/bin/python3.13"] == link("python3")
    assert b"home = /usr/bin\n" in tree["opt/node/pyvenv.cfg"].content


def test_packages_with_different_files_of_one_name_are_refused() -> None:
    one, other = {"a": Entry(content=b"1"), "b": Entry()}, {"a": Entry(content=b"2")}
    assert wheels.merged([one, {"b": Entry()}]) == one
    with pytest.raises(LabError, match="/a"):
        wheels.merged([one, other])


REQUIREMENTS = """\
# A comment.
one==1.0 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
two==2.0 \\
    --hash=sha256:cc
three==3.0 \\
    --hash=sha256:dd
"""


def test_what_others_pin_alike_is_left_out() -> None:
    assert wheels.pins(REQUIREMENTS) == {"one": "1.0", "two": "2.0", "three": "3.0"}
    left = wheels.without(REQUIREMENTS, {"one": "1.0", "two": "2.1"})
    assert left == "two==2.0 \\\n    --hash=sha256:cc\nthree==3.0 \\\n    --hash=sha256:dd\n"


def test_wheels_for_older_systems_fit_too() -> None:
    tags = Platform("arm64", "3.13", 17).tags
    assert tags[:2] == ["manylinux_2_17_aarch64", "manylinux_2_16_aarch64"]
    assert "manylinux2014_aarch64" in tags
    assert not [tag for tag in tags if "x86" in tag]


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index of one wheel, in a directory."""
    directory = tmp_path / "index"
    directory.mkdir()
    (directory / "thing-1.0-py3-none-any.whl").write_bytes(wheel(FILES))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return directory


def pin(content: bytes) -> str:
    return f"thing==1.0 \\\n    --hash=sha256:{hashlib.sha256(content).hexdigest()}\n"


def test_a_wheel_is_downloaded_only_if_it_is_the_one_of_its_pin(index: Path, tmp_path: Path) -> None:
    file = index / "thing-1.0-py3-none-any.whl"
    right = file.read_bytes()
    assert wheels.download(Path(sys.executable), pin(right), AMD64, tmp_path) == {file.name: right}
    file.write_bytes(wheel({**FILES, "thing/cli.py": "import os\n"}))
    with pytest.raises(LabError, match="hashes"):
        wheels.download(Path(sys.executable), pin(right), AMD64, tmp_path)


def test_a_wheel_for_another_system_is_not_taken(index: Path, tmp_path: Path) -> None:
    file = index / "thing-1.0-py3-none-any.whl"
    right = file.read_bytes()
    other = file.rename(index / "thing-1.0-py3-none-manylinux_2_28_aarch64.whl")
    with pytest.raises(LabError, match="no wheel"):
        wheels.download(Path(sys.executable), pin(right), AMD64, tmp_path)
    assert wheels.download(Path(sys.executable), pin(right), Platform("arm64", "3.13", 28), tmp_path) == {
        other.name: right
    }
    with pytest.raises(LabError, match="no wheel"):
        wheels.download(Path(sys.executable), pin(right), Platform("arm64", "3.13", 27), tmp_path)
