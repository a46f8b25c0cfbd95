"""Whether the API server answers, as the requests of a program tell."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from dra_driver.kube.api import reachability
from dra_driver.kube.api.client import Transport
from dra_driver.kube.api.errors import ApiError
from dra_driver.kube.api.reachability import Reachability
from tests.doubles.apiserver.server import ApiServer
from tests.eventually import eventually
from tests.golden import golden


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachability, "GRACE_SECONDS", 0.6)
    monkeypatch.setattr(reachability, "ASK_SECONDS", 0.2)


@contextmanager
def following(transport: Transport) -> Iterator[Reachability]:
    found = Reachability(transport, "node-a", "wait")
    found.worker.start()
    try:
        yield found
    finally:
        found.worker.stop()


def ask(transport: Transport, timeout: float = 10.0) -> None:
    with suppress(ApiError):
        transport.request("GET", "/version", timeout=timeout)


def told(caplog: pytest.LogCaptureFixture) -> list[int]:
    return [item.levelno for item in caplog.records if item.name == reachability.__name__]


def test_a_request_without_an_answer_is_followed_by_one_question_and_no_news(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reachability, "GRACE_SECONDS", 60.0)
    caplog.set_level(logging.INFO)
    with ApiServer() as server, following(server.transport()) as found:
        transport = found._transport
        ask(transport)
        with server.hold():
            ask(transport, timeout=0.1)
        eventually(lambda: server.count("GET", "/version") == 3, what="the question")
        time.sleep(1.0)
        assert server.count("GET", "/version") == 3
        assert (found.problem(), told(caplog)) == ("", [])


def test_an_outage_is_told_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with ApiServer() as server, following(server.transport()) as found:
        ask(found._transport)
        server.stop()
        ask(found._transport)
        eventually(found.problem, what="the problem")
        eventually(lambda: told(caplog) == [logging.WARNING], what="the warning")
        time.sleep(0.5)
        server.start()
        eventually(lambda: not found.problem(), what="its end")
        eventually(lambda: told(caplog) == [logging.WARNING, logging.INFO], what="the news")
        golden([found.worker.name, re.sub(r"\d+ s", "N s", caplog.records[-1].getMessage())])


def test_an_api_server_that_has_never_answered_is_not_missed(caplog: pytest.LogCaptureFixture) -> None:
    with ApiServer() as server, following(server.transport()) as found:
        server.stop()
        for _ in range(8):  # for longer than the grace
            ask(found._transport)
            time.sleep(0.1)
        assert (found.problem(), told(caplog)) == ("", [])
