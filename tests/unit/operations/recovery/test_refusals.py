"""What recovery says of hooks that fail, of pods that stay, and of nodes that others look after."""

from __future__ import annotations

import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dra_driver.kube.api.client import RestConfig, Transport
from dra_driver.kube.objects.core import PartialNode
from dra_driver.operations.recovery.controller import RecoveryService, RecoverySettings
from dra_driver.operations.recovery.decide import decide
from dra_driver.operations.recovery.hook import Hook
from dra_driver.operations.recovery.nodes import Mark, NeuronNode, Sightings
from dra_driver.operations.recovery.nodes import view as view_of
from dra_driver.operations.recovery.policy import Policy
from dra_driver.util.errors import DriverError
from tests.builders.threads import no_further_threads
from tests.golden import golden, golden_error

PRESENT = "neuron.amazonaws.com/present"
NOW = 1_000_000.0
MARK = Mark("heartbeat-stalled", "n", 1, ("cordon",), action="reboot")


def view(name: str, **changes: Any) -> NeuronNode:
    verdict = "sick" if changes.get("faults") else "well"
    return replace(NeuronNode(name, f"uid of {name}", verdict=verdict, unit=name), **changes)  # type: ignore[arg-type] # one of the values


@pytest.mark.parametrize(
    ("script", "timeout", "stopping"),
    [
        (None, 5.0, False),
        ("echo the BMC does not answer; exit 3", 5.0, False),
        ("sleep 30", 0.1, False),
        ("sleep 30", 5.0, True),
    ],
    ids=["not there", "fails", "hangs", "the controller ends"],
)
def test_a_hook_that_fails_says_how(tmp_path: Path, script: str | None, timeout: float, stopping: bool) -> None:
    program = tmp_path / "hook"
    if script is not None:
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    with golden_error(DriverError):
        Hook(str(program), timeout, lambda: stopping).call(view("n"), MARK)


def test_a_hook_whose_words_no_thread_can_read_is_ended_and_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "hook"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    popen, started = subprocess.Popen, []

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    with no_further_threads(), golden_error(DriverError):
        Hook(str(program), 5.0).call(view("n"), MARK)
    assert [process.returncode for process in started] == [-signal.SIGKILL]


def test_why_nodes_wait_and_what_the_hook_is_told() -> None:
    policy = Policy(persist_seconds=0, healthy_seconds=0, pause_seconds=0, max_at_once=10, max_percent_of_group=20)
    sick = {"heartbeat-stalled": 0.0}
    group = [view(f"n{number}", group="workers") for number in range(4)]
    nodes = [*group, *(view(f"sick{number}", group="workers", faults=sick) for number in range(2))]
    found = decide(nodes, 0.0, policy, NOW)
    golden([f"{wait.node.name}: {wait.text}" for wait in found.waits], "waits")
    drained = view("n", faults=sick, cordoned=True, mark=Mark("heartbeat-stalled", "n", 1, ("cordon",), 2, 3, "reboot"))
    actions = decide([drained], 0.0, policy, NOW, hook=True).actions
    golden([f"{action.kind}: {action.text}" for action in actions], "actions")


def test_who_else_is_at_work_on_a_node() -> None:
    taint = {"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}
    node = {"metadata": {"name": "n", "labels": {PRESENT: "true"}}, "spec": {"taints": [taint]}}
    found = view_of(msgspec.convert(node, PartialNode), Sightings(), NOW)
    assert found is not None
    golden(found.others)


def test_what_each_metric_means() -> None:
    transport = Transport(RestConfig(server="http://127.0.0.1:1"))
    service = RecoveryService(transport, "kube-system", "one", RecoverySettings(policy=Policy(), act=False))
    service.numbers.waits["budget"] = 1
    service.numbers.done["hook", "failed"] = 1
    golden(dict.fromkeys(f"{sample.name}: {sample.help}" for sample in service.samples()))
