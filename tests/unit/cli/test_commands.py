"""What each command prints of one set of inputs, whole: text, JSON, YAML, warnings, refusals, and its help."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from dra_driver.cli.main import COMMANDS, DAEMONS, kubectl_main, main
from tests.golden import golden
from tests.paths import SPECS

TYPE = "--instance-type"
SMALL, TORUS = "trn2.3xlarge", "trn2.48xlarge"
CONNECTED, ALL = str(SPECS / "1x4-connected-devices.yaml"), str(SPECS / "all-devices.yaml")


def pod(name: str, **resources: int) -> dict[str, object]:
    limits = {f"aws.amazon.com/{resource}": count for resource, count in resources.items()}
    container = {"name": "main", "image": "train:1", "resources": {"limits": limits}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}


def claim(*devices: str) -> dict[str, object]:
    results = [
        {"request": "chips", "driver": "neuron.aws.com", "pool": "example-node", "device": device} for device in devices
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "pair", "namespace": "shop", "uid": "0b1e6b3c-0000-0000-0000-000000000001"},
        "spec": {"devices": {"requests": [{"name": "chips", "exactly": {"deviceClassName": "neuron.aws.com"}}]}},
        "status": {"allocation": {"devices": {"results": results}}},
    }


# The file that a command reads, by the name that it has in the table below.
FILES = {
    "limits.json": pod("train", neuron=4),
    "odd-limits.json": pod("train", neuron=3),
    "no-limits.json": pod("web"),
    "row.json": claim("neuron-device-4", "neuron-device-5"),
    "apart.json": claim("neuron-device-1", "neuron-device-3"),
    "stranger.json": claim("neuron-device-99"),
}
COMMAND_LINES = [
    ("topology", SMALL),
    ("topology", "trn1.32xlarge"),
    ("topology", "inf2.24xlarge"),
    ("topology", TORUS, "--devices", "4,5,6,7"),
    ("topology", SMALL, "-o", "json"),
    ("topology", SMALL, "-o", "yaml"),
    ("topology", TORUS, "--devices", "16"),
    ("topology", "trn9.48xlarge"),
    ("slices", TYPE, SMALL),
    ("slices", TYPE, SMALL, "-o", "json"),
    ("slices", TYPE, SMALL, "--partitions", "chip.core"),
    ("slices", TYPE, SMALL, "--partitions", "ring"),
    ("template", TYPE, SMALL, "--for", "karpenter", "-o", "yaml"),
    ("template", TYPE, SMALL, "--for", "cluster-autoscaler"),
    ("template", TYPE, SMALL, "--for", "kwok", "-o", "yaml"),
    ("plan", TYPE, TORUS, "row.json"),
    ("plan", TYPE, TORUS, "row.json", "-o", "json"),
    ("plan", TYPE, TORUS, "row.json", "-o", "yaml"),
    ("plan", TYPE, TORUS, "row.json", "--device-numbering", "host"),
    ("plan", TYPE, TORUS, "apart.json"),
    ("plan", TYPE, TORUS, "apart.json", "--contiguity", "refuse"),
    ("plan", TYPE, TORUS, "stranger.json"),
    ("plan", TYPE, TORUS, "nowhere.json"),
    ("select", TYPE, SMALL, "device.driver == 'neuron.aws.com'"),
    ("select", TYPE, SMALL, "device.driver == 'neuron.aws.com'", "-o", "json"),
    ("select", TYPE, SMALL, "device.driver == 'neuron.aws.com'", "-o", "yaml"),
    ("select", TYPE, SMALL, "device.attributes['neuron.aws.com'].nope == 3"),
    ("select", TYPE, SMALL, "device.name == 'x'"),
    ("simulate", CONNECTED, TYPE, TORUS),
    ("simulate", CONNECTED, TYPE, SMALL),
    ("simulate", CONNECTED, TYPE, TORUS, "-o", "json"),
    ("simulate", CONNECTED, TYPE, TORUS, "-o", "yaml"),
    ("simulate", "no-limits.json", TYPE, TORUS),
    ("explain", CONNECTED, TYPE, TORUS),
    ("explain", CONNECTED, TYPE, SMALL),
    ("explain", CONNECTED, TYPE, SMALL, "-o", "json"),
    ("explain", CONNECTED, TYPE, SMALL, "-o", "yaml"),
    ("explain", ALL, TYPE, "trn1.32xlarge=2"),
    ("migrate", "limits.json", TYPE, TORUS),
    ("migrate", "limits.json", TYPE, TORUS, "-o", "json"),
    ("migrate", "limits.json"),
    ("migrate", "odd-limits.json", TYPE, TORUS),
    ("migrate", "no-limits.json", TYPE, TORUS),
    ("emulate-host", TYPE, SMALL, "host"),
    ("emulate-host", TYPE, SMALL),
    ("help", "version"),
    ("help", "nothing"),
    ("nothing",),
    (),
]


def printed(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    """Give what a command prints, and its exit status."""
    try:
        status: object = main(command)
    except SystemExit as ended:
        status = ended.code
    said = capsys.readouterr()
    return f"{said.out}\nstandard error:\n{said.err}\nexit status {status}"


@pytest.mark.parametrize(
    "command",
    COMMAND_LINES,
    ids=lambda command: " ".join(word.removeprefix(f"{SPECS}/") for word in command) or "nothing at all",
)
def test_what_a_command_prints(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, content in FILES.items():
        (tmp_path / name).write_text(json.dumps(content))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    golden(printed(capsys, *command).replace(f"{SPECS}/", ""))


@pytest.mark.parametrize("command", ["health", "slices", "topology", "verify-host"])
def test_what_a_command_prints_of_a_host_with_a_sick_chip(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    host = tmp_path / "host"
    assert main(["emulate-host", TYPE, SMALL, str(host)]) == 0
    capsys.readouterr()
    (host / "sys/devices/virtual/neuron_device/neuron0/stats/hardware/mem_ecc_uncorrected").write_text("3\n")
    golden(printed(capsys, command, "--host-root", str(host)))


argparse_of_3_11 = pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="each version of Python lays out the help of argparse in its own way"
)


@argparse_of_3_11
@pytest.mark.parametrize("command", [*COMMANDS, *DAEMONS])
def test_the_help_of_each_command(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    golden(printed(capsys, command.replace("_", "-"), "--help"))


@argparse_of_3_11
def test_the_help_of_the_programs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    golden(printed(capsys, "--help"), "dra-driver")
    golden(printed(capsys, "help", "daemons"), "help daemons")
    for words in ([], *([command] for command in ("topology", "explain", "top", "health"))):
        with pytest.raises(SystemExit):
            kubectl_main([*words, "--help"])
        golden(capsys.readouterr().out, " ".join(["kubectl neuron", *words]))
