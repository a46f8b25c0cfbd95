from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.doubles.kubelet import Kubelet
from tests.doubles.sample_driver import claim, node_directory
from tests.paths import ROOT

DRIVER = "clock.example.com"


def example() -> str:
    page = (ROOT / "docs" / "library.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    return str(code)


def test_the_example_has_about_30_lines() -> None:
    assert len([line for line in example().splitlines() if line.strip()]) <= 30


def test_the_example_prepares_unprepares_and_ends_on_sigterm(tmp_path: Path) -> None:
    script = tmp_path / "clock.py"
    script.write_text(example())
    with node_directory() as root, Kubelet(root) as kubelet, (tmp_path / "stderr").open("w+") as stderr:
        cdi = root / "cdi"
        cdi.mkdir()
        process = subprocess.Popen(
            [sys.executable, "-W", "error", script, root, cdi],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stderr=stderr,
        )
        try:
            kubelet.wait(lambda: bool(kubelet.instances.get(DRIVER)) or process.poll() is not None, "registered")
            wanted = claim(drivers=(DRIVER,))
            for _ in range(2):
                (device,) = kubelet.prepare("pod", [wanted])[wanted.uid]
                (spec_file,) = cdi.iterdir()
                spec = json.loads(spec_file.read_text())
                (cdi_id,) = device.cdi_ids
                assert cdi_id == f"{spec['kind']}={spec['devices'][0]['name']}"
                assert spec["devices"][0]["containerEdits"]["env"][0].startswith("PREPARED_AT=")
                spec_file.unlink()  # a reboot
                kubelet.restart()
                kubelet.wait_registered(DRIVER)
            kubelet.unprepare("pod")
            assert list(cdi.iterdir()) == []
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=10) == 0
            assert list(kubelet.registry_dir.iterdir()) == []
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            stderr.seek(0)
            assert stderr.read() == ""
