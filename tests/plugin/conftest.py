"""What tests get unless their module makes one of its own: an API server, and nodes with a device plugin."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.builders.device_plugin import MakeNode, plugin_nodes
from tests.builders.extender import add_node
from tests.doubles.apiserver.server import ApiServer


@pytest.fixture
def server() -> Iterator[ApiServer]:
    """An API server without objects."""
    with ApiServer() as running:
        yield running


@pytest.fixture
def torus(server: ApiServer) -> None:
    """A node "n" of sixteen devices."""
    add_node(server, "n")


@pytest.fixture
def make() -> Iterator[MakeNode]:
    """Makes nodes for device plugins."""
    with plugin_nodes() as made:
        yield made


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What this process logs, from INFO on."""
    caplog.set_level(logging.INFO, "dra_driver")
    return caplog
