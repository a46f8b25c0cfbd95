"""The base of all errors that a person may see: each says what happened, the consequence, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class DriverError(Exception):
    """An error whose text is meant for the log, for kubelet (and thus the pod's event) and for standard error.

    Args:
        what: what happened, naming the object and the value found.
        consequence: what this means for the reader, or "".
        remedy: what to do next, or "".
    """

    reason = ""
    """One word for machines, or "", as in the conditions of Kubernetes' objects."""

    def __init__(self, what: str, *, consequence: str = "", remedy: str = "") -> None:
        super().__init__("; ".join(part for part in (what, consequence, remedy) if part))
        self.what = what
        self.consequence = consequence
        self.remedy = remedy


class UsageError(DriverError):
    """What the user gave cannot be used (arguments, files, types): exit status 2."""


@contextmanager
def blaming_usage() -> Iterator[None]:
    """Whatever goes wrong within the block is due to what the user gave: errors become ``UsageError``."""
    try:
        yield
    except UsageError:
        raise
    except DriverError as error:
        raise UsageError(str(error)) from error
