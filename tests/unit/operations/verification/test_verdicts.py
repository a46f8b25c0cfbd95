"""What ``verify-host`` says where something is missing or cannot be judged: all lines that are not ok, host by host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dra_driver.operations.verification.assumptions import judge
from dra_driver.operations.verification.evidence import Evidence, Opened
from tests.builders.verification import Change, container, files, on_hardware, said, with_files, with_listed, without
from tests.golden import golden

CHIP = "sys/devices/virtual/neuron_device/neuron"
CLASS = "sys/class/neuron_device"
UNKNOWN = ("core_count", *(f"info/architecture/{name}" for name in ("arch_type", "instance_type", "device_name")))
"""What tells which chip it is."""


def of_all_chips(name: str, text: Callable[[int], str]) -> Change:
    return lambda host: with_files(host, {f"{CHIP}{chip}/{name}": text(chip) for chip in host.chips})


def listed(**values: Any) -> Change:
    def change(host: Evidence) -> Evidence:
        for chip in host.chips:
            host = with_listed(host, chip, **values)
        return host

    return change


HOSTS: dict[str, tuple[str, Change]] = {
    "nothing was looked at": ("trn2.48xlarge", lambda _: Evidence()),
    "no chips": ("trn2.48xlarge", without("neuron_device", "dev/neuron")),
    "a type that is not known": ("trn2.48xlarge", files({"sys/devices/virtual/dmi/id/product_name": "trn9.48xlarge"})),
    "no type": ("trn2.48xlarge", without("product_name")),
    "numbers that come twice": ("trn2.48xlarge", of_all_chips("dev", lambda chip: f"245:{chip // 2}")),
    "the null device": ("trn2.48xlarge", of_all_chips("dev", lambda _: "1:3")),
    "no major number": ("trn2.48xlarge", files({"proc/devices": ""})),
    "major numbers that cannot be read": ("trn2.48xlarge", without("proc/devices")),
    "no number of cores": ("trn2.48xlarge", files({f"{CHIP}3/core_count": "many"})),
    "no numbers of cores": ("trn2.48xlarge", of_all_chips("core_count", lambda _: "many")),
    "a chip that is not known": (
        "trn2.48xlarge",
        files(
            {"sys/devices/virtual/dmi/id/product_name": "trn9.48xlarge"}
            | {f"{CHIP}{chip}/{name}": "odd" for chip in range(16) for name in UNKNOWN}
        ),
    ),
    "no directories of cores": ("trn2.48xlarge", without("/neuron_core")),
    "no device nodes": ("trn2.48xlarge", without("dev/neuron")),
    "no version": ("trn2.48xlarge", files({"sys/module/neuron/version": "", f"{CLASS}/version": ""})),
    "another architecture": ("trn2.48xlarge", files({f"{CHIP}3/info/architecture/arch_type": "NDv9"})),
    "empty serial numbers": ("trn2.48xlarge", files({f"{CHIP}3/info/serial_number": "0000000000000000"})),
    "serial numbers that come twice": (
        "trn2.48xlarge",
        of_all_chips("info/serial_number", lambda _: "0123456789abcdef"),
    ),
    "links that cannot be read": ("trn2.48xlarge", files({f"{CHIP}3/connected_devices": "2;7"})),
    "a chip is missing": ("trn2.48xlarge", without("neuron15")),
    "no PCI devices": ("trn2.48xlarge", without("bus/pci")),
    "no EFA devices": (
        "trn2.48xlarge",
        lambda host: with_files(
            host, {path: "0x0000" for path, seen in host.files.items() if (seen.text or "").startswith("0xefa")}
        ),
    ),
    "no NUMA nodes": ("trn2.48xlarge", without("numa_node")),
    "another number of chips": (
        "trn2.48xlarge",
        files({"sys/devices/virtual/dmi/id/product_name": "trn3sn.48xlarge"}),
    ),
    "a file of an UltraServer": ("trn2u.48xlarge", without("server_id", "node_id", "ultraserver_mode")),
    "ids that do not fit": ("trn2u.48xlarge", files({f"{CLASS}/node_id_4": "-1", f"{CLASS}/node_id_2": "-1"})),
    "modes without ids": (
        "trn2u.48xlarge",
        files({f"{CLASS}/server_id_4": "0" * 16, f"{CLASS}/node_id_4": "-1"}),
    ),
    "no heartbeat": ("trn2.48xlarge", without("healthcheck_heartbeat")),
    "no counters of cores": ("trn2.48xlarge", without("/stats/status/")),
    "a setting that says nothing": ("trn2.48xlarge", files({"opt/aws/neuron/logical_nc_config": ""})),
    "a type that is not there yet": ("trn2.48xlarge", files({"sys/devices/virtual/dmi/id/product_name": "busy"})),
    "no kernel driver": ("trn2u.48xlarge", without("sys/module/neuron/version")),
    "files of other firmware that say nothing": ("trn2u.48xlarge", files({f"{CLASS}/node_cnt": "many"})),
    "a log without lines": ("trn2.48xlarge", said(kernel_log=())),
    "neuron-ls lists nothing": ("trn2.48xlarge", said(neuron_ls=())),
    "an older neuron-ls": ("trn2.48xlarge", listed(bdf="", memory_size=None)),
    "nothing was opened": ("trn2.48xlarge", said(opened=Opened({}, {}))),
    "a container without chips": ("trn2.48xlarge", container(nodes={}, opened={}, others={})),
    "a container with other chips": ("trn2.48xlarge", container(nodes={0: "245:99"})),
    "firmware without an election": (
        "trn2.48xlarge",
        files({"sys/devices/virtual/dmi/id/product_name": "trn3.48xlarge", f"{CLASS}/ultraserver_mode": "1"}),
    ),
    "older chips": ("trn2.48xlarge", files({"sys/devices/virtual/dmi/id/product_name": "inf1.24xlarge"})),
}


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Evidence]:
    """Complete hosts by type."""
    return {kind: on_hardware(tmp_path_factory.mktemp("host"), kind) for kind in ("trn2.48xlarge", "trn2u.48xlarge")}


def verdicts(host: Evidence) -> list[str]:
    found = [(line.assumption.code, line.verdict) for line in judge(host)]
    return [f"{code}: {verdict.state}, {verdict.seen or 'nothing'}: {verdict.why}" for code, verdict in found]


@pytest.mark.parametrize("name", HOSTS)
def test_what_is_said_of_a_host_differently_than_of_a_complete_one(name: str, complete: dict[str, Evidence]) -> None:
    kind, change = HOSTS[name]
    before = verdicts(complete[kind])
    golden(line for line in verdicts(change(complete[kind])) if line not in before)


@pytest.mark.parametrize("kind", ["trn2.48xlarge", "trn2u.48xlarge"])
def test_what_is_said_of_a_complete_host(kind: str, complete: dict[str, Evidence]) -> None:
    golden(verdicts(complete[kind]))
