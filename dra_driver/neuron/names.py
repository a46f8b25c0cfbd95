"""Names that users, manifests and other components rely on.

Sources: aws-neuron-sdk ``deploy/eks/dra.rst`` and ``deploy/files/manifests``; Kubernetes ``resource.k8s.io``.
"""

import re

DRIVER_NAME = "neuron.aws.com"
"""DRA driver name: ``driver`` of slices and of opaque configuration, and the domain of our unqualified attributes."""


def node_of(pool: str) -> str:
    """The node of a pool of this driver, which has the node's name, and perhaps more behind a slash."""
    return pool.partition("/")[0]


def is_own_pool(pool: str, node: str) -> bool:
    """Whether slices of the node may be in that pool.

    A kubelet may write slices with any pool in them. Those in the pool of another node count nowhere.
    """
    return bool(node) and node_of(pool) == node


def is_own_class(name: str) -> bool:
    """Whether a DeviceClass has a name of those that are installed with the driver."""
    return name == DRIVER_NAME or name.endswith(f".{DRIVER_NAME}")


UID_PATTERN = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
"""Of the UIDs that the API server gives, also for itself (``matches`` in CEL)."""
_UID = re.compile(UID_PATTERN)


def is_uid(text: str) -> bool:
    """Whether an object can have that UID."""
    return _UID.fullmatch(text) is not None


WORKLOAD_CLASS = f"ultraserver.{DRIVER_NAME}"
"""DeviceClass of the claims of UltraServer workloads: a policy keeps everybody else's from it."""
ADMIN_CLASS = f"admin.{DRIVER_NAME}"
"""DeviceClass for looking, with admin access, at devices that anybody has: a policy keeps all others from it."""
CLASSES_POLICY = f"classes.{DRIVER_NAME}"
"""The ValidatingAdmissionPolicy that does this, and its binding."""

API_VERSIONS = ("neuron.aws.com/v1", "neuron.aws.com/v1alphav1", "resource.neuron.aws.com/v1alphav1")
"""Spellings of the version of opaque parameters: the first is current, the others are from AWS's beta documents
(aws-neuron-sdk, deploy/eks)."""

GROUP_ATTRIBUTE_DOMAIN = "resource.aws.com"
"""Domain of the ``devicegroupN_id`` attributes, shared with AWS's EFA driver so that one claim can match both."""

CDI_KIND = "k8s.neuron.aws.com/claim"
"""CDI kind of the claim specs. Device names contain the claim UID, so a name is never reused."""

SERVER_4 = "neuron.amazonaws.com/ultraserver-server-id-4"
SERVER_2 = "neuron.amazonaws.com/ultraserver-server-id-2"
NODES_OF = {SERVER_4: 4, SERVER_2: 2}
"""Label of nodes of UltraServers to the number of nodes that share one value of it (aws-neuron-sdk
``deploy/eks/ultraserver.rst``)."""
PLACE_OF = {
    SERVER_4: "neuron.amazonaws.com/ultraserver-node-id-4",
    SERVER_2: "neuron.amazonaws.com/ultraserver-node-id-2",
}
"""Label of nodes of UltraServers to the label that says which of these nodes each one is, from 0."""
SERVER_MODE = "neuron.amazonaws.com/ultraserver-mode"
"""Label of such nodes: with how many nodes, itself included, it can work now, such as ``1_2_4``."""
PRESENT = "neuron.amazonaws.com/present"
"""Label that AWS's monitoring selects its nodes by. AWS's device plugin sets it, its DRA driver does not."""

# Variables of containers. The driver's checkpoints have its own, and kubelet's those of the device plugin: who renames
# one goes on reading the former name.

LOGICAL_CORE_SIZE = "NEURON_LOGICAL_NC_CONFIG"
"""The Neuron runtime's variable of the logical core size (aws-neuron-sdk, logical-neuroncore-config). The key of a
host's file has the same name, and is AWS's (``host.discover``)."""
LOGICAL_CORE_VARIABLES = (LOGICAL_CORE_SIZE, "NEURON_RT_VIRTUAL_CORE_SIZE")
"""The same, and its older name."""

VISIBLE_CORES = "NEURON_RT_VISIBLE_CORES"
"""The Neuron runtime's variable of the logical cores to use, such as ``4-7`` or ``4,5,6,7``: numbers counted over the
chips that the container sees, ascending and contiguous (aws-neuron-sdk, neuron-runtime/configuration-guide)."""
NUM_CORES = "NEURON_RT_NUM_CORES"
"""The same of how many to use, the first ones. Pods set it, and nothing here."""
VISIBLE_DEVICES = "AWS_NEURON_VISIBLE_DEVICES"
"""Chips by their numbers on the host, as AWS's OCI hook reads it, which makes them available by itself."""

ULTRASERVER_MODE = "NEURON_RT_ULTRASERVER_MODE"
ULTRASERVER_SERVER_ID = "NEURON_RT_ULTRASERVER_SERVER_ID"
ULTRASERVER_NODE_ID = "NEURON_RT_ULTRASERVER_NODE_ID"
"""The Neuron runtime's variables of the mode that a node of an UltraServer works in, the nodes that it works with, and
its place among them (aws-neuron-sdk, ``src/k8/k8s-ultraserver-init-script.sh``)."""
RANK = "NEURON_GLOBAL_TOPOID"
RANK0_HOST = "NEURON_GLOBAL_TOPOID0_HOST"
"""A node's rank in a group of several, and the host of rank 0 (aws-neuron-sdk, ``deploy/eks/ultraserver.rst``)."""
LEADER_NODE = "NEURON_ULTRASERVER_LEADER_NODE"
"""The name of the node of rank 0 (ours)."""

VIEWER_ROLE = "neuron-viewer"
"""The ClusterRole for administrators (docs/operate/on-call.md): what the commands that read a cluster need."""
DEVICES_VIEWER_ROLE = "neuron-devices-viewer"
"""The ClusterRole for everybody else: slices, classes and taint rules, which no Role of a namespace can give."""

DRIVER_POD = ("app", "neuron-dra-driver-kubelet-plugin")
DEVICE_PLUGIN_POD = ("name", "neuron-device-plugin-ds")
"""Labels of the pods that serve a node's devices, as the chart and the installer make them; the second is that of AWS's
device plugin, too."""

RETIRED = "neuron.aws.com/retired"
"""Key of the taint of a device that is on offer only for as long as a claim holds it; the value says why."""
RETIRED_FOR_PLUGIN = "device-plugin"
"""Value of that taint: a device plugin may give the same chips away."""

WORKLOAD_ID = "workloadId"
"""Attribute of devices of a node that is allocated to an UltraServer workload: the workload's name (AWS's)."""
WORKLOAD_UID = "workloadUID"
"""The same: its UID (ours)."""
WORKLOAD_TAINT = "neuron.aws.com/ultraserver-workload"
"""Key of the taint of such devices, effect NoSchedule; the value is the workload's UID. Its claims tolerate it."""

UNUSABLE_DEVICES = "neuron.aws.com/unusable-devices"
"""Node annotation: ids of devices such as ``3,7`` that no pod may get, written by the device plugin or by hand."""


_SERVER_ID = re.compile(r"[a-z0-9]([-a-z0-9]{0,49}[a-z0-9])?")
"""Ids that hosts report have 16 digits; that of a NeuronUltraServer is part of a name of at most 63 characters."""


def object_name(server: str) -> str:
    """Name of the object of a server, by its id; "" if the id, which a node wrote, is none that hosts report."""
    return f"ultraserver-{server}" if _SERVER_ID.fullmatch(server) else ""
