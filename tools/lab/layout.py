"""Names, addresses and paths of a cluster: pure functions of its directory and of a node's number."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# Addresses on the loopback interface (services, nodes) and of bridges (pods). Not 10.96.0.0/12, which an existing
# Kubernetes on this machine would use.
SERVICE_RANGE = "10.197.0.0/16"
API_ADDRESS = "10.197.0.1"
API_PORT = 443
ETCD_PORT = 12379
ETCD_PEER_PORT = 12380
CONTROLLER_MANAGER_PORT = 11257
SCHEDULER_PORT = 11259
KUBELET_PORT = 10250
KUBELET_HEALTH_PORT = 10248
MAX_NODES = 100

# The longest name with which the nodes' socket paths are still short enough, see lab.settings.
MAX_NAME_LENGTH = 12

# In the state directory: what must be restored on the machine when the last cluster goes down.
MACHINE_FILE = "machine.json"

# The control group of everything that the lab starts.
LAB_CGROUP = "/ndl"


@dataclass(frozen=True)
class NodeLayout:
    """One node, number 1 to `MAX_NODES`, and its own directories below `directory`.

    A process in the node's mount namespace sees them at the standard paths, see `mounts`.
    """

    cluster: str
    index: int
    directory: Path

    @property
    def name(self) -> str:
        """Kubernetes' name of the node."""
        return f"node-{self.index}"

    @property
    def address(self) -> str:
        """The node's address, a host address on the loopback interface."""
        return f"10.198.0.{self.index}"

    @property
    def pod_range(self) -> str:
        """The addresses of the node's pods."""
        return f"10.199.{self.index}.0/24"

    @property
    def bridge(self) -> str:
        """The network interface to which the node's pods are connected (15 characters at most)."""
        return f"ndl-n{self.index}"

    @property
    def cgroup(self) -> str:
        """The cgroup of the node's pods (kubelet's cgroupRoot) and, in its child `system`, of its daemons."""
        return f"{LAB_CGROUP}/{self.cluster}/n{self.index}"

    @property
    def kubelet(self) -> Path:
        """/var/lib/kubelet of the node: `plugins`, `plugins_registry`, `pods`."""
        return self.directory / "kubelet"

    @property
    def cdi(self) -> Path:
        """/run/cdi of the node: the CDI specs that drivers write."""
        return self.directory / "cdi"

    @property
    def etc_cdi(self) -> Path:
        """/etc/cdi of the node: static CDI specs."""
        return self.directory / "etc-cdi"

    @property
    def health(self) -> Path:
        """/run/neuron-health of the node: what was read in the kernel log, which all nodes share."""
        return self.directory / "health"

    @property
    def run(self) -> Path:
        """/run/containerd of the node."""
        return self.directory / "run"

    @property
    def containerd_socket(self) -> Path:
        """The containerd socket as the host sees it."""
        return self.run / "containerd.sock"

    @property
    def config(self) -> Path:
        """Configuration files of kubelet and containerd."""
        return self.directory / "config"

    @property
    def logs(self) -> Path:
        """Logs of kubelet and containerd, and below `pods` those of the pods."""
        return self.directory / "log"

    def own_directory(self, target: str) -> Path:
        """Return the node's own directory that is bound on `target` in its mount namespace."""
        return self.directory / "extra" / target.strip("/").replace("/", "-")

    def mounts(self, extra: tuple[str, ...] = ()) -> tuple[tuple[Path, str], ...]:
        """Return the node's directories and the paths at which its mount namespace shows them."""
        return (
            (self.kubelet, "/var/lib/kubelet"),
            (self.run, "/run/containerd"),
            (self.cdi, "/run/cdi"),
            (self.etc_cdi, "/etc/cdi"),
            (self.health, "/run/neuron-health"),
            (self.directory / "containerd", "/var/lib/containerd"),
            (self.directory / "cni-conf", "/etc/cni/net.d"),
            (self.directory / "cni-state", "/var/lib/cni"),
            (self.logs / "pods", "/var/log/pods"),
            (self.logs / "containers", "/var/log/containers"),
            *((self.own_directory(target), target) for target in extra),
        )


@dataclass(frozen=True)
class ClusterLayout:
    """One cluster and its files below `directory`."""

    name: str
    directory: Path

    @property
    def state_file(self) -> Path:
        """The cluster's specification and the progress of its start."""
        return self.directory / "state.json"

    @property
    def undo_file(self) -> Path:
        """What must be restored in the cluster's network namespace when it goes down."""
        return self.directory / "undo.json"

    @property
    def machine_file(self) -> Path:
        """What must be restored on the machine when the last cluster goes down."""
        return self.directory.parent / MACHINE_FILE

    @property
    def records(self) -> Path:
        """One file per process: its pid and start time."""
        return self.directory / "processes"

    @property
    def pki(self) -> Path:
        """Certificates and keys."""
        return self.directory / "pki"

    @property
    def logs(self) -> Path:
        """Logs of the control plane."""
        return self.directory / "log"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.directory / "kubeconfig"

    @property
    def cgroup(self) -> str:
        """The cgroup of everything that belongs to this cluster."""
        return f"{LAB_CGROUP}/{self.name}"

    def node(self, index: int) -> NodeLayout:
        """Return the layout of node `index`."""
        return NodeLayout(cluster=self.name, index=index, directory=self.directory / f"n{index}")
