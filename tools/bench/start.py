"""Measures how long a driver takes from its start until its slices are in the API server."""

from __future__ import annotations

import json
import shutil
import threading
import time

from lab.errors import LabError

from bench.drivers import Driver, Running
from dra_driver.kube.api.client import Transport

SLICES_PATH = "/apis/resource.k8s.io/v1/resourceslices"
_PATIENCE = 60.0


def start_seconds(transport: Transport, driver: Driver) -> float:
    """Start the driver as on a new node, and stop it again; return the seconds until a watch shows its slice.

    Raises:
        LabError: It ended, or there was no slice within a minute.
    """
    selector = ("fieldSelector", f"spec.driver={driver.name},spec.nodeName={driver.node}")
    transport.request("DELETE", SLICES_PATH, query=[selector])
    shutil.rmtree(driver.directory / "plugins", ignore_errors=True)
    listed = json.loads(transport.request("GET", SLICES_PATH, query=[selector]).body)
    version = listed["metadata"]["resourceVersion"]
    query = [selector, ("watch", "true"), ("resourceVersion", version)]
    with transport.stream(SLICES_PATH, query=query, timeout=_PATIENCE) as stream:
        overdue = threading.Timer(_PATIENCE, stream.abort)
        overdue.start()
        try:
            with Running(driver) as running:
                if not any(json.loads(line)["type"] == "ADDED" for line in stream):
                    raise LabError(f"{driver.label} published nothing within {_PATIENCE:.0f} s; its log: {driver.log}")
                return time.monotonic() - running.begun
        finally:
            overdue.cancel()
