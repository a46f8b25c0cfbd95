"""Pods of a node are asked to leave while there is time: other nodes wait meanwhile."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from dra_driver.kube.api import eviction
from dra_driver.kube.api.errors import ApiError, Unreachable
from dra_driver.kube.api.eviction import EVICT_SECONDS, TROUBLE_SECONDS, Evictor, LeavingPod
from tests.golden import golden

HANG_SECONDS = 3.0


class Api:
    """Webhooks of all namespaces but one hang, unless a pod is named well."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[str] = []
        self.left: set[str] = set()

    def request(self, _method: str, path: str, **_: Any) -> None:
        namespace, name = path.split("/")[4], path.split("/")[6]
        self.asked.append(namespace)
        if name.startswith("well"):
            self.left.add(name)
        elif namespace != "good":
            self.now += HANG_SECONDS
            raise Unreachable("no answer in time")


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    server = Api()
    monkeypatch.setattr(eviction, "runtime", SimpleNamespace(monotonic=lambda: server.now))
    return server


def evictor(api: Api) -> Evictor:
    return Evictor(api, lambda: True, lambda _: None)  # type: ignore[arg-type]


def pod(namespace: str, name: str = "p") -> LeavingPod:
    return LeavingPod(namespace, name, f"{namespace}/{name}")


def test_namespaces_where_evictions_hang_take_a_bounded_time_and_keep_no_other_from_its_turn(api: Api) -> None:
    some = evictor(api)
    pods = [*(pod(f"bad-{number:02}") for number in range(15)), pod("good")]
    turns = 0
    while "good" not in api.asked:
        began = api.now
        some.begin()
        left = some.evict(pods)
        assert api.now - began <= EVICT_SECONDS + HANG_SECONDS
        assert len(left) == len(pods)
        turns += 1
        if turns == 1:
            golden(left[-1].why)
    assert turns < 6
    assert len(api.asked) == 16, "none was asked twice"
    before = api.now
    some.begin()
    some.evict(pods)
    assert api.now == before, "nor is soon after"
    api.now += TROUBLE_SECONDS + 1
    some.begin()
    some.evict([pod("bad-00"), pod("good")])
    assert api.asked[-2:] == ["good", "bad-00"], "both are, the one that hung last"


def test_the_nodes_of_a_look_share_its_time(api: Api) -> None:
    some = evictor(api)
    for _ in range(2):
        began = api.now
        some.begin()
        for node in range(4):
            with suppress(ApiError):
                some.evict([pod(f"bad-{node}-{number:02}") for number in range(15)])
        assert EVICT_SECONDS < api.now - began <= EVICT_SECONDS + HANG_SECONDS


def test_an_api_server_that_does_not_answer_is_an_error(api: Api) -> None:
    with pytest.raises(ApiError):
        evictor(api).evict([pod("bad-00"), pod("bad-00", "q")])
    assert api.asked == ["bad-00"]


def test_pods_that_hang_keep_the_others_of_their_namespace_only_so_many_turns(api: Api) -> None:
    some = evictor(api)
    bad, well = [pod("mixed", f"bad-{number}") for number in range(3)], [pod("mixed", f"well-{n}") for n in range(20)]
    for turn in range(9):
        some.begin()
        with suppress(ApiError):
            some.evict([*bad, *(one for one in well if one.name not in api.left)])
        assert turn < len(bad) or len(api.left) == len(well)
        api.now += TROUBLE_SECONDS + 1
    assert api.asked.count("mixed") == 9 + len(well), "those that hang are asked for in turn, one a time"
