"""One vocabulary: what every command's help tells, and options that mean the same everywhere."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import textwrap
from pathlib import Path
from typing import Any

import pytest

from dra_driver.cli import vocabulary
from dra_driver.cli.main import COMMANDS, DAEMONS, complete_program, kubectl_main, main
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES
from dra_driver.simulator.cel import RELEASES
from dra_driver.version import VERSION
from tests.golden import golden
from tests.paths import ROOT

SHARED: dict[str, dict[str, Any]] = {
    "-f": {"dest": "filenames", "long": "--filename", "metavar": "FILE"},
    "-n": {"dest": "namespace", "long": "--namespace", "metavar": "NAME"},
    "-A": {"dest": "all_namespaces", "long": "--all-namespaces", "nargs": 0},
    "-o": {"dest": "output", "long": "--output"},
    "-w": {"dest": "watch", "long": "--watch", "nargs": 0},
    "--kubeconfig": {"dest": "kubeconfig", "metavar": "FILE"},
    "--context": {"dest": "context", "metavar": "NAME"},
    "--from-cluster": {"dest": "from_cluster", "nargs": 0},
    "--kubernetes": {"dest": "kubernetes"},
    "--host-root": {"dest": "host_root", "metavar": "DIR"},
    "--node-name": {"dest": "node_name", "metavar": "NAME"},
    "--partitions": {"dest": "partitions", "metavar": "WORDS"},
}
"""What an option is wherever a command has it."""


def subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(found[0]) if found else {}


def every() -> dict[str, argparse.ArgumentParser]:
    """All commands, and the actions of commands as ``health clear``."""
    commands = subparsers(complete_program())
    actions = {f"{name} {action}": one for name, it in commands.items() for action, one in subparsers(it).items()}
    return commands | actions


PARSERS = every()
FOR_PEOPLE = {name: it for name, it in PARSERS.items() if name.split()[0].replace("-", "_") in COMMANDS}


def visible(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if action.help is not argparse.SUPPRESS]


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_every_command_is_there() -> None:
    assert {name for name in PARSERS if " " not in name} == {name.replace("_", "-") for name in (*COMMANDS, *DAEMONS)}


@pytest.mark.parametrize("command", ["", *PARSERS])
def test_the_help_tells_what_each_exit_status_means(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = shown(capsys, *command.split(), "--help")
    _, _, statuses = text.partition("\nexit status:\n")
    assert re.fullmatch(rf"  0  \S.*\n  1  \S.*\n  2  {vocabulary.INVALID}\n", statuses), text


@pytest.mark.parametrize("command", PARSERS)
def test_the_examples_of_the_help_are_command_lines_that_the_program_takes(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, _, rest = shown(capsys, *command.split(), "--help").partition("\nexample")
    lines = [line.strip() for line in rest.partition("\n\n")[0].split("\n")[1:]]
    assert lines
    for line in lines:
        called = [shlex.split(words) for words in re.findall(r"dra-driver ([^|>)]+)", line)]
        assert command.split() in [words[: len(command.split())] for words in called] or command == "help"
        for name, *words in called:
            PARSERS[name].parse_args(words)


@pytest.mark.parametrize("command", FOR_PEOPLE)
def test_an_option_that_commands_share_means_the_same_in_each(command: str) -> None:
    for action in visible(FOR_PEOPLE[command]):
        for spelling in action.option_strings:
            expected = SHARED.get(spelling, {})
            assert action.dest == expected.get("dest", action.dest)
            assert action.nargs == expected.get("nargs", action.nargs)
            if "metavar" in expected:
                assert action.metavar == expected["metavar"]
            if "long" in expected:
                assert expected["long"] in action.option_strings
            if spelling == "-o":
                assert set(action.choices or ()) <= {"text", "wide", "json", "yaml", "svg"}
                assert {"json", "yaml"} <= set(action.choices or ())
            if spelling == "--kubernetes":
                assert tuple(action.choices or ())[-len(RELEASES) :] == RELEASES
            if spelling == "--instance-type":
                assert action.metavar in ("TYPE", "TYPE[=N]")


@pytest.mark.parametrize("command", PARSERS)
def test_no_option_has_two_spellings(command: str) -> None:
    for action in visible(PARSERS[command]):
        long = tuple(spelling for spelling in action.option_strings if spelling.startswith("--"))
        assert len(long) <= 1 or long == ("--leader-elect", "--no-leader-elect"), long
    meanings = [action.dest for action in visible(PARSERS[command]) if action.option_strings]
    assert len(meanings) == len(set(meanings))


def test_a_command_with_a_cluster_takes_all_words_for_it() -> None:
    for command, parser in FOR_PEOPLE.items():
        given = {spelling for action in visible(parser) for spelling in action.option_strings}
        assert given & {"--kubeconfig", "--context"} in (set(), {"--kubeconfig", "--context"}), command
        assert "--from-cluster" not in given or "--kubeconfig" in given, command
        assert ("-n" in given) == ("-A" in given), command


def test_the_table_of_the_vocabulary_names_options_that_exist() -> None:
    named = set(re.findall(r"``(-[-a-zA-Z]+)", vocabulary.__doc__ or ""))
    assert named == {"-f", "--instance-type", "--partitions", "--from-cluster", "--kubeconfig", "--context", "-n", "-A",
                     "-o", "-w", "--kubernetes", "--host-root", "--node-name"}  # fmt: skip


def test_files_may_stand_on_both_sides_of_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = []
    for name in ("a", "b", "c"):
        request = {"name": "r", "exactly": {"deviceClassName": "neuron.aws.com"}}
        claim = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name},
            "spec": {"devices": {"requests": [request]}},
        }
        names.append(str(tmp_path / f"{name}.json"))
        Path(names[-1]).write_text(json.dumps(claim))
    nodes = ["--instance-type", "trn1.2xlarge=3"]
    for command in ("simulate", "explain"):
        seen = set()
        for words in ([*names, *nodes], [names[0], *nodes, *names[1:]], [*nodes, "-f", names[0], names[1], names[2]]):
            assert main([command, *words]) == 0
            seen.add(capsys.readouterr().out)
        assert len(seen) == 1
        assert all(f"default/{name}" in min(seen) for name in ("a", "b", "c"))


def test_a_directory_stands_for_the_manifests_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    specs = ROOT / "examples/specs/partitions"
    nodes = ["--instance-type", "trn2=2", "--instance-type", "inf2", "--partitions", "chip.core.group"]
    seen = set()
    for words in (["-f", str(specs)], [f"{specs}/"], sorted(map(str, specs.glob("*.yaml")))):
        main(["simulate", *nodes, *words])
        seen.add(capsys.readouterr().out)
    assert len(seen) == 1
    assert "Pod default/" in min(seen)
    assert main(["explain", "-f", str(tmp_path), *nodes]) == 2
    golden(capsys.readouterr().err)


@pytest.mark.parametrize("option", ["--kubeconfig FILE", "--context NAME"])
def test_what_selects_a_cluster_needs_the_option_to_read_one(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *option.split()]) == 2
    golden(capsys.readouterr().err)


@pytest.mark.parametrize("columns", [60, 72, 80, 130])
@pytest.mark.parametrize("command", ["", "simulate", "kubelet-plugin", "migrate", "health"])
def test_the_help_is_wrapped_at_the_terminals_width(
    command: str, columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = shown(capsys, *filter(None, [command]), "--help")
    body, _, rest = text.partition("\nexample")
    statuses = rest.partition("\nexit status:\n")[2].split("\n")
    assert len(statuses) > 3
    lines = [line for line in body.split("\n") if len(line.split()) > 2]
    assert max(map(len, [*lines, *statuses])) <= columns
    assert not [line for line in lines if line.endswith("-")], "a name is broken"
    about = body.split("\n\n")[1]
    assert textwrap.fill(" ".join(about.split()), columns - 2, break_on_hyphens=False) == about


def test_the_help_has_what_people_use_and_what_pods_run_has_a_list_of_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = shown(capsys, "--help")
    listed = re.findall(r"^  ([a-z][-a-z]+) ?", text.partition("\nexample")[0], flags=re.MULTILINE)
    assert listed == [name.replace("_", "-") for name in COMMANDS]
    assert main(["help", "daemons"]) == 0
    listed = re.findall(r"^  ([a-z][-a-z]+) ?", capsys.readouterr().out, flags=re.MULTILINE)
    assert listed == [name.replace("_", "-") for name in DAEMONS]


def test_without_a_command_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    expected = shown(capsys, "--help")
    assert shown(capsys) == expected


def test_help_shows_the_help_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    by_option = shown(capsys, "health", "clear", "--help")
    assert main(["help", "health", "clear"]) == 0
    assert capsys.readouterr().out == by_option
    overall = shown(capsys, "--help")
    assert main(["help"]) == 0
    assert capsys.readouterr().out == overall
    assert main(["help", "heallth"]) == 2
    golden(capsys.readouterr().err)


def test_the_version_is_told_in_two_ways(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out == shown(capsys, "--version") == f"dra-driver {VERSION}\n"


@pytest.mark.parametrize("wrong", ["simulat", "topolgy", "kubelet-plugn"])
def test_a_misspelt_command_is_guessed(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([wrong, "x"])
    assert ended.value.code == 2
    golden(capsys.readouterr().err)


@pytest.mark.parametrize("wrong", ["trn2.48xlage", "inf2.48large"])
@pytest.mark.parametrize(
    "command",
    [
        "topology TYPE",
        "topology --instance-type TYPE",
        "simulate {spec} --instance-type TYPE",
        "explain {spec} --instance-type TYPE=2",
        "slices --instance-type TYPE",
        "template --for kwok --instance-type TYPE",
        "select true --instance-type TYPE",
        "migrate --extended-resources --instance-type TYPE",
        "emulate-host --instance-type TYPE {new}",
    ],
    ids=lambda command: command.partition(" ")[0],
)
def test_a_misspelt_type_is_guessed_by_every_command(
    command: str, wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        "spec": ROOT / "examples/specs/xl-trn2.yaml",
        "new": tmp_path / "new",
    }
    assert main([word.replace("TYPE", wrong).format(**files) for word in command.split()]) == 2
    golden(capsys.readouterr().err)


@pytest.mark.slow
def test_topology_and_slices_know_the_same_types(capsys: pytest.CaptureFixture[str]) -> None:
    for kind in INSTANCE_TYPES.values():
        assert main(["topology", kind.name]) == 0
        said = capsys.readouterr().out
        published = main(["slices", "--instance-type", kind.name])
        assert (published == 2) == (kind.devices is None) == ("number not public" in said)
        assert ("is not public" in capsys.readouterr().err) == (kind.devices is None)


@pytest.mark.slow
def test_topology_and_slices_know_the_same_short_names(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("trn2", "ml.trn1.32xlarge", "inf2"):
        for command in (["topology", name], ["topology", "--instance-type", name], ["slices", "--instance-type", name]):
            assert main(command) == 0, capsys.readouterr().err
            capsys.readouterr()


def test_as_a_plugin_of_kubectl_the_program_calls_itself_so_and_has_the_commands_for_people(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        kubectl_main(["--help"])
    text = capsys.readouterr().out
    assert text.startswith("usage: kubectl neuron ")
    assert "kubelet-plugin" not in text
    assert kubectl_main(["help", "explain"]) == 0
    text = capsys.readouterr().out
    golden(text)


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("topology trn2.48xlarge", False),
        ("topology node-7", True),
        ("topology --instance-type trn2", False),
        ("simulate {spec} --instance-type trn2.48xlarge", False),
        ("simulate {spec}", True),
        ("explain {spec} --instance-type trn2.48xlarge", False),
        ("explain web-0", True),
        ("select device.driver=='x' --instance-type trn2.48xlarge", False),
        ("select device.driver=='x'", True),
        ("slices --instance-type trn2.48xlarge", False),
        ("health --host-root {host}", False),
        ("health", True),
    ],
)
def test_kubectl_neuron_asks_the_cluster_where_nothing_else_is_given(
    words: str, asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))
    monkeypatch.delenv("HOST_ROOT", raising=False)
    assert main(["emulate-host", "--instance-type", "trn1.2xlarge", str(tmp_path / "host")]) == 0
    spec = ROOT / "examples/specs/xl-trn2.yaml"
    status = kubectl_main([word.format(spec=spec, host=tmp_path / "host") for word in words.split()])
    said = capsys.readouterr().err
    assert ("no kubeconfig: $KUBECONFIG names" in said) == asked, said
    assert (status == 2) == asked, said


def test_health_in_a_pod_of_the_driver_is_that_of_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["emulate-host", "--instance-type", "trn1.2xlarge", str(tmp_path)]) == 0
    monkeypatch.setenv("HOST_ROOT", str(tmp_path))
    capsys.readouterr()
    assert main(["health"]) == 0
    assert "neuron0" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--node-name", "--context"])
def test_health_of_a_host_takes_nothing_of_a_cluster(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["health", "--host-root", str(tmp_path), option, "node-7"]) == 2
    golden(capsys.readouterr().err)


def test_all_examples_at_once_are_read_with_both_versions_of_each_and_placed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    files = sorted(map(str, (ROOT / "examples/specs").rglob("*.yaml")))
    copies = len(list((ROOT / "examples/specs/v1beta1").glob("*.yaml")))
    nodes = [
        "--instance-type",
        "trn2.48xlarge=8",
        "--instance-type",
        "trn2u.48xlarge=8",
        "--instance-type",
        "trn1.32xlarge",
        "--instance-type",
        "inf2=2",
    ]
    assert main(["simulate", *files, *nodes, "--extended-resources", "--partitions", "chip.group.core"]) in (0, 1)
    said = capsys.readouterr()
    assert said.err == ""
    assert "given again" in said.out
    assert copies > 10
    assert not re.search(r"no DeviceClass|not known", said.out)
