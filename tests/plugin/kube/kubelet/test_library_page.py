from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.doubles.kubelet import Kubelet
from tests.doubles.sample_driver import claim, node_directory
from tests.eventually import eventually
from tests.golden import golden
from tests.paths import ROOT

pytestmark = pytest.mark.slow

CLOCK, FILES = "clock.example.com", "files.example.com"


def example(driver: str) -> str:
    page = (ROOT / "docs/develop/library.md").read_text()
    (code,) = (c for c in re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE) if driver in c)
    return str(code)


@contextmanager
def running(driver: str, tmp_path: Path, *arguments: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The example as a process; fails if it writes to standard error."""
    script = tmp_path / "example.py"
    script.write_text(example(driver))
    with (tmp_path / "stderr").open("w+") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", script, *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stderr=stderr,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            stderr.seek(0)
            assert stderr.read() == ""


@pytest.mark.parametrize(("driver", "lines"), [(CLOCK, 30), (FILES, 40)])
def test_the_examples_are_short(driver: str, lines: int) -> None:
    assert len([line for line in example(driver).splitlines() if line.strip()]) <= lines


def test_the_example_prepares_unprepares_and_ends_on_sigterm(tmp_path: Path) -> None:
    with node_directory() as root, Kubelet(root) as kubelet:
        cdi = root / "cdi"
        cdi.mkdir()
        with running(CLOCK, tmp_path, root, cdi) as process:
            kubelet.wait(lambda: bool(kubelet.instances.get(CLOCK)) or process.poll() is not None, "registered")
            wanted = claim(drivers=(CLOCK,))
            for _ in range(2):
                (device,) = kubelet.prepare("pod", [wanted])[wanted.uid]
                (spec_file,) = cdi.iterdir()
                spec = json.loads(spec_file.read_text())
                (cdi_id,) = device.cdi_ids
                assert cdi_id == f"{spec['kind']}={spec['devices'][0]['name']}"
                assert spec["devices"][0]["containerEdits"]["env"][0].startswith("PREPARED_AT=")
                spec_file.unlink()  # a reboot
                kubelet.restart()
                kubelet.wait_registered(CLOCK)
            kubelet.unprepare("pod")
            assert list(cdi.iterdir()) == []
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=10) == 0
            assert list(kubelet.registry_dir.iterdir()) == []


@pytest.mark.parametrize("release", ["1.36", "1.37"])
def test_the_second_example_reports_health(tmp_path: Path, release: str) -> None:
    with node_directory() as root, Kubelet(root, watches_health=release) as kubelet:

        def reported(health: str, message: str) -> bool:
            return kubelet.health.of(FILES, "node", "one") == (health, message)

        devices = root / "devices"
        devices.mkdir()
        (devices / "one").touch()
        (devices / "two").write_text("its fan stands still\n")
        with running(FILES, tmp_path, root, devices) as process:
            kubelet.wait(lambda: bool(kubelet.instances.get(FILES)) or process.poll() is not None, "registered")
            for text, expected in (("", "Healthy"), ("it is wet", "Unhealthy"), ("", "Healthy")):
                (devices / "one").write_text(text)
                eventually(partial(reported, expected, text))
            golden(kubelet.health.of(FILES, "node", "two"))
            wanted = claim("two", drivers=(FILES,))
            (device,) = kubelet.prepare("pod", [wanted])[wanted.uid]
            assert device.name == "two"
            kubelet.unprepare("pod")
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=10) == 0
            eventually(lambda: kubelet.health.of(FILES, "node", "two") == ("Unknown", ""))
