"""Files that ``verify-host`` does not take."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from dra_driver.operations.verification.collect import (
    MAX_INPUT_BYTES,
    MAX_LISTING_BYTES,
    read_input,
    read_listing,
)
from dra_driver.util.errors import UsageError
from tests.golden import golden_error


def test_a_file_that_is_far_too_large(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.touch()
    os.truncate(path, MAX_INPUT_BYTES + 1)
    with golden_error(UsageError):
        read_input(path)


@pytest.mark.parametrize("size", [MAX_LISTING_BYTES + 1, MAX_LISTING_BYTES, 257 * len("{},") + 1])
def test_an_output_of_neuron_ls_that_is_too_large_takes_little_memory(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("listing")
    path.write_text(f"[{'{},' * ((size - 4) // 3)}{{}}]".ljust(size))
    tracemalloc.start()
    try:
        with golden_error(UsageError):
            read_listing(path)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
