"""What a person sees on a terminal, what a program reads from a pipe, what is loaded, and completion in shells."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dra_driver.cli.main import COMMANDS, DAEMONS
from tests.builders.programs import ended
from tests.paths import ROOT, SPECS

pytestmark = pytest.mark.slow

SIMULATE = ["simulate", str(SPECS / "1x4-connected-devices.yaml"), "--instance-type", "trn2.48xlarge"]
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def environment(**changes: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    return {**kept, "TERM": "xterm", **changes}


def on_a_terminal(
    arguments: list[str], changes: dict[str, str] | None = None, *, stdout: bool = True
) -> tuple[str, str]:
    """What the program writes to a terminal, which is its standard output or else its standard error, and to a pipe."""
    master, slave = pty.openpty()
    with ended(
        subprocess.Popen(
            [sys.executable, "-m", "dra_driver", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=slave if stdout else subprocess.PIPE,
            stderr=subprocess.DEVNULL if stdout else slave,
            env=environment(**(changes or {})),
        )
    ) as process:
        os.close(slave)
        seen = bytearray()
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:  # the last writer has closed the terminal
                break
            if not part:
                break
            seen += part
        piped = process.stdout.read().decode() if process.stdout is not None else ""
    os.close(master)
    return seen.decode().replace("\r\n", "\n"), piped


def in_a_pipe(arguments: list[str]) -> str:
    command = [sys.executable, "-m", "dra_driver", *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment(), timeout=120)
    return done.stdout


def test_colour_is_for_terminals_and_the_text_is_the_same_without_it() -> None:
    plain = in_a_pipe(SIMULATE)
    assert "\x1b" not in plain
    coloured, _ = on_a_terminal(SIMULATE)
    assert "\x1b[32m[* 0*]" in coloured
    assert ESCAPE.sub("", coloured) == plain


@pytest.mark.parametrize("changes", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["NO_COLOR", "dumb"])
def test_no_colour_where_the_user_or_the_terminal_wants_none(changes: dict[str, str]) -> None:
    assert on_a_terminal(SIMULATE, changes)[0] == in_a_pipe(SIMULATE)


def test_text_is_not_broken_at_the_terminals_width() -> None:
    assert ESCAPE.sub("", on_a_terminal(SIMULATE, {"COLUMNS": "40"})[0]) == in_a_pipe(SIMULATE)


def test_without_rich_a_terminal_gets_plain_text(tmp_path: Path) -> None:
    (tmp_path / "rich.py").write_text("raise ImportError('not in this image')\n")
    assert on_a_terminal(SIMULATE, {"PYTHONPATH": f"{tmp_path}:{ROOT}"})[0] == in_a_pipe(SIMULATE)


def hurried(directory: Path) -> Path:
    """Where a module lies with which seconds pass at once, so that there is a bar without a second of work."""
    (directory / "sitecustomize.py").write_text(
        "import itertools, time\nreal, ticks = time.monotonic, itertools.count()\n"
        "time.monotonic = lambda: real() + 2 * next(ticks)\n"
    )
    return directory


def test_a_wait_for_heartbeats_shows_the_seconds_that_are_left(tmp_path: Path) -> None:
    host = str(tmp_path / "host")
    in_a_pipe(["emulate-host", "--instance-type", "inf2.xlarge", host])
    path = f"{hurried(tmp_path)}:{ROOT}"
    arguments = ["verify-host", "--host-root", host, "--wait", "6"]
    drawn, _ = on_a_terminal(arguments, {"PYTHONPATH": path, "COLUMNS": "120"}, stdout=False)
    assert re.search(r"heartbeats .* 6 s, left: [-0-9]+:[-0-9]+", ESCAPE.sub("", drawn))


def test_long_work_shows_units_and_an_estimate_on_the_terminal_only(tmp_path: Path) -> None:
    path = f"{hurried(tmp_path)}:{ROOT}"
    arguments = [
        "simulate",
        str(ROOT / "examples/specs/1x4-connected-devices.yaml"),
        "--instance-type",
        "trn2.48xlarge",
    ]
    drawn, piped = on_a_terminal(arguments, {"PYTHONPATH": path, "COLUMNS": "120"}, stdout=False)
    assert re.search(r"placing .* pods, left: [-0-9]+:[-0-9]+", ESCAPE.sub("", drawn))
    command = [sys.executable, "-m", "dra_driver", *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment(PYTHONPATH=path))
    assert (done.stdout, done.stderr) == (piped, "")


def loaded(*arguments: str, call: str = "main(sys.argv[1:])") -> set[str]:
    """The modules that a call leaves in memory, beside those of every Python program."""
    code = (
        "import sys; before = set(sys.modules)\n"
        "from dra_driver.cli.main import complete_program, main\n"
        f"try: {call}\n"
        "except SystemExit: pass\n"
        "print(*sorted(set(sys.modules) - before), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], check=True, capture_output=True, text=True, env=environment()
    )
    return set(done.stderr.splitlines()[-1].split())


def test_the_list_of_commands_loads_no_command_and_no_library() -> None:
    found = loaded("--help")
    assert "pathlib" not in found, "a fifth of the time that --help takes"
    own = {name for name in found if name.startswith("dra_driver")}
    assert own == {
        "dra_driver",
        "dra_driver.cli",
        "dra_driver.cli.main",
        "dra_driver.cli.vocabulary",
        "dra_driver.util",
        "dra_driver.util.errors",
        "dra_driver.util.text",
        "dra_driver.version",
    }
    libraries = {name.partition(".")[0] for name in found} - set(sys.stdlib_module_names)
    assert libraries == {"dra_driver"}


def test_the_help_of_no_command_loads_a_client_or_what_is_for_terminals() -> None:
    found = loaded(call="complete_program().format_help()")
    libraries = {name.partition(".")[0] for name in found}
    assert not libraries & {"rich", "shtab", "kubernetes", "urllib3", "grpc", "aiohttp", "pydantic", "yaml", "boto3"}
    ours = {
        ".".join(name.split(".")[1:3]) for name in found if name.startswith(("dra_driver.kube.", "dra_driver.neuron."))
    }
    assert ours <= {"kube.quantity", "neuron.names", "neuron.node_settings", "neuron.topology"}
    light = ("dra_driver.cli.", "dra_driver.kube.", "dra_driver.neuron.", "dra_driver.util.")
    modules = {name for name in found if name.startswith("dra_driver.") and not name.startswith(light)}
    packages = {"dra_driver.driver", "dra_driver.legacy", "dra_driver.legacy.device_plugin"}
    assert {name for name in modules if name.count(".") > 1} - packages == {
        "dra_driver.driver.settings",
        "dra_driver.legacy.device_plugin.settings",
    }


def completed(script: Path, *words: str) -> list[str]:
    """What bash offers for the last of the words."""
    code = (
        'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}\n'
        "$(complete -p dra-driver | sed 's/.*-F \\([^ ]*\\).*/\\1/')\n"
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    command = ["bash", "--norc", "-c", code, "bash", str(script), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, timeout=120).stdout.split()


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("completion") / "dra-driver"
    file.write_text(in_a_pipe(["completion", "bash"]))
    return file


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["topo"], ["topology"]),
        (["simulate", "--from"], ["--from-cluster"]),
        (["simulate", "-o", ""], ["text", "wide", "json", "yaml", "svg"]),
        (["simulate", "-f", "exampl"], ["examples"]),
        (["simulate", "exampl"], ["examples"]),
        (["slices", "--instance-type", "trn2.4"], ["trn2.48xlarge"]),
        (["topology", "inf2.48"], ["inf2.48xlarge"]),
        (["health", "cl"], ["clear"]),
        (["completion", "f"], ["fish"]),
        (["topology", "--sv"], []),
    ],
    ids=" ".join,
)
def test_bash_completes(words: list[str], offered: list[str], bash_script: Path) -> None:
    assert completed(bash_script, "dra-driver", *words) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_that_the_shell_can_read(shell: str, tmp_path: Path) -> None:
    text = in_a_pipe(["completion", shell])
    for command in (*COMMANDS, *DAEMONS):
        assert command.replace("_", "-") in text
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed, so its script is not run")
    file = tmp_path / "script"
    file.write_text(text)
    subprocess.run([shell, "-n", str(file)], check=True, timeout=120)
