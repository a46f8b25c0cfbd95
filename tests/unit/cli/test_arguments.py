"""What all commands do with options that they do not have."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dra_driver.cli.main import COMMANDS, main
from tests.golden import golden
from tests.paths import ROOT

pytestmark = pytest.mark.slow

PROGRAMS = [
    "lab.cli",
    "lab.cli up",
    "lab.image_cli",
    "celoutcomes.main",
    "bench.main",
    "bench.scheduling",
    "crdschemas.main",
    "generating.main",
]


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What is said on standard error of arguments that cannot be used."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    return said.err


@pytest.mark.parametrize("module", COMMANDS)
def test_a_shortened_option_is_not_taken_for_another_one(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = module.replace("_", "-")
    golden(refused(capsys, command, "--hel"))


def test_a_shortened_option_before_the_command_is_not_taken_either(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--vers" in refused(capsys, "--vers", "topology", "trn2.48xlarge")


@pytest.mark.parametrize(
    "arguments",
    [
        ["topology", "trn2.48xlarge"],
        ["slices", "--instance-type", "trn1"],
        ["simulate", "pod.yaml"],
        ["explain"],
        ["placer"],
        ["kubelet-plugin", "--node-name", "n"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_an_unknown_option_prints_the_usage_of_the_command_it_was_given_to(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, *arguments, "--bogus", "x")
    golden(said)


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_projects_own_programs_take_no_shortened_option_either(program: str) -> None:
    module, *words = program.split()
    done = subprocess.run(
        [sys.executable, "-c", f"from {module} import main; main()", *words, "--hel"],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tools'}"},
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    golden(done.stderr)
