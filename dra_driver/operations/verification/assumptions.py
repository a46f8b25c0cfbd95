"""Everything that the code takes from a host, one numbered row each. To add an assumption, add a row.

A row says where the assumption comes from, how it is seen, and what does not work where it is wrong. Nobody has yet
run the driver on Neuron hardware: ``confirmed`` is to say on what a row was seen, as soon as somebody sends a report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Literal, NamedTuple

from dra_driver.operations.verification import verdicts
from dra_driver.operations.verification.evidence import Evidence
from dra_driver.operations.verification.verdicts import State, Verdict

Basis = Literal["public document", "kernel driver's interface", "inferred"]
"""``inferred``: concluded from other facts, or from one report; seen on emulated hosts only."""

Feature = Literal[
    "offering chips",
    "containers with chips",
    "chips with their neighbours",
    "device groups with EFA",
    "PCI addresses and NUMA nodes",
    "logical cores",
    "UltraServers",
    "health of chips",
    "kernel log",
    "numbers in containers",
    "sharing chips",
]


class Assumption(NamedTuple):
    """A row."""

    code: str
    """Stable; the number is its place in the table."""
    text: str
    basis: Basis
    source: str
    where: str
    """What is looked at."""
    judge: Callable[[Evidence], Verdict]
    consequence: str
    """What happens where it is wrong."""
    features: tuple[Feature, ...]
    confirmed: str = ""
    """Hardware on which a report showed it; "": nobody yet."""


_SDK = "aws-neuron-sdk"
_LS = f"{_SDK}, tools/neuron-sys-tools/neuron-ls.rst"
_SYSFS = f"{_SDK}, tools/neuron-sys-tools/neuron-sysfs-user-guide.rst"
_DRIVER = "aws-neuron-driver"
_EFA_MAP = "aws-neuron/connected-device-maps-over-efa-for-neuron, lookup/"
_LNC = f"{_SDK}, about-neuron/arch/neuron-features/logical-neuroncore-config.rst"
_ULTRASERVER = f"{_SDK}, deploy/eks/ultraserver.rst and src/k8/k8s-ultraserver-init-script.sh"
_TIPS = f"{_SDK}, neuron-runtime/explore/runtime-performance-tips.rst"

TABLE: Final = (
    Assumption(
        "instance-type",
        "DMI names the EC2 instance type, and it is one of the driver's table",
        "public document",
        f"{_EFA_MAP}config",
        "sys/devices/virtual/dmi/id/product_name",
        verdicts.instance_type,
        "the node's label decides, else devices have no instanceType, no topology attributes and no device groups",
        ("offering chips", "chips with their neighbours", "device groups with EFA", "UltraServers"),
    ),
    Assumption(
        "kernel-driver-version",
        "the kernel driver reports its version, two to four numbers",
        "kernel driver's interface",
        f"{_DRIVER} (MODULE_VERSION)",
        "sys/module/neuron/version",
        verdicts.module_version,
        "without the file nothing is published; without a version, claims that select on neuronDriverVersion fail",
        ("offering chips",),
    ),
    Assumption(
        "boot-id",
        "the kernel gives each boot an id",
        "public document",
        "Linux, Documentation/admin-guide/sysctl/kernel.rst",
        "proc/sys/kernel/random/boot_id",
        verdicts.boot_id,
        "faults that only the driver remembers outlive a reboot, or claims of the boot before are taken for prepared",
        ("health of chips",),
    ),
    Assumption(
        "chip-directories",
        "each chip N has a directory neuronN, and the class links to each",
        "kernel driver's interface",
        f"{_DRIVER}; {_SYSFS}",
        "sys/devices/virtual/neuron_device/, sys/class/neuron_device/",
        verdicts.chip_directories,
        "chips are not found, so they are not published",
        ("offering chips",),
    ),
    Assumption(
        "chip-count",
        "a healthy host has as many chips as its type, numbered from 0",
        "public document",
        f"{_SDK}, about-neuron/arch",
        "sys/devices/virtual/neuron_device/",
        verdicts.chip_count,
        "chips are reported as missing or have no topology attributes; none has its PCI address and NUMA node",
        ("offering chips", "chips with their neighbours", "PCI addresses and NUMA nodes"),
    ),
    Assumption(
        "device-numbers",
        "sysfs has the device number of each chip, and no two chips share one",
        "kernel driver's interface",
        f"{_DRIVER}; Linux, Documentation/ABI/testing/sysfs-dev",
        "neuronN/dev",
        verdicts.device_numbers,
        "containers get no chip, or another one than they were allocated: do not use the driver on this host",
        ("offering chips", "containers with chips"),
    ),
    Assumption(
        "device-nodes",
        "/dev/neuronN has the device number that sysfs has",
        "kernel driver's interface",
        _DRIVER,
        "dev/neuronN",
        verdicts.device_nodes,
        "a renamed or stale node: containers get the chip that sysfs names, other programs another one",
        ("containers with chips",),
    ),
    Assumption(
        "major-number",
        "the chips' major number belongs to the character device driver neuron",
        "kernel driver's interface",
        _DRIVER,
        "proc/devices",
        verdicts.major_number,
        "what containers are given may be a device of another driver: do not use the driver on this host",
        ("containers with chips",),
    ),
    Assumption(
        "core-count",
        "each chip has as many physical cores as its type says",
        "public document",
        f"{_SDK}, about-neuron/arch; {_SYSFS}",
        "neuronN/core_count",
        verdicts.core_count,
        "claims for cores are cut wrongly: containers get core numbers that do not exist",
        ("logical cores", "sharing chips"),
    ),
    Assumption(
        "core-directories",
        "each physical core M of a chip has a directory neuron_coreM",
        "kernel driver's interface",
        _SYSFS,
        "neuronN/neuron_coreM/",
        verdicts.core_directories,
        "failed executions of some cores are not seen",
        ("health of chips",),
    ),
    Assumption(
        "architecture",
        "the kernel driver calls the chips as the table has it",
        "kernel driver's interface",
        f"{_DRIVER}; {_SYSFS}",
        "neuronN/info/architecture/",
        verdicts.architecture,
        "chips of a type that the table does not know are taken for others: wrong sizes of logical cores",
        ("offering chips", "logical cores"),
    ),
    Assumption(
        "serial-numbers",
        "each chip but Inferentia1 has a serial number of 16 hexadecimal digits",
        "kernel driver's interface",
        _DRIVER,
        "neuronN/info/serial_number",
        verdicts.serial_numbers,
        "a chip that takes another's place is not noticed; lines of the kernel log are matched by the chip's index",
        ("health of chips", "kernel log"),
    ),
    Assumption(
        "device-state",
        "the state of a chip is 0 (resetting), 1 (ready) or 2 (invalid)",
        "kernel driver's interface",
        _DRIVER,
        "neuronN/reset (read, never written)",
        verdicts.device_state,
        "a chip that cannot be opened is offered nevertheless",
        ("health of chips",),
    ),
    Assumption(
        "links-form",
        "each chip lists the numbers of its neighbours, separated by commas",
        "kernel driver's interface",
        _SYSFS,
        "neuronN/connected_devices",
        verdicts.links_form,
        "lost links are not noticed",
        ("health of chips", "chips with their neighbours"),
    ),
    Assumption(
        "links-symmetric",
        "a chip that names a neighbour is named by it",
        "inferred",
        "all tables of the kernel driver are so",
        "neuronN/connected_devices",
        verdicts.links_symmetric,
        "drawings and sets of connected chips are not as the hardware is",
        ("chips with their neighbours",),
    ),
    Assumption(
        "links-fabric",
        "the neighbours are those of the type's fabric: torus, ring or chain",
        "public document",
        _LS,
        "neuronN/connected_devices",
        verdicts.links_fabric,
        "connected sets (topology_x, topology4_id, segments) join chips without a link; chips are said to be faulty",
        ("chips with their neighbours", "health of chips"),
    ),
    Assumption(
        "pci-addresses",
        "the chips of a type have the same PCI addresses on every host",
        "public document",
        f"{_TIPS}; {_LS}",
        "sys/bus/pci/devices/*/{vendor,device}",
        verdicts.pci_addresses,
        "the attribute pciAddress is wrong: claims that match it get other chips",
        ("PCI addresses and NUMA nodes",),
    ),
    Assumption(
        "numa-nodes",
        "the chips of a type have the same NUMA nodes on every host",
        "public document",
        _TIPS,
        "sys/bus/pci/devices/*/numa_node",
        verdicts.numa_nodes,
        "the attribute numaNode is wrong: pods get processors far from their chips",
        ("PCI addresses and NUMA nodes",),
    ),
    Assumption(
        "efa-addresses",
        "the EFA devices have the PCI addresses that chips are paired with",
        "public document",
        f"{_EFA_MAP}neuron",
        "sys/bus/pci/devices/*/{vendor,device}",
        verdicts.efa_addresses,
        "resource.aws.com/devicegroupN_id of chips and of EFA devices do not agree: claims for both stay pending",
        ("device groups with EFA",),
    ),
    Assumption(
        "efa-near",
        "a chip and the EFA device that it is paired with share a NUMA node",
        "inferred",
        f"{_EFA_MAP}neuron with the addresses of {_TIPS}",
        "sys/bus/pci/devices/*/numa_node",
        verdicts.efa_near,
        "chips of one device group use EFA devices that are not near them",
        ("device groups with EFA",),
    ),
    Assumption(
        "lnc-file",
        "the node's logical core size stands in one line of a file, if it is set",
        "public document",
        f"{_SDK}, deploy/eks/prerequisites.rst",
        "opt/aws/neuron/logical_nc_config",
        verdicts.lnc_file,
        "the driver takes the chips' default while programs on the node use another size",
        ("logical cores",),
    ),
    Assumption(
        "ultraserver-files",
        "nodes of UltraServers have the class files of their type, others none that say anything",
        "kernel driver's interface",
        f"{_DRIVER}; {_ULTRASERVER}",
        "sys/class/neuron_device/{node_id*,server_id*,reservation_id,node_cnt,ultraserver_mode}",
        verdicts.ultraserver_files,
        "the node's place in its UltraServer is not known: no labels, and claims with an ultraserverMode fail",
        ("UltraServers",),
    ),
    Assumption(
        "ultraserver-ids",
        "server ids have 16 hexadecimal digits (zeros: none), node ids are below the number of nodes (-1: none)",
        "kernel driver's interface",
        f"{_DRIVER}; {_ULTRASERVER}",
        "sys/class/neuron_device/{node_id*,server_id*,reservation_id,node_cnt}",
        verdicts.ultraserver_ids,
        "groups of pods are put on nodes of different servers, or rank their nodes wrongly",
        ("UltraServers",),
    ),
    Assumption(
        "ultraserver-modes",
        "modes are numbers: 1 four nodes, 2 and 3 two nodes (horizontal, vertical), 4 alone",
        "public document",
        _ULTRASERVER,
        "sys/class/neuron_device/ultraserver_mode",
        verdicts.ultraserver_modes,
        "containers are given a mode that the kernel driver refuses, or one of another number of nodes",
        ("UltraServers",),
    ),
    Assumption(
        "ecc-counters",
        "each chip counts uncorrected errors of SRAM and memory",
        "public document",
        _SYSFS,
        "neuronN/stats/hardware/*_ecc_*uncorrected",
        verdicts.ecc_counters,
        "chips with broken memory are not noticed, or all are said to be of unknown health",
        ("health of chips",),
    ),
    Assumption(
        "corrected-counters",
        "since kernel driver 2.30 each chip also counts corrected errors",
        "kernel driver's interface",
        _DRIVER,
        "neuronN/stats/hardware/*_ecc_corrected",
        verdicts.corrected_counters,
        "worn memory is not noticed before it breaks",
        ("health of chips",),
    ),
    Assumption(
        "unhealthy-components",
        "since kernel driver 2.30 Trainium2 and 3 list unhealthy parts by names that the driver knows",
        "kernel driver's interface",
        _DRIVER,
        "neuronN/stats/hardware/health_status/unhealthy_components",
        verdicts.components,
        "parts with another name are reported as component-unhealthy, which asks for a replacement",
        ("health of chips",),
    ),
    Assumption(
        "health-files",
        "since kernel driver 2.30 Trainium2 and 3 have a heartbeat and a counter of error events",
        "kernel driver's interface",
        _DRIVER,
        "neuronN/stats/hardware/health_status/{healthcheck_heartbeat,hw_error_event}",
        verdicts.health_files,
        "errors are seen after ten seconds instead of at once; firmware that hangs is not noticed",
        ("health of chips",),
    ),
    Assumption(
        "heartbeat",
        "the heartbeat grows at least once a minute",
        "inferred",
        f"{_DRIVER} (a counter that a health check moves; how often is not public)",
        "neuronN/stats/hardware/health_status/healthcheck_heartbeat, twice (--wait)",
        verdicts.heartbeat,
        "all chips are said to be unhealthy (heartbeat-stalled): give that fault the effect None in the health policy",
        ("health of chips",),
    ),
    Assumption(
        "core-counters",
        "each core counts executions that failed on hardware",
        "public document",
        _SYSFS,
        "neuronN/neuron_coreM/stats/status/hw_*_error/total",
        verdicts.core_counters,
        "executions that failed on hardware are not noticed",
        ("health of chips",),
    ),
    Assumption(
        "kernel-log",
        "the Neuron runtime's lines in the kernel log name kind, chip and core as key=value",
        "public document",
        f"{_SDK}, neuron-runtime/nrt-troubleshoot.rst and src/k8/neuron-problem-detector",
        "the kernel log (--kernel-log)",
        verdicts.kernel_log,
        "the node problem detector ignores the lines",
        ("kernel log",),
    ),
    Assumption(
        "neuron-ls-devices",
        "neuron-ls numbers the chips as sysfs does",
        "public document",
        _LS,
        "neuron-ls -j (--neuron-ls)",
        verdicts.listed_devices,
        "deviceId and device names mean other chips than neuron-ls and neuron-monitor show",
        ("offering chips", "numbers in containers"),
    ),
    Assumption(
        "neuron-ls-addresses",
        "chip N has the N-th PCI address of the type's table",
        "public document",
        f"{_LS}; {_TIPS}",
        "neuron-ls -j (--neuron-ls)",
        verdicts.listed_addresses,
        "pciAddress, numaNode and device groups are published for the wrong chips",
        ("PCI addresses and NUMA nodes", "device groups with EFA"),
    ),
    Assumption(
        "neuron-ls-links",
        "neuron-ls shows the same links as sysfs",
        "public document",
        _LS,
        "neuron-ls -j (--neuron-ls)",
        verdicts.listed_links,
        "one of the two counts chips differently: connected sets may join chips without a link",
        ("chips with their neighbours",),
    ),
    Assumption(
        "neuron-ls-cores",
        "without a setting, logical cores have the type's default size; chip N has the N-th run of core numbers",
        "public document",
        f"{_LNC}; {_LS}",
        "neuron-ls -j (--neuron-ls)",
        verdicts.listed_cores,
        "NEURON_RT_VISIBLE_CORES of claims for cores names other cores than were allocated",
        ("logical cores", "sharing chips"),
    ),
    Assumption(
        "neuron-ls-memory",
        "each chip has the memory of the table",
        "public document",
        f"{_LS}; {_SDK}, about-neuron/arch",
        "neuron-ls -j (--neuron-ls)",
        verdicts.listed_memory,
        "the capacity memory is wrong: claims that select on it fit or fail wrongly",
        ("offering chips",),
    ),
    Assumption(
        "container-sysfs",
        "the /sys of any container shows the chips of the host",
        "inferred",
        "Linux: sysfs has no namespaces but for the network; AWS's own manifests mount no /sys either",
        "sys/devices/virtual/neuron_device/ of the container and of the host",
        verdicts.container_sysfs,
        "the driver's pod finds no chips: nothing is published",
        ("offering chips",),
    ),
    Assumption(
        "kubelet-directories",
        "kubelet's root directory is /var/lib/kubelet",
        "public document",
        "Kubernetes, kubelet --root-dir",
        "var/lib/kubelet/{plugins,plugins_registry}",
        verdicts.kubelet_directories,
        "the driver's pod does not start: install with --kubelet-root",
        ("containers with chips",),
    ),
    Assumption(
        "kubelet-sockets",
        "kubelet serves the device plugin and PodResources sockets",
        "public document",
        "Kubernetes, concepts/extend-kubernetes/compute-storage-net/device-plugins",
        "var/lib/kubelet/{device-plugins,pod-resources}/kubelet.sock",
        verdicts.kubelet_sockets,
        "the device plugin cannot register, and the driver cannot tell whether a device plugin offers the same chips",
        ("containers with chips",),
    ),
    Assumption(
        "runtime-cdi",
        "the container runtime has CDI enabled",
        "public document",
        "containerd, docs/cri/config.md; CRI-O, crio.conf.5",
        "the Node's status.nodeInfo.containerRuntimeVersion (--container-runtime)",
        verdicts.runtime_cdi,
        "containers start without their chips, or not at all (unresolvable CDI devices)",
        ("containers with chips",),
    ),
    Assumption(
        "chips-open",
        "root can open the node of each chip",
        "kernel driver's interface",
        f"{_DRIVER} (opening for writing only attaches nothing)",
        "dev/neuronN, opened and closed (--probe host)",
        verdicts.chips_open,
        "containers cannot use the chip that they were given",
        ("containers with chips",),
    ),
    Assumption(
        "chips-open-twice",
        "two processes can have one chip open",
        "kernel driver's interface",
        _DRIVER,
        "dev/neuronN, opened by two processes (--probe host)",
        verdicts.chips_open_twice,
        "pods cannot share a chip: offer no cores (--devices) and let no two pods use one claim",
        ("sharing chips",),
    ),
    Assumption(
        "container-opens-own",
        "a container with a claim has a node of each of its chips and can open it",
        "public document",
        "cncf-tags/container-device-interface, SPEC.md",
        "/dev of the container (--probe container)",
        verdicts.container_opens_own,
        "containers cannot use the chips that they were given",
        ("containers with chips",),
    ),
    Assumption(
        "container-opens-no-other",
        "a container with a claim can open no other chip of the host",
        "public document",
        "Linux, Documentation/admin-guide/cgroup-v2.rst (device controller)",
        "chips in the container's /sys, by nodes of its own (--probe container)",
        verdicts.container_opens_no_other,
        "pods can use chips that were allocated to others; look for an OCI hook and for privileged pods",
        ("containers with chips",),
    ),
    Assumption(
        "container-run",
        "the chips of a container are consecutive on the host, and ascend as its numbers do",
        "kernel driver's interface",
        f"{_DRIVER} (cores are reserved relative to the first chip); {_SDK}, deploy/troubleshooting.rst",
        "dev of the host's chips and of the container's (--probe container)",
        verdicts.container_run,
        "the runtime reserves cores of a neighbour's chips, or fails with 'Neuron cores are not contiguous'",
        ("numbers in containers",),
    ),
)
"""The numbered list: the number of a row is its place, from 1 on."""


class Line(NamedTuple):
    """What became of one row on one host."""

    number: int
    assumption: Assumption
    verdict: Verdict


def judge(host: Evidence) -> tuple[Line, ...]:
    """The verdict on every row, in the table's order."""
    return tuple(Line(number, row, row.judge(host)) for number, row in enumerate(TABLE, 1))


Trust = Literal["as assumed", "not fully checked", "do not rely on it"]


class FeatureTrust(NamedTuple):
    """What the verdicts mean for one feature."""

    feature: Feature
    trust: Trust
    because: tuple[int, ...]
    """Numbers of the rows that differ, or else were not checked."""


_TRUST: Final[tuple[tuple[State, Trust], ...]] = (
    ("differs", "do not rely on it"),
    ("not checked", "not fully checked"),
)


def trust(lines: tuple[Line, ...]) -> Iterator[FeatureTrust]:
    """Which features can be relied on, in the order in which the table first names them."""
    features = dict.fromkeys(feature for row in TABLE for feature in row.features)
    for feature in features:
        needed = [line for line in lines if feature in line.assumption.features]
        for state, result in _TRUST:
            numbers = tuple(line.number for line in needed if line.verdict.state == state)
            if numbers:
                yield FeatureTrust(feature, result, numbers)
                break
        else:
            yield FeatureTrust(feature, "as assumed", ())
