"""Each line of ``verify-host``: ok on a host that is as assumed; broken on purpose, it is the one that differs."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from dra_driver.neuron.emulation.writer import EmulationOptions
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES
from dra_driver.neuron.topology.ultraserver import Mode
from dra_driver.operations.verification.assumptions import TABLE, judge, trust
from dra_driver.operations.verification.collect import collect
from dra_driver.operations.verification.evidence import Evidence, Opened, SeenFile
from tests.builders.verification import (
    Change,
    container,
    emulated,
    files,
    furnished,
    on_hardware,
    said,
    with_listed,
    without,
)
from tests.golden import golden

pytestmark = pytest.mark.slow

CHIP = "sys/devices/virtual/neuron_device/neuron3"
CLASS = "sys/class/neuron_device"
HARDWARE = f"{CHIP}/stats/hardware"
PCI = "sys/bus/pci/devices"
CODES = [row.code for row in TABLE]
EMULATED = [kind.name for kind in INSTANCE_TYPES.values() if kind.devices is not None]


class Broken(NamedTuple):
    """How one assumption is broken, and which others are necessarily broken with it."""

    change: Change
    also: tuple[str, ...] = ()


def node(number: str) -> Change:
    return lambda host: said(files={**host.files, "dev/neuron3": SeenFile(kind="device", number=number)})(host)


BREAKERS: dict[str, Broken] = {
    "instance-type": Broken(files({"sys/devices/virtual/dmi/id/product_name": "Standard PC (Q35)"})),
    "kernel-driver-version": Broken(files({"sys/module/neuron/version": "2.x"})),
    "boot-id": Broken(files({"proc/sys/kernel/random/boot_id": "none"})),
    "chip-directories": Broken(without(f"{CLASS}/neuron3")),
    "chip-count": Broken(without("neuron15"), ("links-symmetric", "neuron-ls-devices", "container-sysfs")),
    "device-numbers": Broken(files({f"{CHIP}/dev": "245"})),
    "device-nodes": Broken(node("245:9")),
    "major-number": Broken(files({"proc/devices": "244 neuron"})),
    "core-count": Broken(files({f"{CHIP}/core_count": "4"}), ("core-directories",)),
    "core-directories": Broken(without("neuron3/neuron_core7")),
    "architecture": Broken(files({f"{CHIP}/info/architecture/device_name": "Trainium9"})),
    "serial-numbers": Broken(files({f"{CHIP}/info/serial_number": "SN-42"})),
    "device-state": Broken(files({f"{CHIP}/reset": "ready"})),
    "links-form": Broken(files({f"{CHIP}/connected_devices": "2;7"})),
    "links-symmetric": Broken(files({f"{CHIP}/connected_devices": "2, 15, 7, 5"}), ("links-fabric", "neuron-ls-links")),
    "links-fabric": Broken(
        files(
            {
                "sys/devices/virtual/neuron_device/neuron0/connected_devices": "12, 1, 3, 4, 5",
                "sys/devices/virtual/neuron_device/neuron5/connected_devices": "4, 9, 1, 6, 0",
            }
        ),
        ("neuron-ls-links",),
    ),
    "pci-addresses": Broken(files({f"{PCI}/0000:cb:00.0/device": "0xefa2"}), ("efa-addresses",)),
    "numa-nodes": Broken(files({f"{PCI}/0000:cb:00.0/numa_node": "0", f"{PCI}/0000:ca:00.0/numa_node": "0"})),
    "pcie-roots": Broken(files({f"{PCI}/0000:cb:00.0": "../../../devices/platform/0000:cb:00.0"})),
    "efa-addresses": Broken(files({f"{PCI}/0000:01:00.0/vendor": "0x1d0f", f"{PCI}/0000:01:00.0/device": "0xefa3"})),
    "efa-near": Broken(files({f"{PCI}/0000:ca:00.0/numa_node": "0"})),
    "lnc-file": Broken(files({"opt/aws/neuron/logical_nc_config": "NEURON_LOGICAL_NC_CONFIG=3"})),
    "ultraserver-files": Broken(files({f"{CLASS}/server_id_4": "1000000000000000", f"{CLASS}/node_id_4": "2"})),
    "ultraserver-ids": Broken(files({f"{CLASS}/node_id_4": "7"})),
    "ultraserver-modes": Broken(files({f"{CLASS}/ultraserver_mode": "1,9"})),
    "ecc-counters": Broken(files({f"{HARDWARE}/mem_ecc_uncorrected": "0xdeadbeef"})),
    "corrected-counters": Broken(files({f"{HARDWARE}/sram_ecc_corrected": None})),
    "unhealthy-components": Broken(files({f"{HARDWARE}/health_status/unhealthy_components": "warp_core"})),
    "health-files": Broken(files({f"{HARDWARE}/health_status/hw_error_event": None})),
    "heartbeat": Broken(said(heartbeats=dict.fromkeys(range(16), "1"))),
    "core-counters": Broken(files({f"{CHIP}/neuron_core2/stats/status/hw_nc_ue_error/total": "many"})),
    "kernel-log": Broken(said(kernel_log=("NEURON_HW_ERR=NEW_ERROR nd-id=0 nc-id=0",))),
    "firmware-answers": Broken(said(unanswered=("neuron:fw_io_execute_request: cmd: 1 timed out",))),
    "neuron-ls-devices": Broken(lambda host: msgspec.structs.replace(host, neuron_ls=(host.neuron_ls or ())[1:])),
    "neuron-ls-addresses": Broken(lambda host: with_listed(host, 3, bdf="b5:00.0")),
    "neuron-ls-links": Broken(lambda host: with_listed(host, 3, connected_to=(2,))),
    "neuron-ls-cores": Broken(lambda host: with_listed(host, 3, logical_neuroncore_config=1)),
    "neuron-ls-memory": Broken(lambda host: with_listed(host, 3, memory_size=1)),
    "container-sysfs": Broken(said(container_chips=())),
    "kubelet-directories": Broken(without("plugins_registry")),
    "kubelet-sockets": Broken(without("pod-resources/kubelet.sock")),
    "runtime-cdi": Broken(said(container_runtime="containerd://1.6.8")),
    "runtime-cdi-variables": Broken(said(container_runtime="cri-o://1.31.4")),
    "chips-open": Broken(said(opened=Opened({0: "ok", 3: "Input/output error"}, {0: "ok"}))),
    "chips-open-twice": Broken(said(opened=Opened({0: "ok", 3: "ok"}, {0: "ok", 3: "Device or resource busy"}))),
    "container-opens-own": Broken(container(opened={0: "ok", 1: "Operation not permitted"})),
    "container-opens-no-other": Broken(container(others={5: "ok", 6: "no node can be made: EPERM"})),
    "container-run": Broken(container(nodes={0: "245:4", 1: "245:6"})),
}
"""Code of a row to how it is broken."""

TYPE_OF = {"ultraserver-ids": "trn2u.48xlarge", "ultraserver-modes": "trn2u.48xlarge"}


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Evidence]:
    """Complete hosts by type."""
    names = ("trn2.48xlarge", "trn2u.48xlarge")
    return {name: on_hardware(tmp_path_factory.mktemp("host"), name) for name in names}


def states(host: Evidence) -> dict[str, str]:
    return {line.assumption.code: line.verdict.state for line in judge(host)}


def verdicts(host: Evidence, state: str = "") -> list[str]:
    return [
        f"{line.assumption.code}: {line.verdict.why}"
        for line in judge(host)
        if line.verdict.state == (state or line.verdict.state)
    ]


def differing(host: Evidence) -> set[str]:
    return {code for code, state in states(host).items() if state == "differs"}


def test_every_row_has_a_breaker_and_a_code_of_its_own() -> None:
    assert list(BREAKERS) == CODES


def test_on_a_complete_host_every_line_is_ok(hosts: dict[str, Evidence]) -> None:
    about_servers = {"ultraserver-ids", "ultraserver-modes"}
    unknown_addresses = {"pci-addresses", "numa-nodes", "pcie-roots", "efa-near", "neuron-ls-addresses"}
    assert {code for code, state in states(hosts["trn2.48xlarge"]).items() if state != "ok"} == about_servers
    assert {code for code, state in states(hosts["trn2u.48xlarge"]).items() if state != "ok"} == unknown_addresses


@pytest.mark.parametrize("code", BREAKERS)
def test_a_broken_assumption_makes_its_line_differ(code: str, hosts: dict[str, Evidence]) -> None:
    host = hosts[TYPE_OF.get(code, "trn2.48xlarge")]
    broken = BREAKERS[code].change(host)
    assert differing(host) == set()
    assert differing(broken) == {code, *BREAKERS[code].also}
    line = next(line for line in judge(broken) if line.assumption.code == code)
    assert line.verdict.why
    golden(verdicts(broken, "differs"))
    lost = {item.feature for item in trust(judge(broken)) if item.trust == "do not rely on it"}
    assert lost >= set(line.assumption.features)


@pytest.mark.parametrize("name", EMULATED)
def test_no_line_differs_on_an_emulated_host(name: str, tmp_path: Path) -> None:
    host = collect(furnished(tmp_path, name))
    assert differing(host) == set()
    assert sum(state == "ok" for state in states(host).values()) >= 20


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("trn2u.48xlarge", EmulationOptions(ultraserver_modes=(Mode.X2V, Mode.X1), node_ids={2: 1})),
        ("trn2u.48xlarge", EmulationOptions(ultraserver_modes=(Mode.X1,))),
        ("trn2u.48xlarge", EmulationOptions(ultraserver_modes=(Mode.X4, Mode.X2H, Mode.X1), node_ids={4: 3})),
        ("trn3e.24xlarge", EmulationOptions(node_count=16)),
        ("trn2.3xlarge", EmulationOptions(logical_nc_config=1)),
        ("trn2.3xlarge", EmulationOptions(logical_nc_config=2)),
        ("trn2.3xlarge", EmulationOptions(driver_version="2.24.7.0")),
        ("trn1.2xlarge", EmulationOptions(driver_version="2.26.10.0", logical_nc_config=1)),
    ],
    ids=str,
)
def test_nor_with_another_mode_size_or_kernel_driver(name: str, options: EmulationOptions, tmp_path: Path) -> None:
    assert differing(collect(furnished(tmp_path, name, options))) == set()


def test_an_election_that_runs_is_no_difference(tmp_path: Path) -> None:
    host = collect(emulated(tmp_path, "trn2u.48xlarge", EmulationOptions(busy=True)))
    assert differing(host) == set()
    why = {line.assumption.code: line.verdict.why for line in judge(host)}
    golden(why["ultraserver-ids"])


def test_an_empty_directory_has_no_chips_and_no_type(tmp_path: Path) -> None:
    host = collect(tmp_path)
    assert differing(host) == {"instance-type", "kernel-driver-version"}
    assert {code for code, state in states(host).items() if state == "ok"} == {"lnc-file"}


NO_SERVER = {"ultraserver-ids", "ultraserver-modes"}
NO_NEW_FILES = {"corrected-counters", "unhealthy-components", "health-files", "heartbeat"}


@pytest.mark.parametrize(
    ("name", "version", "codes"),
    [
        ("trn2.48xlarge", None, NO_SERVER),
        ("trn2.48xlarge", "2.24.7.0", NO_SERVER | NO_NEW_FILES),
        ("trn2u.48xlarge", None, set[str]()),
        ("inf1.xlarge", "2.24.7.0", NO_SERVER | NO_NEW_FILES | {"serial-numbers", "efa-addresses"}),
    ],
)
def test_what_hosts_of_a_type_or_with_a_kernel_driver_lack_does_not_apply(
    name: str, version: str | None, codes: set[str], tmp_path: Path
) -> None:
    host = collect(emulated(tmp_path, name, EmulationOptions(driver_version=version)))
    assert {code for code, state in states(host).items() if state == "n/a"} == codes
    golden(verdicts(host, "n/a"))
    about_servers = next(item for item in trust(judge(host)) if item.feature == "UltraServers")
    assert about_servers.trust == "as assumed"


def test_a_file_that_only_root_may_read_is_not_checked(hosts: dict[str, Evidence]) -> None:
    host = hosts["trn2.48xlarge"]
    unreadable = {**host.files, f"{CHIP}/reset": SeenFile(problem="Permission denied", mode=0o600)}
    line = next(
        line
        for line in judge(msgspec.structs.replace(host, files=unreadable))
        if line.assumption.code == "device-state"
    )
    assert line.verdict.state == "not checked"
    golden(line.verdict.why)


@pytest.mark.parametrize(
    ("runtime", "state"),
    [
        ("containerd://2.0.0", "ok"),
        ("containerd://1.7.27", "not checked"),
        ("containerd://1.6.8", "differs"),
        ("cri-o://1.34.1", "ok"),
        ("cri-o://1.33.2", "ok"),
        ("docker://27.0", "differs"),
        ("", "not checked"),
    ],
)
def test_cdi_depends_on_the_runtimes_version(runtime: str, state: str, hosts: dict[str, Evidence]) -> None:
    host = msgspec.structs.replace(hosts["trn2.48xlarge"], container_runtime=runtime)
    assert states(host)["runtime-cdi"] == state
    golden(text for text in verdicts(host) if text.startswith("runtime-cdi"))


@pytest.mark.parametrize(("waited", "state"), [(0, "not checked"), (10, "not checked"), (60, "differs")])
def test_a_heartbeat_is_given_a_minute(waited: int, state: str, hosts: dict[str, Evidence]) -> None:
    still = dict.fromkeys(range(16), "1")
    host = msgspec.structs.replace(hosts["trn2.48xlarge"], waited_seconds=waited, heartbeats=still)
    assert states(host)["heartbeat"] == state
    golden(text for text in verdicts(host) if text.startswith("heartbeat"))
