"""A process that has no file descriptor left."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def no_descriptors(highest: int) -> Iterator[None]:
    """Leave none free during the body; ``highest`` is one that is open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
    try:
        with suppress(OSError):
            while True:
                files.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for file in files:
            os.close(file)
