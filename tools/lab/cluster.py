"""The API of a cluster for tests and commands."""

from __future__ import annotations

import os
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, Self

from lab import cgroups, components, lifecycle, machine, nodeconfig, oci, pki, process, state, waiting
from lab.build import Builder, available_modules
from lab.daemons import START_SECONDS, ControlPlane
from lab.errors import LabError
from lab.layout import ClusterLayout
from lab.node import Node
from lab.progress import Progress
from lab.settings import Settings
from lab.spec import ClusterSpec, kubelet_may_set
from lab.state import State

TEST_IMAGE = "localhost/ndl-tools:1"

_WHY_ROOT = "nodes have mount namespaces, control groups and network interfaces of their own"
_READINESS = {True: "Ready", False: "not Ready", None: "unknown"}


class ClusterAccess(Protocol):
    """What a test needs of any cluster, whether of this lab or not."""

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
        state: `running` or `ended` for a process; `Ready`, `not Ready` or `unknown` for a node.
    """

    name: str
    pid: int | None
    state: str


class Cluster:
    """A cluster of the lab.

    `Cluster(ClusterSpec(nodes=2)).up()` starts one, `Cluster.attach("default")` finds one that another process started,
    and as a context manager it is started on entry and removed on exit.
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
        machine.require_root(_WHY_ROOT)
        cluster = cls(ClusterSpec(name=name), settings=settings, progress=progress)
        found = state.load(cluster.layout)
        if found is None or not lifecycle.lives(cluster.layout):
            raise LabError(f"No cluster {name!r} is up, so there is nothing to work on. Start one: scripts/cluster up")
        cluster.spec = found.spec
        return cluster

    def __enter__(self) -> Self:
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
        """What is running.

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

    @property
    def control_plane(self) -> ControlPlane:
        """The control plane's daemons."""
        return ControlPlane(self.layout, self.state, self.progress)

    def node(self, name: str) -> Node:
        """Return one node.

        Raises:
            LabError: There is no node of that name.
        """
        for node in self.nodes:
            if node.name == name:
                return node
        raise LabError(f"There is no node {name!r}; there are: {', '.join(node.name for node in self.nodes)}.")

    def up(self) -> None:
        """Build what is missing, start everything and return when all nodes are Ready.

        On any failure, including an interrupt, everything that was started is taken down again. Remains of killed runs
        are removed first. A cluster that is already up with the same specification is left as it is.

        Raises:
            LabError: It cannot start; the message has the last lines of the relevant log.
        """
        machine.require_root(_WHY_ROOT)
        machine.bootstrap("lab")
        wanted = components.of_cluster(self.spec.kubernetes, self.spec.kubelet_version, available_modules())
        programs = Builder(self.settings, self.progress).build(wanted)
        with lifecycle.exclusive(self.settings.state, self.progress):
            if self._already_up():
                return
            lifecycle.remove_remains(self.settings.state, self.spec.name, self.progress)
            try:
                self._start(State("starting", self.spec, programs))
            except BaseException:
                with process.uninterrupted():
                    self.progress.say("did not come up: taking down what was started")
                    lifecycle.teardown(self.layout)
                    self._state = None
                raise

    def down(self) -> None:
        """Stop everything and remove it from the machine; does nothing if there is no cluster."""
        machine.require_root(_WHY_ROOT)
        if not self.settings.state.is_dir():
            return
        with lifecycle.exclusive(self.settings.state, self.progress), process.uninterrupted():
            if self.layout.directory.exists():
                with self.progress.step(f"taking down the cluster {self.spec.name!r}"):
                    lifecycle.teardown(self.layout)
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
            input=stdin or "",
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
            LabError: The file does not exist, or a node refused it.
        """
        if not archive.is_file():
            raise LabError(f"There is no image archive {archive}; nothing was loaded. Make one: scripts/build-image")
        archive = archive.resolve()
        if not self.nodes:
            return
        text = f"loading {archive.name} into {', '.join(node.name for node in self.nodes)}"
        with self.progress.step(text), ThreadPoolExecutor() as pool:
            list(pool.map(lambda node: node.import_image(archive), self.nodes))

    def load_test_image(self, *names: str) -> None:
        """Import the lab's small image with bash and busybox's tools under these names (default: `TEST_IMAGE`)."""
        self._load_image(oci.tools(), *(names or (TEST_IMAGE,)))

    def stop_apiserver(self) -> None:
        """Stop only kube-apiserver; its data is kept."""
        self.control_plane.stop("kube-apiserver")

    def start_apiserver(self) -> None:
        """Start kube-apiserver again and wait until it is ready."""
        self.control_plane.start("kube-apiserver")
        self.control_plane.wait_api()

    def wait_ready(self) -> None:
        """Wait until all nodes are Ready, if there are any."""
        if not self.nodes:
            return
        api = self.control_plane.api
        wanted = set(self.state.spec.node_names)
        kubelets = [(node.kubelet(), node.log("kubelet")) for node in self.nodes]
        needed = self.control_plane.needed("kube-apiserver", "kube-controller-manager", "kube-scheduler")
        waiting.until(
            f"{', '.join(sorted(wanted))} to be Ready",
            lambda: {name for name, ready in api.ready_nodes().items() if ready} >= wanted,
            progress=self.progress,
            timeout=START_SECONDS,
            needed=[*needed, *((record, log) for record, log in kubelets if record is not None)],
        )

    def status(self) -> list[ComponentStatus]:
        """Return the status of every process and every node."""
        ready = self.control_plane.api.ready_nodes()
        nodes = [ComponentStatus(node.name, None, _READINESS[ready.get(node.name)]) for node in self.nodes]
        return self._processes() + nodes

    def _processes(self) -> list[ComponentStatus]:
        found = []
        for name in process.names(self.layout.records):
            record = process.load(name, self.layout.records)
            alive = record is not None and process.is_alive(record)
            pid = record.pid if record is not None and alive else None
            found.append(ComponentStatus(name, pid, "running" if alive else "ended"))
        return found

    def _start(self, starting: State) -> None:
        self._state = starting
        self.layout.directory.mkdir(parents=True, mode=0o700)
        state.save(self.layout, starting)
        nodes, control_plane = self.nodes, self.control_plane
        with self.progress.step("making certificates, addresses and control groups"):
            targets = [target for _, target in self.layout.node(1).mounts(self.spec.node_directories)]
            machine.prepare(self.layout, self.spec.nodes, targets)
            pki.make(self.layout, self.spec.nodes)
            control_plane.prepare()
            for node in nodes:
                node.prepare()
            self._link_programs(starting)
        control_plane.start("etcd")
        control_plane.start("kube-apiserver")
        for node in nodes:
            node.start_runtime()
        for node in nodes:
            node.wait_runtime()
        self._load_image(oci.pause(), nodeconfig.PAUSE_IMAGE)
        control_plane.wait_api()
        control_plane.start("kube-controller-manager")
        control_plane.start("kube-scheduler")
        for node in nodes:
            node.start_kubelet(wait=False)
        self.wait_ready()
        self._label_nodes()
        control_plane.wait_default_service_account()
        self._state = replace(starting, phase="ready")
        state.save(self.layout, self._state)

    def _label_nodes(self) -> None:
        for name in self.spec.node_names:
            labels = {key: value for key, value in self.spec.labels_of(name).items() if not kubelet_may_set(key)}
            if labels and not self.control_plane.api.label_node(name, labels):
                raise LabError(f"The API server refused the labels {labels} of {name}.")

    def _load_image(self, image: oci.Image, *names: str) -> None:
        with tempfile.TemporaryDirectory(dir=self.layout.directory) as directory:
            archive = Path(directory) / f"{names[0].rpartition('/')[2]}.tar"
            oci.write_archive(image, names, archive)
            self.load(archive)

    def _link_programs(self, current: State) -> None:
        directory = self.layout.directory / "bin"
        directory.mkdir()
        for name, path in current.programs.items():
            (directory / name).symlink_to(path)

    def _already_up(self) -> bool:
        found = state.load(self.layout)
        if found is None or not lifecycle.lives(self.layout):
            return False
        if found.spec != self.spec:
            raise LabError(
                f"The cluster {self.spec.name!r} is up, but not as asked for now; it was left as it is. Take it down "
                f"first: scripts/cluster down --name {self.spec.name}"
            )
        self._state = found
        ended = [entry.name for entry in self._processes() if entry.pid is None]
        if ended:
            raise LabError(
                f"The cluster {self.spec.name!r} was started, but {', '.join(ended)} has ended; it was left as it "
                f"is. Take it down first: scripts/cluster down --name {self.spec.name}"
            )
        self.progress.say(f"the cluster {self.spec.name!r} is up already")
        return True
