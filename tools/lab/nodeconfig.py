"""Configuration files and command lines of a node: pure functions.

A node's daemons run in a mount namespace in which its own directories are at the standard paths, so all paths here are
the standard ones and only addresses, names and control groups differ between nodes.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.layout import KUBELET_HEALTH_PORT, KUBELET_PORT, ClusterLayout, NodeLayout
from lab.spec import ClusterSpec, kubelet_may_set

PAUSE_IMAGE = "localhost/ndl-pause:1"
CNI_PROGRAM_DIRECTORIES = ("/usr/lib/cni", "/opt/cni/bin")


def holder_command(node: NodeLayout, extra: tuple[str, ...]) -> list[str]:
    """Return the command of the process that holds the node's mount namespace; it creates `ready` once set up."""
    binds = [f"mount --bind {shlex.quote(str(source))} {shlex.quote(target)}" for source, target in node.mounts(extra)]
    ready = shlex.quote(str(node.directory / "ready"))
    script = " && ".join(["mount --make-rshared /", *binds, f": > {ready}", "exec sleep infinity"])
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]


def containerd_config(runc: str, snapshotter: str) -> str:
    """Return containerd's configuration, version 4."""
    cni = json.dumps(list(CNI_PROGRAM_DIRECTORIES))
    return f"""version = 4
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.internal.v1.opt"]

[plugins."io.containerd.server.v1.grpc"]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.server.v1.ttrpc"]
  address = "/run/containerd/containerd.sock.ttrpc"
[plugins."io.containerd.metadata.v1.bolt"]
  no_sync = true
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "{snapshotter}"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{PAUSE_IMAGE}"
[plugins."io.containerd.cri.v1.runtime"]
  enable_cdi = true
  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
  # Without CAP_SYS_RESOURCE an oom score cannot be lowered, and every sandbox would fail.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = {cni}
  conf_dir = "/etc/cni/net.d"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  BinaryName = "{runc}"
  SystemdCgroup = false
[plugins."io.containerd.grpc.v1.cri"]
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
"""


def cni_config(node: NodeLayout) -> str:
    """Return the CNI configuration: a bridge without iptables rules.

    Pods reach the API, the machine and each other across nodes, but nothing outside the machine. Host ports are not
    supported.
    """
    bridge = {
        "type": "bridge",
        "bridge": node.bridge,
        "isDefaultGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": node.pod_range}]]},
    }
    return json.dumps({"cniVersion": "1.0.0", "name": "lab", "plugins": [bridge]}, indent=2)


def kubelet_config(node: NodeLayout, layout: ClusterLayout, gates: Sequence[str], *, cgroup_v1: bool) -> str:
    """Return the KubeletConfiguration as JSON, which is valid YAML.

    Args:
        node: The node.
        layout: Its cluster.
        gates: Feature gates as NAME=true or NAME=false.
        cgroup_v1: The machine has version 1 control groups, which kubelet refuses by default.
    """
    config: dict[str, object] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.address,
        "port": KUBELET_PORT,
        "healthzBindAddress": node.address,
        "healthzPort": KUBELET_HEALTH_PORT,
        "tlsCertFile": str(layout.pki / f"{node.name}.crt"),
        "tlsPrivateKeyFile": str(layout.pki / f"{node.name}.key"),
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(layout.pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": True,
        # Two kubelets with one cgroupRoot delete each other's pods.
        "cgroupRoot": node.cgroup,
        "enforceNodeAllocatable": ["pods"],
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        # An empty file: a pod's name lookup fails at once instead of leaving the machine.
        "resolvConf": str(node.config / "resolv.conf"),
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "memory.available": "50Mi",
            "nodefs.available": "0%",
            "nodefs.inodesFree": "0%",
            "imagefs.available": "0%",
            "imagefs.inodesFree": "0%",
        },
        "featureGates": {name: value == "true" for name, _, value in (gate.partition("=") for gate in gates)},
    }
    if cgroup_v1:
        config["failCgroupV1"] = False
    return json.dumps(config, indent=2)


def containerd_command(node: NodeLayout, programs: Mapping[str, Path], holder: int) -> list[str]:
    """Return containerd's command line, to be run in the mount namespace of the process `holder`."""
    return [*enter(holder), str(programs["containerd"]), "--config", str(node.config / "containerd.toml")]


def kubelet_command(
    node: NodeLayout, layout: ClusterLayout, spec: ClusterSpec, kubelet: Path, holder: int
) -> list[str]:
    """Return kubelet's command line, to be run in the mount namespace of the process `holder`."""
    labels = {key: value for key, value in spec.labels_of(node.name).items() if kubelet_may_set(key)}
    command = [
        *enter(holder),
        str(kubelet),
        f"--config={node.config / 'kubelet.json'}",
        f"--kubeconfig={layout.pki / f'{node.name}.kubeconfig'}",
        "--root-dir=/var/lib/kubelet",
        "--cert-dir=/var/lib/kubelet/pki",
        f"--hostname-override={node.name}",
        f"--node-ip={node.address}",
    ]
    if labels:
        command.append("--node-labels=" + ",".join(f"{key}={value}" for key, value in sorted(labels.items())))
    return command


def enter(holder: int) -> list[str]:
    """Return the command prefix that enters the mount namespace of the process `holder`."""
    return ["nsenter", f"--mount=/proc/{holder}/ns/mnt", "--"]


def search_path(programs: Mapping[str, Path]) -> str:
    """Return the PATH of daemons: the lab's programs, then the system's."""
    own = dict.fromkeys(str(path.parent) for path in programs.values())
    return ":".join([*own, "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"])
