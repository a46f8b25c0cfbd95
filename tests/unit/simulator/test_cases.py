"""What real clusters answered, asked of the simulator again; and the tools of that comparison.

Each file of ``tests/data/simulator-cases`` has cases that ``tests/cluster/test_simulator.py`` played, with Kubernetes'
version and its answers: disagreements made small, since resolved, and some of the others.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from dra_driver.simulator.cel import Kubernetes
from tests.generators.effort import examples, short_searches
from tests.generators.shrinking import shrunk, size
from tests.generators.simulator_cases import TOKEN, Object, cases, renamed
from tests.oracles.simulator_cases import Expected, Simulated, accepted, disagreement, normal, replayed, unreadable
from tests.paths import DATA

FILES = sorted((DATA / "simulator-cases").glob("*.json"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_recorded_claims_get_what_the_cluster_gave_them(file: Path) -> None:
    recorded = json.loads(file.read_text())
    assert recorded
    wrong = [f"{row['about']}, Kubernetes {row['kubernetes']}: {text}" for row in recorded for text in replayed(row)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("version", ["1.36", "1.37"])
def test_recorded_answers_are_of_all_kinds(version: str) -> None:
    answers = [
        answer
        for file in FILES
        for row in json.loads(file.read_text())
        if row["kubernetes"].startswith(version)
        for answer in row["answers"]
    ]
    kinds = Counter(
        "refused" if "refused" in answer else "placed" if answer["node"] else answer["reason"] for answer in answers
    )
    assert min(kinds["placed"], kinds["Unschedulable"], kinds["SchedulerError"]) >= 5
    assert kinds["refused"] >= 1


@settings(max_examples=examples(60))
@given(cases)
def test_every_random_case_has_an_answer_and_no_device_two_owners(case: Object) -> None:
    with short_searches():
        for kubernetes in ("1.36", "1.37"):
            _check_owners(case, kubernetes)


def test_what_the_simulator_does_not_read_is_told() -> None:
    case: Object = {
        "nodes": [],
        "slices": [],
        "classes": [{"metadata": {"name": "c"}, "spec": {"selectors": [{}]}}],
        "pods": [],
    }
    assert unreadable(case) == ""
    case["classes"][0]["spec"]["selectors"] = [{"cel": {}}]
    assert "expression" in unreadable(case)


def _check_owners(case: Object, kubernetes: Kubernetes) -> None:
    missing = [item["metadata"]["name"] for item in case["classes"] if accepted(item, kubernetes) is False]
    simulated = Simulated([case], kubernetes, missing)
    owned: Counter[tuple[str, str, str]] = Counter()
    for pod in case["pods"]:
        expected = simulated.ask(pod)
        assert expected == simulated.ask(pod)
        if expected.fatal or not expected.allocations:
            continue
        allocations = expected.allocations[min(expected.allocations)]
        assert len(allocations) == len(pod["claims"])
        for item in (item for allocation in allocations for item in allocation["devices"].get("results", ())):
            if "shareID" not in item and "adminAccess" not in item:
                owned[item["driver"], item["pool"], item["device"]] += 1
        simulated.take({"allocations": allocations})
    assert not [device for device, owners in owned.items() if owners > 1]


@pytest.mark.slow
@settings(max_examples=30)
@given(cases)
def test_a_renamed_case_has_the_same_answers(case: Object) -> None:
    other = renamed(case, 17)
    assert json.dumps(other).replace("w0017", TOKEN) == json.dumps(case)
    with short_searches():
        one, two = Simulated([case], "1.37"), Simulated([other], "1.37")
        for pod, again in zip(case["pods"], other["pods"], strict=True):
            answers = [json.dumps(one.ask(pod).allocations), json.dumps(two.ask(again).allocations)]
            assert answers[0] == answers[1].replace("w0017", TOKEN)


@settings(max_examples=10)
@given(cases)
def test_a_case_is_made_as_small_as_what_is_looked_for_allows(case: Object) -> None:
    def fails(candidates: Sequence[Object]) -> list[bool]:
        return [any(pod["claims"] and pod["nodes"] for pod in item["pods"]) for item in candidates]

    small = shrunk(case, fails, seconds=20, width=20)
    assert fails([small]) == [True]
    assert [small["pods"][0]["nodes"], small["slices"], small["classes"]] == [
        [small["nodes"][0]["metadata"]["name"]],
        [],
        [],
    ]
    assert [len(small[kind]) for kind in ("pods", "nodes")] == [1, 1]
    assert size(small) < size(case)


ALLOCATION: Object = {
    "devices": {
        "results": [{"request": "r", "driver": "a.example", "pool": "p", "device": "d", "shareID": "1-2-3"}],
        "config": [{"source": "FromClass", "requests": ["r"]}],
    },
    "nodeSelector": {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]
    },
}


def _with(path: str, value: object) -> Object:
    made: Object = json.loads(json.dumps(ALLOCATION))
    *parents, last = path.split(".")
    place: Any = made
    for key in parents:
        place = place[int(key) if key.isdigit() else key]
    place[last] = value
    return made


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("devices.results.0.device", "other"),
        ("devices.results.0.request", "r/s"),
        ("devices.results.0.consumedCapacity", {"memory": "1Gi"}),
        ("devices.results.0.adminAccess", True),
        ("devices.results.0.shareID", None),
        ("devices.results.0.tolerations", [{"operator": "Exists"}]),
        ("devices.config.0.requests", []),
        ("devices.config.0.source", "FromClaim"),
        ("devices.config", []),
        ("nodeSelector", None),
    ],
)
def test_every_difference_of_an_allocation_is_seen(path: str, value: object) -> None:
    ours = Simulated([], "1.37")
    assert ours.ask({"claims": [], "nodes": []}) == Expected()
    expected = Expected(allocations={"n": [normal(_with(path, value))]})
    assert path.rpartition(".")[2] in disagreement(expected, {"node": "n", "allocations": [ALLOCATION]})


def test_only_the_value_of_a_share_is_no_difference() -> None:
    expected = Expected(allocations={"n": [normal(_with("devices.results.0.shareID", "other"))]})
    assert disagreement(expected, {"node": "n", "allocations": [ALLOCATION]}) == ""


FAILED = "class c: selector #0 on device a/p/d: CEL runtime error"


def _pending(reason: str, message: str = "0/1 nodes are available: 1 cannot allocate all claims.") -> Object:
    return {"node": None, "reason": reason, "message": message}


@pytest.mark.parametrize(
    ("expected", "answer", "seen"),
    [
        (Expected(), _pending("Unschedulable"), False),
        (Expected(), _pending("SchedulerError"), True),
        (Expected(), {"node": "n", "allocations": []}, True),
        (Expected(allocations={"n": []}), {"node": "n", "allocations": []}, False),
        (Expected(allocations={"n": []}), {"node": "m", "allocations": []}, True),
        (Expected(allocations={"n": []}), _pending("Unschedulable"), True),
        (Expected(allocations={"n": []}), _pending("SchedulerError", "timed out trying to allocate devices"), False),
        (Expected(allocations={"n": []}, fatal=("why",)), {"node": "n", "allocations": []}, True),
        (Expected(fatal=(f"{FAILED}: no such key: n",)), _pending("SchedulerError", f"{FAILED}: no key"), False),
        (Expected(fatal=(f"{FAILED}: no key",)), _pending("SchedulerError", FAILED.replace("/d:", "/e:")), True),
        (Expected(fatal=("why",)), _pending("Unschedulable"), True),
        (Expected(fatal=("why",)), _pending("Unschedulable", "request r: device class c does not exist"), False),
        (Expected(refused=("c",)), {"refused": ["c"]}, False),
        (Expected(refused=("c",)), {"refused": ["d"]}, True),
        (Expected(refused=("c",)), _pending("Unschedulable"), True),
        (Expected(), {"refused": ["c"]}, True),
        (Expected(allocations={"n": []}, unknown="what"), _pending("Unschedulable"), False),
    ],
)
def test_every_difference_of_a_refusal_is_seen(expected: Expected, answer: Object, seen: bool) -> None:
    assert bool(disagreement(expected, answer)) == seen
