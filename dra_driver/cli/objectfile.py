"""Kubernetes objects from a file that a user gives: YAML or JSON, bounded, with errors that name file and line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from dra_driver.cli.errors import UsageError

MOST_BYTES = 4 << 20
"""An API object has at most 1.5 MiB in etcd."""


def read_objects(filename: str) -> list[dict[str, Any]]:
    """The objects in a file (``-`` is standard input), a List's items one by one; UsageError says what is wrong."""
    from dra_driver.simulator.manifests import ManifestError
    from dra_driver.simulator.manifests.documents import documents, items_of

    try:
        return [
            item
            for origin, document in documents(filename, read_text(filename))
            for item, _ in items_of(document, origin)
        ]
    except ManifestError as error:
        raise UsageError(str(error)) from error


def read_text(filename: str, most: int = MOST_BYTES) -> str:
    """The UTF-8 text of a file (``-`` is standard input) of at most so many bytes; UsageError says what is wrong."""
    try:
        return _content(filename, most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{filename}: not UTF-8 text: {error.reason} at byte {error.start}") from error


def _content(filename: str, most: int) -> bytes:
    try:
        if filename == "-":
            data = sys.stdin.buffer.read(most + 1)
        else:
            with Path(filename).open("rb") as file:
                data = file.read(most + 1)
    except (OSError, ValueError) as error:
        raise UsageError(f"{filename}: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > most:
        raise UsageError(f"{filename}: larger than {most} bytes; leave out what is not needed")
    return data
