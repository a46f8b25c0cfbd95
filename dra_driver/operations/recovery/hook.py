"""Calls the administrator's own program, which reloads a driver or reboots a machine."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from dra_driver.operations.recovery.nodes import Mark, NeuronNode
from dra_driver.util.errors import DriverError
from dra_driver.util.text import one_line, quoted

MAX_OUTPUT: Final = 4096
"""Bytes of its output that are logged: the last ones."""
LOOK_SECONDS: Final = 0.05
END_SECONDS: Final = 1.0

_ARGUMENT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9:/._@+=-]{0,511}|", re.ASCII)
"""What a program of a shell takes for one word and for no option, whatever it does with it; "": there is none."""

log = logging.getLogger(__name__)


class _Output:
    """The last bytes that a process writes; whatever else it writes is read and dropped."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._last = b""
        self._reader = threading.Thread(target=self._read, name="output of the hook", daemon=True)
        self._reader.start()

    def text(self) -> str:
        """As one line, after the end of the process."""
        self._reader.join(END_SECONDS)  # something that left its group may hold the pipe open
        return one_line(self._last.decode("utf-8", "replace"), MAX_OUTPUT)

    def _read(self) -> None:
        pipe = self._process.stdout
        if pipe is None:
            return
        with pipe:
            while chunk := os.read(pipe.fileno(), 1 << 16):
                self._last = (self._last + chunk)[-MAX_OUTPUT:]


@dataclass(frozen=True, slots=True)
class Hook:
    """A program that is called with node, provider id, action and fault.

    A node writes its own provider id and, in its mark, the fault: the program is not called with a text that could be
    more than a word.

    It may be called again with the same request (``NEURON_RECOVERY_REQUESTED_AT``): after a failure, and by a successor
    of a controller that was killed.
    """

    program: str
    timeout: float
    """Seconds after which it is killed, with all that it has started; that is a failure."""
    stopping: Callable[[], bool] = lambda: False
    """Asked while it runs: at the end of the controller it is killed too."""

    def call(self, node: NeuronNode, mark: Mark) -> None:
        """Call it and wait for its end.

        Raises:
            DriverError: it could not be started, was killed, or ended with another status than 0; or it was not called.
        """
        action = mark.action or "nothing"
        values = (node.name, node.provider_id, action, mark.fault)
        names = ("NODE", "PROVIDER_ID", "ACTION", "FAULT")
        for name, value in zip(names, values, strict=True):
            if _ARGUMENT.fullmatch(value) is None:
                raise DriverError(
                    f"the hook {self.program} is not called for node {node.name}: {name} would be {quoted(value)}",
                    consequence="the node stays as it is, and its instance is not replaced",
                    remedy="find out who wrote that into the Node, and delete the Node or mend its machine yourself",
                )
        environment = {f"NEURON_RECOVERY_{name}": value for name, value in zip(names, values, strict=True)}
        environment["NEURON_RECOVERY_REQUESTED_AT"] = str(mark.requested)
        try:
            # Its own group, so that what it starts ends with it.
            process = subprocess.Popen(  # noqa: S603 - the administrator's program, and no shell
                [self.program, *values],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=os.environ | environment,
                start_new_session=True,
            )
        except OSError as error:
            raise self._failed(f"it cannot be started: {error.strerror or error}") from error
        try:
            output = _Output(process)
        except RuntimeError as error:  # no thread can be had
            with process:
                _kill(process)
            raise self._failed(f"what it writes cannot be read: {error}") from error
        ended = self._wait(process)
        said = output.text()
        log.info("hook %s %s: %s%s", self.program, " ".join(values), ended or "done", f": {said}" if said else "")
        if ended:
            raise self._failed(ended)

    def _wait(self, process: subprocess.Popen[bytes]) -> str:
        """Why it failed, or ""."""
        deadline = time.monotonic() + self.timeout
        text = ""
        while process.poll() is None and not text:
            if time.monotonic() >= deadline:
                text = f"it did not finish within {self.timeout:g} s and was killed"
            elif self.stopping():
                text = "it was killed because the controller is stopping"
            else:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(LOOK_SECONDS)
        # Also after its end: what it has left behind.
        status = _kill(process)
        return text or (f"it exited with status {status}" if status else "")

    def _failed(self, what: str) -> DriverError:
        return DriverError(f"the hook {self.program} failed: {what}", consequence="it is retried later")


def _kill(process: subprocess.Popen[bytes]) -> int:
    """End a process with all that it has started; returns its status."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()
