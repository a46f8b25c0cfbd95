"""The operation id: a short random id that joins all log lines of one RPC.

A log formatter asks :func:`operation_id`; code that hands work to another thread copies the context
(``contextvars.copy_context().run``) if the lines of that thread belong to the same operation.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_operation: ContextVar[str] = ContextVar("operation", default="")


def operation_id() -> str:
    """Id of the operation that this thread works on: 8 hex digits, or "" outside any operation."""
    return _operation.get()


@contextmanager
def operation() -> Iterator[str]:
    """Run the body as one operation and give its id; an operation inside another keeps the outer id."""
    present = _operation.get()
    if present:
        yield present
        return
    token = _operation.set(secrets.token_hex(4))
    try:
        yield _operation.get()
    finally:
        _operation.reset(token)
