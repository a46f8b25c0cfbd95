"""All that commands print as JSON and YAML has the same form, and the keys that the reference page has."""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.cli.kinds import FOREIGN, KEYS, KINDS, LISTS
from dra_driver.cli.main import complete_program, main
from tests.builders.documents import document, shapes
from tests.builders.overview import (
    add_holder,
    add_neuron_node,
    add_plugin_node,
    add_plugin_pod,
    add_waiting,
    taint,
)
from tests.doubles.apiserver.server import ApiServer
from tests.paths import SPECS

pytestmark = pytest.mark.slow

TRN2 = ("--instance-type", "trn2.48xlarge")
ROW, ALL, CORES = (
    str(SPECS / name)
    for name in ("1x4-connected-devices.yaml", "all-devices.yaml", "partitions/two-pods-on-a-chip.yaml")
)
HOST_LINES = (
    ("health", "--host-root", "HOST"),
    ("topology", "--host-root", "HOST"),
    ("slices", "--host-root", "HOST"),
    ("verify-host", "--host-root", "HOST"),
)
LINES = (
    *HOST_LINES,
    ("top", "-A", "LIVE"),
    ("health", "LIVE"),
    ("explain", "pod/big-1", "-n", "ml", "LIVE"),
    ("topology", "--from-cluster", "node-1", "LIVE"),
    ("topology", "trn2u.48xlarge", "--devices", "4-7,neuron-core-0-0"),
    ("topology", "trn2.48xlarge", "--partitions", "core.group"),
    ("slices", *TRN2),
    ("template", *TRN2, "--for", "karpenter"),
    ("template", *TRN2, "--for", "kwok"),
    ("template", *TRN2, "--for", "cluster-autoscaler"),
    ("select", "device.driver == 'neuron.aws.com'", *TRN2),
    ("select", "device.driver == 'neuron.aws.com'"),
    ("migrate", "LIMITS", *TRN2),
    ("simulate", CORES, *TRN2, "--partitions", "chip.core"),
    ("simulate", ROW, "--instance-type", "trn2.3xlarge"),
    ("simulate", "SHARED", "--instance-type", "trn2.3xlarge"),
    ("explain", ROW, "--instance-type", "trn2.3xlarge"),
    ("explain", ROW, *TRN2),
    ("explain", "EQUAL", *TRN2),
    ("plan", "PLACED", *TRN2),
)
LIMITS = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "train"},
    "spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": {"aws.amazon.com/neuron": 4}}}]},
}
EQUAL = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "equal"},
    "spec": {
        "devices": {
            "requests": [{"name": "chips", "exactly": {"deviceClassName": "neuron.aws.com", "count": 2}}],
            "constraints": [{"matchAttribute": "neuron.aws.com/deviceId"}],
        }
    },
}

SHARED = {
    "apiVersion": "v1",
    "kind": "List",
    "items": [
        {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "nic"}, "spec": {}},
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": "nic"},
            "spec": {
                "driver": "nic.example",
                "nodeName": "node-1",
                "pool": {"name": "node-1", "generation": 1, "resourceSliceCount": 1},
                "devices": [
                    {"name": "eth0", "allowMultipleAllocations": True, "capacity": {"bandwidth": {"value": "40G"}}}
                ],
            },
        },
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "share"},
            "spec": {
                "devices": {
                    "requests": [
                        {
                            "name": "nic",
                            "exactly": {
                                "deviceClassName": "nic",
                                "selectors": [{"cel": {"expression": "device.driver == 'nic.example'"}}],
                                "capacity": {"requests": {"bandwidth": "10G"}},
                            },
                        }
                    ]
                }
            },
        },
    ],
}


@pytest.fixture
def places(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[dict[str, list[str]]]:
    """What stands for the words in capitals: a host and a cluster with all that is said of such, and files."""
    host, placed = tmp_path / "host", tmp_path / "placed.yaml"
    files = {"HOST": [str(host)], "PLACED": [str(placed)]}
    for name, content in (("LIMITS", LIMITS), ("EQUAL", EQUAL), ("SHARED", SHARED)):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
        files[name] = [str(tmp_path / f"{name}.json")]
    assert main(["emulate-host", *TRN2, str(host)]) == 0
    (host / "sys/devices/virtual/neuron_device/neuron0/stats/hardware/mem_ecc_uncorrected").write_text("3\n")
    capsys.readouterr()
    assert main(["simulate", CORES, *TRN2, "--partitions", "chip.core", "-o", "yaml"]) == 0
    placed.write_text(capsys.readouterr().out)
    with ApiServer() as server:
        labels = {"neuron.amazonaws.com/ultraserver-server-id-4": "0123456789abcdef"}
        sick = {"neuron-device-3": [taint("hbm-uncorrectable")]}
        add_neuron_node(server, "node-1", partitions="chip.core", taints=sick, labels=labels)
        add_plugin_node(server, "old-1")
        add_holder(server, "ml", "train-0", "node-1", ["neuron-device-3", "neuron-core-0-0"])
        add_plugin_pod(server, "web", "legacy", "old-1", "0,1")
        add_waiting(server, "ml", "big-1", "0/2 nodes are available: 2 cannot allocate all claims.")
        yield files | {"LIVE": ["--kubeconfig", str(server.kubeconfig(tmp_path / "kubeconfig"))]}


def printed(line: tuple[str, ...], places: dict[str, list[str]], capsys: pytest.CaptureFixture[str], form: str) -> str:
    main([*(word for part in line for word in places.get(part, [part])), "-o", form])
    return capsys.readouterr().out


def test_each_command_prints_what_the_reference_page_says(
    places: dict[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    kinds, made_of = set(), defaultdict[str, set[str]](set)
    for line in LINES:
        found = document(printed(line, places, capsys, "json"))
        if line[0] not in ("simulate", "migrate"):
            assert document(printed(line, places, capsys, "yaml")).keys() == found.keys()
        if found["kind"] == "List":
            assert line[0] in LISTS
            continue
        assert KINDS[found["kind"]].command.split()[0] == line[0]
        kinds.add(found["kind"])
        for key, shape in shapes(found):
            made_of[key] |= {shape} - {""}
    assert kinds == KINDS.keys()
    assert made_of.keys() == KEYS.keys(), "what no command prints is not documented"
    assert {key: shapes for key, shapes in made_of.items() if len(shapes) > 1} == {}, "one key is one thing"


def test_each_command_with_json_or_yaml_is_tried() -> None:
    """A command added to the program is added to the lines above, and so to the tables."""
    parser = complete_program()
    (commands,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    formats = {
        name: {word for action in command._actions if "-o" in action.option_strings for word in action.choices or ()}
        for name, command in commands.choices.items()
    }
    assert {name for name, words in formats.items() if words & {"json", "yaml"}} == {line[0] for line in LINES}
    assert {line[0] for line in LINES} == {*LISTS, *(kind.command.split()[0] for kind in KINDS.values())}


def test_the_tables_agree() -> None:
    lists = [kind.keys for kind in KINDS.values()] + [kind.beside for kind in KINDS.values()]
    lists += [key.keys for key in KEYS.values()]
    assert {word for words in lists if words != FOREIGN for word in words.split()} == KEYS.keys()
    assert [*KEYS] == sorted(KEYS, key=str.lower)
