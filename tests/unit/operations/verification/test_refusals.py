"""Files that ``verify-host`` does not take."""

from __future__ import annotations

import os
from pathlib import Path

from dra_driver.operations.verification.collect import MAX_INPUT_BYTES, read_input
from dra_driver.util.errors import UsageError
from tests.golden import golden_error


def test_a_file_that_is_far_too_large(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.touch()
    os.truncate(path, MAX_INPUT_BYTES + 1)
    with golden_error(UsageError):
        read_input(path)
