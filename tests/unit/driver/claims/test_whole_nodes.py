"""A claim for a whole node of an UltraServer holds every chip of it, whatever becomes of checkpoint and host."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra_driver.driver.claims.container_edits import cdi_spec, shown_in
from dra_driver.driver.claims.model import CheckpointEntry, Plan, PreparedClaims, PrepareError
from dra_driver.driver.claims.observe import GONE_CHECKS, GONE_SECONDS
from dra_driver.kube.objects.resource import ResourceClaim
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.neuron.topology.partitions import NODE_DEVICE, chips_of
from tests.builders.claims import SETTINGS, ApiServer, Node, changed, claim, host, plan, result, uid, without
from tests.golden import golden

TRN2U = "trn2u.48xlarge"
ALL = tuple(range(16))


def whole(number: int = 1) -> ResourceClaim:
    return claim(number, [result(NODE_DEVICE)])


def made(item: ResourceClaim, inventory: NodeInventory, *held: Plan) -> Plan:
    return plan(item, inventory, PreparedClaims(CheckpointEntry(one) for one in held), SETTINGS)


def refusal(item: ResourceClaim, inventory: NodeInventory, *held: Plan) -> str:
    with pytest.raises(PrepareError) as caught:
        made(item, inventory, *held)
    return str(caught.value)


def test_a_whole_node_is_all_chips_of_the_host() -> None:
    planned = made(whole(), host(instance_type=TRN2U))
    assert planned.held_chips == ALL
    assert {node.chip: number for number, node in planned.nodes.items()} == {chip: chip for chip in ALL}
    (device,) = cdi_spec(planned).devices
    assert len(device.container_edits.device_nodes) == 16


def test_a_chip_that_is_lost_still_belongs_to_the_node() -> None:
    inventory = without(host(instance_type=TRN2U), 5)
    assert inventory.chip_indexes == ALL
    golden(refusal(whole(), inventory))


@pytest.mark.parametrize("change", [{"major": None}, {"node_present": False}])
def test_a_chip_that_cannot_be_given_keeps_the_node_from_being_given(change: dict[str, object]) -> None:
    golden(refusal(whole(), changed(host(instance_type=TRN2U), 3, **change)))


def test_a_type_of_unknown_size_has_the_chips_that_it_shows() -> None:
    assert made(whole(), host(4, instance_type="trn2u-ac.24xlarge")).held_chips == (0, 1, 2, 3)


def test_a_host_without_any_chip_offers_no_node() -> None:
    assert chips_of(NODE_DEVICE, ()) is None
    golden(refusal(whole(), host(0, instance_type=None)))


def test_node_and_chip_exclude_each_other() -> None:
    inventory = host(instance_type=TRN2U)
    node, chip = made(whole(1), inventory), made(claim(2, [7]), inventory)
    golden(refusal(claim(2, [7]), inventory, node))
    golden(refusal(whole(1), inventory, chip))


def test_a_node_and_a_chip_of_it_in_one_claim_are_refused_with_the_selector_to_use() -> None:
    said = refusal(claim(3, [result(7), result(NODE_DEVICE)]), host(instance_type=TRN2U))
    golden(said)


def test_the_cdi_spec_tells_what_a_node_claim_holds() -> None:
    spec = cdi_spec(made(whole(), host(instance_type=TRN2U)))
    assert shown_in(spec, uid(1)) == frozenset((chip, chip) for chip in ALL)
    assert shown_in(spec, uid(2)) is None


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path, ApiServer())
    made.inventory = host(instance_type=TRN2U)
    return made


def spoil(node: Node, item: ResourceClaim, *, spec: bool) -> None:
    """Make the claim's checkpoint file unreadable, its spec too if asked for, and restart."""
    node.checkpoint_file(item).write_text("{")
    if spec:
        node.cdi.remove(item.metadata.uid)
    node.restart()


def test_a_node_claim_whose_checkpoint_file_is_spoiled_is_known_from_its_spec(node: Node) -> None:
    item = node.api.put(whole())
    node.prepare(item)
    spoil(node, item, spec=False)
    with node.checkpoint.locked() as held:
        assert held.quarantined[uid(1)].chips == frozenset(ALL)
    node.prepare(item)
    assert node.checkpointed() == {uid(1): ALL}


def test_a_node_claim_without_file_and_spec_is_known_from_the_api_server(node: Node) -> None:
    item = node.api.put(whole())
    node.prepare(item)
    spoil(node, item, spec=True)
    assert [repair.kind for repair in node.reconciler.reconcile()] == ["learn"]
    with node.checkpoint.locked() as held:
        assert held.quarantined[uid(1)].chips == frozenset(ALL)


def test_nothing_is_freed_while_the_chips_of_the_node_are_not_known(node: Node) -> None:
    item = node.api.put(whole())
    node.prepare(item)
    node.inventory = host(0, instance_type=None)
    spoil(node, item, spec=True)
    assert node.reconciler.reconcile() == []
    with node.checkpoint.locked() as held:
        assert held.quarantined[uid(1)].chips is None


def test_a_node_claim_that_is_gone_for_long_frees_its_spoiled_file(node: Node) -> None:
    item = node.api.put(whole())
    node.prepare(item)
    node.reboot(tmpfs=False)
    spoil(node, item, spec=False)
    node.api.delete(item)
    kinds: list[str] = []
    for _ in range(GONE_CHECKS + 1):
        kinds += [repair.kind for repair in node.reconciler.reconcile()]
        node.now += GONE_SECONDS / (GONE_CHECKS - 1)
    assert kinds == ["release"]
    assert node.spec(item) is None
