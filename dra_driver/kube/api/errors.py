"""Errors of API calls, with actionable messages."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from dra_driver.util.errors import DriverError
from dra_driver.util.text import shorten


class ApiError(DriverError):
    """The API server refused a request, or could not be reached.

    Attributes:
        status: HTTP status; 0 if there was no usable response.
        reason: Kubernetes' machine-readable reason such as ``NotFound``, or "".
        message: the server's own text, or "".
        retry_after: seconds that the server asks to wait, or None; a webhook that refuses is not asked.
        object_missing: whether a 404 is about an object, rather than a path that this server does not serve.
    """

    def __init__(
        self,
        what: str,
        *,
        status: int = 0,
        reason: str = "",
        message: str = "",
        retry_after: float | None = None,
        object_missing: bool = False,
        consequence: str = "",
        remedy: str = "",
    ) -> None:
        super().__init__(what, consequence=consequence, remedy=remedy)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        self.object_missing = object_missing

    @property
    def kind_missing(self) -> bool:
        """Whether the server serves no version of the kind: then there are no objects of it."""
        return self.reason == NOT_SERVED

    @property
    def undecided(self) -> bool:
        """Whether a change may have been made, or may yet be.

        A webhook that fails is asked before anything is stored, and what is too large for etcd is never stored. The API
        server answers both with 500 (kubernetes/kubernetes issue 112152). Whoever can bring that about for one object
        must not be able to have anybody wait for it.
        """
        if self.of_a_webhook:
            return False
        if self.status == 500:
            return not any(text in self.message for text in _NEVER_STORED)
        return self.status in _UNDECIDED or self.status > 500

    @property
    def of_a_webhook(self) -> bool:
        """Whether an admission webhook refused the request: status and wait are then what its author chose.

        The API server puts the text before whatever the webhook says (kubernetes
        ``apiserver/pkg/admission/plugin/webhook/errors``, ``ToStatusErr``).
        """
        return _WEBHOOK_DENIED.match(self.message) is not None


class Unreachable(ApiError):  # noqa: N818 # reads as what it says: `except Unreachable`
    """No response: refused or lost connection, TLS error, timeout, or credentials that cannot be read."""


class DecodeError(ApiError):
    """The response has a field of the wrong type; the message names the field's path."""


class TooLarge(DecodeError):  # noqa: N818 # reads as what it says: `except TooLarge`
    """The response has more bytes than its reader takes; the rest of it was not read."""


NOT_SERVED: Final = "NotServed"
"""The reason where no version of a kind is served."""
_UNDECIDED: Final = frozenset({0, 401, 408, 429})
"""HTTP statuses below 500 that do not say whether a change was made."""
_WEBHOOK_DENIED: Final = re.compile(r'admission webhook "[^"]*" denied the request')
_STATUS_UP_TO_MESSAGE: Final = re.compile(rb'\s*\{\s*"kind"\s*:\s*"Status".{0,256}?"message"\s*:\s*"', re.DOTALL)
"""Up to the message's first character."""
_WHOLE_CHARACTERS: Final = re.compile(r'(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4})*')
"""The part of a JSON text that can be decoded by itself."""
_NEVER_STORED: Final = ("failed calling webhook", "request is too large", "message larger than max")

_REMEDIES = {
    401: "check that the service account token is mounted and not expired",
    403: "grant the permission to the service account, or check the admission policy that the message names",
    413: "the object is too large for the API server",
    422: "this is a defect of the driver or a limit of this Kubernetes version; report it with this message",
    429: "the API server is overloaded or limits this client; the request is retried later",
}
_DENIED = "RBAC allows it: change the policy that the message names, or install program and policy in the same version"
"""For a 403 by a ValidatingAdmissionPolicy, which comes after RBAC has said yes."""
_SERVER_TROUBLE = "the API server has trouble; the request is retried later"
MAX_REFUSAL_BYTES: Final = 64 << 10
"""Of a response that is not a success, that are read: its text may be whatever a tenant's webhook has said."""
MAX_MESSAGE: Final = 4096
"""Characters of the server's text that are kept, logged and told."""
_MAX_RETRY_AFTER = 300.0
"""Upper bound: longer waits that a server asks for are cut to this many seconds."""


class _StatusDetails(msgspec.Struct):
    name: str = ""
    uid: str = ""
    retry_after_seconds: float | None = msgspec.field(name="retryAfterSeconds", default=None)


class Status(msgspec.Struct):
    """``v1.Status``, the body of error responses and of watch errors."""

    kind: str = ""
    code: int = 0
    reason: str = ""
    message: str = ""
    details: _StatusDetails | None = None


_STATUS = msgspec.json.Decoder(Status)


def decode_status(body: bytes | bytearray) -> Status:
    """The Status in a body; an empty one if the body is something else."""
    try:
        status = _STATUS.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Status()
    return status if status.kind == "Status" else Status()


def _status_by_its_beginning(body: bytes | bytearray) -> Status:
    """The message of a Status of which only the beginning was read; in the API server's order it comes early."""
    start = _STATUS_UP_TO_MESSAGE.match(body)
    if start is None:
        return Status()
    text = body[start.end() :][: 4 * MAX_MESSAGE].decode(errors="ignore")
    # Up to an escape that may be cut off, or the end of the text.
    match = _WHOLE_CHARACTERS.match(text)
    return Status(message=msgspec.json.decode(f'"{match[0]}"', type=str)) if match else Status()


def refusal(
    method: str, path: str, http_status: int, body: bytes | bytearray, retry_after: str | None = None
) -> ApiError:
    """The error for a response that is not a success.

    Args:
        method: HTTP method of the request.
        path: path of the request, without query.
        http_status: HTTP status of the response.
        body: body of the response: a Status, or any text; ``MAX_REFUSAL_BYTES`` of it are enough.
        retry_after: the ``Retry-After`` header.
    """
    status = decode_status(body)
    if not status.kind:
        status = _status_by_its_beginning(body)
    message = shorten(status.message, MAX_MESSAGE) or body[:200].decode(errors="replace").strip()
    what = f"the API server answered {method} {path} with {http_status}"
    if status.reason:
        what += f" {status.reason}"
    if message:
        what += f": {message}"
    details = status.details
    denied = http_status == 403 and "ValidatingAdmissionPolicy" in message
    of_a_webhook = _WEBHOOK_DENIED.match(message) is not None
    return ApiError(
        what,
        status=http_status,
        reason=status.reason,
        message=message,
        retry_after=None if of_a_webhook else _seconds(retry_after, details.retry_after_seconds if details else None),
        object_missing=http_status == 404 and details is not None and bool(details.name),
        remedy=_DENIED if denied else _REMEDIES.get(http_status, _SERVER_TROUBLE if http_status >= 500 else ""),
    )


def _seconds(header: str | None, from_body: float | None) -> float | None:
    """Seconds to wait; API servers do not use the HTTP date form, which counts as absent."""
    if header is not None and header.strip().isdecimal():
        return min(float(header), _MAX_RETRY_AFTER)
    return None if from_body is None or from_body < 0 else min(from_body, _MAX_RETRY_AFTER)
