"""Two instances of the driver on one node, as during a rolling update."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import pytest

from dra_driver.driver.resourceslices.messages import Desired
from tests.builders.publisher import NODE, chips, notes, published, publishing
from tests.doubles.apiserver.server import ApiServer
from tests.eventually import eventually, lastingly


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        running.add_node(NODE)
        yield running


def test_two_instances_of_one_version_write_nothing(server: ApiServer) -> None:
    with publishing(server, chips(4), started=1), publishing(server, chips(4), started=2):
        time.sleep(0.3)
    assert server.writes() == 1


def test_a_newer_instance_wins_with_one_write(server: ApiServer) -> None:
    with publishing(server, chips(4, "old"), started=1) as old, publishing(server, chips(4, "new"), started=2) as new:
        eventually(lambda: old.status.superseded)
        time.sleep(0.3)
        assert notes(server) == {"new"}
        assert server.writes() == 2
        assert old.status.published
        assert not new.status.superseded
        old.stop()
        assert notes(server) == {"new"}


def test_an_older_driver_version_that_starts_later_wins_too(server: ApiServer) -> None:
    """A roll-back: what counts is which instance kubelet calls, not its version."""
    with publishing(server, chips(4, "2.0"), started=1), publishing(server, chips(3, "1.0"), started=2):
        time.sleep(0.2)
        assert notes(server) == {"1.0"}
        assert server.writes() == 2


def test_while_both_run_a_change_of_the_host_ends_as_the_newer_one_wants(server: ApiServer) -> None:
    with publishing(server, chips(4, "old"), started=1) as old, publishing(server, chips(4, "new"), started=2) as new:
        eventually(lambda: old.status.superseded)
        old.set_desired(Desired(chips(3, "old")))
        new.set_desired(Desired(chips(3, "new")))
        eventually(lambda: notes(server) == {"new"} and len(published(server)) == 3)
        time.sleep(0.3)
        assert notes(server) == {"new"}
        assert server.writes() == 3


def test_while_both_run_a_wipe_is_repaired_and_ends_as_the_newer_one_wants(server: ApiServer) -> None:
    with publishing(server, chips(4, "old"), started=1) as old, publishing(server, chips(4, "new"), started=2):
        eventually(lambda: old.status.superseded)
        before = server.writes()
        server.wipe_slices(NODE)
        # Both look, one a little later than the other, and what the older one repairs the newer one changes.
        lastingly(lambda: notes(server) == {"new"} and len(server.slices()) == 1, 1.0)
        assert server.writes() - before <= 4


def test_two_equal_instances_that_repair_a_wipe_at_once_end_with_one_set(server: ApiServer) -> None:
    with publishing(server, chips(130), started=1), publishing(server, chips(130), started=2):
        for _ in range(3):
            server.wipe_slices(NODE)
            # After some repairs within a minute, which both may make, the next ones wait ever longer.
            eventually(lambda: len(published(server)) == 130)
            eventually(lambda: len(server.slices()) == 3)

        def one_set() -> bool:
            generations = {item["spec"]["pool"]["generation"] for item in server.slices()}
            return len(published(server)) == 130 and len(generations) == 1

        lastingly(one_set)


def test_when_the_newer_instance_is_gone_the_old_one_publishes_again(server: ApiServer) -> None:
    with publishing(server, chips(4, "old"), started=1, yield_seconds=0.5) as old:
        with publishing(server, chips(4, "new"), started=2):
            eventually(lambda: old.status.superseded)
        before = server.writes()
        eventually(lambda: notes(server) == {"old"})
        eventually(lambda: not old.status.superseded)
        time.sleep(0.2)
        assert server.writes() - before <= 1


def test_an_old_instance_that_never_ends_asserts_itself_ever_more_seldom(server: ApiServer) -> None:
    began = time.monotonic()
    with (
        publishing(server, chips(4, "old"), started=1, yield_seconds=0.2),
        publishing(server, chips(4, "new"), started=2),
    ):
        time.sleep(2.0)
        writes = server.writes()
        # After 0.2, 0.4, 0.8 ... seconds of waiting; each time the newer one answers.
        assert writes <= 2 + 2 * math.log2(1 + (time.monotonic() - began) / 0.2)
        eventually(lambda: notes(server) == {"new"})


def test_content_under_the_stamp_of_an_earlier_boot_is_replaced(server: ApiServer) -> None:
    with publishing(server, chips(4, "before the reboot"), started=10**9):
        pass
    item = server.slices()[0]
    stamp = item["metadata"]["annotations"]["neuron.aws.com/published-by"]
    item["metadata"]["annotations"]["neuron.aws.com/published-by"] = stamp.replace("boot/", "boot-before/")
    server.store.update("resourceslices", item["metadata"]["name"], item)
    with publishing(server, chips(4, "after"), started=5):
        assert notes(server) == {"after"}
