"""One line a log record, as text or JSON, with the operation id of the RPC that it belongs to: a short random id.

Code that hands work to another thread copies the context (``contextvars.copy_context().run``) if the lines of that
thread belong to the same operation.
"""

from __future__ import annotations

import json
import logging
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

from dra_driver.util.text import escaped, lines_to_print

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
    token = _operation.set(f"{random.getrandbits(32):08x}")  # no secret, so the kernel need not be asked
    try:
        yield _operation.get()
    finally:
        _operation.reset(token)


LEVELS = (logging.INFO, logging.INFO, logging.INFO, logging.INFO, logging.DEBUG)
"""Python's level for klog's ``--v``; 4 and above is debug."""


def configure(form: Literal["text", "json"], verbosity: int) -> None:
    """Send all records to standard error."""
    # No format shows them, so they need not be found out for each record (Python's logging HOWTO, "Optimization").
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(LEVELS[min(max(verbosity, 0), len(LEVELS) - 1)])
    # The client libraries log whole requests, headers included, at debug level: never, since those hold tokens.
    for library in ("urllib3", "kubernetes", "grpc", "h2", "hpack"):
        logging.getLogger(library).setLevel(logging.WARNING)


def _timestamp(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"


class TextFormatter(logging.Formatter):
    """``2026-01-02T03:04:05.678Z INFO claims [op 1a2b3c4d] text``."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one record on one line; a traceback follows on lines of its own."""
        operation = operation_id()
        room = record.name.removeprefix("dra_driver.")
        text = f"{_timestamp(record)} {record.levelname} {room}{f' [op {operation}]' if operation else ''} "
        # What others wrote drives no terminal of who reads it.
        text += escaped(record.getMessage())
        if record.exc_info:
            text += "\n" + lines_to_print(self.formatException(record.exc_info))
        return text


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, op, exception."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one record."""
        line = {
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if operation := operation_id():
            line["op"] = operation
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)
