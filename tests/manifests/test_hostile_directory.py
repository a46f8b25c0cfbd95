"""Nobody's code runs but ours: wherever a script is called, and whatever the index has that it installs from.

``python -m`` and ``python -c`` put the current directory before all other modules, so a clone, an archive or /tmp is
enough to run somebody's code as whoever calls a script there, often root.
"""

from __future__ import annotations

import hashlib
import io
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab import wheels
from lab.errors import LabError
from releasing import plugin

from tests.builders.plugin import PYTHON, plugin_of_here
from tests.golden import golden
from tests.manifests.support import name_of
from tests.paths import ROOT

OURS = ("dra_driver", "tests", *(path.name for path in (ROOT / "tools").iterdir() if path.is_dir()))
OTHERS = (
    *("build", "grpc", "msgspec", "pip", "pytest", "setuptools", "yaml"),
    *("kubernetes", "lark", "kubectl_neuron", "pydantic", "rich", "urllib3", "sitecustomize", "usercustomize"),
)
STARTS = re.compile(
    r"""(?:python[0-9.]*|\{python\}|python3\}|executable|\(python\)|/python"?\))["')\]]*,?[ ]+["']?-[mc]\b""",
)
AT_HOME = {
    "CONTRIBUTING.md": r"\.venv/bin/python -m pytest",  # its path is one of the checkout's, whose code it is to run
    "scripts/test": r"\.venv/bin/python -m pytest",
    "tools/generating/main.py": "cwd=ROOT",
    "tools/mutants/main.py": "PYTEST =",  # in a copy of the checkout
    "tools/mutants/mutants.toml": "^replace = ",
    "Dockerfile": r"^(#|RUN| {4}&&) ",  # in a directory with what it has copied from the checkout
    "dra_driver/__main__.py": '^"""Makes',
}
"""Lines that may start Python without -I or -P, by file."""


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[Path]:
    """A directory with a module in place of each that anything of ours could import; fails if one of them has run."""
    directory, ran = tmp_path / "cloned", tmp_path / "ran"
    directory.mkdir()
    for name in {*sys.stdlib_module_names, *OURS, *OTHERS}:
        text = f"with open({str(ran)!r}, 'a') as file:\n    file.write(__name__ + ' ')\n"
        (directory / f"{name}.py").write_text(f"{text}raise SystemExit('ran ' + __name__)\n")
    yield directory
    assert not ran.exists(), f"modules of the current directory ran: {ran.read_text()}"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose environment is the one that is here."""
    tree = tmp_path / "checkout"
    shutil.copytree(ROOT / "scripts", tree / "scripts")
    for name in (
        "tools",
        "dra_driver",
        "tests",
        "charts",
        "deploy",
        "docs",
        "examples",
        "requirements",
        "pyproject.toml",
    ):
        (tree / name).symlink_to(ROOT / name)
    (tree / "scripts/setup-venv").write_text("#!/bin/sh\n")
    python = tree / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return tree


SCRIPTS = sorted(path.name for path in (ROOT / "scripts").iterdir() if path.is_file() and path.name != "bootstrap.sh")


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_runs_no_code_of_the_directory_in_which_it_is_called(
    script: str, hostile: Path, checkout: Path
) -> None:
    command = [str(checkout / "scripts" / script), "--help"]
    shown = subprocess.run(command, cwd=hostile, capture_output=True, text=True, timeout=50, check=False)
    assert shown.returncode == 0, shown.stderr


def test_what_root_calls_to_install_packages_runs_none_either(hostile: Path, tmp_path: Path) -> None:
    programs = tmp_path / "programs"  # no apt-get among them
    programs.mkdir()
    (programs / "bash").symlink_to(shutil.which("bash") or "bash")
    (programs / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (programs / "python3").chmod(0o755)
    command = [str(programs / "bash"), str(ROOT / "scripts/bootstrap.sh"), "venv"]
    done = subprocess.run(
        command, cwd=hostile, env={"PATH": str(programs)}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_builds_an_image_runs_none_either(hostile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(hostile)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(LabError, match="No matching distribution"):
        pin = f"nowhere==1.0 --hash=sha256:{'0' * 64}\n"
        wheels.download(Path(sys.executable), pin, wheels.Platform("amd64", "3.13", 36), tmp_path)


def files() -> list[Path]:
    """What people read and run: scripts, tools, pages, messages."""
    folders = ("scripts", "tools", "dra_driver", "docs", "examples", "charts", "deploy", ".ci", ".github")
    below = (path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file())
    texts = [path for path in below if path.suffix not in (".pyc", ".png", ".zst") and "tests" not in path.parts]
    return sorted([*texts, ROOT / "Dockerfile", ROOT / "README.md", ROOT / "CONTRIBUTING.md"])


def test_modules_are_started_apart_from_the_current_directory() -> None:
    """In scripts, tools, and what pages and messages tell people to type."""
    bad = []
    for path in files():
        at_home = AT_HOME.get(name_of(path))
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if STARTS.search(line) and (at_home is None or not re.search(at_home, line)):
                bad.append(f"{name_of(path)}:{number}: {line.strip()}")
    assert not bad, "add -I, or -P where PYTHONPATH is needed:\n" + "\n".join(bad)


BUILDS = """\
import pathlib

def get_requires_for_build_wheel(settings=None):
    pathlib.Path({ran!r}).touch()
    return []

get_requires_for_build_editable = get_requires_for_build_sdist = get_requires_for_build_wheel
"""


@pytest.fixture
def index(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """An index that has no wheel of a package, and a pin of its source archive; fails if anything of that has run."""
    ran, directory = tmp_path / "built", tmp_path / "index"
    directory.mkdir()
    archive = directory / "sourceonly-1.0.tar.gz"
    project = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    project += '[project]\nname = "sourceonly"\nversion = "1.0"\n'
    content = {
        "pyproject.toml": project,
        "backend.py": BUILDS.format(ran=str(ran)),
        "PKG-INFO": "Metadata-Version: 2.1\nName: sourceonly\nVersion: 1.0\n",
    }
    with tarfile.open(archive, "w:gz") as tar:
        for name, text in content.items():
            member = tarfile.TarInfo(f"sourceonly-1.0/{name}")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    yield directory, f"sourceonly==1.0 --hash=sha256:{hashlib.sha256(archive.read_bytes()).hexdigest()}\n"
    assert not ran.exists(), "the build of a source archive ran"


def installing(command: list[str], directory: Path, index: Path) -> subprocess.CompletedProcess[str]:
    """The end of an installation from that index."""
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHON": sys.executable,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(index),
        "PIP_CONFIG_FILE": os.devnull,
    }
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)


def told(text: str) -> str:
    """The error without what this machine has."""
    system = f"{platform.system()} {platform.machine()}"
    return (
        text[text.index("error: ") :].replace(f"Python {platform.python_version()}", "PYTHON").replace(system, "SYSTEM")
    )


@pytest.mark.slow
def test_the_environment_is_made_of_wheels_only(index: tuple[Path, str], hostile: Path, tmp_path: Path) -> None:
    tree = tmp_path / "checkout"
    (tree / "scripts").mkdir(parents=True)
    (tree / "requirements").mkdir()
    shutil.copy(ROOT / "scripts/setup-venv", tree / "scripts")
    shutil.copy(ROOT / "pyproject.toml", tree)
    (tree / "requirements/commands.txt").write_text(index[1])
    (tree / "requirements/build.txt").write_text("")
    done = installing([str(tree / "scripts/setup-venv")], hostile, index[0])
    assert done.returncode == 2, done.stderr
    golden(told(done.stderr))
    assert not list((tree / ".venv").glob("stamp*")), "the next call tries again"


@pytest.mark.slow
def test_the_plugin_of_krew_is_made_of_wheels_only(
    index: tuple[Path, str], hostile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(hostile)
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index[0]), "PIP_CONFIG_FILE": os.devnull}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="cannot be had") as refusal:
        plugin.download({"sourceonly": index[1]}, tmp_path / "wheels", plugin.PLATFORMS[0], "3.11")
    golden(str(refusal.value).partition("pip says:")[0])


@pytest.mark.slow
def test_the_plugin_of_krew_runs_no_code_but_its_own(
    hostile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the directory, the environment and the user's own packages have."""
    archive = plugin_of_here(tmp_path / "plugin", monkeypatch)
    store = tmp_path / "store"
    shutil.unpack_archive(archive, store, filter="data")
    (hostile / "dra_driver").mkdir()
    shutil.copy(hostile / "dra_driver.py", hostile / "dra_driver/__init__.py")
    (hostile / "startup").write_text((hostile / "json.py").read_text())
    ours = tmp_path / f".local/lib/python{PYTHON}/site-packages"
    ours.mkdir(parents=True)
    (ours / "own.pth").write_text(f"import sys; exec(open({str(hostile / 'json.py')!r}).read())\n")
    environment = {
        "PATH": os.defpath,
        "HOME": str(tmp_path),
        "PYTHON": sys.executable,
        "PYTHONHOME": str(hostile),
        "PYTHONPATH": str(hostile),
        "PYTHONSTARTUP": str(hostile / "startup"),
        "PYTHONINSPECT": "1",
        "PYTHONUSERBASE": str(tmp_path / ".local"),
        "PYTHONPLATLIBDIR": str(hostile),
        "PYTHONBREAKPOINT": "json.run",
        "PYTHONWARNINGS": "error::json.Warning",
        "PYTHONSAFEPATH": "",
    }
    example = str(ROOT / "examples/specs/1x4-connected-devices.yaml")
    for words in (["--help"], ["simulate", example, "--instance-type", "trn2.48xlarge"], ["top"]):
        command = [str(store / "kubectl-neuron"), *words]
        done = subprocess.run(
            command, cwd=hostile, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        assert done.returncode == (2 if words == ["top"] else 0), done.stderr  # there is no kubeconfig
        assert "Traceback" not in done.stderr


INSTALLS = re.compile(r"""pip["']?,?[^\n]*?[ "'](?:install|download)\b|pip wheel\b""")


def test_nothing_is_installed_but_wheels() -> None:
    """Where a script or the Dockerfile installs from an index; what is not from one says that no dependency is."""
    bad = []
    bad += _without_wheels(ROOT / "Dockerfile")
    for folder in ("scripts", "tools"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and path.suffix in ("", ".py", ".sh") and "tests" not in path.parts:
                bad += _without_wheels(path)
    assert not bad, "\n".join(bad)


def _without_wheels(path: Path) -> list[str]:
    text = re.sub(r"\\\n\s*", " ", path.read_text(errors="replace"))
    found = (line for line in re.split(r"\n|&&", text) if INSTALLS.search(line) and not line.lstrip().startswith("#"))
    return [
        f"{name_of(path)}: {line.strip()}" for line in found if not re.search("--only-binary|--no-deps|wheels", line)
    ]
