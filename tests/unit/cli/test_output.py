"""What a command does when its output cannot be written as it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.golden import golden

TOPOLOGY = [sys.executable, "-m", "dra_driver", "topology", "trn1.2xlarge"]


@pytest.fixture(params=["buffered", "unbuffered"])
def environment(request: pytest.FixtureRequest) -> dict[str, str]:
    """Buffered output fails when the interpreter ends, the other kind at once."""
    others = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return others if request.param == "buffered" else {**others, "PYTHONUNBUFFERED": "1"}


def test_output_to_a_full_disk_is_no_success(environment: dict[str, str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            TOPOLOGY, check=False, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, env=environment
        )
    assert done.returncode == 1
    golden(done.stderr)


def test_a_reader_that_goes_away_early_is_no_error(environment: dict[str, str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as gone:  # noqa: PTH123 - a descriptor
        done = subprocess.run(
            TOPOLOGY, check=False, stdout=gone, stderr=subprocess.PIPE, text=True, timeout=120, env=environment
        )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_command_without_enough_memory_says_what_to_do() -> None:
    program = (
        "import resource; from pathlib import Path; from dra_driver.cli.main import guarded\n"
        "def run():\n"
        "    pages = int(Path('/proc/self/statm').read_text().split()[0]) + (64 << 20) // resource.getpagesize()\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize(),) * 2)\n"
        "    held = []\n"
        "    while True: held.append(bytes(1000))\n"
        "raise SystemExit(guarded(run))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (1, "")
    golden(done.stderr)


def test_names_that_the_terminal_cannot_show_are_escaped(tmp_path: Path) -> None:
    result = {"request": "n", "driver": "neuron.aws.com", "pool": "node", "device": "neuron-device-0"}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "caf\u00e9\ud800", "namespace": "default", "uid": "00000001-1111-4222-8333-444444444444"},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }
    file = tmp_path / "claim.json"
    file.write_text(json.dumps(claim))
    for encoding in ("ascii", "utf-8"):
        done = subprocess.run(
            [sys.executable, "-m", "dra_driver", "plan", "--instance-type", "trn1.2xlarge", "-f", str(file)],
            check=False,
            capture_output=True,
            timeout=120,
            env={**os.environ, "PYTHONIOENCODING": encoding},
        )
        assert done.returncode == 0, done.stderr
        assert b"\\ud800" in done.stdout


def test_a_driver_of_real_hardware_needs_no_place_for_temporary_files(tmp_path: Path) -> None:
    arguments = ["kubelet-plugin", "--node-name", "n", "--kubeconfig", str(tmp_path / "nowhere")]
    program = (
        f"import tempfile; tempfile.tempdir = {str(tmp_path / 'gone')!r}; "
        f"from dra_driver.cli.main import main; raise SystemExit(main({arguments!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env={name: value for name, value in os.environ.items() if not name.startswith("NEURON_")},
    )
    golden(done.stderr)
