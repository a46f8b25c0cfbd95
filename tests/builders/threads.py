"""A process that can have no further thread, as when the processes of others have taken all that a node may have."""

from __future__ import annotations

import faulthandler
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock


@contextmanager
def no_further_threads() -> Iterator[None]:
    """Within the block, whoever wants one gets Python's error; the threads that there are go on."""
    start = RuntimeError("can't start new thread")
    watchdog = RuntimeError("unable to start watchdog thread")
    with (
        mock.patch.object(threading.Thread, "start", side_effect=start),
        mock.patch.object(faulthandler, "dump_traceback_later", side_effect=watchdog),
    ):
        yield
