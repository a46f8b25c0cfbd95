"""What an image build takes over from this machine: its mirrors of Debian. What pip reads, it reads itself."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from lab.errors import LabError

# What Debian and Ubuntu install with python-apt-common, and so on most of their machines.
_TEMPLATE = Path("/usr/share/python-apt/templates/Debian.info")
# apt's labels of the archives, and their names.
_LABELS = {"Debian": "debian", "Debian-Security": "debian-security"}


def debian_mirrors(template: Path = _TEMPLATE) -> dict[str, str]:
    """Return mirrors of Debian's archives, by `debian` and `debian-security`.

    They are those of the variable DEBIAN_MIRROR (an address below which both are), of this machine's apt, or, on a
    system that is not Debian, the one that its own list of mirrors names.

    Raises:
        LabError: None of these is there.
    """
    main = f"{mirror.rstrip('/')}/debian/" if (mirror := os.environ.get("DEBIAN_MIRROR")) else ""
    ours = {} if main else _of_apt()
    if not main and "debian" not in ours and template.exists():
        match = re.search(r"(?m)^BaseURI: (\S+/debian/)$", template.read_text())
        main = match[1] if match else ""
    if not main and "debian" not in ours:
        raise LabError(
            "This machine knows no mirror of Debian; no image was built. Name one in DEBIAN_MIRROR, the address below "
            "which debian/ and debian-security/ are (https://www.debian.org/mirror/list), or another base with --base."
        )
    main = main or ours["debian"]
    security = re.sub(r"debian/?$", "debian-security/", main)
    return {"debian": main, "debian-security": security, **ours}


def _of_apt() -> dict[str, str]:
    """The mirrors of Debian that apt uses here; none on other systems."""
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
