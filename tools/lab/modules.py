"""Creates the Go module from which another Kubernetes version is built; to be run when a version is added."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from lab import components, files
from lab.build import MODULES, Go
from lab.components import Component
from lab.errors import LabError
from lab.progress import Progress

# Never a real host: nothing depends on the lab's modules.
_MODULE_PREFIX = "neuron-dra-driver.invalid/lab"


def add(version: str, go: Go, progress: Progress, *, kubelet_only: bool) -> Path:
    """Write go.mod, go.sum and tools.go of a Kubernetes version and return their directory.

    Raises:
        LabError: There is a module for it already, or Go does not find the version.
    """
    component = components.kubelet(version, ()) if kubelet_only else components.kubernetes(version)
    directory = MODULES / component.module
    if directory.exists():
        raise LabError(f"{directory} is there already; nothing was changed.")
    packages = (
        component.packages if kubelet_only else (*component.packages, *components.dra_test_driver(version).packages)
    )
    with (
        progress.step(f"finding out what Kubernetes {version} needs"),
        files.complete_directory(directory) as unfinished,
    ):
        upstream = _upstream_go_mod(version, go)
        files.write(unfinished / "go.mod", go_mod(component, version, upstream), mode=0o644)
        files.write(unfinished / "tools.go", tools_go(packages), mode=0o644)
        _run([str(go.path), "mod", "tidy"], unfinished)
    return directory


def go_mod(component: Component, version: str, upstream: str) -> str:
    """Return a go.mod that requires Kubernetes, whose own go.mod is `upstream`.

    Kubernetes replaces the modules that it publishes separately by its own directories; a module that requires
    Kubernetes must specify their published versions instead: v1.37.1 of Kubernetes corresponds to v0.37.1 of each.
    """
    published = sorted(set(re.findall(r"^\s*(?:replace )?(k8s\.io/\S+) => \./staging/", upstream, re.MULTILINE)))
    go_version = ".".join(str(number) for number in components.go_directive(upstream))
    replacements = "".join(f"\t{name} => {name} v0.{version.partition('.')[2]}\n" for name in published)
    return (
        f"module {_MODULE_PREFIX}/{component.module}\n\ngo {go_version}\n\n"
        f"require k8s.io/kubernetes v{version}\n\nreplace (\n{replacements})\n"
    )


def tools_go(packages: Sequence[str]) -> str:
    """Return the Go file that imports the programs, so that `go mod tidy` keeps their dependencies."""
    imports = "".join(f'\t_ "{package}"\n' for package in sorted(packages))
    return (
        "//go:build tools\n\n// Package tools names the programs that the cluster lab builds from this module.\n"
        f"package tools\n\nimport (\n{imports})\n"
    )


def _upstream_go_mod(version: str, go: Go) -> str:
    with tempfile.TemporaryDirectory() as anywhere:
        answer = _run([str(go.path), "mod", "download", "-json", f"k8s.io/kubernetes@v{version}"], Path(anywhere))
    return Path(json.loads(answer)["GoMod"]).read_text()


def _run(command: Sequence[str], directory: Path) -> str:
    done = subprocess.run(command, cwd=directory, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-10:])
        raise LabError(f"'{' '.join(command)}' failed; no module was added. Its last lines:\n{last}")
    return done.stdout
