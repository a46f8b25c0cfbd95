"""Everything that the code takes from a host, one numbered row each. To add an assumption, add a row.

A row says where the assumption comes from, how it is seen, and what does not work where it is wrong. Nobody has yet
run the driver on Neuron hardware: ``confirmed`` is to say on what a row was seen, as soon as somebody sends a report.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final, Literal, NamedTuple

from dra_driver.neuron.health.assess import CORE_COUNTERS
from dra_driver.neuron.names import VISIBLE_CORES
from dra_driver.operations.verification import verdicts
from dra_driver.operations.verification.evidence import Evidence
from dra_driver.operations.verification.verdicts import (
    Check,
    Verdict,
    files,
    known_type,
    new_chips,
    new_kernel_driver,
    ok,
    some_chips,
    unchecked,
    visible_kubelet,
)

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


class Source(NamedTuple):
    """Where an assumption comes from."""

    basis: Basis
    text: str


class Assumption(NamedTuple):
    """A row."""

    code: str
    """Stable; the number is its place in the table."""
    text: str
    source: Source
    check: Check
    consequence: str
    """What happens where it is wrong."""
    features: tuple[Feature, ...]
    confirmed: str = ""
    """Hardware on which a report showed it; "": nobody yet."""


_public = partial(Source, "public document")
_interface = partial(Source, "kernel driver's interface")
_inferred = partial(Source, "inferred")

_NO_PROC = unchecked("the host's /proc is not visible; the driver then reads its container's, which says the same")
_NO_NODES = unchecked("/dev has no Neuron node, so it is not the host's")

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
        _public(f"{_EFA_MAP}config"),
        files("product-name", findings=("instance-type-missing", "instance-type-unknown")),
        "the node's label decides, else devices have no instanceType, no topology attributes and no device groups",
        ("offering chips", "chips with their neighbours", "device groups with EFA", "UltraServers"),
    ),
    Assumption(
        "kernel-driver-version",
        "the kernel driver reports its version, two to four numbers",
        _interface(f"{_DRIVER} (MODULE_VERSION)"),
        files("module-version", findings=("driver-not-loaded", "driver-version-missing", "driver-version-unreadable")),
        "without the file nothing is published; without a version, claims that select on neuronDriverVersion fail",
        ("offering chips",),
    ),
    Assumption(
        "boot-id",
        "the kernel gives each boot an id",
        _public("Linux, Documentation/admin-guide/sysctl/kernel.rst"),
        files("boot-id", absent=_NO_PROC),
        "faults that only the driver remembers outlive a reboot, or claims of the boot before are taken for prepared",
        ("health of chips",),
    ),
    Assumption(
        "chip-directories",
        "each chip N has a directory neuronN, and the class links to each",
        _interface(f"{_DRIVER}; {_SYSFS}"),
        files("class-entry", findings=("no-devices",)),
        "chips are not found, so they are not published",
        ("offering chips",),
    ),
    Assumption(
        "chip-count",
        "a healthy host has as many chips as its type, numbered from 0",
        _public(f"{_SDK}, about-neuron/arch"),
        Check("sys/devices/virtual/neuron_device/", verdicts.chip_count),
        "chips are reported as missing or have no topology attributes; none has its PCI address and NUMA node",
        ("offering chips", "chips with their neighbours", "PCI addresses and NUMA nodes"),
    ),
    Assumption(
        "device-numbers",
        "sysfs has the device number of each chip, and no two chips share one",
        _interface(f"{_DRIVER}; Linux, Documentation/ABI/testing/sysfs-dev"),
        files("dev", unique=lambda host: not host.emulated),
        "containers get no chip, or a different one than they were allocated: do not use the driver on this host",
        ("offering chips", "containers with chips"),
    ),
    Assumption(
        "device-nodes",
        "/dev/neuronN has the device number that sysfs has",
        _interface(_DRIVER),
        files("node", findings=("device-node-missing", "device-node-stale"), absent=_NO_NODES),
        "a renamed or stale node: containers get the chip that sysfs names, other programs another one",
        ("containers with chips",),
    ),
    Assumption(
        "major-number",
        "the chips' major number belongs to the character device driver neuron",
        _interface(_DRIVER),
        files(
            "proc-devices",
            findings=("major-mismatch",),
            needs=(some_chips,),
            absent=_NO_PROC,
            odd=lambda text: "" if text else "no character device driver is called neuron",
        ),
        "what containers are given may be a device of another driver: do not use the driver on this host",
        ("containers with chips",),
    ),
    Assumption(
        "core-count",
        "each chip has as many physical cores as its type says",
        _public(f"{_SDK}, about-neuron/arch; {_SYSFS}"),
        files("core_count", findings=("core-count-mismatch",), needs=(known_type,)),
        "claims for cores are divided wrongly: containers get core numbers that do not exist",
        ("logical cores", "sharing chips"),
    ),
    Assumption(
        "core-directories",
        "each physical core M of a chip has a directory neuron_coreM",
        _interface(_SYSFS),
        Check("neuronN/neuron_coreM/", verdicts.core_directories),
        "failed executions of some cores are not seen",
        ("health of chips",),
    ),
    Assumption(
        "architecture",
        "the kernel driver names the chips as the table does",
        _interface(f"{_DRIVER}; {_SYSFS}"),
        Check("neuronN/info/architecture/", verdicts.architecture),
        "chips of a type that the table does not know are taken for others: wrong sizes of logical cores",
        ("offering chips", "logical cores"),
    ),
    Assumption(
        "serial-numbers",
        "each chip but Inferentia1 has a serial number of 16 hexadecimal digits",
        _interface(_DRIVER),
        files(
            "serial_number",
            needs=(verdicts.chips_with_serials,),
            odd=lambda text: "" if text.strip("0") else "it is empty: the firmware did not answer",
            unique=lambda _: True,
        ),
        "a chip that takes another's place is not noticed; lines of the kernel log are matched by the chip's index",
        ("health of chips", "kernel log"),
    ),
    Assumption(
        "device-state",
        "the state of a chip is 0 (resetting), 1 (ready) or 2 (invalid)",
        _interface(_DRIVER),
        files("reset"),
        "a chip that cannot be opened is still offered",
        ("health of chips",),
    ),
    Assumption(
        "links-form",
        "each chip lists the numbers of its neighbours, separated by commas",
        _interface(_SYSFS),
        files("connected_devices"),
        "lost links are not noticed",
        ("health of chips", "chips with their neighbours"),
    ),
    Assumption(
        "links-symmetric",
        "a chip that names a neighbour is named by it",
        _inferred("all tables of the kernel driver are so"),
        Check("neuronN/connected_devices", verdicts.links_symmetric),
        "drawings and sets of connected chips do not match the hardware",
        ("chips with their neighbours",),
    ),
    Assumption(
        "links-fabric",
        "the neighbours are those of the type's fabric: torus, ring or chain",
        _public(_LS),
        Check("neuronN/connected_devices", verdicts.links_fabric),
        "connected sets (topology_x, topology4_id, segments) join chips without a link; chips are reported as faulty",
        ("chips with their neighbours", "health of chips"),
    ),
    Assumption(
        "pci-addresses",
        "the chips of a type have the same PCI addresses on every host",
        _public(f"{_TIPS}; {_LS}"),
        Check("sys/bus/pci/devices/*/{vendor,device}", verdicts.pci_addresses),
        "the attribute pciAddress is wrong: claims that match it get other chips",
        ("PCI addresses and NUMA nodes",),
    ),
    Assumption(
        "numa-nodes",
        "the chips of a type have the same NUMA nodes on every host",
        _public(_TIPS),
        Check("sys/bus/pci/devices/*/numa_node", verdicts.numa_nodes),
        "the attribute numaNode is wrong: pods get processors far from their chips",
        ("PCI addresses and NUMA nodes",),
    ),
    Assumption(
        "pcie-roots",
        "the link of a chip's PCI device leads through its PCIe root",
        _public("Linux, Documentation/ABI/testing/sysfs-bus-pci"),
        Check("sys/bus/pci/devices/*", verdicts.pcie_roots),
        "chips have no attribute pcieRoot: claims that join chips and network devices by it stay pending",
        ("PCI addresses and NUMA nodes",),
    ),
    Assumption(
        "efa-addresses",
        "the EFA devices have the PCI addresses that chips are paired with",
        _public(f"{_EFA_MAP}neuron"),
        Check("sys/bus/pci/devices/*/{vendor,device}", verdicts.efa_addresses),
        "resource.aws.com/devicegroupN_id of chips and of EFA devices do not agree: claims for both stay pending",
        ("device groups with EFA",),
    ),
    Assumption(
        "efa-near",
        "a chip and the EFA device that it is paired with share a NUMA node",
        _inferred(f"{_EFA_MAP}neuron with the addresses of {_TIPS}"),
        Check("sys/bus/pci/devices/*/numa_node", verdicts.efa_near),
        "chips of one device group use EFA devices that are not near them",
        ("device groups with EFA",),
    ),
    Assumption(
        "lnc-file",
        "the node's logical core size stands in one line of a file, if it is set",
        _public(f"{_SDK}, deploy/eks/prerequisites.rst"),
        files("logical_nc_config", findings=("lnc-default-unusable",), absent=ok("no file: the chips' own default")),
        "the driver takes the chips' default while programs on the node use another size",
        ("logical cores",),
    ),
    Assumption(
        "ultraserver-files",
        "nodes of UltraServers have the class files of their type, others have none with a value",
        _interface(f"{_DRIVER}; {_ULTRASERVER}"),
        Check(
            "sys/class/neuron_device/{node_id*,server_id*,reservation_id,node_cnt,ultraserver_mode}",
            verdicts.ultraserver_files,
        ),
        "the node's place in its UltraServer is not known: no labels, and claims with an ultraserverMode fail",
        ("UltraServers",),
    ),
    Assumption(
        "ultraserver-ids",
        "server ids have 16 hexadecimal digits (zeros: none), node ids are below the number of nodes (-1: none)",
        _interface(f"{_DRIVER}; {_ULTRASERVER}"),
        Check("sys/class/neuron_device/{node_id*,server_id*,reservation_id,node_cnt}", verdicts.ultraserver_ids),
        "groups of pods are put on nodes of different servers, or rank their nodes wrongly",
        ("UltraServers",),
    ),
    Assumption(
        "ultraserver-modes",
        "modes are numbers: 1 four nodes, 2 and 3 two nodes (horizontal, vertical), 4 alone",
        _public(_ULTRASERVER),
        Check("sys/class/neuron_device/ultraserver_mode", verdicts.ultraserver_modes),
        "containers are given a mode that the kernel driver refuses, or one of another number of nodes",
        ("UltraServers",),
    ),
    Assumption(
        "ecc-counters",
        "each chip counts uncorrected errors of SRAM and memory",
        _public(_SYSFS),
        files("sram_ecc_uncorrected", "mem_ecc_uncorrected", "mem_ecc_repairable_uncorrected"),
        "chips with broken memory are not noticed, or all are reported with unknown health",
        ("health of chips",),
    ),
    Assumption(
        "corrected-counters",
        "since kernel driver 2.30 each chip also counts corrected errors",
        _interface(_DRIVER),
        files("sram_ecc_corrected", "mem_ecc_corrected", needs=(new_kernel_driver,)),
        "worn memory is not noticed before it breaks",
        ("health of chips",),
    ),
    Assumption(
        "unhealthy-components",
        "since kernel driver 2.30 Trainium2 and 3 list unhealthy parts by names that the driver knows",
        _interface(_DRIVER),
        files("unhealthy_components", needs=(new_kernel_driver, new_chips), odd=verdicts.known_components),
        "parts with another name are reported as component-unhealthy, which requests a replacement",
        ("health of chips",),
    ),
    Assumption(
        "health-files",
        "since kernel driver 2.30 Trainium2 and 3 have a heartbeat and a counter of error events",
        _interface(_DRIVER),
        files("healthcheck_heartbeat", "hw_error_event", needs=(new_kernel_driver, new_chips)),
        "errors are seen after ten seconds instead of at once; firmware that hangs is not noticed",
        ("health of chips",),
    ),
    Assumption(
        "heartbeat",
        "the heartbeat grows at least once a minute",
        _inferred(f"{_DRIVER} (a counter that a health check moves; how often is not public)"),
        Check("neuronN/stats/hardware/health_status/healthcheck_heartbeat, twice (--wait)", verdicts.heartbeat),
        "all chips are reported as unhealthy (heartbeat-stalled): give that fault the effect None in the health policy",
        ("health of chips",),
    ),
    Assumption(
        "core-counters",
        "each core counts executions that failed on hardware",
        _public(_SYSFS),
        files(*CORE_COUNTERS),
        "executions that failed on hardware are not noticed",
        ("health of chips",),
    ),
    Assumption(
        "kernel-log",
        "the Neuron runtime's lines in the kernel log name kind, chip and core as key=value",
        _public(f"{_SDK}, neuron-runtime/nrt-troubleshoot.rst and src/k8/neuron-problem-detector"),
        Check("the kernel log (--kernel-log)", verdicts.kernel_log),
        "the node problem detector ignores the lines",
        ("kernel log",),
    ),
    Assumption(
        "firmware-answers",
        "the firmware of each chip answers the kernel driver",
        _public("bottlerocket-os/bottlerocket#4582, a log with fw_io_execute_request ... timed out"),
        Check("the kernel log (--kernel-log)", verdicts.firmware_answers),
        "chips are missing, or say nothing of themselves, and the node offers fewer devices or none",
        ("offering chips",),
    ),
    Assumption(
        "neuron-ls-devices",
        "neuron-ls numbers the chips as sysfs does",
        _public(_LS),
        Check("neuron-ls -j (--neuron-ls)", verdicts.listed_devices),
        "deviceId and device names mean other chips than neuron-ls and neuron-monitor show",
        ("offering chips", "numbers in containers"),
    ),
    Assumption(
        "neuron-ls-addresses",
        "chip N has the N-th PCI address of the type's table",
        _public(f"{_LS}; {_TIPS}"),
        verdicts.listed("bdf"),
        "pciAddress, numaNode and device groups are published for the wrong chips",
        ("PCI addresses and NUMA nodes", "device groups with EFA"),
    ),
    Assumption(
        "neuron-ls-links",
        "neuron-ls shows the same links as sysfs",
        _public(_LS),
        verdicts.listed("connected_to"),
        "one of the two counts chips differently: connected sets may join chips without a link",
        ("chips with their neighbours",),
    ),
    Assumption(
        "neuron-ls-cores",
        "without a setting, logical cores have the type's default size; chip N has the N-th run of core numbers",
        _public(f"{_LNC}; {_LS}"),
        verdicts.listed("nc_count", "logical_neuroncore_config", "neuroncore_ids"),
        f"{VISIBLE_CORES} of claims for cores names other cores than were allocated",
        ("logical cores", "sharing chips"),
    ),
    Assumption(
        "neuron-ls-memory",
        "each chip has the memory of the table",
        _public(f"{_LS}; {_SDK}, about-neuron/arch"),
        verdicts.listed("memory_size"),
        "the capacity memory is wrong: claims that select on it fit or fail wrongly",
        ("offering chips",),
    ),
    Assumption(
        "container-sysfs",
        "the /sys of any container shows the chips of the host",
        _inferred("Linux: sysfs has no namespaces but for the network; AWS's own manifests mount no /sys either"),
        Check("sys/devices/virtual/neuron_device/ of the container and of the host", verdicts.container_sysfs),
        "the driver's pod finds no chips: nothing is published",
        ("offering chips",),
    ),
    Assumption(
        "kubelet-directories",
        "kubelet's root directory is /var/lib/kubelet",
        _public("Kubernetes, kubelet --root-dir"),
        files("plugins_registry", needs=(visible_kubelet,)),
        "the driver's pod does not start: install with --kubelet-root",
        ("containers with chips",),
    ),
    Assumption(
        "kubelet-sockets",
        "kubelet serves the device plugin and PodResources sockets",
        _public("Kubernetes, concepts/extend-kubernetes/compute-storage-net/device-plugins"),
        files("device-plugin-socket", "pod-resources-socket", needs=(visible_kubelet,)),
        "the device plugin cannot register, and the driver cannot tell whether a device plugin offers the same chips",
        ("containers with chips",),
    ),
    Assumption(
        "runtime-cdi",
        "the container runtime has CDI enabled",
        _public("containerd, docs/cri/config.md; CRI-O, crio.conf.5"),
        Check("the Node's status.nodeInfo.containerRuntimeVersion (--container-runtime)", verdicts.runtime_cdi),
        "containers start without their chips, or not at all (unresolvable CDI devices)",
        ("containers with chips",),
    ),
    Assumption(
        "runtime-cdi-variables",
        "what CDI sets replaces a variable of the pod or of the image",
        _public("containerd, internal/cri (CDI edits come last); CRI-O, cri-o#9292"),
        Check("the Node's status.nodeInfo.containerRuntimeVersion (--container-runtime)", verdicts.runtime_variables),
        f"a pod with its own {VISIBLE_CORES} uses cores of other pods on a shared chip",
        ("sharing chips",),
    ),
    Assumption(
        "chips-open",
        "root can open the node of each chip",
        _interface(f"{_DRIVER} (opening for writing only attaches nothing)"),
        Check("dev/neuronN, opened and closed (--probe host)", verdicts.opens("once")),
        "containers cannot use the chip that they were given",
        ("containers with chips",),
    ),
    Assumption(
        "chips-open-twice",
        "two processes can have one chip open",
        _interface(_DRIVER),
        Check("dev/neuronN, opened by two processes (--probe host)", verdicts.opens("twice")),
        "pods cannot share a chip: offer no cores (--partitions) and let no two pods use one claim",
        ("sharing chips",),
    ),
    Assumption(
        "container-opens-own",
        "a container with a claim has a node of each of its chips and can open it",
        _public("cncf-tags/container-device-interface, SPEC.md"),
        Check("/dev of the container (--probe container)", verdicts.container_opens_own),
        "containers cannot use the chips that they were given",
        ("containers with chips",),
    ),
    Assumption(
        "container-opens-no-other",
        "a container with a claim can open no other chip of the host",
        _public("Linux, Documentation/admin-guide/cgroup-v2.rst (device controller)"),
        Check(
            "chips in the container's /sys, by nodes of its own (--probe container)", verdicts.container_opens_no_other
        ),
        "pods can use chips that were allocated to others; look for an OCI hook and for privileged pods",
        ("containers with chips",),
    ),
    Assumption(
        "container-run",
        "the chips of a container are consecutive on the host, and ascend as its numbers do",
        _interface(f"{_DRIVER} (cores are reserved relative to the first chip); {_SDK}, deploy/troubleshooting.rst"),
        Check("dev of the host's chips and of the container's (--probe container)", verdicts.container_run),
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
    return tuple(Line(number, row, row.check.judge(host)) for number, row in enumerate(TABLE, 1))


Trust = Literal["as assumed", "not fully checked", "do not rely on it"]


class FeatureTrust(NamedTuple):
    """What the verdicts mean for one feature."""

    feature: Feature
    trust: Trust
    because: tuple[int, ...]
    """Numbers of the rows that differ, or else were not checked."""


def trust(lines: tuple[Line, ...]) -> Iterator[FeatureTrust]:
    """Which features can be relied on, in the order in which the table first names them."""
    features = dict.fromkeys(feature for row in TABLE for feature in row.features)
    for feature in features:
        needed = [line for line in lines if feature in line.assumption.features]
        if differing := tuple(line.number for line in needed if line.verdict.state == "differs"):
            yield FeatureTrust(feature, "do not rely on it", differing)
        elif missing := tuple(line.number for line in needed if line.verdict.state == "not checked"):
            yield FeatureTrust(feature, "not fully checked", missing)
        else:
            yield FeatureTrust(feature, "as assumed", ())
