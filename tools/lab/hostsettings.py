"""What an image build takes over from this machine: its mirrors of Debian. What pip reads, it reads itself."""

from __future__ import annotations

import subprocess

# apt's labels of the archives, and their names.
_LABELS = {"Debian": "debian", "Debian-Security": "debian-security"}


def debian_mirrors() -> dict[str, str]:
    """Return this machine's mirrors of Debian's archives by their names; nothing on other systems than Debian."""
    try:
        targets = subprocess.run(
            ["apt-get", "indextargets", "--format", "$(CREATED_BY) $(COMPONENT) $(REPO_URI) $(LABEL)"],
            check=False,
            capture_output=True,
            text=True,
        )
    except OSError:
        return {}
    return mirrors_of(targets.stdout)


def mirrors_of(targets: str) -> dict[str, str]:
    """Return the mirrors in apt's list of index targets."""
    mirrors: dict[str, str] = {}
    for line in targets.splitlines():
        match line.split():
            case ["Packages", "main", uri, label] if label in _LABELS:
                mirrors.setdefault(_LABELS[label], uri)
    return mirrors
