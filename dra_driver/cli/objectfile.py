"""The text of a file that a user gives, bounded, with errors that name the file."""

from __future__ import annotations

import sys
from pathlib import Path

from dra_driver.cli.errors import UsageError

MOST_BYTES = 4 << 20
"""An API object has at most 1.5 MiB in etcd."""


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
