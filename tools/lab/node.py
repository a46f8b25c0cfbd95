"""One node: a mount namespace with containerd and kubelet in it."""

from __future__ import annotations

import http.client
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab import cgroups, files, machine, nodeconfig, process, waiting
from lab.cgroups import Hierarchies
from lab.errors import LabError
from lab.layout import KUBELET_HEALTH_PORT, ClusterLayout, NodeLayout
from lab.progress import Progress
from lab.state import State

_KUBELET_GRACE_SECONDS = 5.0
_START_SECONDS = 60.0


@dataclass(frozen=True)
class Node:
    """A node of a cluster, started or not.

    Attributes:
        layout: Names, addresses, and directories as the host sees them.
        cluster: Its cluster's layout.
        state: Its cluster's state.
        hierarchies: The machine's control groups.
        progress: Reports to the user.
    """

    layout: NodeLayout
    cluster: ClusterLayout
    state: State
    hierarchies: Hierarchies
    progress: Progress

    @property
    def name(self) -> str:
        """Kubernetes' name of the node."""
        return self.layout.name

    def prepare(self) -> None:
        """Create the node's directories, configuration and control groups."""
        extra = self.state.spec.node_directories
        for source, _ in self.layout.mounts(extra):
            source.mkdir(parents=True, exist_ok=True)
        spec, config = self.state.spec, self.layout.config
        gates = spec.kubelet_feature_gates or spec.feature_gates
        runc = shutil.which("runc", path=nodeconfig.search_path({}))
        if runc is None:
            raise LabError("runc is not installed, so no container can run. Run scripts/bootstrap.sh lab")
        files.write(config / "containerd.toml", nodeconfig.containerd_config(runc, _snapshotter(self.layout.directory)))
        files.write(self.layout.directory / "cni-conf/10-lab.conflist", nodeconfig.cni_config(self.layout))
        files.write(config / "resolv.conf", "", mode=0o644)
        kubelet = nodeconfig.kubelet_config(self.layout, self.cluster, gates, cgroup_v1=not self.hierarchies.pure_v2)
        files.write(config / "kubelet.json", kubelet)
        self._make_cgroups()

    def start_runtime(self) -> None:
        """Start the mount namespace and containerd, without waiting for containerd."""
        ready = self.layout.directory / "ready"
        ready.unlink(missing_ok=True)
        extra = self.state.spec.node_directories
        holder = self._spawn("mounts", nodeconfig.holder_command(self.layout, extra))
        needed = [(holder, self._log("mounts"))]
        waiting.until(
            f"the mount namespace of {self.name}", ready.exists, progress=self.progress, timeout=10, needed=needed
        )
        self.layout.containerd_socket.unlink(missing_ok=True)
        self._spawn("containerd", nodeconfig.containerd_command(self.layout, self.state.programs, holder.pid))

    def wait_runtime(self) -> None:
        """Wait until containerd responds."""
        self._until(f"containerd of {self.name}", "containerd", lambda: self._ctr("version").returncode == 0)

    def start_kubelet(self, *, wait: bool = True) -> None:
        """Start kubelet unless it runs; with `wait`, return when it reports that it is healthy."""
        if self.kubelet() is None:
            program = self.state.programs["kubelet"]
            command = nodeconfig.kubelet_command(
                self.layout, self.cluster, self.state.spec, program, self._holder().pid
            )
            self._spawn("kubelet", command)
        if wait:
            self._until(f"kubelet of {self.name}", "kubelet", self._kubelet_healthy)

    def stop_kubelet(self, *, grace: float = _KUBELET_GRACE_SECONDS) -> None:
        """Stop kubelet; pods keep running. With `grace=0` it is killed at once."""
        record = self.kubelet()
        if record is not None:
            process.stop(record, grace)

    def restart_kubelet(self) -> None:
        """Stop kubelet, start it and wait until it is healthy."""
        self.stop_kubelet()
        self.start_kubelet()

    def restart_containerd(self) -> None:
        """Stop containerd, start it and wait until it responds; pods keep running."""
        record = self._record("containerd")
        if record is not None:
            process.stop(record, _KUBELET_GRACE_SECONDS)
        self.layout.containerd_socket.unlink(missing_ok=True)
        holder = self._holder().pid
        self._spawn("containerd", nodeconfig.containerd_command(self.layout, self.state.programs, holder))
        self.wait_runtime()

    def stop(self) -> None:
        """Kill everything that runs on the node at once, as a power failure does."""
        cgroups.clear(self.hierarchies, self.layout.cgroup)
        machine.delete_link(self.layout.bridge)

    def reboot(self) -> None:
        """Simulate a power failure and restart: /run/cdi and /run/containerd are empty, everything on disk is kept."""
        self.stop()
        for volatile in (self.layout.cdi, self.layout.run):
            shutil.rmtree(volatile)
            volatile.mkdir()
        self._make_cgroups()
        self.start_runtime()
        self.wait_runtime()
        self.start_kubelet()

    def run(self, command: Sequence[str], *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command in the node's mount namespace, where /var/lib/kubelet and /run/cdi are the node's own.

        Raises:
            LabError: The node is not running, or the command failed and `check` is set.
        """
        done = subprocess.run(
            [*nodeconfig.enter(self._holder().pid), *command], check=False, capture_output=True, text=True
        )
        if check and done.returncode != 0:
            raise LabError(f"On {self.name}, {' '.join(command)} failed: {(done.stderr or done.stdout).strip()}")
        return done

    def enter_command(self, command: Sequence[str]) -> list[str]:
        """Return the command line that runs `command` in the node's mount namespace."""
        return [*nodeconfig.enter(self._holder().pid), *command]

    def import_image(self, archive: Path) -> None:
        """Import an image archive (OCI or docker) into the node's containerd.

        Raises:
            LabError: containerd refused it.
        """
        # Without its layers as they came, an image takes half the room: 320 MB for the driver's, on each node.
        options = ("--local", "--discard-unpacked-layers")
        done = self._ctr("--namespace", "k8s.io", "images", "import", *options, str(archive))
        if done.returncode != 0:
            raise LabError(f"{archive} could not be imported on {self.name}: {(done.stderr or done.stdout).strip()}")

    def kubelet(self) -> process.Record | None:
        """Return kubelet's record if it is running."""
        return self._record("kubelet")

    def log(self, kind: str) -> Path:
        """Return the log of `kubelet` or `containerd`."""
        return self._log(kind)

    def _kubelet_healthy(self) -> bool:
        connection = http.client.HTTPConnection(self.layout.address, KUBELET_HEALTH_PORT, timeout=2)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _make_cgroups(self) -> None:
        cgroups.make(self.hierarchies, f"{self.layout.cgroup}/system")

    def _spawn(self, kind: str, command: Sequence[str]) -> process.Record:
        return process.spawn(
            self._process(kind),
            command,
            log=self._log(kind),
            cgroups=[self.hierarchies.tracking / f"{self.layout.cgroup}/system".lstrip("/")],
            path=nodeconfig.search_path(self.state.programs),
            records=self.cluster.records,
        )

    def _until(self, what: str, kind: str, condition: waiting.Condition) -> None:
        record = process.load(self._process(kind), self.cluster.records)
        needed = [] if record is None else [(record, self._log(kind))]
        waiting.until(what, condition, progress=self.progress, timeout=_START_SECONDS, needed=needed)

    def _ctr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        address = str(self.layout.containerd_socket)
        command = [str(self.state.programs["ctr"]), "--address", address, *arguments]
        return subprocess.run(command, check=False, capture_output=True, text=True)

    def _holder(self) -> process.Record:
        record = self._record("mounts")
        if record is None:
            raise LabError(f"{self.name} does not run. See scripts/cluster status")
        return record

    def _record(self, kind: str) -> process.Record | None:
        record = process.load(self._process(kind), self.cluster.records)
        return record if record is not None and process.is_alive(record) else None

    def _process(self, kind: str) -> str:
        return f"{self.name}-{kind}"

    def _log(self, kind: str) -> Path:
        return self.layout.logs / f"{kind}.log"


def _snapshotter(directory: Path) -> str:
    """Return containerd's snapshotter: overlayfs cannot be stacked on overlayfs, as in a container without a volume."""
    kind = subprocess.run(["stat", "-f", "-c", "%T", str(directory)], check=True, capture_output=True, text=True)
    return "native" if kind.stdout.strip() == "overlayfs" else "overlayfs"
