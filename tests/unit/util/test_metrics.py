"""Metrics are served, or it is said why not."""

from __future__ import annotations

import socket

from dra_driver.util.errors import DriverError
from dra_driver.util.metrics import Collector, Operations, serve
from tests.builders.probes import open_door
from tests.golden import golden_error


def test_a_port_that_is_taken_is_explained() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, open_door() as door, golden_error(DriverError):
        serve(door, Collector(Operations(), list), "127.0.0.1", taken.getsockname()[1])
