"""UltraServerConfig: what a container of a whole-node claim is told, and what is refused with which explanation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.driver.claims.container_edits import cdi_spec, plan_document
from dra_driver.driver.claims.model import CheckpointEntry, Plan, PreparedClaims
from dra_driver.kube.objects.resource import DeviceAllocationConfiguration, ResourceClaim
from dra_driver.neuron.host.inventory import Membership, NodeInventory, ServerSet
from dra_driver.neuron.names import API_VERSIONS
from dra_driver.neuron.opaque_config import ConfigError
from dra_driver.neuron.topology.partitions import NODE_DEVICE
from dra_driver.neuron.topology.ultraserver import PREFERENCE, Mode
from dra_driver.util.errors import DriverError
from tests.builders.claims import (
    SETTINGS,
    ApiServer,
    Node,
    claim,
    config,
    host,
    neuron_config,
    plan,
    result,
    ultraserver_config,
    without,
)
from tests.golden import golden, golden_error

PAIR, FOUR = ServerSet(2, "1a2b3c4d5e6f7080", 0), ServerSet(4, "1a2b3c4d5e6f7081", 2)
HEALTHY = Membership((Mode.X4, Mode.X2V, Mode.X1), (PAIR, FOUR), elected=True)
ELECTING = Membership((), (PAIR, FOUR), elected=True, electing=True)
LNC = {"NEURON_LOGICAL_NC_CONFIG": "2", "NEURON_RT_VIRTUAL_CORE_SIZE": "2"}


def ultra(member: Membership | None = HEALTHY) -> NodeInventory:
    return host(instance_type="trn2u.48xlarge", ultraserver=member)


def whole(*configs: DeviceAllocationConfiguration, number: int = 1, **changes: Any) -> ResourceClaim:
    return claim(number, [result(NODE_DEVICE)], configs=configs, **changes)


def asking(nodes: object, *more: DeviceAllocationConfiguration, **changes: Any) -> ResourceClaim:
    return whole(config(ultraserver_config(nodes)), *more, **changes)


def made(item: ResourceClaim, inventory: NodeInventory | None = None, held: Sequence[Plan] = ()) -> Plan:
    return plan(item, inventory or ultra(), PreparedClaims(CheckpointEntry(one) for one in held), SETTINGS)


def refusal(item: ResourceClaim, member: Membership | None = HEALTHY) -> str:
    with pytest.raises(DriverError) as caught:
        made(item, ultra(member))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700
    return str(caught.value)


def told(item: ResourceClaim, member: Membership | None = HEALTHY) -> dict[str, str]:
    """Variables about the UltraServer."""
    return {name: value for name, value in made(item, ultra(member)).env.items() if "ULTRASERVER" in name}


def four(mode: str = "1") -> dict[str, str]:
    return {
        "NEURON_RT_ULTRASERVER_MODE": mode,
        "NEURON_RT_ULTRASERVER_SERVER_ID": "1a2b3c4d5e6f7081",
        "NEURON_RT_ULTRASERVER_NODE_ID": "2",
    }


def two(mode: str) -> dict[str, str]:
    return {
        "NEURON_RT_ULTRASERVER_MODE": mode,
        "NEURON_RT_ULTRASERVER_SERVER_ID": "1a2b3c4d5e6f7080",
        "NEURON_RT_ULTRASERVER_NODE_ID": "0",
    }


@pytest.mark.parametrize(
    ("nodes", "modes", "expected"),
    [
        (4, HEALTHY.modes, four()),
        (2, HEALTHY.modes, two("3")),
        (2, (Mode.X2H, Mode.X1), two("2")),
        (2, (Mode.X2V, Mode.X2H), two("3")),
        (1, HEALTHY.modes, {"NEURON_RT_ULTRASERVER_MODE": "4"}),
    ],
)
def test_a_container_is_told_mode_and_place_in_the_set_that_was_asked_for(
    nodes: int, modes: tuple[Mode, ...], expected: dict[str, str]
) -> None:
    assert told(asking(nodes), replace(HEALTHY, modes=modes)) == expected


def test_a_part_of_the_firmwares_server_goes_by_its_ids() -> None:
    assert told(asking(2), Membership(HEALTHY.modes, (FOUR,), elected=False)) == four("3")


def test_a_whole_node_without_configuration_is_told_nothing() -> None:
    assert made(whole()).env == LNC
    assert made(whole(), ultra(ELECTING)).env == LNC


def test_chips_of_an_ultraserver_host_are_prepared_as_elsewhere() -> None:
    row = claim(1, [4, 5, 6, 7])
    assert made(row, ultra(ELECTING)) == made(row, host())


def test_it_goes_together_with_a_logical_core_size() -> None:
    both = made(asking(2, config(neuron_config(1))))
    assert both.env == two("3") | {"NEURON_LOGICAL_NC_CONFIG": "1", "NEURON_RT_VIRTUAL_CORE_SIZE": "1"}


@pytest.mark.parametrize("version", API_VERSIONS)
def test_every_api_version_in_use_is_taken(version: str) -> None:
    assert told(whole(config({**ultraserver_config(4), "apiVersion": version}))) == four()


def test_the_claims_own_configuration_beats_the_classes() -> None:
    of_class = config(ultraserver_config(2), source="FromClass")
    assert told(whole(of_class)) == two("3")
    assert told(whole(config(ultraserver_config(4)), of_class)) == four()


@pytest.mark.parametrize("wrong", [0, 3, "4", True, None, 4.0])
def test_other_numbers_of_nodes_are_refused(wrong: object) -> None:
    with golden_error(ConfigError):
        made(asking(wrong))


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_while_the_nodes_elect_their_server_the_claim_waits(nodes: int) -> None:
    said = refusal(asking(nodes), ELECTING)
    golden(said)


@pytest.mark.parametrize(
    ("nodes", "member"),
    [
        (4, Membership((Mode.X2V, Mode.X1), (PAIR,), elected=True)),
        (2, Membership((Mode.X1,), (), elected=True)),
        (2, replace(HEALTHY, modes=(Mode.X4, Mode.X1))),
        (1, replace(HEALTHY, modes=(Mode.X4,))),
        (4, Membership((), (), elected=True)),
        (4, replace(HEALTHY, sets=(PAIR,))),
        (4, None),
    ],
)
def test_a_refusal_says_which_modes_there_are_and_why(nodes: int, member: Membership | None) -> None:
    golden(refusal(asking(nodes), member))


def test_it_is_for_whole_nodes_only() -> None:
    said = refusal(claim(1, [4, 5], configs=[config(ultraserver_config(4))]))
    golden(said)


def test_a_configuration_for_another_request_does_not_hold() -> None:
    chips = claim(1, [result(4, "a")], configs=[config(ultraserver_config(4), "b")])
    assert made(chips).held_chips == (4,)


def test_requests_of_a_claim_that_disagree_are_refused() -> None:
    item = claim(
        1,
        [result(NODE_DEVICE, "a"), result(NODE_DEVICE, "b", admin_access=True)],
        configs=[config(ultraserver_config(2), "a"), config(ultraserver_config(4), "b")],
    )
    golden(refusal(item))


def test_claims_of_one_pod_that_disagree_are_warned_of() -> None:
    first = made(asking(4))
    looking = claim(
        2, [result(NODE_DEVICE, admin_access=True)], configs=[config(ultraserver_config(2)), config(neuron_config(1))]
    )
    about_size, about_mode = made(looking, held=[first]).warnings
    assert "NEURON_LOGICAL_NC_CONFIG=2, this one 1" in about_size
    assert "NEURON_RT_ULTRASERVER_MODE=1, this one 3" in about_mode
    assert made(looking, held=[made(whole(number=1, name="a"))]).warnings[1:] == ()


def test_a_node_that_lacks_a_chip_is_refused_before_its_modes_are_looked_at() -> None:
    with golden_error(DriverError):
        made(asking(4), without(ultra(ELECTING), 9))


def test_the_plan_shows_what_a_container_would_get() -> None:
    planned = made(asking(4))
    document = plan_document(planned, cdi_spec(planned))
    assert document["environment"] == LNC | four()
    assert len(document["deviceNodes"]) == 16


@given(
    st.sets(st.sampled_from(list(Mode))),
    st.sets(st.sampled_from([2, 4])),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1, 2, 4]),
)
def test_a_claim_is_told_a_mode_on_offer_and_a_set_that_exists_or_nothing(
    modes: set[Mode], sizes: set[int], elected: bool, electing: bool, nodes: int
) -> None:
    sets = tuple(one for one in (PAIR, FOUR) if one.nodes in sizes)
    member = Membership(tuple(mode for mode in PREFERENCE if mode in modes), sets, elected, electing)
    try:
        variables = told(asking(nodes), member)
    except DriverError:
        offered = any(mode.nodes == nodes for mode in modes)
        assert electing or not offered or (nodes > 1 and member.set_for(nodes) is None)
        return
    assert not electing
    mode = Mode(int(variables["NEURON_RT_ULTRASERVER_MODE"]))
    assert mode in modes
    assert mode.nodes == nodes
    assert len(variables) == (1 if nodes == 1 else 3)


# Over the life of a claim


@pytest.fixture
def node(tmp_path: Path) -> Node:
    world = Node(tmp_path, ApiServer())
    world.inventory = ultra()
    return world


def reported(node: Node) -> tuple[str, ...]:
    """What an administrator is told after a pass of repair."""
    node.reconciler.reconcile()
    return node.reconciler.findings


def test_a_claim_that_waited_for_the_election_is_prepared_when_it_has_ended(node: Node) -> None:
    item = node.api.put(asking(4))
    node.inventory = ultra(ELECTING)
    with golden_error(DriverError):
        node.prepare(item)
    assert node.checkpointed() == {}
    assert node.spec(item) is None

    node.inventory = ultra()
    node.prepare(item)
    assert "NEURON_RT_ULTRASERVER_SERVER_ID=1a2b3c4d5e6f7081" in node.env(item)


@pytest.mark.parametrize(
    "later", [ELECTING, Membership((Mode.X1,), (), elected=True), Membership((), (), elected=True)]
)
def test_a_prepared_claim_keeps_what_it_was_told(later: Membership, node: Node) -> None:
    item = node.api.put(asking(4))
    first, env = node.prepare(item), node.env(item)
    node.inventory = ultra(later)
    assert node.prepare(item) == first
    node.restart()
    assert node.prepare(item) == first
    assert node.env(item) == env
    node.reconciler.repair()
    assert node.env(item) == env


def test_a_claim_that_outlives_a_reboot_waits_for_the_election_and_is_told_its_outcome(node: Node) -> None:
    item = node.api.put(asking(4))
    first = node.prepare(item)
    node.reboot()
    node.inventory = ultra(ELECTING)
    with golden_error(DriverError):
        node.prepare(item)
    assert reported(node) == ()
    node.inventory = ultra(replace(HEALTHY, sets=(PAIR, ServerSet(4, "00000000000000aa", 3))))
    assert reported(node) == (), "no container of this boot was told anything yet"
    assert node.prepare(item) == first
    assert {"NEURON_RT_ULTRASERVER_SERVER_ID=00000000000000aa", "NEURON_RT_ULTRASERVER_NODE_ID=3"} <= node.env(item)
    assert reported(node) == ()


def test_a_claim_that_outlives_a_reboot_is_refused_where_its_server_is_no_more(node: Node) -> None:
    item = node.api.put(asking(4))
    node.prepare(item)
    node.reboot()
    node.inventory = ultra(Membership((Mode.X1,), (), elected=True))
    with golden_error(DriverError):
        node.prepare(item)


@pytest.mark.parametrize(
    "later",
    [
        Membership((Mode.X1,), (), elected=True),
        replace(HEALTHY, sets=(PAIR, ServerSet(4, "00000000000000aa", 3))),
        replace(HEALTHY, sets=(PAIR,)),
    ],
)
def test_a_server_that_changed_under_a_prepared_claim_is_reported(later: Membership, node: Node) -> None:
    item = node.api.put(asking(4))
    node.prepare(item)
    assert reported(node) == ()
    node.inventory = ultra(ELECTING)
    assert reported(node) == ()
    node.inventory = ultra(later)
    (finding,) = reported(node)
    golden(finding)


def test_a_stand_alone_claim_does_not_mind_another_server(node: Node) -> None:
    item = node.api.put(asking(1))
    node.prepare(item)
    node.inventory = ultra(Membership((Mode.X1,), (), elected=True))
    assert reported(node) == ()
