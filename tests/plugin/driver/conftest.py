"""What tests of the whole agent get unless their module makes one of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders.agent import World, node


@pytest.fixture
def world() -> Iterator[World]:
    """A node without its driver; below a short path, since sockets lie there, and theirs may have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="a-") as name, node(Path(name)) as made:
        yield made
