"""``dra-driver verify-host`` and ``emulate-host --from`` as a user sees them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from dra_driver.cli.main import main
from dra_driver.neuron.host import sysfs
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES
from dra_driver.operations.verification.assumptions import TABLE
from dra_driver.operations.verification.collect import collect
from dra_driver.operations.verification.probes import probe_container, probe_host
from tests.builders.documents import document as parsed
from tests.builders.verification import emulated, furnished, neuron_ls, on_hardware, with_files
from tests.golden import golden

pytestmark = pytest.mark.slow

DEVICES = "sys/devices/virtual/neuron_device"


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """An emulated host with one chip."""
    return emulated(tmp_path / "host", "trn2.3xlarge")


def edit(host: Path, path: str, text: str) -> None:
    (host / path).unlink()
    (host / path).write_text(text)


def test_every_line_is_printed_with_source_and_consequence(host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify-host", "--host-root", str(host)]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    for number, row in enumerate(TABLE, 1):
        assert any(line.startswith(f"{number:3}  ") and line.endswith(row.text) for line in lines)
        assert f"source: {row.source.text}" in out
    assert any(line.startswith("health of chips") for line in lines)
    golden(out)


def test_what_differs_gives_status_1_and_names_what_depends_on_it(
    host: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(host, f"{DEVICES}/neuron0/core_count", "16")
    assert main(["verify-host", "--host-root", str(host)]) == 1
    golden(capsys.readouterr().out)


def test_a_report_is_written_judged_and_emulated(
    host: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(host, f"{DEVICES}/neuron0/reset", "ready")
    report, again, copy = tmp_path / "report.json", tmp_path / "again.json", tmp_path / "copy"
    assert main(["verify-host", "--host-root", str(host), "--report", str(report)]) == 1
    assert main(["emulate-host", "--from", str(report), str(copy)]) == 0
    out = capsys.readouterr().out
    golden(out)
    assert main(["verify-host", "--host-root", str(copy), "--report", str(again)]) == 1
    assert again.read_bytes() == report.read_bytes()
    capsys.readouterr()
    assert main(["verify-host", "--from", str(report), "-o", "json"]) == 1
    assert capsys.readouterr().out == report.read_text()
    assert json.loads(report.read_text())["kind"] == "HostReport"


@pytest.mark.parametrize("there", [True, False])
def test_a_report_is_written_through_no_link(
    host: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], there: bool
) -> None:
    mine, report = tmp_path / "mine", tmp_path / "report.json"
    if there:
        mine.write_text("precious")
    report.symlink_to(mine)
    assert main(["verify-host", "--host-root", str(host), "--report", str(report)]) == 1
    golden(capsys.readouterr().err.replace(str(tmp_path), "."))
    assert mine.exists() == there
    assert not there or mine.read_text() == "precious"


def test_a_report_is_never_written_over_a_directory_with_something_else(
    host: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report, taken = tmp_path / "report.json", tmp_path / "taken"
    main(["verify-host", "--host-root", str(host), "--report", str(report)])
    taken.mkdir()
    (taken / "mine").write_text("precious")
    assert main(["emulate-host", "--from", str(report), str(taken)]) == 1
    golden(capsys.readouterr().err)
    assert sorted(path.name for path in taken.iterdir()) == ["mine"]


def test_outputs_of_other_tools_check_more_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host = emulated(tmp_path / "host", "inf2.8xlarge")
    listed, log = tmp_path / "listed.json", tmp_path / "log"
    listed.write_text(json.dumps(neuron_ls(INSTANCE_TYPES["inf2.8xlarge"])))
    error = "<3>[    2.000000] NEURON_HW_ERR=DMA_ERROR nd-id=0 nc-id=0\n"
    log.write_text(error)
    arguments = ["verify-host", "--host-root", str(host), "-o", "json"]
    more = ["--neuron-ls", str(listed), "--kernel-log", str(log), "--container-runtime", "containerd://2.1.5"]
    assert main([*arguments, *more]) == 0
    found = {line["code"]: line["verdict"] for line in parsed(capsys.readouterr().out)["items"]}
    checked = (
        "neuron-ls-devices",
        "neuron-ls-links",
        "neuron-ls-cores",
        "neuron-ls-memory",
        "kernel-log",
        "firmware-answers",
        "runtime-cdi",
        "runtime-cdi-variables",
    )
    assert {code: found[code] for code in checked} == dict.fromkeys(checked, "ok")
    unanswered = "[    9.892601] neuron:fw_io_execute_request: seq: 2, cmd: 1 timed out\n"
    log.write_text(unanswered + error + unanswered)
    report, copy = tmp_path / "report.json", tmp_path / "copy"
    assert main([*arguments, *more, "--report", str(report)]) == 1
    lines = {line["code"]: line for line in parsed(capsys.readouterr().out)["items"]}
    assert {code for code, line in lines.items() if line["verdict"] == "differs"} == {"firmware-answers"}
    golden("\n".join(lines["firmware-answers"][field] for field in ("seen", "reason", "consequence")))
    assert main(["emulate-host", "--from", str(report), str(copy)]) == 0
    assert main(["verify-host", "--host-root", str(copy), "-o", "json"]) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["--host-root", "/nonexistent"],
        ["--from", "/nonexistent"],
        ["--neuron-ls", "/dev/null"],
        ["--wait", "-1"],
        ["--wait", "99999"],
        ["--container-runtime", "x" * 100],
        ["--container-runtime", "a\nb"],
        ["--kernel-log", "/dev/null"],
    ],
)
def test_bad_input_is_status_2(arguments: list[str], host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify-host", "--host-root", str(host), *arguments]) == 2
    golden(capsys.readouterr().err)


def test_options_that_describe_a_host_do_not_go_with_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["emulate-host", "--from", "x", "--logical-core-size", "1", str(tmp_path / "host")]) == 2
    golden(capsys.readouterr().err)


@pytest.mark.parametrize(
    "more",
    [
        ["--wait", "5"],
        ["--neuron-ls", "-"],
        ["--kernel-log", "-"],
        ["--container-runtime", "containerd://2.1.5"],
        ["--probe", "host"],
    ],
    ids=" ".join,
)
def test_what_looks_at_a_host_does_not_go_with_a_report(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify-host", "--from", "report.json", *more]) == 2
    golden(capsys.readouterr().err)


def test_nothing_on_the_host_is_opened_for_writing_or_changed(host: Path, tmp_path: Path) -> None:
    before = {path: path.lstat().st_mtime_ns for path in sorted(host.rglob("*"))}
    assert main(["verify-host", "--host-root", str(host), "--report", str(tmp_path / "report.json")]) == 0
    assert {path: path.lstat().st_mtime_ns for path in sorted(host.rglob("*"))} == before


def test_a_file_that_hangs_in_the_kernel_is_named(
    host: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read, hangs = sysfs._read_all, threading.Event()

    def read_or_hang(path: str) -> bytes:
        if path.endswith("info/serial_number"):
            hangs.wait()
        return read(path)

    monkeypatch.setattr(sysfs, "_read_all", read_or_hang)
    monkeypatch.setattr("dra_driver.operations.verification.collect.READ_SECONDS", 0.5)
    assert main(["verify-host", "--host-root", str(host)]) == 1
    hangs.set()
    golden(capsys.readouterr().err)


def test_probing_opens_every_chip_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host = emulated(tmp_path, "inf2.24xlarge")
    assert main(["verify-host", "--host-root", str(host), "--probe", "host", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["evidence"]["opened"] == {key: {str(chip): "ok" for chip in range(6)} for key in ("once", "twice")}


def test_a_chip_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    host = emulated(tmp_path, "inf2.24xlarge")
    (host / "dev/neuron2").unlink()
    evidence = collect(host)
    (host / "dev/neuron1").unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(host / "dev/neuron1"))
        found = probe_host(host, evidence)
    assert found.once[1] == os.strerror(6)
    assert found.twice[1].startswith("left alone")
    assert 2 not in found.once
    assert found.once[3] == "ok"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root sees the open files of others")
def test_a_chip_in_use_is_left_alone(tmp_path: Path) -> None:
    """A host that is not emulated, whose chip 0 has the number of a device that this test holds open."""
    host = on_hardware(tmp_path, "trn2.3xlarge")
    path = tmp_path / "dev/neuron0"
    path.unlink(missing_ok=True)
    os.mknod(path, 0o20600, os.makedev(1, 5))
    seen = with_files(host, {f"{DEVICES}/neuron0/dev": "1:5"})
    files = {**seen.files, "dev/neuron0": msgspec.structs.replace(seen.files["dev/neuron0"], number="1:5")}
    seen = msgspec.structs.replace(seen, files=files)
    with path.open("rb"):
        found = probe_host(tmp_path, seen)
    # In use; or, as in many containers, it cannot be seen whether it is.
    assert found.once[0].startswith("left alone: ")
    assert found.twice[0].startswith("left alone: ")


def test_a_container_opens_its_own_chips_and_tries_the_others(tmp_path: Path) -> None:
    dev = tmp_path / "dev"
    dev.mkdir()
    (dev / "neuron0").touch()
    (dev / "neuron1").touch()
    evidence = on_hardware(tmp_path / "host", "inf2.24xlarge")
    found = probe_container(evidence, dev)
    assert found.opened == {0: "ok", 1: "ok"}
    assert sorted(found.others) == list(range(6))
    # No such device on this machine; a container without CAP_MKNOD cannot even make the node.
    assert all(text.startswith(("No such device", "no node")) for text in found.others.values())


def test_a_place_without_chips_is_no_container_to_probe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify-host", "--host-root", str(tmp_path), "--probe", "container"]) == 2
    golden(capsys.readouterr().err)


def test_what_others_pipe_in_is_read(tmp_path: Path) -> None:
    host = furnished(tmp_path, "trn2.3xlarge")
    listed = json.dumps(neuron_ls(INSTANCE_TYPES["trn2.3xlarge"]))
    command = [sys.executable, "-m", "dra_driver", "verify-host", "--host-root", str(host), "--neuron-ls", "-"]
    done = subprocess.run(command, input=listed, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    golden(done.stdout)
