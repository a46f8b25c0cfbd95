"""What an image build takes over from this machine: its release, its package mirror, and its pip configuration."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from lab import files

# Releases whose python3 is new enough; on any other system Debian stable is used, from Debian's own mirror.
_SUITES = ("bookworm", "trixie", "forky", "noble", "plucky", "questing")
_DEFAULT_SUITE = "bookworm"


@dataclass(frozen=True)
class Release:
    """The release of the base image.

    Attributes:
        suite: Code name of a Debian or Ubuntu release.
        mirror: The package mirror of this machine; None for debootstrap's default.
    """

    suite: str
    mirror: str | None


def this_release() -> Release:
    """Return this machine's own release if its Python is new enough, otherwise Debian stable."""
    found = re.search(r"^VERSION_CODENAME=(\w+)$", Path("/etc/os-release").read_text(), re.MULTILINE)
    suite = found.group(1) if found else ""
    if suite not in _SUITES:
        return Release(_DEFAULT_SUITE, None)
    targets = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(CREATED_BY) $(CODENAME) $(COMPONENT) $(REPO_URI)"],
        check=False,
        capture_output=True,
        text=True,
    )
    return Release(suite, mirror_of(targets.stdout, suite))


def mirror_of(targets: str, suite: str) -> str | None:
    """Return the mirror of `suite` from apt's list of index targets; None if there is none."""
    for line in targets.splitlines():
        match line.split():
            case ["Packages", codename, "main", uri] if codename == suite:
                return uri
    return None


def pip_mounts(work: Path) -> list[tuple[Path, str]]:
    """Return the files with which pip works in a build as it does on this machine: its settings and its certificates.

    They do not get into the image: they are mounted read-only in a stage that is discarded.
    """
    listed = subprocess.run(
        [sys.executable, "-P", "-m", "pip", "config", "list"], check=False, capture_output=True, text=True
    ).stdout
    settings = pip_settings(listed)
    config = work / "pip.conf"
    files.write(config, "[global]\n" + "".join(f"{key} = {value}\n" for key, value in settings.items()), mode=0o644)
    mounts = [(config, "/etc/pip.conf")]
    paths = [settings.get("cert"), settings.get("find-links"), os.environ.get("SSL_CERT_FILE")]
    mounts += [(Path(path), path) for path in dict.fromkeys(paths) if path and Path(path).exists()]
    return mounts


def pip_settings(listed: str) -> dict[str, str]:
    """Return the settings printed by `pip config list`, those of the environment last, as they take precedence.

    Each line is `SECTION.KEY='VALUE'`. A setting of several lines, such as several index addresses, is kept in pip's
    format.
    """
    lines = sorted(listed.splitlines(), key=lambda line: line.startswith(":env:"))
    settings: dict[str, str] = {}
    for line in lines:
        name, equals, value = line.partition("=")
        if equals and name.rpartition(".")[0] in {"global", "install", ":env:"}:
            settings[name.rpartition(".")[2]] = str(ast.literal_eval(value)).replace("\n", "\n    ")
    return settings
