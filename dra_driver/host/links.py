"""Following symbolic links below a root, wherever the files are."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Final

_MOST: Final = 40
"""As Linux has it."""


def follow(path: str, target_of: Callable[[str], str | None]) -> str:
    """The path, relative to the root, after every link on its way. No link leads out of the root.

    Args:
        path: relative to the root.
        target_of: what the link at a path says; None when there is something else. May raise OSError.

    Raises:
        OSError: from ``target_of``, and ELOOP after 40 links.
    """
    done: list[str] = []
    pending = path.split("/")[::-1]
    links = 0
    while pending:
        name = pending.pop()
        if name in {"", "."}:
            continue
        if name == "..":
            del done[-1:]
            continue
        target = target_of("/".join((*done, name)))
        if target is None:
            done.append(name)
            continue
        links += 1
        if links > _MOST:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        if target.startswith("/"):
            done.clear()
        pending.extend(reversed(target.split("/")))
    return "/".join(done)
