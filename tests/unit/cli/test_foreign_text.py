"""Names, labels and messages of others are shown, and drive nobody's terminal: cursor, title, clipboard, direction."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_driver.cli.main import main
from tests.generators.effort import examples
from tests.paths import DATA, ROOT

DRIVES = "\x1b]0;owned\x07\x1b[2J\x9b2J\u202e"
COMMANDS = (
    "simulate FILE --instance-type trn2.48xlarge",
    "simulate FILE --instance-type trn2.48xlarge -o svg",
    "simulate --objects FILE --instance-type trn2.48xlarge -o wide",
    "explain FILE --instance-type trn2.48xlarge",
    "explain --objects FILE --instance-type trn2.48xlarge=2",
    "explain --objects FILE",
    "plan FILE --instance-type trn2.48xlarge",
    "select -f FILE true",
    "migrate FILE",
    "migrate FILE -o json",
    "migrate FILE --extended-resources -o json",
)


@cache
def documents(path: Path) -> list[Any]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a text is."""
    if isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(item, (*at, key))
    elif isinstance(value, str):
        yield at


def spoilt(document: Any, at: tuple[Any, ...], *, key: bool = False) -> Any:
    """The document with what drives a terminal at the end of that text, or of its key."""
    made = holder = copy.deepcopy(document)
    for part in at[:-1]:
        holder = holder[part]
    if key:
        holder[at[-1] + DRIVES] = holder.pop(at[-1])
    else:
        holder[at[-1]] += DRIVES
    return made


@st.composite
def spoilt_files(draw: st.DrawFn) -> list[Any]:
    """The objects of a stranger's file or of an example, one text of them spoilt."""
    folders = (DATA / "foreign", ROOT / "examples")
    path = draw(st.sampled_from(sorted(path for folder in folders for path in folder.rglob("*.yaml"))))
    found = [*documents(path)]
    index = draw(st.integers(0, len(found) - 1))
    found[index] = spoilt(found[index], draw(st.sampled_from(list(places(found[index])))))
    return found


def write(path: Path, objects: list[Any]) -> None:
    path.write_text("".join(f"---\n{json.dumps(item, default=str)}\n" for item in objects))


def shown(capsys: pytest.CaptureFixture[str], line: str, path: Path) -> str:
    main(line.replace("FILE", str(path)).split())
    captured = capsys.readouterr()
    return captured.out + captured.err


def driving(text: str) -> list[str]:
    """Lines of it that would drive a terminal."""
    return [line for line in text.split("\n") if not line.isprintable()]


@settings(max_examples=examples(400), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(objects=spoilt_files(), line=st.sampled_from(COMMANDS))
def test_no_text_of_an_object_drives_a_terminal(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, objects: list[Any], line: str
) -> None:
    write(tmp_path / "objects.yaml", objects)
    assert not driving(shown(capsys, line, tmp_path / "objects.yaml"))


POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web", "namespace": "shop"},
    "spec": {"containers": [{"name": "main", "image": "x", "resources": {"limits": {"aws.amazon.com/neuron": "1"}}}]},
}
CLAIM = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "chips", "namespace": "shop"},
    "spec": {"devices": {"requests": [{"name": "a", "exactly": {"deviceClassName": "neuron.aws.com", "count": 1}}]}},
}
COUNT = ("spec", "devices", "requests", 0, "exactly", "count")
OBJECTS = "--objects FILE --instance-type trn2.48xlarge"
PLACES: dict[str, tuple[Any, tuple[Any, ...], str]] = {
    "a field that is not considered": (CLAIM, COUNT, f"simulate {OBJECTS}"),
    "one of which programs need not read": (CLAIM, COUNT, f"simulate {OBJECTS} -o json"),
    "one in an explanation": (CLAIM, COUNT, f"explain {OBJECTS}"),
    "one that is refused": (CLAIM, COUNT, "plan FILE --instance-type trn2.48xlarge"),
    "one of a pod": (POD, ("spec", "containers", 0, "image"), "migrate FILE -o json"),
    "one of a pod in YAML": (POD, ("spec", "containers", 0, "image"), "migrate FILE"),
}


@pytest.mark.parametrize("what", PLACES)
def test_what_is_odd_is_shown_without_what_drives_a_terminal(
    what: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    document, at, line = PLACES[what]
    write(tmp_path / "objects.yaml", [spoilt(document, at, key=True)])
    text = shown(capsys, line, tmp_path / "objects.yaml")
    assert "owned" in text
    assert not driving(text)


@pytest.mark.parametrize("command", ["simulate", "explain"])
def test_the_name_of_a_field_is_no_line_of_its_own(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    odd: Any = copy.deepcopy(CLAIM)
    odd["spec"]["a\nPod web fits"] = 1
    write(tmp_path / "objects.yaml", [odd])
    lines = shown(capsys, f"{command} {OBJECTS}", tmp_path / "objects.yaml").splitlines()
    assert any("Pod web fits" in line for line in lines)
    assert not any(line.startswith("Pod web fits") for line in lines)


def test_texts_of_others_in_yaml_are_the_same_when_they_are_read_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    said = {"direction": f"a{DRIVES}", "lines": f"first\n{DRIVES}\n\tlast\n", "words": "für Köln\nzwei"}
    write(tmp_path / "objects.yaml", [{**POD, "metadata": {"name": "web", "annotations": said}}])
    text = shown(capsys, "migrate FILE", tmp_path / "objects.yaml")
    assert not driving(text)
    _, pod = yaml.safe_load_all(text[text.index("apiVersion") :])
    assert pod["metadata"]["annotations"] == said


def test_who_has_a_claim_of_a_node_drives_no_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    main(["slices", "--instance-type", "trn2.48xlarge", "--node-name", "node-1", "-o", "json"])
    slices = json.loads(capsys.readouterr().out)["items"]
    results = [{"request": "a", "driver": "neuron.aws.com", "pool": "node-1", "device": "neuron-device-0"}]
    users = [{"resource": "pods", "name": f"web{DRIVES}", "uid": "u"}]
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": users}
    write(tmp_path / "objects.yaml", [*slices, {**CLAIM, "status": status}])
    text = shown(capsys, "topology -f FILE", tmp_path / "objects.yaml")
    assert "claim shop/chips has neuron-device-0, for pod web" in text
    assert not driving(text)
