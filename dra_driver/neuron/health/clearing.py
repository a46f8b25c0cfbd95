"""How ``dra-driver health clear`` asks the running driver to forget faults: files in the driver's state directory.

The asker leaves ``clear-<id>.request``; the driver takes it away at its next look and leaves ``clear-<id>.answer``,
which the asker takes away. Both are written under another name first. Only who may write the state directory can ask.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from pathlib import Path
from typing import Final

import msgspec

from dra_driver.util import runtime
from dra_driver.util.errors import DriverError
from dra_driver.util.files import read_file, remove_file, replace_file

WAIT_SECONDS: Final = 15.0
"""The driver looks every ten seconds."""
_PAUSE_SECONDS: Final = 0.05
_OLD_SECONDS: Final = 600.0
"""An answer that nobody has taken for so long is removed."""
_MOST: Final = 32
"""Requests taken in one look."""
_REQUEST = re.compile(r"clear-([0-9a-f]{32})\.request")
_ANSWER = re.compile(r"clear-[0-9a-f]{32}\.answer")


class Answer(msgspec.Struct, frozen=True):
    """What became of a request."""

    device: int
    known: bool = True
    """Whether the driver knows the chip."""
    cleared: tuple[str, ...] = ()
    """Codes of the faults that it has forgotten."""
    kept: tuple[str, ...] = ()
    """Codes of those that the host still reports."""


class _Request(msgspec.Struct, frozen=True):
    device: int


_ASKED, _ANSWERED = msgspec.json.Decoder(_Request), msgspec.json.Decoder(Answer)


def ask(directory: Path, device: int, within: float = WAIT_SECONDS) -> Answer:
    """Ask for a chip's faults to be cleared, and wait for the answer.

    Raises:
        DriverError: the directory cannot be used, or no driver answers within ``within`` seconds; then the request is
            withdrawn.
    """
    identity = uuid.uuid4().hex
    request, answer = directory / f"clear-{identity}.request", directory / f"clear-{identity}.answer"
    try:
        _put(request, msgspec.json.encode(_Request(device)))
        deadline = runtime.monotonic() + within
        while runtime.monotonic() < deadline:
            if (data := read_file(answer)) is not None:
                remove_file(answer)
                return _ANSWERED.decode(data)
            runtime.sleep(_PAUSE_SECONDS)
        withdrawn = remove_file(request)
    except OSError as error:
        raise DriverError(
            f"the state directory {directory} cannot be used: {error.strerror or error}",
            consequence="nothing is cleared",
            remedy="run the command as root on the node, or in the driver's container; --state-dir names the directory",
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DriverError(
            f"the driver's answer cannot be read: {error}", remedy="use a command of the same version as the driver"
        ) from None
    raise DriverError(
        f"no driver has answered within {within:.0f} s",
        consequence="nothing is cleared" if withdrawn else "it is not known whether the faults are cleared",
        remedy="check that the driver runs on this node and uses this state directory (--state-dir)",
    )


def take(directory: Path) -> dict[str, int]:
    """The requests that were left, id to chip; they are removed. Never raises."""
    requests: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for path in sorted(directory.iterdir())[:4096]:
            with contextlib.suppress(OSError, ValueError, RecursionError):
                if _ANSWER.fullmatch(path.name) and runtime.now() - path.lstat().st_mtime > _OLD_SECONDS:
                    path.unlink()
                elif (name := _REQUEST.fullmatch(path.name)) and len(requests) < _MOST:
                    data = read_file(path)
                    # Removed before it is done: one that could not be removed would be done for ever.
                    path.unlink()
                    requests[name[1]] = _ASKED.decode(data or b"").device
    return requests


def answer(directory: Path, identity: str, result: Answer) -> None:
    """Answer one of them. Raises OSError."""
    _put(directory / f"clear-{identity}.answer", msgspec.json.encode(result))


def _put(path: Path, data: bytes) -> None:
    replace_file(path, data, temporary=f".{path.name}.new", mode=0o600, synced=False)
