"""The control plane's daemons of one cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lab import cgroups, controlplane, nodeconfig, process, waiting
from lab.api import Api
from lab.layout import ClusterLayout
from lab.progress import Progress
from lab.state import State

START_SECONDS = 120.0
_GRACE_SECONDS = 5.0


@dataclass(frozen=True)
class ControlPlane:
    """Starts, stops and awaits the control plane.

    Attributes:
        layout: The cluster's names and files.
        state: The cluster's state.
        progress: Reports to the user.
    """

    layout: ClusterLayout
    state: State
    progress: Progress

    @property
    def api(self) -> Api:
        """A client of the API server."""
        return Api(self.layout.pki)

    def prepare(self) -> None:
        """Create the control groups."""
        cgroups.make(cgroups.read_hierarchies(), self._cgroup)

    def start(self, name: str, *arguments: str) -> None:
        """Start one of `controlplane.COMPONENTS`, with additional arguments, unless it runs; does not wait for it."""
        record = process.load(name, self.layout.records)
        if record is not None and process.is_alive(record):
            return
        process.spawn(
            name,
            [*controlplane.command(name, self.state.spec, self.layout, self.state.programs), *arguments],
            log=self.log(name),
            cgroups=[cgroups.read_hierarchies().tracking / self._cgroup.lstrip("/")],
            path=nodeconfig.search_path(self.state.programs),
            records=self.layout.records,
        )

    def stop(self, name: str) -> None:
        """Stop one of them; its data is kept."""
        record = process.load(name, self.layout.records)
        if record is not None:
            process.stop(record, _GRACE_SECONDS)

    def wait_api(self) -> None:
        """Wait until the API server is ready."""
        self._until("the API server", self.api.ready, "etcd", "kube-apiserver")

    def wait_default_service_account(self) -> None:
        """Wait until pods can be created in the default namespace."""
        check = self.api.has_default_service_account
        self._until("the default service account", check, "kube-apiserver", "kube-controller-manager")

    def needed(self, *names: str) -> list[tuple[process.Record, Path]]:
        """Return records and logs of components without which a wait cannot succeed."""
        found = [(process.load(name, self.layout.records), self.log(name)) for name in names]
        return [(record, log) for record, log in found if record is not None]

    def log(self, name: str) -> Path:
        """Return the log of one of them."""
        return self.layout.logs / f"{name}.log"

    @property
    def _cgroup(self) -> str:
        return f"{self.layout.cgroup}/control"

    def _until(self, what: str, condition: waiting.Condition, *names: str) -> None:
        needed = self.needed(*names)
        waiting.until(what, condition, progress=self.progress, timeout=START_SECONDS, needed=needed)
