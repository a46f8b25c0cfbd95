"""The watch of the own UltraServer, with an API server on the network."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from dra_driver.driver.ultraserver_watch import UltraServerWatch
from dra_driver.driver.workload import SeenServer
from tests.builders.threads import no_further_threads
from tests.builders.ultraserver_objects import ultraserver
from tests.doubles.apiserver.server import ApiServer
from tests.eventually import eventually

WATCHING = "watching own UltraServer"


def test_a_server_is_followed_until_the_next_one_is() -> None:
    """Where no thread can be had for that, whoever asks again gets it; none of a former one goes on for ever."""
    seen: list[SeenServer] = []

    def note(news: Callable[[], SeenServer | None]) -> None:
        if (server := news()) is not None:
            seen.append(server)

    with ApiServer() as server:
        for name in ("ultraserver-a", "ultraserver-b"):
            server.store.create("neuronultraservers", ultraserver(name))
        watch = UltraServerWatch(server.transport(), "neuron-dra-driver", "node-1", note)
        watch.follow("ultraserver-a")
        eventually(lambda: [one.name for one in seen] == ["ultraserver-a"], what="the first server")
        with no_further_threads(), pytest.raises(RuntimeError):
            watch.follow("ultraserver-b")
        watch.follow("ultraserver-b")
        eventually(lambda: seen[-1].name == "ultraserver-b", what="the second server")
        watch.stop()
        eventually(lambda: WATCHING not in {thread.name for thread in threading.enumerate()}, what="no thread is left")
