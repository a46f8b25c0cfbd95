from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.plugin.driver.claims.crashpoints import SCENARIOS

CHANGES_NOTHING = {"prepare-again"}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_kill_at_any_effect_leaves_a_state_that_the_next_start_repairs(scenario: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.plugin.driver.claims.crashpoints", scenario, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) >= (2 if scenario in CHANGES_NOTHING else 10), "the crash points are not found"
