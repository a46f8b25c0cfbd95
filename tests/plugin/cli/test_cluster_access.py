"""What the commands that read a cluster say when they cannot: one sentence, exit status 2, since 1 is an answer."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from dra_driver.cli.main import main
from dra_driver.kube.api.client import READ_TIMEOUT
from tests.doubles.apiserver.server import ApiServer
from tests.golden import golden

pytestmark = pytest.mark.slow

COMMANDS = {"simulate": ["simulate"], "explain": ["explain"], "select": ["select", "true"]}


@pytest.fixture(params=list(COMMANDS.values()), ids=list(COMMANDS))
def command(request: pytest.FixtureRequest) -> list[str]:
    arguments: list[str] = request.param
    return arguments


def kubeconfig(path: Path, server: str, **user: object) -> str:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(document))
    return str(path)


def refusal(capsys: pytest.CaptureFixture[str], command: list[str], file: str) -> str:
    """The one line on standard error."""
    assert main([*command, "--from-cluster", "--kubeconfig", file]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith("error: ")
    return line


@pytest.mark.parametrize(
    "content",
    [
        b"hello\n",
        b"[1, 2]",
        b"clusters: 3\ncontexts: 7\ncurrent-context: c\n",
        b"",
        b"a: [",
        b"a: \xff",
        b"current-context: c\nclusters: []\nusers: []\ncontexts: []\n",
    ],
)
def test_a_file_that_is_no_kubeconfig_is_bad_input_and_said_in_one_sentence(
    content: bytes, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config"
    file.write_bytes(content)
    line = refusal(capsys, command, str(file))
    golden(line)
    assert str(file) in line


@pytest.mark.parametrize("name", ["missing", ""], ids=["missing", "a directory"])
def test_a_kubeconfig_that_cannot_be_read_is_bad_input(
    name: str, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert str(tmp_path / name) in refusal(capsys, command, str(tmp_path / name))


def test_an_unreachable_server_is_bad_input_and_nobody_says_that_it_is_asked_again(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        server = f"http://127.0.0.1:{unused.getsockname()[1]}"
        line = refusal(capsys, command, kubeconfig(tmp_path / "config", server))
    assert server in line
    assert "Connection refused" in line
    assert "again" not in line


def test_a_server_that_refuses_to_answer_is_bad_input(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ApiServer() as server:
        server.fail(403, 10**6, message="you may not list")
        line = refusal(capsys, command, kubeconfig(tmp_path / "config", server.transport().server))
    golden(line)


@pytest.mark.parametrize("daemon", ["placer", "recover", "extender", "kubelet-plugin", "device-plugin"])
def test_a_daemon_does_not_start_with_a_kubeconfig_that_cannot_be_used(
    daemon: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NODE_NAME", "node-1")
    file = tmp_path / "config"
    file.write_text("hello")
    assert main([daemon, "--kubeconfig", str(file)]) == 2
    golden(capsys.readouterr().err)


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A server that takes connections and answers nothing, and a kubeconfig for it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server, kubeconfig(tmp_path / "config", f"http://127.0.0.1:{server.getsockname()[1]}")


def test_a_silent_server_is_waited_for_as_long_as_asked(
    silent: tuple[socket.socket, str], capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    assert main(["top", "--once", "--kubeconfig", silent[1], "--request-timeout", "1s"]) == 2
    assert time.monotonic() - began > 0.9
    golden(capsys.readouterr().err)


def test_the_help_says_how_long_a_server_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["top", "--help"])
    assert f"(default: {READ_TIMEOUT:g}s)" in " ".join(capsys.readouterr().out.split())


def test_requests_are_made_as_the_user_that_is_named(silent: tuple[socket.socket, str]) -> None:
    server, file = silent
    heard: list[bytes] = []

    def hear() -> None:
        connection, _ = server.accept()
        with connection:
            heard.append(connection.recv(4096))

    with ThreadPoolExecutor(1) as one:
        listening = one.submit(hear)
        assert main(["top", "--once", "--kubeconfig", file, "--as", "jane"]) == 2
        listening.result()
    assert b"\r\nimpersonate-user: jane\r\n" in heard[0].lower()


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--as", "jane\r\nX-Other: y"], id="a user of two lines"),
        pytest.param(["--as", "żaneta"], id="a user that no header can name"),
        pytest.param(["--request-timeout", "soon"], id="no time"),
        pytest.param(["--request-timeout", "0"], id="no time at all"),
    ],
)
def test_options_of_access_that_cannot_be_used_are_one_line(
    options: list[str], silent: tuple[socket.socket, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["top", "--once", "--kubeconfig", silent[1], *options])
    said = capsys.readouterr()
    assert said.out == ""
    golden(said.err)
    assert len(said.err.splitlines()) == 1
