"""A node that was updated: this driver over the files that a release before it, or the same one, has left."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from dra_driver.kube.types import ResourceClaim
from dra_driver.util.errors import DriverError
from dra_driver.version import VERSION
from tests.builders.claims import ApiServer, Node, claim, container
from tests.builders.release_state import offered, read_claims
from tests.paths import ROOT

RELEASES = sorted((ROOT / "tests/data/releases").iterdir())
of_each_release = pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)


@pytest.fixture
def updated(release: Path, tmp_path: Path) -> tuple[Node, list[ResourceClaim]]:
    """A node with a copy of the release's files, after the start of this driver."""
    shutil.copytree(release, tmp_path, dirs_exist_ok=True)
    claims = read_claims(release)
    return Node(tmp_path, ApiServer(*claims)), claims


Given = tuple[dict[str, tuple[int, int]], dict[str, str]]


def given(node: Node, item: ResourceClaim, ids: list[str]) -> Given:
    return container([node.spec(item)], ids)


def test_this_version_has_left_its_state() -> None:
    assert VERSION in [path.name for path in RELEASES], "tests/builders/release_state.py says how to record it"


@of_each_release
def test_claims_of_the_release_are_answered_as_before_and_their_chips_stay_theirs(
    updated: tuple[Node, list[ResourceClaim]],
) -> None:
    node, claims = updated
    before = {
        item.metadata.uid: (node.cdi.read(item.metadata.uid), node.paths(item), node.env(item)) for item in claims
    }
    assert node.quarantined() == []
    for item in claims:
        ids = node.prepare(item)
        nodes, env = given(node, item, ids)
        spec, paths, variables = before[item.metadata.uid]
        assert spec is not None
        assert {path: minor for path, (_, minor) in nodes.items()} == paths
        assert {f"{name}={value}" for name, value in env.items()} == variables
    for chip in (0, 2, 5, 8):
        with pytest.raises(DriverError, match="still prepared for claim"):
            node.prepare(node.api.put(claim(90 + chip, [chip], pods=["new"])))


@of_each_release
def test_claims_of_the_release_outlive_a_reboot_into_this_driver(updated: tuple[Node, list[ResourceClaim]]) -> None:
    node, claims = updated
    before = [node.env(item) for item in claims]
    node.reboot(major=251)
    for item, variables in zip(claims, before, strict=True):
        nodes, env = given(node, item, node.prepare(item))
        assert {major for major, _ in nodes.values()} == {251}
        assert {f"{name}={value}" for name, value in env.items()} == variables


@of_each_release
def test_claims_of_the_release_end_and_leave_nothing(updated: tuple[Node, list[ResourceClaim]]) -> None:
    node, claims = updated
    for item in claims:
        node.unprepare(item)
        node.api.delete(item)
    assert node.checkpointed() == {}
    assert list((node.root / "cdi").iterdir()) == []
    assert node.reconciler.reconcile() == []
    assert node.prepare(node.api.put(claim(99, range(16), pods=["new"])))


@of_each_release
def test_names_that_users_rely_on_are_still_offered(release: Path) -> None:
    recorded: dict[str, list[str]] = msgspec.json.decode((release / "devices.json").read_bytes())
    now = offered()
    for what, names in recorded.items():
        assert set(names) <= set(now[what]), what
