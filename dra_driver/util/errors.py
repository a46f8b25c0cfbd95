"""The one error base: every error that a person may see says what happened, what follows and what to do."""

from __future__ import annotations


class DriverError(Exception):
    """An error whose text is fit for the log, for kubelet (thus the pod's event) and for a command's standard error.

    Args:
        what: what happened, naming the object and the value seen.
        consequence: what follows from it for the reader, or "".
        remedy: what to do next, or "".
    """

    def __init__(self, what: str, *, consequence: str = "", remedy: str = "") -> None:
        super().__init__("; ".join(part for part in (what, consequence, remedy) if part))
        self.what = what
        self.consequence = consequence
        self.remedy = remedy
