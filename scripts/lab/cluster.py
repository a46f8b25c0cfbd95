"""A cluster as tests and commands use it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from lab import cgroups, components, controlplane, files, machine, nodeconfig, oci, pki, process, state, waiting
from lab.api import Api
from lab.build import Builder, available_modules
from lab.errors import LabError
from lab.layout import LAB_CGROUP, ClusterLayout
from lab.node import Node
from lab.progress import Progress
from lab.settings import REPOSITORY, Settings
from lab.spec import ClusterSpec, kubelet_may_set
from lab.state import State

_START_SECONDS = 120.0
_STOP_GRACE_SECONDS = 5.0
_BUSYBOX = Path("/bin/busybox")
_BASH = Path("/bin/bash-static")
TEST_IMAGE = "localhost/ndl-tools:1"


class ClusterAccess(Protocol):
    """What a test needs of any cluster, of this lab or not."""

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""

    def kubectl(
        self, *arguments: str, stdin: str | None = None, check: bool = True, timeout: float = 120.0
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl against the cluster."""


@dataclass(frozen=True)
class ComponentStatus:
    """One line of the status.

    Attributes:
        name: Process or node.
        pid: Process id; None for a node or a process that has ended.
        state: What it does, in a word or two.
    """

    name: str
    pid: int | None
    state: str


class Cluster:
    """A cluster of the lab.

    `Cluster(ClusterSpec(nodes=2)).up()` starts one, `Cluster.attach("default")` finds one that another process started,
    and as a context manager it is up inside of the block and gone after it.
    """

    def __init__(
        self, spec: ClusterSpec | None = None, *, settings: Settings | None = None, progress: Progress | None = None
    ) -> None:
        self.spec = spec or ClusterSpec()
        self.settings = settings or Settings.from_environment(os.environ)
        self.progress = progress or Progress()
        self.layout = ClusterLayout(self.spec.name, self.settings.state / self.spec.name)
        self._state: State | None = None

    @classmethod
    def attach(
        cls, name: str = "default", *, settings: Settings | None = None, progress: Progress | None = None
    ) -> Cluster:
        """Return the cluster of that name that is up.

        Raises:
            LabError: There is none.
        """
        cluster = cls(ClusterSpec(name=name), settings=settings, progress=progress)
        found = state.load(cluster.layout)
        if found is None or found.phase != "ready":
            raise LabError(f"No cluster {name!r} is up, so there is nothing to work on. Start one: scripts/cluster up")
        cluster.spec = found.spec
        return cluster

    def __enter__(self) -> Cluster:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.layout.kubeconfig

    @property
    def state(self) -> State:
        """What runs.

        Raises:
            LabError: The cluster is not up.
        """
        if self._state is None:
            self._state = state.load(self.layout)
        if self._state is None:
            raise LabError(f"The cluster {self.spec.name!r} is not up. Start it: scripts/cluster up")
        return self._state

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, node-1 first."""
        hierarchies = cgroups.read_hierarchies()
        indices = range(1, self.state.spec.nodes + 1)
        return tuple(
            Node(self.layout.node(index), self.layout, self.state, hierarchies, self.progress) for index in indices
        )

    def node(self, name: str) -> Node:
        """Return one node.

        Raises:
            LabError: There is none of that name.
        """
        for node in self.nodes:
            if node.name == name:
                return node
        raise LabError(f"There is no node {name!r}; there are: {', '.join(node.name for node in self.nodes)}.")

    def up(self) -> None:
        """Build what is missing, start everything and return when all nodes are Ready.

        Whatever stops it, an interrupt included, takes down again what it had started. Remains of killed runs are
        removed first.

        Raises:
            LabError: It cannot start; the text has the last lines of the log concerned.
        """
        machine.require_root()
        self._bootstrap()
        builder = Builder(self.settings, self.progress)
        wanted = components.of_cluster(self.spec.kubernetes, self.spec.kubelet_version, available_modules())
        programs = builder.build(wanted)
        # With another kubelet than the control plane's, its component comes last and so is the one that counts.
        with self._locked():
            if self._already_up():
                return
            self._remove_remains()
            try:
                self._start(State("starting", self.spec, programs))
            except BaseException:
                with _uninterrupted():
                    self.progress.say("did not come up: taking down what was started")
                    self._teardown(self.layout)
                raise

    def down(self) -> None:
        """End everything and remove it from the machine; nothing happens when there is nothing."""
        machine.require_root()
        if not self.settings.state.is_dir():
            return
        with self._locked(), _uninterrupted():
            if self.layout.directory.exists():
                with self.progress.step(f"taking down the cluster {self.spec.name!r}"):
                    self._teardown(self.layout)
            self._state = None

    def kubectl(
        self, *arguments: str, stdin: str | None = None, check: bool = True, timeout: float = 120.0
    ) -> subprocess.CompletedProcess[str]:
        """Run the cluster's kubectl and return its output.

        Raises:
            LabError: It failed and `check` is set; with its standard error.
            subprocess.TimeoutExpired: It took more than `timeout` seconds.
        """
        done = subprocess.run(
            self.kubectl_command(*arguments),
            check=False,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if check and done.returncode != 0:
            raise LabError(f"kubectl {' '.join(arguments)} failed: {done.stderr.strip()}")
        return done

    def kubectl_command(self, *arguments: str) -> list[str]:
        """Return the command line of kubectl for this cluster."""
        return [str(self.state.programs["kubectl"]), f"--kubeconfig={self.kubeconfig}", *arguments]

    def load(self, archive: Path) -> None:
        """Import an image archive (OCI or docker) into every node.

        Raises:
            LabError: The file is not there, or a node refused it.
        """
        if not archive.is_file():
            raise LabError(f"There is no image archive {archive}; nothing was loaded. Make one: scripts/build-image")
        archive = archive.resolve()
        text = f"loading {archive.name} into {', '.join(node.name for node in self.nodes)}"
        with self.progress.step(text), ThreadPoolExecutor() as pool:
            list(pool.map(lambda node: node.import_image(archive), self.nodes))

    def load_test_image(self, *names: str) -> None:
        """Import the lab's small image with bash and busybox's tools under these names, `TEST_IMAGE` when none is given."""
        with tempfile.TemporaryDirectory() as directory:
            archive = Path(directory) / "tools.tar"
            oci.write_archive(oci.tools(_BUSYBOX, _BASH), names or (TEST_IMAGE,), archive)
            self.load(archive)

    def stop_apiserver(self) -> None:
        """Stop kube-apiserver alone; its data stays."""
        record = process.load("kube-apiserver", self.layout.records)
        if record is not None:
            process.stop(record, _STOP_GRACE_SECONDS)

    def start_apiserver(self) -> None:
        """Start kube-apiserver again and wait until it is ready."""
        record = process.load("kube-apiserver", self.layout.records)
        if record is None or not process.is_alive(record):
            self._spawn("kube-apiserver", self.state)
        self._wait_api()

    def wait_ready(self) -> None:
        """Wait until all nodes are Ready."""
        self._wait_nodes()

    def status(self) -> list[ComponentStatus]:
        """Return every process and every node."""
        records = [process.load(name, self.layout.records) for name in process.names(self.layout.records)]
        found = [
            ComponentStatus(record.name, record.pid if alive else None, "running" if alive else "ended")
            for record in records
            if record is not None
            for alive in (process.is_alive(record),)
        ]
        ready = self._api().ready_nodes()
        return found + [
            ComponentStatus(node.name, None, {True: "Ready", False: "not Ready"}.get(ready.get(node.name), "unknown"))
            for node in self.nodes
        ]

    def _start(self, starting: State) -> None:
        spec, layout = self.spec, self.layout
        self._state = starting
        layout.directory.mkdir(parents=True, mode=0o700)
        state.save(layout, starting)
        nodes = self.nodes
        with self.progress.step("making certificates, addresses and control groups"):
            targets = [target for _, target in layout.node(1).mounts(spec.node_directories)]
            machine.prepare(layout, spec.nodes, targets)
            pki.make(layout, spec.nodes)
            cgroups.make(cgroups.read_hierarchies(), f"{layout.cgroup}/control")
            for node in nodes:
                node.prepare()
        self._link_programs(starting)
        self._spawn("etcd", starting)
        self._spawn("kube-apiserver", starting)
        for node in nodes:
            node.start_runtime()
        for node in nodes:
            node.wait_runtime()
        self._load_pause()
        self._wait_api()
        self._spawn("kube-controller-manager", starting)
        self._spawn("kube-scheduler", starting)
        for node in nodes:
            node.start_kubelet(wait=False)
        self._wait_nodes()
        self._label_nodes()
        waiting.until(
            "the default service account",
            self._api().has_default_service_account,
            progress=self.progress,
            timeout=_START_SECONDS,
            needed=self._needed("kube-apiserver", "kube-controller-manager"),
        )
        self._state = replace(starting, phase="ready")
        state.save(layout, self._state)

    def _spawn(self, name: str, current: State) -> None:
        process.spawn(
            name,
            controlplane.command(name, current.spec, self.layout, current.programs),
            log=self._log(name),
            cgroups=[cgroups.read_hierarchies().tracking / f"{self.layout.cgroup}/control".lstrip("/")],
            path=nodeconfig.search_path(current.programs),
            records=self.layout.records,
        )

    def _wait_api(self) -> None:
        needed = self._needed("etcd", "kube-apiserver")
        waiting.until(
            "the API server", self._api().ready, progress=self.progress, timeout=_START_SECONDS, needed=needed
        )

    def _wait_nodes(self) -> None:
        api = self._api()
        wanted = set(self.state.spec.node_names)
        logs = [(node.kubelet(), node.log("kubelet")) for node in self.nodes]
        waiting.until(
            f"{len(wanted)} Ready node{'s' if len(wanted) > 1 else ''}",
            lambda: {name for name, ready in api.ready_nodes().items() if ready} >= wanted,
            progress=self.progress,
            timeout=_START_SECONDS,
            needed=[
                *self._needed("kube-apiserver", "kube-controller-manager", "kube-scheduler"),
                *((record, log) for record, log in logs if record is not None),
            ],
        )

    def _label_nodes(self) -> None:
        for name in self.spec.node_names:
            labels = {key: value for key, value in self.spec.labels_of(name).items() if not kubelet_may_set(key)}
            if labels and not self._api().label_node(name, labels):
                raise LabError(f"The API server refused the labels {labels} of {name}. See {self._log('kube-apiserver')}")

    def _load_pause(self) -> None:
        archive = self.layout.directory / "pause.tar"
        oci.write_archive(oci.pause(_BUSYBOX), (nodeconfig.PAUSE_IMAGE,), archive)
        self.load(archive)
        archive.unlink()

    def _link_programs(self, current: State) -> None:
        directory = self.layout.directory / "bin"
        directory.mkdir()
        for name, path in current.programs.items():
            (directory / name).symlink_to(path)

    def _api(self) -> Api:
        return Api(self.layout.pki)

    def _needed(self, *names: str) -> list[tuple[process.Record, Path]]:
        found = [(process.load(name, self.layout.records), self._log(name)) for name in names]
        return [(record, log) for record, log in found if record is not None]

    def _log(self, name: str) -> Path:
        return self.layout.logs / f"{name}.log"

    def _bootstrap(self) -> None:
        done = subprocess.run([str(REPOSITORY / "scripts/bootstrap.sh"), "lab"], check=False)
        if done.returncode != 0:
            raise LabError("System packages that a cluster needs are missing; see above. Nothing was started.")

    def _already_up(self) -> bool:
        found = state.load(self.layout)
        if found is None or not _lives(self.layout):
            return False
        if found.spec != self.spec:
            raise LabError(
                f"The cluster {self.spec.name!r} is up, but not as asked for now; it was left as it is. Take it down "
                f"first: scripts/cluster down --name {self.spec.name}"
            )
        self._state = found
        self.progress.say(f"the cluster {self.spec.name!r} is up already")
        return True

    def _remove_remains(self) -> None:
        """Take down what killed runs left, of any name; refuse when another cluster is up."""
        for layout in state.layouts(self.settings.state):
            if layout.name != self.layout.name and _lives(layout):
                raise LabError(
                    f"The cluster {layout.name!r} is up, and one at a time can be; nothing was started. Take it down "
                    f"first: scripts/cluster down --name {layout.name}"
                )
            with self.progress.step(f"removing what an earlier run of {layout.name!r} left"):
                self._teardown(layout)

    def _teardown(self, layout: ClusterLayout) -> None:
        hierarchies = cgroups.read_hierarchies()
        cgroups.kill(hierarchies, layout.cgroup)
        for name in process.names(layout.records):
            record = process.load(name, layout.records)
            if record is not None:
                process.stop(record, 0)
        cgroups.remove(hierarchies, layout.cgroup)
        machine.restore(layout)
        machine.unmount_below(layout.directory)
        shutil.rmtree(layout.directory)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        directory = self.settings.state
        path = directory / "lock"
        with files.lock(path, "works on a cluster", self.progress):
            try:
                yield
            finally:
                if not state.layouts(directory):
                    path.unlink(missing_ok=True)
                    _remove_if_empty(directory)
                    cgroups.remove_if_empty(cgroups.read_hierarchies(), LAB_CGROUP)


def _lives(layout: ClusterLayout) -> bool:
    """Return whether a cluster is up, rather than left behind by a killed run or an earlier boot of the machine."""
    found = state.load(layout)
    record = process.load("etcd", layout.records)
    return found is not None and found.phase == "ready" and record is not None and process.is_alive(record)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Put interrupts off until the block's end, so that taking down is not itself left half-done."""
    held = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _remove_if_empty(directory: Path) -> None:
    try:
        directory.rmdir()
    except OSError:
        return
