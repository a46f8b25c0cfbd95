"""What the next run of the driver knows of whose workload the node is allocated to: a file beside the prepared claims.

It looks as a claim's file does (``claims.files``), and names the node: a disk may have been copied to another one.
Older drivers do not know it, and leave it as it is. It is written before the slices say the same, and synced.
"""

from __future__ import annotations

import logging
import secrets
from pathlib import Path
from typing import Final

import msgspec

from dra_driver.driver.claims.files import seal, unseal
from dra_driver.driver.workload import Tenure
from dra_driver.util.errors import DriverError
from dra_driver.util.files import read_file, remove_file, replace_file, sync_directory

NAME: Final = "ultraserver.json"
log = logging.getLogger(__name__)


class _Entry(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A field that is added must have a default, so that a file of an older version can be read."""

    node: str
    tenure: Tenure


_ENTRY: Final = msgspec.json.Decoder(_Entry)


class TenureFile:
    """The file below ``directory``, of this node. Two instances of the driver write the same."""

    def __init__(self, directory: Path, node: str) -> None:
        self._path = directory / NAME
        self._node = node
        self._stored: Tenure | None = None

    def read(self) -> Tenure | None:
        """What is kept; None: nothing, or nothing that can be read, which the log says."""
        self._stored = None
        try:
            data = read_file(self._path)
            if data is None:
                return None
            entry = _ENTRY.decode(unseal(data))
        except (ValueError, OSError) as error:
            log.error(  # noqa: TRY400 - no defect
                "%s cannot be read (%s): until the node's UltraServer is read, its slices and labels count",
                self._path,
                error,
            )
            return None
        if entry.node != self._node:
            log.warning("%s is of the node %s, and does not count", self._path, entry.node)
            return None
        self._stored = entry.tenure
        return entry.tenure

    def keep(self, tenure: Tenure | None) -> None:
        """Have the file say this, or (None) not be there. DriverError: it could not be written."""
        if tenure == self._stored:
            return
        try:
            if tenure is None:
                remove_file(self._path)
            else:
                data = seal(msgspec.json.encode(_Entry(self._node, tenure)))
                temporary = f"{NAME}.{secrets.token_hex(4)}.tmp"
                replace_file(self._path, data, temporary=temporary, mode=0o600, synced=True)
                sync_directory(self._path.parent)
        except OSError as error:
            raise DriverError(
                f"cannot keep in {self._path} whose workload the node is allocated to: {error.strerror or error}",
                consequence="if the driver restarts while the API server is away, the node may look free",
                remedy="check the free space and the health of the disk that has the state directory",
            ) from error
        self._stored = tenure
