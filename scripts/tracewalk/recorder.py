"""Records which files of a package a call enters: a profile function for all threads started while it is installed."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from types import CodeType, FrameType
from typing import Any


class Recorder:
    """Records the first call of each root function, until it returns.

    A file is entered when one of its functions is called (or one of its generators resumed) from another file of the
    package; code outside the package in between, such as the standard library, does not count. Modules imported on the
    way do not count either.

    Args:
        package: directory of the package.
        roots: functions at which walks begin; each is recorded in whichever thread calls it.
        asides: functions that a walk calls for another purpose than its own result; they and what they call do not
            count.
    """

    def __init__(self, package: Path, roots: Collection[CodeType], asides: Collection[CodeType] = ()) -> None:
        self._package = f"{package}/"
        self._waiting = set(roots)
        self._asides = frozenset(asides)
        self._running: dict[int, tuple[FrameType, Counter[str]]] = {}
        self._done: dict[CodeType, Counter[str]] = {}
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)

    def install(self) -> None:
        """Profile this thread and all that are started from now on."""
        threading.setprofile(self._event)
        sys.setprofile(self._event)

    def remove(self) -> None:
        """Profile neither new threads nor this one any more."""
        sys.setprofile(None)
        threading.setprofile(None)

    def entries(self, root: CodeType, seconds: float) -> Counter[str]:
        """How often each file was entered in the walk from ``root``, in the order of first entry.

        Raises:
            TimeoutError: the walk has not ended within ``seconds``.
        """
        with self._ended:
            if not self._ended.wait_for(lambda: root in self._done, seconds):
                raise TimeoutError(f"{root.co_qualname} was not called, or has not returned, within {seconds:g} s")
            return self._done[root]

    def _event(self, frame: FrameType, event: str, _: Any) -> None:
        thread = threading.get_ident()
        if event == "call" and thread not in self._running and frame.f_code in self._waiting:
            with self._lock:
                if frame.f_code in self._waiting:
                    self._waiting.remove(frame.f_code)
                    self._running[thread] = frame, Counter()
        running = self._running.get(thread)
        if running is None:
            return
        root, counts = running
        if event == "call":
            self._enter(frame, root, counts)
        elif event == "return" and frame is root:
            with self._ended:
                del self._running[thread]
                self._done[root.f_code] = counts
                self._ended.notify_all()

    def _enter(self, frame: FrameType, root: FrameType, counts: Counter[str]) -> None:
        here = frame.f_code.co_filename
        if not here.startswith(self._package) or frame.f_code.co_name == "<module>":
            return
        if self._asides and self._is_aside(frame, root):
            return
        before = None if frame is root else frame.f_back
        while before is not None and not before.f_code.co_filename.startswith(self._package):
            before = before.f_back
        if before is None or before.f_code.co_filename != here:
            counts[here.removeprefix(self._package)] += 1

    def _is_aside(self, frame: FrameType, root: FrameType) -> bool:
        caller: FrameType | None = frame
        while caller is not None and caller is not root:
            if caller.f_code in self._asides:
                return True
            caller = caller.f_back
        return False
