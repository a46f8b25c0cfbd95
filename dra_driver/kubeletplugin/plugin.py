"""What a DRA driver implements, and the values that go in and out of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from dra_driver.util.text import quoted_ascii

_UID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{0,63}")
_LABEL = r"[0-9a-z](?:[0-9a-z-]{0,61}[0-9a-z])?"
_NAMESPACE = re.compile(_LABEL)
_SUBDOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_SUBDOMAIN_MOST = 253


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """A ResourceClaim as kubelet names it.

    Attributes:
        namespace: namespace of the claim, a DNS label.
        name: name of the claim, a DNS subdomain.
        uid: UID of the claim; 1 to 64 characters that are safe in a file name, never starting with a dot.
    """

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name} ({self.uid})"

    def problem(self) -> str | None:
        """What is wrong with the reference, naming the field and the value (cut to 80 characters), or None.

        The library asks this before a driver sees a claim: UIDs become file names, and a request may come from
        anything that can open the socket.
        """
        if not is_uid(self.uid):
            uid = quoted_ascii(self.uid)
            return f"uid {uid} is not a UID: 1 to 64 of 0-9 A-Z a-z . _ - and the first a letter or digit"
        if not _NAMESPACE.fullmatch(self.namespace):
            return f"namespace {quoted_ascii(self.namespace)} is not a DNS label"
        if len(self.name) > _SUBDOMAIN_MOST or not _SUBDOMAIN.fullmatch(self.name):
            return f"name {quoted_ascii(self.name)} is not a DNS subdomain of at most {_SUBDOMAIN_MOST} characters"
        return None


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One allocated device that is ready for containers.

    Attributes:
        requests: the claim's requests that the device was allocated for, as in the allocation (``request`` or
            ``request/subrequest``); the library sends kubelet the part before the slash. Empty: all requests.
        pool: pool of the device.
        device: name of the device in its pool.
        cdi_device_ids: qualified CDI names (``vendor/class=name``) that make the device visible in a container.
        share_id: id of the share if the device is shared between allocations; sent with DRA v1 only.
    """

    requests: tuple[str, ...]
    pool: str
    device: str
    cdi_device_ids: tuple[str, ...]
    share_id: str | None = None


class DRAPlugin(Protocol):
    """A DRA driver.

    Both methods are called from several threads at once, but never twice at the same time for one claim UID. kubelet
    repeats both: after an error, after its time limit of 45 s, and after a restart of itself or of the node. So both
    must be idempotent, and :meth:`prepare` of a claim that is already prepared must make sure that everything a
    container needs (CDI files are lost in a reboot) is still there.

    ``deadline`` is the reading of ``time.monotonic()`` by which a method is to return or raise: shortly before kubelet
    gives up on the call, and for one of several claims after its part of the time. What is not known by then is to be
    refused with a text that says so, because kubelet's next call for the claim waits until this one has ended.

    Any exception becomes the error of that one claim; its text reaches the pod's events. A
    :class:`dra_driver.util.errors.DriverError` counts as an explained refusal; any other exception is logged with its
    traceback. ``SystemExit`` also reaches ``on_error`` of the server.
    """

    def prepare(self, claim: ClaimRef, deadline: float) -> list[PreparedDevice]:
        """Make the claim's devices ready, and return those allocated from this driver."""
        ...

    def unprepare(self, claim: ClaimRef, deadline: float) -> None:
        """Undo :meth:`prepare`. A claim that was never prepared is no error; the claim object may be gone."""
        ...


def is_driver_name(name: str) -> bool:
    """Whether ``name`` can be a driver's: a DNS subdomain of at most 63 characters."""
    return len(name) <= 63 and _SUBDOMAIN.fullmatch(name) is not None


def is_uid(text: str) -> bool:
    """Whether ``text`` can be a UID: 1 to 64 characters that are safe in a file name, the first no dot."""
    return _UID.fullmatch(text) is not None
