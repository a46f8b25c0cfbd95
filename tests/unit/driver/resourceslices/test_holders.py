"""Which sick devices claims hold, and how seldom the API server is asked, by which question."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.driver.resourceslices.holders import Holders
from dra_driver.driver.resourceslices.kept import MAX_HELD_SECONDS
from dra_driver.kube.api.errors import ApiError
from dra_driver.kube.objects.resource import AllocatedClaim
from dra_driver.neuron.topology.partitions import device_name
from tests.builders import claims
from tests.builders.claims import ApiServer, claim

LOOK = 32.0
"""Seconds between two looks at the slices while a claim holds a sick device."""


class Node:
    """A node whose slices are looked at again and again."""

    def __init__(self, root: Path, api: ApiServer) -> None:
        self.api = api
        self.claims = claims.Node(root, api)
        self.now = 1000.0
        self.holders = Holders(api, self.claims.checkpoint, claims.NODE, lambda: self.now)

    def held(self, *chips: int) -> set[int] | None:
        names = {device_name(chip): chip for chip in chips}
        found = self.holders.of(names)
        return None if found is None else {names[name] for name in found}

    def looks(self, seconds: float, *chips: int) -> int:
        """Look for so long; how many lists of all claims that cost."""
        before, end = self.api.lists, self.now + seconds
        while self.now < end:
            self.now += LOOK
            self.held(*chips)
        return self.api.lists - before


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path, ApiServer())
    yield made
    made.claims.checkpoint.close()


def test_for_what_is_prepared_here_nobody_is_asked(node: Node) -> None:
    node.claims.prepare(node.api.put(claim(1, [4])))
    node.api.gets.clear()
    node.api.down = ApiError("the API server is away")
    assert node.held(4) == {4}
    assert node.looks(7200.0, 4) == 0
    assert node.api.gets == []


def test_a_claim_that_is_allocated_and_not_prepared_is_asked_for_by_its_name(node: Node) -> None:
    item = node.api.put(claim(1, [4]))
    assert node.held(4, 5) == {4}
    assert node.api.lists == 1
    assert node.looks(LOOK, 4) == 0
    assert node.api.gets == [f"{item.metadata.namespace}/{item.metadata.name}"]
    assert node.looks(7200.0, 4) == 0
    node.api.delete(item)
    node.now += LOOK
    assert node.held(4) == set()
    assert node.api.lists == 2


@pytest.mark.parametrize("change", ["another of its name", "allocated elsewhere"])
def test_a_claim_that_is_not_what_it_was_holds_nothing(node: Node, change: str) -> None:
    item = node.api.put(claim(1, [4]))
    assert node.held(4) == {4}
    other = claim(2, [6], name=item.metadata.name) if change == "another of its name" else claim(1, [6])
    node.api.put(other)
    node.now += LOOK
    assert node.held(4, 6) == {6}


def test_what_was_free_is_looked_for_ever_more_seldom(node: Node) -> None:
    assert node.held(4) == set()
    assert node.looks(7200.0, 4) <= 7200.0 / MAX_HELD_SECONDS + 6
    assert node.api.gets == []
    node.api.put(claim(1, [4]))
    assert node.looks(MAX_HELD_SECONDS + LOOK, 4) == 1
    assert node.held(4) == {4}, "allocated between the look at the claims and the write"


def test_a_device_that_was_not_looked_for_yet_is_looked_for_at_once(node: Node) -> None:
    assert node.held(4) == set()
    node.looks(7200.0, 4)
    node.api.put(claim(1, [5]))
    lists = node.api.lists
    assert node.held(4, 5) == {5}
    assert node.api.lists == lists + 1
    node.api.put(claim(2, [7]))
    node.claims.prepare(claim(2, [7]))
    assert node.held(7) == {7}
    node.claims.unprepare(claim(2, [7]))
    assert node.held(7) == {7}, "it is still allocated, and nobody had asked while it was prepared"


def test_between_two_lists_a_device_whose_claim_has_gone_may_be_anothers(node: Node) -> None:
    first = node.api.put(claim(1, [4]))
    assert node.held(4) == {4}
    node.api.delete(first)
    node.api.put(claim(2, [4]))
    node.now += 1.0
    assert node.held(4) == {4}
    assert node.api.lists == 1
    node.now += LOOK
    assert node.held(4) == {4}
    assert node.api.lists == 2


def test_in_doubt_it_is_not_known_and_is_asked_ever_more_seldom(node: Node) -> None:
    node.api.down = ApiError("the API server is away")
    assert node.held(4) is None
    assert node.looks(7200.0, 4) <= 7200.0 / MAX_HELD_SECONDS + 6
    assert node.held(4) is None
    node.api.down = None
    node.now += MAX_HELD_SECONDS
    assert node.held(4) == set()


def test_while_a_file_is_unreadable_nothing_is_known_and_nobody_is_asked(node: Node) -> None:
    item = claim(1, [4])
    node.claims.prepare(node.api.put(item))
    node.claims.checkpoint_file(item).write_bytes(b"{")
    node.claims.restart()
    node.holders = Holders(node.api, node.claims.checkpoint, claims.NODE, lambda: node.now)
    node.api.gets.clear()
    assert node.held(4, 5) is None
    assert (node.api.lists, node.api.gets) == (0, [])


def test_a_device_is_held_whose_claim_is_prepared_and_deleted_while_claims_are_listed(tmp_path: Path) -> None:
    item = claim(1, [4])

    class Api(ApiServer):
        def list_claims(self, driver: str, pool: str) -> list[AllocatedClaim]:
            here.claims.prepare(item)
            self.delete(item)  # with its pod, by force: the containers may be running
            return super().list_claims(driver, pool)

    here = Node(tmp_path, Api(item))
    assert here.held(4, 5) == {4}
    here.claims.checkpoint.close()
