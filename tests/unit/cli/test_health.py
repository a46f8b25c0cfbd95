"""``dra-driver health`` shows what the host says and what the driver remembers."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

import pytest

from dra_driver.cli.main import main
from dra_driver.neuron.emulation.tree import DEVICES
from dra_driver.neuron.emulation.writer import EmulationOptions, write_host
from dra_driver.neuron.health.assess import ChipMemory, HealthMemory, Track
from dra_driver.neuron.health.clearing import Answer, answer, take
from dra_driver.neuron.health.memory import MemoryFile
from dra_driver.neuron.host.discover import boot_id
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES
from tests.builders.documents import document as parsed
from tests.eventually import eventually
from tests.golden import golden


@pytest.fixture
def host(tmp_path: Path) -> Path:
    options = EmulationOptions(ecc={1: {"mem": 3, "repairable": 1}}, driver_version="2.24.7.0")
    write_host(tmp_path / "host", INSTANCE_TYPES["inf2.24xlarge"], options)
    return tmp_path / "host"


def test_the_document_has_every_device_and_its_faults(host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["health", "--host-root", str(host), "--state-dir", str(host / "none"), "-o", "json"]) == 0
    (node,) = parsed(capsys.readouterr().out)["items"]
    found = node["chips"]
    assert [(chip["index"], chip["state"]) for chip in found[:3]] == [(0, "healthy"), (1, "unhealthy"), (2, "healthy")]
    assert [{**fault, "since": ""} for fault in found[1]["faults"]] == [
        {"code": code, "severity": "unhealthy", "since": "", "effect": "NoSchedule", "remedy": remedy}
        for code, remedy in (("hbm-uncorrectable", "replacement"), ("hbm-repairable", "driver-reload"))
    ]


def test_the_table_has_a_line_for_each_fault_and_says_what_to_do(
    host: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["health", "--host-root", str(host), "--state-dir", str(host / "none")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["DEVICE", "STATE", "FAULT", "SEVERITY", "SINCE", "EFFECT", "REMEDY"]
    assert [line.split()[:3] for line in lines[2:4]] == [
        ["neuron1", "unhealthy", "hbm-uncorrectable"],
        ["neuron1", "unhealthy", "hbm-repairable"],
    ]
    golden(lines[-2])


def test_a_kernel_driver_that_is_not_loaded_is_one_row_with_its_remedy(
    host: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(host / "sys/module/neuron")
    shutil.rmtree(host / DEVICES)
    arguments = ["health", "--host-root", str(host), "--state-dir", str(host / "none")]
    assert main([*arguments, "-o", "json"]) == 0
    (node,) = parsed(capsys.readouterr().out)["items"]
    (fault,) = node["faults"]
    assert (node["chips"], fault["code"]) == ([], "driver-not-loaded")
    assert main(arguments) == 0
    _, row = capsys.readouterr().out.splitlines()
    golden(row)
    assert row.endswith(fault["remedy"])


def test_what_the_driver_remembers_is_shown_with_its_time_and_nothing_is_written(
    host: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    record = MemoryFile(state)
    tracks = {"log-dma": Track(1_800_000_000, 1_800_000_000)}
    record.write(HealthMemory(boot_id(host), "2.24.7.0", (ChipMemory(0, None, tracks),)))
    before = (state / "health.json").read_bytes()
    assert main(["health", "--host-root", str(host), "--state-dir", str(state), "-o", "json"]) == 0
    (fault,) = parsed(capsys.readouterr().out)["items"][0]["chips"][0]["faults"]
    assert (fault["code"], fault["since"]) == ("log-dma", "2027-01-15T08:00:00Z")
    assert (state / "health.json").read_bytes() == before
    assert [path.name for path in state.iterdir()] == ["health.json"]


def effects(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, str]:
    """Effect by code of the fault, as JSON says; the table says the same."""
    assert main(["health", *arguments, "-o", "json"]) == 0
    (node,) = parsed(capsys.readouterr().out)["items"]
    found = {fault["code"]: fault["effect"] for chip in node["chips"] for fault in chip["faults"]}
    assert main(["health", *arguments]) == 0
    rows = [line.split() for line in capsys.readouterr().out.partition("\n\n")[0].splitlines()[1:]]
    assert {row[2]: row[5] for row in rows if row[2] != "-"} == found
    return found


def test_the_effect_is_what_the_administrators_table_says_of_this_instance_type(
    host: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = ("--host-root", str(host), "--state-dir", str(tmp_path / "none"))
    policy, other = tmp_path / "policy.yaml", tmp_path / "other.yaml"
    policy.write_text(
        "rules:\n"
        "- {fault: hbm-uncorrectable, instanceTypes: [trn2.48xlarge], effect: None}\n"
        "- {fault: hbm-uncorrectable, instanceTypes: [inf2.24xlarge], effect: NoExecute}\n"
        "- {severity: unhealthy, effect: None}\n"
    )
    other.write_text("rules: [{severity: unhealthy, effect: NoExecute}]")
    shown = {"hbm-uncorrectable": "NoExecute", "hbm-repairable": "None"}
    assert effects(capsys, *state, "--health-policy", str(policy)) == shown
    monkeypatch.setenv("HEALTH_POLICY", str(policy))
    assert effects(capsys, *state) == shown
    assert effects(capsys, *state, "--health-policy", str(other)) == dict.fromkeys(shown, "NoExecute")
    monkeypatch.setenv("HEALTH_POLICY", "")
    assert effects(capsys, *state) == dict.fromkeys(shown, "NoSchedule")


@pytest.mark.parametrize(("grace", "effect"), [(3600, "NoSchedule"), (600, "NoExecute")])
def test_during_the_time_of_grace_the_effect_is_the_one_that_holds_now(
    host: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], grace: int, effect: str
) -> None:
    began = int(time.time()) - 1800
    uptime = time.clock_gettime(time.CLOCK_BOOTTIME) - 1800
    tracks = {code: Track(began, began, uptime=uptime) for code in ("hbm-uncorrectable", "hbm-repairable")}
    MemoryFile(tmp_path / "state").write(HealthMemory(boot_id(host), "2.24.7.0", (ChipMemory(1, None, tracks),)))
    policy = tmp_path / "policy.yaml"
    policy.write_text(f"rules: [{{severity: unhealthy, effect: NoExecute, graceSeconds: {grace}}}]")
    arguments = ("--host-root", str(host), "--state-dir", str(tmp_path / "state"), "--health-policy", str(policy))
    assert effects(capsys, *arguments) == {"hbm-uncorrectable": effect, "hbm-repairable": effect}


DRIVER, PLUGIN = f"plugins/{DRIVER_NAME}/health", "plugin/health"


@pytest.fixture
def daemons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Below it, driver and device plugin keep their records."""
    monkeypatch.setenv("KUBELET_PLUGINS_DIRECTORY_PATH", str(tmp_path / "plugins"))
    monkeypatch.setenv("STATE_DIR", str(tmp_path / "plugin"))
    return tmp_path


@pytest.mark.parametrize(("there", "asked"), [([DRIVER], DRIVER), ([PLUGIN], PLUGIN), ([DRIVER, PLUGIN], DRIVER)])
def test_the_record_is_that_of_the_driver_or_else_of_the_device_plugin(
    host: Path, daemons: Path, capsys: pytest.CaptureFixture[str], there: list[str], asked: str
) -> None:
    for name, code in ((DRIVER, "log-dma"), (PLUGIN, "log-core")):
        if name in there:
            tracks = {code: Track(1_800_000_000, 1_800_000_000)}
            record = HealthMemory(boot_id(host), "2.24.7.0", (ChipMemory(0, None, tracks),))
            # Of the host that is looked at, and of the node that the command runs on.
            for directory in (host.joinpath(*(daemons / name).parts[1:]), daemons / name):
                MemoryFile(directory).write(record)
    assert main(["health", "--host-root", str(host), "-o", "json"]) == 0
    (fault,) = parsed(capsys.readouterr().out)["items"][0]["chips"][0]["faults"]
    assert fault["code"] == ("log-dma" if asked == DRIVER else "log-core")

    statuses: list[int] = []
    command = threading.Thread(target=lambda: statuses.append(main(["health", "clear", "neuron0"])))
    command.start()
    requests: dict[str, int] = {}

    def asks() -> bool:
        requests.update(take(daemons / asked))
        return bool(requests)

    eventually(asks, what="the request")
    ((identity, device),) = requests.items()
    answer(daemons / asked, identity, Answer(device, cleared=("log-dma",)))
    command.join(30)
    assert (statuses, capsys.readouterr().out) == ([0], "neuron0: cleared log-dma\n")


@pytest.mark.usefixtures("daemons")
def test_on_a_node_without_any_record_the_drivers_directory_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["health", "clear", "neuron3"]) == 1
    golden(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["--health-policy", "{tmp}/none", "--host-root", "{tmp}"], 2, "the health policy {tmp}/none cannot be read"),
        (["--host-root", "{tmp}/none"], 2, "is not a directory"),
        (["--host-root", "{tmp}"], 1, "there is no Neuron device"),
        (["clear", "neuronX", "--state-dir", "{tmp}"], 2, "'neuronX' is not a device"),
        (["clear", "neuron3", "--state-dir", "{tmp}/none"], 1, "cannot be used"),
    ],
)
def test_what_is_not_possible_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, text: str
) -> None:
    assert main(["health", *(word.format(tmp=tmp_path) for word in arguments)]) == status
    assert text.format(tmp=tmp_path) in capsys.readouterr().err
