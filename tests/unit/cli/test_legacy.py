"""``dra-driver extender``: its options, their environment variables, and what is said about wrong ones."""

from __future__ import annotations

import argparse
import os

import pytest

from dra_driver.cli import daemon, extender
from dra_driver.cli.main import main
from dra_driver.cli.vocabulary import Entry
from dra_driver.legacy.extender.service import ExtenderSettings
from dra_driver.util.errors import UsageError
from dra_driver.util.options import settings_of
from tests.golden import golden, golden_error

VARIABLES = [setting.option.variable for setting in settings_of(*extender.TABLES)]


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)


def settings(*arguments: str) -> tuple[ExtenderSettings, int]:
    parser = argparse.ArgumentParser()
    extender.register(Entry(parser.add_subparsers(), "extender"))
    args = parser.parse_args(["extender", *arguments])
    found = daemon.read(extender.Settings, vars(args), os.environ)
    return extender.extender_settings(found, leader_elect=args.leader_elect), found.metrics_port


def test_without_options_it_listens_for_pods_and_waits_for_the_lease() -> None:
    found, metrics = settings()
    assert (found.address, found.port, found.tls, found.namespace) == ("0.0.0.0", 12345, None, "kube-system")
    assert (found.leader_elect, found.advertise, metrics) == (True, "", -1)


def test_two_processes_have_two_identities() -> None:
    assert settings()[0].identity != settings()[0].identity


def test_the_environment_counts_and_options_count_more(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in {"PORT": "1", "POD_IP": "10.0.0.1", "POD_NAMESPACE": "ns", "METRICS_PORT": "9"}.items():
        monkeypatch.setenv(variable, value)
    found, metrics = settings("--port", "2", "--no-leader-elect", "--tls-cert", "c", "--tls-key", "k")
    assert (found.port, found.advertise, found.namespace, metrics) == (2, "10.0.0.1", "ns", 9)
    assert not found.leader_elect
    assert found.tls is not None


@pytest.mark.parametrize(
    "arguments",
    [
        ("--port", "65536"),
        ("--port", "x"),
        ("--metrics-port", "65536"),
        ("--tls-key", "k"),
    ],
)
def test_wrong_options_are_explained(arguments: tuple[str, ...]) -> None:
    with golden_error(UsageError):
        settings(*arguments)


def test_a_wrong_log_format_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["extender", "--log-format", "xml"]) == 2
    golden(capsys.readouterr().err)


def test_help_shows_a_command_to_try_and_the_schedulers_side(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["extender", "--help"])
    shown = capsys.readouterr().out
    for text in ("dra-driver extender --kubeconfig", "nodeCacheCapable: true", "bindVerb: bind", *VARIABLES):
        assert text in shown
