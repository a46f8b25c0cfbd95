"""What each program loads: a node's driver its own room and what that stands on, no program a room of another's.

And what loading does not do.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

BELOW = {"kube", "neuron", "util"}
ROOMS = {
    "driver.agent": {"driver", *BELOW},
    "legacy.device_plugin.agent": {"legacy", *BELOW},
    "legacy.extender.server": {"legacy", *BELOW},
    "ultraserver.placer.controller": {"ultraserver", *BELOW},
    "ultraserver.rendezvous.leader": {"ultraserver", "util"},
    "ultraserver.rendezvous.worker": {"ultraserver", "util"},
    "operations.recovery.controller": {"operations", *BELOW},
    "neuron.health.detector": {"neuron", "util"},
}
"""By module of a program: the rooms that it may load."""


@pytest.mark.parametrize("program", ROOMS)
def test_a_program_loads_its_own_room_and_what_that_stands_on(program: str) -> None:
    code = f"import sys, dra_driver.{program}; print(*(name for name in sys.modules if name.startswith('dra_driver.')))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert {name.split(".")[1] for name in done.stdout.split()} - {"version"} <= ROOMS[program]


def test_no_module_makes_a_lock_or_a_thread_while_it_is_imported() -> None:
    code = f"""
import importlib, pkgutil
from dra_driver.util import runtime
def refuse(*_):
    raise AssertionError("it would belong to no runtime that a test puts in later")
parts = ("lock", "condition", "event", "thread")
with runtime.use(runtime.Runtime(**dict.fromkeys(parts, refuse))):
    for room in {sorted({"driver", *BELOW})}:
        package = importlib.import_module(f"dra_driver.{{room}}")
        for module in pkgutil.walk_packages(package.__path__, f"{{package.__name__}}."):
            importlib.import_module(module.name)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
