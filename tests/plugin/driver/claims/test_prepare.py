from __future__ import annotations

import json
import re
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from dra_driver.driver.claims.situation import NodeFacts
from dra_driver.kube.api.errors import ApiError, TooLarge, Unreachable
from dra_driver.kube.kubelet.dra import PreparedDevice
from dra_driver.neuron.exclusion import HeldBack
from dra_driver.util.errors import DriverError
from tests.builders.claims import (
    LATER,
    NODE,
    SETTINGS,
    ApiServer,
    Node,
    claim,
    config,
    container,
    host,
    in_time,
    neuron_config,
    ref,
    result,
    uid,
    without,
)
from tests.golden import golden, golden_error
from tests.oracles.cdi_schema import SCHEMA


@pytest.fixture
def api() -> ApiServer:
    return ApiServer()


@pytest.fixture
def node(tmp_path: Path, api: ApiServer) -> Node:
    return Node(tmp_path, api)


def test_a_prepared_claim_is_checkpointed_visible_and_replied(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4, 5, result("nic", "nics", driver="efa.networking.k8s.aws")]))
    reply = node.preparer.prepare(ref(item), in_time())
    assert [replace(device, cdi_device_ids=()) for device in reply] == [
        PreparedDevice(("neurons",), NODE, "neuron-device-4", ()),
        PreparedDevice(("neurons",), NODE, "neuron-device-5", ()),
    ]
    ids = [name for device in reply for name in device.cdi_device_ids]
    nodes, env = container([node.spec(item)], ids)
    assert nodes == {"/dev/neuron0": (240, 4), "/dev/neuron1": (240, 5)}
    assert env == {"NEURON_LOGICAL_NC_CONFIG": "2", "NEURON_RT_VIRTUAL_CORE_SIZE": "2"}
    assert node.checkpointed() == {uid(1): (4, 5)}
    jsonschema.validate(json.loads(node.cdi.file(uid(1)).read_bytes()), SCHEMA)
    assert api.gets == ["default/claim-1"]


def test_a_retry_ends_in_the_same_place(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4, 5]))
    first = node.prepare(item)
    files = (node.checkpoint_file(item), node.cdi.file(uid(1)))
    # Not when they were read, which is part of their status too.
    before = [(status.st_ino, status.st_mtime_ns) for status in map(Path.stat, files)]
    assert node.prepare(item) == first
    node.restart()
    assert node.prepare(item) == first
    after = [(status.st_ino, status.st_mtime_ns) for status in map(Path.stat, files)]
    assert after == before, "nothing is written again"


def test_unprepare_takes_all_back_and_needs_no_api_server(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4, 5]))
    node.prepare(item)
    api.down = Unreachable("connection refused")
    api.gets.clear()
    node.unprepare(item)
    assert node.checkpointed() == {}
    assert node.cdi.list() == {}
    node.unprepare(item)
    assert api.gets == []


def test_unprepare_of_an_unknown_claim_succeeds(node: Node) -> None:
    node.unprepare(claim(7, [4]))


def test_unprepare_may_come_to_another_instance_than_prepare(tmp_path: Path, node: Node, api: ApiServer) -> None:
    item, other = api.put(claim(1, [4])), api.put(claim(2, [4]))
    node.prepare(item)
    newer = Node(tmp_path, api)
    newer.unprepare(item)
    assert node.prepare(other)
    with golden_error(DriverError):
        newer.prepare(item)


# The API server


def test_a_passing_failure_of_the_api_server_is_tried_again(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4]))
    api.trouble = [Unreachable("connection reset"), ApiError("overloaded", status=429, retry_after=1.5)]
    assert node.prepare(item)
    assert node.slept == [0.25, 1.5]
    assert len(api.gets) == 3


def test_a_lasting_failure_is_explained_after_three_tries(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4]))
    api.down = Unreachable("the API server does not answer", remedy="check the network")
    with golden_error(DriverError):
        node.prepare(item)
    assert len(api.gets) == 3
    assert node.checkpointed() == {}


@pytest.mark.parametrize("status", [401, 403, 422])
def test_a_refusal_of_the_api_server_is_not_tried_again(node: Node, api: ApiServer, status: int) -> None:
    item = api.put(claim(1, [4]))
    api.down = ApiError("refused", status=status)
    with golden_error(DriverError):
        node.prepare(item)
    assert len(api.gets) == 1


def test_a_prepared_claim_is_served_while_the_api_server_is_away(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4]))
    first = node.prepare(item)
    api.down = Unreachable("connection refused")
    node.restart()
    assert node.prepare(item) == first
    node.inventory = host(major=251)  # the kernel driver was loaded again
    assert node.prepare(item) == first
    assert container([node.spec(item)], first)[0] == {"/dev/neuron0": (251, 4)}


def test_a_claim_of_an_earlier_boot_waits_for_the_api_server(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4]))
    first = node.prepare(item)
    node.reboot(major=251)
    before = node.checkpoint_file(item).read_bytes()
    api.down = Unreachable("connection refused", remedy="check the network")
    with golden_error(DriverError):
        node.prepare(item)
    assert node.checkpoint_file(item).read_bytes() == before, "it does not become one of this boot"
    api.down = None
    assert node.prepare(item) == first
    assert container([node.spec(item)], first)[0] == {"/dev/neuron0": (251, 4)}
    api.down = Unreachable("connection refused")
    assert node.prepare(item) == first


def test_a_claim_that_was_allocated_again_while_the_node_was_down_never_gets_its_former_chips(
    node: Node, api: ApiServer
) -> None:
    node.prepare(api.put(claim(1, [4])))
    node.reboot()
    anew = api.put(claim(1, [9]))
    api.down = Unreachable("connection refused")
    with pytest.raises(DriverError):
        node.prepare(anew)
    api.down = None
    node.prepare(anew)
    assert node.paths(anew) == {"/dev/neuron0": 9}
    assert node.prepare(api.put(claim(2, [4], pods=["pod-2"])))


def test_a_claim_that_is_gone_is_not_prepared_even_if_it_was(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4]))
    node.prepare(item)
    api.delete(item)
    with golden_error(DriverError):
        node.prepare(item)
    assert node.checkpointed() == {uid(1): (4,)}, "only unprepare frees it"


def test_a_path_that_is_not_served_is_no_proof_that_a_claim_is_gone(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4]))
    node.prepare(item)
    api.down = ApiError("not served", status=404, object_missing=False)
    assert node.prepare(item)


def test_a_replaced_claim_is_refused_and_its_successor_waits_for_the_chips(node: Node, api: ApiServer) -> None:
    old = api.put(claim(1, [4], name="train"))
    node.prepare(old)
    new = api.put(claim(2, [4], name="train"))
    with golden_error(DriverError):
        node.prepare(old)
    with golden_error(DriverError):
        node.prepare(new)
    node.unprepare(old)
    assert node.prepare(new)


def test_a_replaced_claim_with_other_chips_is_prepared_beside_its_predecessor(node: Node, api: ApiServer) -> None:
    old = api.put(claim(1, [4], name="train", template=True))
    node.prepare(old)
    new = api.put(claim(2, [5], name="train", pods=["pod-2"], template=True))
    assert node.prepare(new)
    assert node.checkpointed() == {uid(1): (4,), uid(2): (5,)}


def test_no_lock_is_held_while_the_api_server_is_asked(node: Node, api: ApiServer) -> None:
    slow, quick = api.put(claim(1, [4])), api.put(claim(2, [5]))
    asked, answer = threading.Event(), threading.Event()
    get = api.get_claim

    def get_claim(namespace: str, name: str, **options: Any) -> Any:
        if name == "claim-1":
            asked.set()
            assert answer.wait(60)
        return get(namespace, name, **options)

    api.get_claim = get_claim  # type: ignore[method-assign] # the answer is held back for one claim
    thread = threading.Thread(target=node.prepare, args=(slow,))
    thread.start()
    assert asked.wait(30)
    try:
        assert node.prepare(quick)
        node.unprepare(quick)
    finally:
        answer.set()
        thread.join(30)
    assert node.checkpointed() == {uid(1): (4,)}


# Refusals leave nothing behind


@pytest.mark.parametrize(
    "item",
    [
        claim(1, [result(4, pool="node-2")]),
        claim(1, [99]),
        claim(1, [4], configs=[config(neuron_config(3))]),
        claim(1, []),
    ],
)
def test_a_refused_claim_holds_nothing_and_can_be_unprepared(node: Node, api: ApiServer, item: Any) -> None:
    api.put(item)
    with pytest.raises(DriverError):
        node.prepare(item)
    assert node.checkpointed() == {}
    assert node.cdi.list() == {}
    node.unprepare(item)


def test_a_claim_whose_spec_cannot_be_written_stays_held_until_unprepare(node: Node, api: ApiServer) -> None:
    item, other = api.put(claim(1, [4])), api.put(claim(2, [4]))
    (node.root / "cdi").write_text("in the way")
    with golden_error(DriverError):
        node.prepare(item)
    (node.root / "cdi").unlink()
    with golden_error(DriverError):
        node.prepare(other)
    node.unprepare(item)
    assert node.prepare(other)


def test_what_a_claim_is_warned_of_is_said_once_though_its_spec_cannot_be_written_at_first(
    node: Node, api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    node.settings = replace(SETTINGS, device_numbering="host", contiguity="warn")
    item = api.put(claim(1, [4, 6]))
    (node.root / "cdi").write_text("in the way")
    with pytest.raises(DriverError):
        node.prepare(item)
    (node.root / "cdi").unlink()
    assert node.prepare(item) == node.prepare(item)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len([text for text in warnings if "contiguous" in text]) == 1, warnings


# Reboots and vanished hardware


def test_a_reboot_that_emptied_the_cdi_directory_is_healed_by_prepare(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4, 5]))
    first = node.prepare(item)
    node.reboot(major=251)
    assert node.spec(item) is None
    assert node.prepare(item) == first, "the names that kubelet may still know stay good"
    assert container([node.spec(item)], first)[0] == {"/dev/neuron0": (251, 4), "/dev/neuron1": (251, 5)}


def test_a_spec_that_somebody_changed_is_written_again(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4, 5]))
    first = node.prepare(item)
    good = node.cdi.file(uid(1)).read_bytes()
    node.cdi.file(uid(1)).write_bytes(good.replace(b"neuron1", b"neuron9"))
    assert node.prepare(item) == first
    assert node.cdi.file(uid(1)).read_bytes() == good


def test_a_chip_that_vanished_is_refused_and_served_when_it_is_back(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4, 5]))
    first = node.prepare(item)
    node.inventory = without(host(), 5)
    with golden_error(DriverError):
        node.prepare(item)
    assert node.checkpointed() == {uid(1): (4, 5)}
    node.inventory = host()
    assert node.prepare(item) == first


def test_settings_and_defaults_that_changed_do_not_reach_a_prepared_claim(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4, 5]))
    first = node.prepare(item)
    node.settings = replace(SETTINGS, device_numbering="host", contiguity="refuse")
    node.inventory = host(default_lnc=1)
    node.restart()
    assert node.prepare(item) == first
    assert node.paths(item) == {"/dev/neuron0": 4, "/dev/neuron1": 5}
    assert "NEURON_LOGICAL_NC_CONFIG=2" in node.env(item)


def test_after_a_reboot_the_variables_follow_the_host_and_the_numbers_stay(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4, 5]))
    first = node.prepare(item)
    node.settings = replace(SETTINGS, device_numbering="host")
    node.reboot(major=251)
    node.inventory = host(major=251, default_lnc=1)
    assert node.prepare(item) == first, "kubelet still passes the names that it got before the reboot"
    assert node.env(item) == {"NEURON_LOGICAL_NC_CONFIG=1", "NEURON_RT_VIRTUAL_CORE_SIZE=1"}
    assert node.paths(item) == {"/dev/neuron0": 4, "/dev/neuron1": 5}
    node.inventory = host(major=251, default_lnc=2)
    assert node.prepare(item) == first
    assert "NEURON_LOGICAL_NC_CONFIG=1" in node.env(item), "containers of this boot may have been told so"


def test_after_a_reboot_no_container_is_told_the_variables_of_before(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4, 5]))
    first = node.prepare(item)
    node.reboot()
    node.inventory = host(default_lnc=1)
    api.down = Unreachable("connection refused")
    with pytest.raises(DriverError):
        node.prepare(item)
    api.down = None
    assert node.prepare(item) == first
    assert "NEURON_LOGICAL_NC_CONFIG=1" in node.env(item)


@pytest.mark.parametrize("lost", ["removed", "spoiled", "a link to itself", "the whole directory"])
@pytest.mark.parametrize("away", [False, True], ids=["", "without the API server"])
def test_an_answer_of_success_has_its_record_on_disk(node: Node, api: ApiServer, lost: str, away: bool) -> None:
    item = api.put(claim(1, [4, 5]))
    first = node.prepare(item)
    path, spec = node.checkpoint_file(item), node.cdi.file(uid(1))
    record, shown = path.read_bytes(), spec.read_bytes()
    if lost == "the whole directory":
        shutil.rmtree(path.parent)
        shutil.rmtree(spec.parent)
    for file in (path, spec) if lost != "the whole directory" else ():
        file.unlink()
        if lost == "spoiled":
            file.write_bytes(b"{")
        elif lost == "a link to itself":
            file.symlink_to(file)
    api.down = Unreachable("connection refused") if away else None
    assert node.prepare(item) == first
    assert path.read_bytes() == record
    assert spec.read_bytes() == shown


def test_a_claim_whose_files_were_removed_can_be_unprepared(node: Node, api: ApiServer) -> None:
    item, other = api.put(claim(1, [4])), api.put(claim(2, [5], pods=["pod-2"]))
    node.prepare(item)
    node.prepare(other)
    node.checkpoint_file(item).unlink()
    node.cdi.file(uid(1)).unlink()
    node.unprepare(item)
    assert node.checkpointed() == {uid(2): (5,)}
    shutil.rmtree(node.root / "state" / "claims")
    shutil.rmtree(node.root / "cdi")
    node.unprepare(other)
    assert node.checkpointed() == {}
    assert node.prepare(api.put(claim(3, [4, 5])))


def test_after_an_unprepare_no_file_brings_the_claim_back(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4]))
    node.prepare(item)
    record = node.checkpoint_file(item).read_bytes()
    node.unprepare(item)
    node.checkpoint_file(item).write_bytes(record)
    node.unprepare(item)
    assert node.checkpointed() == {}


def test_other_parameters_are_another_allocation(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4, 5], configs=[config(neuron_config(2))]))
    first = node.prepare(item)
    anew = api.put(claim(1, [4, 5], configs=[config(neuron_config(1))]))
    with golden_error(DriverError):
        node.prepare(anew)
    assert "NEURON_LOGICAL_NC_CONFIG=2" in node.env(item)
    node.reboot()
    second = node.prepare(anew)
    assert "NEURON_LOGICAL_NC_CONFIG=1" in node.env(anew)
    assert set(first).isdisjoint(second), "no CDI name is used again for another allocation"


def test_after_a_roll_back_an_entry_for_later_readers_keeps_its_chips_and_comes_back(
    node: Node, api: ApiServer
) -> None:
    item, other = api.put(claim(1, [4])), api.put(claim(2, [5]))
    ids = {uid(1): node.prepare(item), uid(2): node.prepare(other)}
    understood = node.checkpoint_file(item).read_bytes()
    node.checkpoint_file(item).write_bytes(LATER)
    node.restart()
    assert [repair.kind for repair in node.reconciler.reconcile()] == []
    assert node.checkpointed() == {uid(2): (5,)}
    (aside,) = node.quarantined()
    assert aside.read_bytes() == LATER
    assert node.spec(item) is not None, "its containers may be started again"
    with golden_error(DriverError):
        node.prepare(api.put(claim(3, [4])))
    assert node.prepare(other) == ids[uid(2)]
    assert node.prepare(api.put(claim(6, [6])))
    # The driver that understands it.
    aside.write_bytes(understood)
    node.restart()
    assert node.checkpointed() == {uid(1): (4,), uid(2): (5,), uid(6): (6,)}
    assert node.prepare(item) == ids[uid(1)]


def test_parameters_of_other_drivers_are_none_of_ours(node: Node, api: ApiServer) -> None:
    first = node.prepare(api.put(claim(1, [4], configs=[config({"mtu": 1500}, driver="efa.networking.k8s.aws")])))
    assert (
        node.prepare(api.put(claim(1, [4], configs=[config({"mtu": 9000}, driver="efa.networking.k8s.aws")]))) == first
    )


def test_a_claim_that_was_allocated_anew_is_refused_until_unprepare_or_reboot(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4, 5]))
    first = node.prepare(item)
    anew = api.put(claim(1, [5, 6]))
    with golden_error(DriverError):
        node.prepare(anew)
    node.unprepare(anew)
    second = node.prepare(anew)
    assert set(first).isdisjoint(second), "no CDI name is used again with other content"
    node.unprepare(anew)
    node.prepare(api.put(item))
    node.reboot()
    assert node.prepare(api.put(anew)) == second
    assert node.checkpointed() == {uid(1): (5, 6)}


# Orders that kubelet is known to use


def test_devices_handed_to_a_runtime_twice_make_no_difference(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4, 5]))
    ids = node.prepare(item)
    specs = [node.spec(item)]
    assert container(specs, [*ids, *node.prepare(item)]) == container(specs, ids)


def test_a_claim_is_prepared_again_and_again_when_another_driver_of_the_pod_fails(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4, 5]))
    replies = {tuple(node.prepare(item)) for _ in range(5)}
    assert len(replies) == 1
    assert len(list((node.root / "state" / "claims").iterdir())) == 1


def test_prepare_for_one_pod_racing_unprepare_for_another_ends_whole(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4, 5], pods=["a", "b"]))
    for _ in range(20):
        threads = [
            threading.Thread(target=node.prepare, args=(item,)),
            threading.Thread(target=node.unprepare, args=(item,)),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert set(node.cdi.list()) == set(node.checkpointed())
    assert node.prepare(item)


def test_one_claim_prepared_by_two_calls_at_once_is_prepared_once(node: Node, api: ApiServer) -> None:
    item = api.put(claim(1, [4, 5]))
    replies: list[list[str]] = []
    threads = [threading.Thread(target=lambda: replies.append(node.prepare(item))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(replies) == 6
    assert len({tuple(reply) for reply in replies}) == 1


def test_claims_prepared_at_once_never_share_a_chip(node: Node, api: ApiServer) -> None:
    items = [api.put(claim(number, [4, 5], pods=[f"pod-{number}"])) for number in range(1, 7)]
    prepared, refused = [], []

    def run(item: Any) -> None:
        try:
            prepared.append(node.prepare(item))
        except DriverError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=run, args=(item,)) for item in items]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(prepared) == 1
    assert len(refused) == 5
    golden(sorted({re.sub("claim-[0-9]", "claim-N", text) for text in refused}))


@pytest.mark.parametrize("news", ["another claim has it", "a device plugin's pod has it"])
def test_a_chip_that_was_free_a_moment_before_its_turn_is_not_given_away(
    node: Node, api: ApiServer, monkeypatch: pytest.MonkeyPatch, news: str
) -> None:
    rival, late = api.put(claim(1, [4])), api.put(claim(2, [4]))
    staged = node.checkpoint.staged

    def between(plan: Any) -> Any:
        monkeypatch.setattr(node.checkpoint, "staged", staged)
        if news == "another claim has it":
            node.prepare(rival)
        else:
            node.facts = NodeFacts(held_back=HeldBack(frozenset({4}), "a pod has it"))
        return staged(plan)

    monkeypatch.setattr(node.checkpoint, "staged", between)
    with pytest.raises(DriverError, match=r"still prepared|may be in use"):
        node.prepare(late)
    assert node.spec(late) is None


# Several claims of one pod


def test_claims_of_one_pod_never_shadow_each_others_nodes(node: Node, api: ApiServer) -> None:
    first = api.put(claim(1, [4, 5], template=True))
    second = api.put(claim(2, [8, 9], template=True))
    third = api.put(claim(3, [1]))
    ids = [*node.prepare(first), *node.prepare(second), *node.prepare(third)]
    nodes, _ = container([node.spec(first), node.spec(second), node.spec(third)], ids)
    assert sorted(minor for _, minor in nodes.values()) == [1, 4, 5, 8, 9]
    assert sorted(nodes) == [f"/dev/neuron{number}" for number in range(5)]
    node.restart()
    assert [*node.prepare(first), *node.prepare(second), *node.prepare(third)] == ids


def test_claims_of_one_pod_prepared_at_once_never_shadow_each_other(node: Node, api: ApiServer) -> None:
    items = [api.put(claim(number, [number, number + 8])) for number in range(1, 6)]
    ids: list[str] = []
    threads = [threading.Thread(target=lambda item=item: ids.extend(node.prepare(item))) for item in items]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    nodes, _ = container([node.spec(item) for item in items], ids)
    assert sorted(nodes) == [f"/dev/neuron{number}" for number in sorted(range(10))]


def test_a_pod_that_joins_a_shared_claim_does_not_get_clashing_numbers(node: Node, api: ApiServer) -> None:
    shared = api.put(claim(1, [4, 5], pods=["a"]))
    node.prepare(shared)
    apart = api.put(claim(2, [6], pods=["b"]))
    node.prepare(apart)
    assert node.paths(apart) == {"/dev/neuron0": 6}
    assert api.gets == ["default/claim-1", "default/claim-2", "default/claim-1"]
    api.put(claim(1, [4, 5], pods=["a", "c"]))
    joining = api.put(claim(3, [8], pods=["c"]))
    node.prepare(joining)
    assert node.paths(joining) == {"/dev/neuron2": 8}


def test_in_doubt_about_who_uses_a_shared_claim_numbers_do_not_clash(node: Node, api: ApiServer) -> None:
    node.prepare(api.put(claim(1, [4, 5], pods=["a"])))
    item = api.put(claim(2, [6], pods=["b"]))
    get = api.get_claim

    def get_claim(namespace: str, name: str, **options: Any) -> Any:
        if name == "claim-1":
            raise Unreachable("connection refused")
        return get(namespace, name, **options)

    api.get_claim = get_claim  # type: ignore[method-assign] # the answer about one claim is missing
    node.prepare(item)
    assert node.paths(item) == {"/dev/neuron2": 6}


def test_whose_pods_use_other_claims_is_asked_until_the_deadline_and_then_the_claim_is_refused(
    node: Node, api: ApiServer
) -> None:
    for number in range(1, 5):
        node.prepare(api.put(claim(number, [number], pods=[f"pod-{number}"])))
    item = api.put(claim(9, [9], pods=["new"]))
    get = api.get_claim

    def get_claim(namespace: str, name: str, *, timeout: float = 10.0, most: int = 0) -> Any:
        if name != "claim-9":
            time.sleep(2 * timeout)  # it connects, and then nothing comes
            raise Unreachable("no answer in time")
        return get(namespace, name)

    api.get_claim = get_claim  # type: ignore[method-assign] # the answers about the other claims are missing
    began = time.monotonic()
    with golden_error(DriverError):
        node.preparer.prepare(ref(item), began + 2.0)
    assert time.monotonic() - began < 20
    assert uid(9) not in node.checkpointed()


def test_of_large_claims_one_is_read_at_a_time_and_small_ones_do_not_wait(node: Node, api: ApiServer) -> None:
    """Each may have megabytes, and kubelet has sixteen prepared at once."""
    get, reading, most_at_once = api.get_claim, [0], [0]
    begun, go_on = threading.Event(), threading.Event()

    def get_claim(namespace: str, name: str, *, timeout: float = 10.0, most: int = 0) -> Any:
        if name == "claim-9":
            return get(namespace, name)
        if most < 1 << 20:
            raise TooLarge("large")
        reading[0] += 1
        most_at_once[0] = max(most_at_once[0], reading[0])
        begun.set()
        assert go_on.wait(60)
        reading[0] -= 1
        return get(namespace, name)

    api.get_claim = get_claim  # type: ignore[method-assign] # claims of two sizes
    large = [api.put(claim(number, [number], pods=[f"pod-{number}"])) for number in range(1, 5)]
    small = api.put(claim(9, [9], pods=["new"]))
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(node.prepare, item) for item in large]
        assert begun.wait(60)
        assert node.prepare(small)
        with golden_error(DriverError):
            node.preparer.prepare(ref(api.put(claim(5, [5], pods=["late"]))), time.monotonic() + 0.2)
        go_on.set()
        assert all(call.result(60) for call in calls)
    assert most_at_once == [1]


def test_many_held_claims_cost_no_question_about_them(node: Node, api: ApiServer) -> None:
    for number in range(100):
        node.prepare(api.put(claim(number, [result(number % 16, admin_access=True)], pods=[f"pod-{number}"])))
    api.gets.clear()
    node.prepare(api.put(claim(500, [result(3, admin_access=True)], pods=["new"])))
    assert api.gets == ["default/claim-500"]


def test_admin_access_neither_holds_nor_is_held_up(node: Node, api: ApiServer) -> None:
    worker = api.put(claim(1, [4]))
    monitor = api.put(
        claim(2, [result(chip, admin_access=True) for chip in range(16)], pods=["monitor"], template=True)
    )
    node.prepare(worker)
    node.prepare(monitor)
    assert node.paths(monitor) == {f"/dev/neuron{chip}": chip for chip in range(16)}
    node.unprepare(worker)
    assert node.prepare(api.put(claim(3, [4])))
