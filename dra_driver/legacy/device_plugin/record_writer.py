"""Writes to the pods of a node what they were given, in a thread of its own: each pod with its own waits.

A webhook of a tenant may let each write to the pods of a namespace hang. Neither kubelet's count of the devices nor
the records of other namespaces wait for that (see ``kube.api.desired``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from dra_driver.kube.api.desired import DesiredWriter, Outcome, Target, Waits
from dra_driver.legacy.device_plugin.recording import Record
from dra_driver.legacy.device_plugin.snapshot import PluginPod
from dra_driver.util import runtime
from dra_driver.util.errors import DriverError
from dra_driver.util.worker import Backoff

WAITS: Final = Waits(
    own=lambda: Backoff(first=1.0, cap=30.0),
    server=lambda: Backoff(first=1.0, cap=10.0),
    # All that a pod may have is reserved until it has its record, so that these waits, too, are short.
    namespace=lambda: Backoff(first=10.0, cap=60.0),
    pace=lambda: Backoff(first=1.0, cap=60.0, free=5),
)

log = logging.getLogger(__name__)


class RecordWriter(Target[str, Record, None]):
    """Writes the records of pods, by UID.

    Args:
        write: writes one; raises DriverError.
        pods: those of the node, from the watch.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        write: Callable[[Record], None],
        pods: Callable[[], Iterable[PluginPod]],
        clock: Callable[[], float] = runtime.monotonic,
    ) -> None:
        self._write = write
        self._pods = pods
        self._records: Mapping[str, Record] = {}
        self._trouble: dict[str, str] = {}
        """Why the record of a pod was not written; of those in ``_records``."""
        self._writer: DesiredWriter[str, Record, None] = DesiredWriter(
            "recording what pods have", self, WAITS, clock=clock
        )
        self.worker = self._writer.worker

    def want(self, records: Iterable[Record]) -> None:
        """These records are missing now, and no others. Returns at once; one thread may call it."""
        self._records = {record.pod.uid: record for record in records}
        living = {pod.metadata.uid for pod in self._pods()}
        for uid, _, _ in self._writer.objects():
            if uid in self._records:
                continue
            self._trouble.pop(uid, None)
            # How often a pod's record was written is remembered for as long as it lives: somebody may take it out again
            # and again.
            if uid in living:
                self._writer.rest(uid)
            else:
                self._writer.forget(uid)
        for uid, record in self._records.items():
            self._writer.want(uid, record, namespace=record.pod.namespace)

    # Worker thread

    def reconcile(self, key: str, value: Record, stored: None) -> Outcome[None]:
        """See ``Target``."""
        del stored
        wrote = key in self._records and not self._is_outdated(value)
        if wrote:
            self._write(value)
        self._trouble.pop(key, None)
        return Outcome(wrote=wrote)

    def report_failure(self, key: str, error: DriverError, wait: float) -> None:
        """A failure is logged once for as long as it stays the same."""
        del wait
        record = self._records.get(key)
        if record is not None and self._trouble.get(key) != str(error):
            log.warning("annotations of pod %s cannot be written: %s", record.pod, error)
            self._trouble[key] = str(error)

    def _is_outdated(self, record: Record) -> bool:
        """Whether the pod has changed since; what it lacks is then found out anew, when the watch has told of that."""
        pod = next((pod for pod in self._pods() if pod.metadata.uid == record.pod.uid), None)
        return pod is not None and pod.bound != record.pod
