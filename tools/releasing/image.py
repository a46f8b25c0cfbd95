"""The image of a release: one index of all architectures, in a directory that any registry's client can push."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.images import ARCHITECTURES, ImageBuilder
from lab.progress import Progress
from lab.settings import Settings

_NO_LABELS: Mapping[str, str] = {}


def write_layout(
    tree: Path,
    layout: Path,
    epoch: int,
    progress: Progress,
    *,
    architectures: Sequence[str] = ARCHITECTURES,
    base: str | None = None,
    labels: Mapping[str, str] = _NO_LABELS,
) -> str:
    """Write the image of a file tree as an OCI layout, and return the digest of its image index.

    The same tree, date, base and labels give the same bytes. Nothing of another architecture is run.

    Args:
        tree: The committed files.
        layout: A directory to make.
        epoch: The date of the commit, which the image bears, in seconds (Unix time).
        progress: Where it is told what is being done.
        architectures: Their names in images.
        base: A base by the digest of its index, such as `docker.io/library/python@sha256:...`; None for packages of
            Debian by the pins in `requirements/base-ARCHITECTURE.txt`.
        labels: Labels of the image beside those of the Dockerfile, such as `org.opencontainers.image.source`; they are
            annotations of the index too, where registries look for them.

    Raises:
        LabError: The image cannot be made; the message says why.
    """
    builder = ImageBuilder(Settings.from_environment(os.environ), progress, tree, epoch)
    return builder.write_layout(layout, architectures, base, labels)
