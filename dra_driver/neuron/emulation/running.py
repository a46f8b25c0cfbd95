"""An emulated host that can become sick: written with faults, and kept in motion while a driver runs on it."""

from __future__ import annotations

import contextlib
import logging
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dra_driver.neuron.emulation.faults import (
    FAULTS_FILE,
    MAX_FILE_BYTES,
    REFUSED_FILE,
    SIGNS,
    STEP_SECONDS,
    EmulatedFault,
    Moment,
    host_with,
    moved,
    parse,
    parse_file,
    template,
)
from dra_driver.neuron.emulation.options import EmulationOptions, check
from dra_driver.neuron.emulation.tree import Entry
from dra_driver.neuron.emulation.writer import host_writer
from dra_driver.neuron.host.discover import boot_id
from dra_driver.neuron.topology.instance_types import InstanceType
from dra_driver.util import runtime
from dra_driver.util.errors import DriverError
from dra_driver.util.files import remove_file, replace_file
from dra_driver.util.worker import Worker

LOOK_SECONDS: Final = 1.0
"""Between two looks at the file of faults."""

log = logging.getLogger(__name__)


class EmulatedHost:
    """One emulated host below ``root``.

    Without ``start`` it is a tree of files that stands still. Started, a thread applies each change of the file
    ``FAULTS_FILE`` within two seconds, lets growing counters grow, and moves the heartbeats of all chips every five
    seconds, except of those that are to stand still. It touches no other files, so that a test may edit them.

    Raises:
        DriverError: the options are not possible for the type.
    """

    def __init__(self, root: Path, kind: InstanceType, options: EmulationOptions | None = None) -> None:
        self._root = root
        self._kind = kind
        self._options = options or EmulationOptions()
        check(kind, self._options)
        self._writer = host_writer(root)
        self._tree: dict[str, Entry] = {}
        self._faults: tuple[EmulatedFault, ...] = ()
        self._since: dict[EmulatedFault, int] = {}
        self._started: int | None = None
        self._stepped = 0
        self._now = 0
        self._said: str | None = None
        self._complained = ""
        self._complete = False
        self.worker = Worker("emulating faults", self._look)

    @property
    def root(self) -> Path:
        """Where the host's file system begins."""
        return self._root

    @property
    def faults_file(self) -> Path:
        """The file to edit."""
        return self._root / FAULTS_FILE

    @property
    def faults(self) -> tuple[EmulatedFault, ...]:
        """Those that the host shows."""
        return self._faults

    def parse(self, texts: Sequence[str]) -> tuple[EmulatedFault, ...]:
        """Faults such as ``hbm-uncorrectable@3``; DriverError says what this host can show."""
        return tuple(dict.fromkeys(fault for text in texts for fault in parse(text, self._kind, self._options)))

    def write(self, faults: Sequence[EmulatedFault] = (), *, keep_file: bool = False, counters: bool = True) -> None:
        """Write the host, and the file of faults with these in it.

        Args:
            faults: what it shows.
            keep_file: a file of faults from before is left as it is, and its faults are shown instead of these: so that
                a driver which starts anew finds the chips as sick as they were.
            counters: also the error counters of the cores, which are most of the files and take longest on a slow disk;
                if not, they come with the first fault that they show.

        Raises:
            DriverError: the directory has other content or is not writable.
        """
        with contextlib.suppress(OSError):
            remove_file(self._root / REFUSED_FILE)
        kept = keep_file and self.faults_file.exists()
        if kept:
            faults = self._edited() or ()
        self._apply(tuple(faults), counters=counters)
        if not kept:
            self._put_file(template(self._kind, self._options, self._faults))
            self._said = self._read()

    def start(self) -> None:
        """Keep it in motion."""
        self._started = self._clock()
        self.worker.start()

    def stop(self, timeout: float = 1.0) -> None:
        """Let it stand still."""
        self.worker.stop(timeout)

    def _clock(self) -> int:
        # A clock that is set back must not let heartbeats stand still.
        self._now = max(self._now, int(runtime.now()))
        return self._now

    def _look(self) -> float:
        faults = self._edited()
        if faults is not None and faults != self._faults:
            self._apply(faults)
            log.warning("emulated faults now: %s", ", ".join(map(str, faults)) or "none")
        now = self._clock()
        if now - self._stepped >= STEP_SECONDS:
            self._stepped = now
            files = moved(self._tree, self._faults, self._moment(now))
            self._writer.move(files)
            self._tree.update(files)
        return LOOK_SECONDS

    def _edited(self) -> tuple[EmulatedFault, ...] | None:
        """What the file says since it was changed; None, once logged, when it is wrong or as before."""
        try:
            text = self._read() or ""
            if text == self._said:
                return None
            self._said = text
            faults = parse_file(text, self._kind, self._options)
            self._complain("")
        except DriverError as error:
            self._complain(str(error))
            return None
        return faults

    def _complain(self, text: str) -> None:
        """Say, in the log and in a file beside that of the faults, why it is not applied; "": it is."""
        if text == self._complained:
            return
        self._complained = text
        if text:
            log.error("%s: %s", self.faults_file, text)
        refused = self._root / REFUSED_FILE
        with contextlib.suppress(OSError):  # the log has it
            self._put(refused, f"{text}\n") if text else remove_file(refused)

    def _apply(self, faults: tuple[EmulatedFault, ...], *, counters: bool = False) -> None:
        counters = counters or self._complete or any(SIGNS[fault.code].how == "core" for fault in faults)
        now = self._clock()
        since = {fault: self._since.get(fault, now) for fault in faults}
        tree = host_with(self._kind, self._options, faults, self._moment(now, since), counters=counters)
        self._writer.write(tree, self._tree)
        self._tree, self._faults, self._since, self._complete = tree, faults, since, counters

    def _moment(self, now: int, since: dict[EmulatedFault, int] | None = None) -> Moment:
        return Moment(now, self._started, self._since if since is None else since, boot_id(self._root))

    def _read(self) -> str | None:
        """The file of faults; None if there is none."""
        try:
            if not stat.S_ISREG(self.faults_file.stat().st_mode):
                raise self._unusable("not a regular file")
            with self.faults_file.open("rb", buffering=0) as opened:
                data = opened.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unusable(error.strerror or "not readable") from error
        if len(data) > MAX_FILE_BYTES:
            raise self._unusable(f"longer than {MAX_FILE_BYTES} bytes")
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise self._unusable("not UTF-8 text") from error

    def _unusable(self, reason: str) -> DriverError:
        return DriverError(
            f"the file cannot be used: {reason}",
            consequence="the host is not changed",
            remedy="write one fault per line, such as hbm-uncorrectable@3, or remove the file",
        )

    def _put_file(self, text: str) -> None:
        try:
            self._put(self.faults_file, text)
        except OSError as error:
            raise DriverError(f"cannot write {self.faults_file}: {error}") from error

    @staticmethod
    def _put(path: Path, text: str) -> None:
        # Whole at once: others look at these files at any moment.
        replace_file(path, text.encode(), temporary=f".{path.name}.new", mode=0o644, synced=False)
