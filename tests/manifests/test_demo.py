"""scripts/demo: the simulated run with the real command, the run on Kubernetes with stand-ins for what it starts."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.golden import golden
from tests.paths import ROOT

pytestmark = pytest.mark.slow

BASE = ROOT / "deploy/kustomize/driver/driver.yaml"

RECORD = '#!/usr/bin/env bash\necho "$(basename "$0") $*" >>"$CALLS"\n'
SLICES = {
    "items": [
        {
            "spec": {
                "driver": "neuron.aws.com",
                "pool": {"name": "node"},
                "devices": [{"name": f"neuron-device-{n}", "attributes": {"deviceId": {"int": n}}} for n in range(16)],
            }
        }
    ]
}


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout with the real demo, examples and command, and stand-ins that note how they are called."""
    scripts = tmp_path / "checkout/scripts"
    scripts.mkdir(parents=True)
    shutil.copy(ROOT / "scripts/demo", scripts / "demo")
    (tmp_path / "checkout/examples").symlink_to(ROOT / "examples")
    for name in ("setup-venv", "build-image", "install-dra-driver.sh"):
        program(scripts / name, RECORD)
    results = [{"pool": "node", "device": f"neuron-device-{n}", "request": "neurons"} for n in (4, 5, 6, 7)]
    claims = {"items": [{"status": {"allocation": {"devices": {"results": results}}}}]}
    (tmp_path / "resourceclaims").write_text(json.dumps(claims))
    (tmp_path / "resourceslices").write_text(json.dumps(SLICES))
    answer = f'if [[ $* == *"-o json"* ]]; then cat "{tmp_path}/${{5}}"; fi\n'
    program(scripts / "cluster", RECORD + answer)
    program(
        tmp_path / "checkout/.venv/bin/dra-driver",
        f'#!/usr/bin/env bash\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m dra_driver "$@"\n',
    )
    program(tmp_path / "checkout/.venv/bin/python", f'#!/usr/bin/env bash\nexec "{sys.executable}" "$@"\n')
    program(tmp_path / "bin/id", '#!/usr/bin/env bash\necho "$USER_ID"\n')
    return tmp_path


def demo(tree: Path, *arguments: str, user: int = 0) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run it; also what it started, in order."""
    calls = tree / "calls"
    result = subprocess.run(
        [tree / "checkout/scripts/demo", *arguments],
        env={
            "PATH": f"{tree / 'bin'}:{os.environ['PATH']}",
            "CALLS": str(calls),
            "USER_ID": str(user),
            "HEALS": os.environ.get("HEALS", ""),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return result, calls.read_text().splitlines() if calls.exists() else []


def test_the_plain_demo_simulates_the_first_example_with_python_only_and_as_any_user(tree: Path) -> None:
    result, calls = demo(tree, user=1000)
    assert (result.returncode, result.stderr) == (0, "")
    assert calls == ["setup-venv "]
    assert "x=0  ==[* 0*]===[* 1*]===[* 2*]===[* 3*]==" in result.stdout
    assert "1 of 1 placed" in result.stdout


def test_the_commands_that_the_plain_demo_names_can_be_run(tree: Path) -> None:
    result, _ = demo(tree)
    named = [line.split("#")[0].split(">")[0].split() for line in result.stdout.split("== Done")[1].splitlines()[1:]]
    assert [words[0] for words in named] == ["dra-driver"] * 2 + ["scripts/demo"]
    for words in named[:-1]:
        command = [str(tree / "checkout/.venv/bin/dra-driver"), *words[1:]]
        run = subprocess.run(command, cwd=tree / "checkout", capture_output=True, timeout=120, check=False)
        assert run.returncode == 0, run.stderr


def test_the_cluster_demo_brings_up_kubernetes_installs_the_driver_and_runs_the_same_example(tree: Path) -> None:
    result, calls = demo(tree, "--cluster")
    assert (result.returncode, result.stderr) == (0, "")
    kubectl = [call.removeprefix("cluster --name demo kubectl ") for call in calls if " kubectl " in call]
    steps = [
        call.split()[0 if not call.startswith("cluster") else 3]
        for call in calls
        if not call.startswith("cluster --name demo kubectl")
    ]
    assert steps == ["setup-venv", "up", "build-image", "load", "load-test-image", "install-dra-driver.sh"]
    assert any(call.startswith("install-dra-driver.sh --yes ") and "--emulate trn2.48xlarge" in call for call in calls)
    assert "apply -f examples/specs/1x4-connected-devices.yaml" in kubectl
    assert any(call.startswith("exec pod0 ") for call in kubectl)
    assert "x=1  ==[* 4*]===[* 5*]===[* 6*]===[* 7*]==" in result.stdout


SICK_CLUSTER = """
# What a cluster says once the file of faults is written ($HEALS: whether it believes that the fault is over again).
if [[ $* == *"exec -i"* ]]; then cat >"$STATE/faults"; exit 0; fi
case "$*" in
*"-o json"*)
    word=well
    if grep -qs hbm-uncorrectable@4 "$STATE/faults"; then word=sick; fi
    if [[ -z $HEALS && -e $STATE/faults ]]; then word=sick; fi
    for kind in resourceslices resourceclaims events nodes,resourceslices nodes all-devices pod0; do
        if [[ $* == *"$kind"* ]]; then break; fi
    done
    cat "$STATE/$kind.$word" 2>/dev/null || cat "$STATE/$kind"
    ;;
esac
"""
TAINT = {"key": "health.neuron.aws.com/hbm-uncorrectable", "value": "unhealthy", "effect": "NoSchedule"}
UNHEALTHY = {"resourceID": "neuron-device-4", "health": "Unhealthy", "message": "uncorrectable errors"}


def sick_cluster(tree: Path) -> None:
    """Have the stand-in's objects depend on what the demo writes to the file of faults."""
    script = tree / "checkout/scripts/cluster"
    program(script, RECORD + SICK_CLUSTER.replace("$STATE", str(tree)))
    sick = json.loads(json.dumps(SLICES))
    sick["items"][0]["spec"]["devices"][4]["taints"] = [TAINT]

    def node(status: str, reason: str) -> dict[str, object]:
        condition = {"type": "NeuronHealth", "status": status, "reason": reason, "message": "as it is"}
        return {"items": [{"status": {"conditions": [condition]}}]}

    pending = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    objects = {
        "resourceslices.sick": sick,
        "resourceslices.well": SLICES,
        "nodes.sick": node("True", "NeuronHasError_HBM_UNCORRECTABLE_ERROR"),
        "nodes.well": node("False", "NeuronHasNoError"),
        "pod0": {"status": {"containerStatuses": [{"allocatedResourcesStatus": [{"resources": [UNHEALTHY]}]}]}},
        "events": {"items": [{"type": "Warning", "reason": "NeuronHasError_X", "message": "neuron4: errors"}]},
        "all-devices": {"status": {"conditions": [pending]}},
        "nodes,resourceslices": {"apiVersion": "v1", "kind": "List", "items": []},
    }
    for name, value in objects.items():
        (tree / name).write_text(json.dumps(value))


def test_the_demo_of_a_fault_shows_who_is_told_what_waits_and_how_it_ends(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sick_cluster(tree)
    monkeypatch.setenv("HEALS", "yes")
    result, calls = demo(tree, "--cluster", "--fault")
    assert result.returncode == 0, result.stdout + result.stderr
    shown = [
        "== 7. Chip 4 fails under the pod",
        "neuron-device-4: health.neuron.aws.com/hbm-uncorrectable=unhealthy:NoSchedule",
        "Unhealthy neuron-device-4: uncorrectable errors",
        "NeuronHealth True NeuronHasError_HBM_UNCORRECTABLE_ERROR",
        "Warning NeuronHasError_X: neuron4: errors",
        "Unschedulable: 0/1 nodes",
        "$ dra-driver explain --objects cluster.json",
        "no taint on the device",
        "NeuronHealth False NeuronHasNoError",
        "== Done",
    ]
    places = [result.stdout.index(text) for text in shown]
    assert places == sorted(places)
    assert any("wait --for=condition=Ready --timeout=120s pod/all-devices" in call for call in calls)


def test_the_demo_of_a_fault_asks_the_driver_that_was_installed() -> None:
    (daemonset,) = re.findall(r'kind: DaemonSet\nmetadata:\n  name: "(\S+)"', BASE.read_text())
    assert f"daemonset/{daemonset}" in (ROOT / "scripts/demo").read_text()


def test_the_demo_of_a_fault_says_what_it_waited_for_in_vain_and_what_it_saw(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sick_cluster(tree)
    monkeypatch.setenv("HEALS", "")
    script = tree / "checkout/scripts/demo"
    script.write_text(script.read_text().replace("await 120 ", "await 1 "))
    result, _ = demo(tree, "--cluster", "--fault")
    assert result.returncode == 1
    golden(result.stderr)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--fault",),
        ("--cluster", "--faults"),
    ],
)
def test_a_fault_without_a_cluster_is_refused(tree: Path, arguments: tuple[str, ...]) -> None:
    result, calls = demo(tree, *arguments)
    assert result.returncode == 2
    golden(result.stderr)
    assert calls == []


def test_the_cluster_demo_needs_root_and_starts_nothing_without(tree: Path) -> None:
    result, calls = demo(tree, "--cluster", user=1000)
    assert result.returncode == 1
    golden(result.stderr)
    assert calls == []


def test_the_cluster_is_taken_away_again(tree: Path) -> None:
    result, calls = demo(tree, "--down")
    assert result.returncode == 0
    assert calls == ["cluster --name demo down"]


def test_help_is_the_whole_text_at_the_top_and_starts_nothing(tree: Path) -> None:
    result, calls = demo(tree, "--help")
    assert result.returncode == 0
    golden(result.stdout)
    assert calls == []


def test_an_unknown_option_is_refused_and_starts_nothing(tree: Path) -> None:
    result, calls = demo(tree, "--clusters")
    assert (result.returncode, result.stdout) == (2, "")
    golden(result.stderr)
    assert calls == []
