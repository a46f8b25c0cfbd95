"""How the lab's commands end: errors are shown as text, and termination is handled like Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

from lab.errors import LabError

_FAILED = 1
_INTERRUPTED = 130


def run(action: Callable[[], int]) -> int:
    """Run a command's action; return the exit status: the action's own, 1 after a LabError, 130 after an interrupt."""
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        return action()
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        return _FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has closed the pipe, as `head` does; Python's own flush at exit must not fail on it
        # again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _FAILED
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, _: FrameType | None) -> None:
    # SIGTERM is handled like Ctrl-C, so that whatever was started is undone.
    raise KeyboardInterrupt(signal.Signals(number).name)
