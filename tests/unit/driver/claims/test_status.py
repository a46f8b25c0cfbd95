"""What claims are to say of the devices that they got: ``status.devices``."""

from __future__ import annotations

import re
import threading
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from msgspec.structs import replace as changed

from dra_driver.driver.claims.model import NOT_PREPARED, Plan, PreparedClaims, PrepareError
from dra_driver.driver.claims.prepare import Preparer
from dra_driver.driver.claims.reconcile import Reconciler
from dra_driver.driver.claims.status import Entries, Refusal, differs, entries, is_worse
from dra_driver.driver.claims.status_writer import (
    FORGET_SECONDS,
    LEFT_SECONDS,
    MANAGER,
    REFUSAL_SECONDS,
    ClaimStatusWriter,
)
from dra_driver.kube.api.desired import SLOW_MEMORY_SECONDS
from dra_driver.kube.api.errors import ApiError, Unreachable
from dra_driver.kube.api.resources import ResourceApi
from dra_driver.kube.objects.meta import Condition, ObjectMeta
from dra_driver.kube.objects.resource import AllocatedDeviceStatus, ReportedClaim, ResourceClaim
from dra_driver.neuron.health.faults import ActiveFault, ChipHealth, NodeHealth, in_order
from dra_driver.neuron.host.inventory import Membership, NodeInventory, ServerSet
from dra_driver.neuron.opaque_config import ConfigError
from dra_driver.neuron.topology.instance_types import lookup
from dra_driver.neuron.topology.partitions import NODE_DEVICE
from dra_driver.neuron.topology.ultraserver import Mode
from dra_driver.util.errors import DriverError
from tests.builders.claims import (
    NODE,
    SETTINGS,
    ApiServer,
    Node,
    claim,
    config,
    host,
    in_time,
    missing,
    neuron_config,
    plan,
    pod,
    ref,
    result,
    ultraserver_config,
)
from tests.golden import golden
from tests.paths import DOCS, ROOT

NOW = 1_700_000_000
MAX_DATA_BYTES = 10 << 10
FOUR = Membership((Mode.X4, Mode.X1), (ServerSet(4, "1a2b3c4d5e6f7081", 2),), elected=True)


def well(count: int = 16, **sick: str) -> NodeHealth:
    """All chips healthy but those named ``chip3="hbm-repairable"``."""
    return NodeHealth(
        tuple(
            ChipHealth(index, in_order(ActiveFault(sick[key], NOW) for key in (f"chip{index}",) if key in sick))
            for index in range(count)
        ),
        NOW,
    )


def told(found: Entries) -> list[dict[str, Any]]:
    return [
        {
            **msgspec.to_builtins(entry),
            "conditions": [
                f"{item.type}={item.status} {item.reason} since {item.last_transition_time}: {item.message}"
                for item in entry.conditions
            ],
        }
        for entry in found
    ]


def shown(found: Entries) -> str:
    return yaml.safe_dump(told(found), sort_keys=False, width=1000)


def with_pci(inventory: NodeInventory) -> NodeInventory:
    kind = lookup("trn2.48xlarge")
    addresses = (kind.pci_bus_ids if kind else None) or tuple(f"0000:{index:02x}:00.0" for index in range(16))
    devices = (replace(one, pci_bus_id=addresses[one.index]) for one in inventory.devices)
    return replace(inventory, devices=tuple(devices))


def made(item: ResourceClaim, inventory: NodeInventory, **more: Any) -> Plan:
    return plan(item, inventory, PreparedClaims(), SETTINGS, **more)


def test_chips_say_which_they_are_where_they_are_seen_and_how_well_they_are() -> None:
    item = claim(1, [4, 5], configs=[config(neuron_config(1))])
    inventory = with_pci(host())
    golden(shown(entries(made(item, inventory), well(chip5="hbm-repairable"), inventory, (), NOW)))


def test_cores_say_which_they_are() -> None:
    inventory = host()
    item = claim(1, [result("neuron-core-3-1")])
    pods = {"pod-1": pod("pod-1", main=["claim-1"])}
    golden(shown(entries(made(item, inventory, pods=pods), well(), inventory, (), NOW)))


def test_a_node_of_an_ultraserver_says_its_place_and_fits_into_the_limit() -> None:
    inventory = with_pci(host(instance_type="trn2u.48xlarge", ultraserver=FOUR))
    item = claim(1, [result(NODE_DEVICE)], configs=[config(ultraserver_config(4))])
    (entry,) = entries(made(item, inventory), well(), inventory, (), NOW)
    assert [chip["index"] for chip in entry.data["chips"]] == list(range(16))
    assert all(chip["pciAddress"] and chip["cores"] for chip in entry.data["chips"])
    assert len(msgspec.json.encode(entry.data)) < MAX_DATA_BYTES / 2
    golden(shown((changed(entry, data={**entry.data, "chips": entry.data["chips"][:1]}),)))


def test_one_device_for_two_requests_is_one_entry() -> None:
    item = claim(1, [result(4), result(4, "monitor", admin_access=True)])
    found = entries(made(item, host(), pods={"pod-1": pod("pod-1", main=["claim-1"])}), well(), host(), (), NOW)
    assert [entry.device for entry in found] == ["neuron-device-4"]


def test_a_refusal_has_its_word_and_text_and_says_nothing_of_what_was_not_applied() -> None:
    item = claim(1, [4, result("nic", driver="efa.networking.k8s.aws"), result(7, pool="node-2")])
    error = PrepareError("device x is lost", consequence=NOT_PREPARED, reason="DeviceMissing")
    golden(shown(entries(Refusal.of(item, NODE, error), well(), host(), (), NOW)))


@pytest.mark.parametrize(
    ("chips", "configs", "reason"),
    [
        ([99], [], "DeviceMissing"),
        ([result("disk-0")], [], "UnknownDevice"),
        ([4, result(4, "more")], [], "ConflictingDevices"),
        ([4], [config({"kind": "NeuronConfig"})], "InvalidParameters"),
        ([4], [config(neuron_config(7))], "InvalidParameters"),
        ([4], [config(ultraserver_config(4))], "InvalidParameters"),
    ],
)
def test_refusals_of_a_kind_have_one_word(chips: list[Any], configs: list[Any], reason: str) -> None:
    with pytest.raises((PrepareError, ConfigError)) as caught:
        made(claim(1, chips, configs=configs), host())
    assert caught.value.reason == reason


def test_the_page_has_every_word_and_key() -> None:
    page = (DOCS / "use/in-containers.md").read_text()
    rooms = (ROOT / "dra_driver/driver", ROOT / "dra_driver/neuron")
    sources = "".join(path.read_text() for room in rooms for path in room.rglob("*.py"))
    words = set(re.findall(r"\breason(?:: str)? ?= ?\"([A-Z]\w+)\"", sources))
    assert len(words) > 10
    keys, _, reasons = page.partition("## Conditions")
    assert words <= set(re.findall(r"`(\w+)`", reasons))
    inventory = with_pci(host(instance_type="trn2u.48xlarge", ultraserver=FOUR))
    item = claim(1, [result(NODE_DEVICE)], configs=[config(ultraserver_config(4))])
    (entry,) = entries(made(item, inventory), well(), inventory, (), NOW)
    found = {f"chips[].{key}" for key in entry.data["chips"][0]} | {
        f"ultraserver.{key}" for key in entry.data["ultraserver"]
    }
    found |= entry.data.keys() - {"apiVersion", "kind", "chips", "ultraserver"}
    rows = "".join(re.findall(r"^\| (`[^|]*) \|", keys, re.MULTILINE))
    assert found == set(re.findall(r"`([^`]+)`", rows))


def test_times_are_those_of_the_last_change_of_a_status() -> None:
    wanted = made(claim(1, [4]), host())
    before = entries(wanted, well(), host(), (), NOW)
    after = entries(wanted, well(chip4="hbm-repairable"), host(), before, NOW + 60)
    ready, healthy = after[0].conditions
    assert (ready.last_transition_time, healthy.last_transition_time) == (
        "2023-11-14T22:13:20Z",
        "2023-11-14T22:14:20Z",
    )
    assert differs(before, after)
    assert is_worse(before, after)
    assert not is_worse(after, before)


def test_what_the_api_server_gives_back_does_not_differ() -> None:
    found = entries(made(claim(1, [4]), host()), well(), host(), (), NOW)
    again = msgspec.json.decode(msgspec.json.encode(found), type=Entries)
    assert not differs(again, entries(made(claim(1, [4]), host()), well(), host(), again, NOW + 9))


# The queue


class Api(ResourceApi):
    """Claims, and what was applied to them; the next calls raise the errors in ``trouble``."""

    def __init__(self, *claims: ResourceClaim) -> None:
        self.claims: dict[str, ReportedClaim] = {item.metadata.name: item for item in claims}
        self.trouble: list[ApiError] = []
        self.asked = 0
        self.applied: list[tuple[str, Sequence[AllocatedDeviceStatus]]] = []
        self.meanwhile: Callable[[], None] = lambda: None
        """What happens while entries are applied."""
        self.lost: list[DriverError] = []
        """What the next writes are answered with that take effect."""

    def get_claim(self, namespace: str, name: str, *, timeout: float = 10.0, most: int = 0) -> ReportedClaim:
        self.asked += 1
        self._fail()
        if name not in self.claims:
            raise missing()
        return self.claims[name]

    def apply_claim_devices(self, claim: ObjectMeta, devices: Sequence[AllocatedDeviceStatus], manager: str) -> None:
        assert manager == MANAGER
        self.asked += 1
        self._fail()
        self.meanwhile()
        stored = self.claims[claim.name]
        if stored.metadata.uid != claim.uid:
            raise ApiError("conflict", status=409)
        self.applied.append((claim.name, devices))
        others = tuple(entry for entry in stored.status.devices if entry.driver != "neuron.aws.com")
        self.claims[claim.name] = changed(stored, status=changed(stored.status, devices=(*others, *devices)))
        if self.lost:
            raise self.lost.pop()

    def _fail(self) -> None:
        if self.trouble:
            raise self.trouble.pop(0)

    @property
    def words(self) -> list[str]:
        """Reasons of the conditions Ready that were written."""
        return [entry.conditions[0].reason for _, devices in self.applied for entry in devices]


class Rounds(ClaimStatusWriter):
    """A writer whose rounds are called by the test."""

    def __init__(self, api: Api) -> None:
        self.now = 1000.0
        self.health: NodeHealth | None = well()
        super().__init__(api, NODE, lambda: self.health, host, clock=lambda: self.now)

    def round(self, after: float = 0.0) -> float:
        self.now += after
        return self._writer.round()


def refused(reason: str) -> DriverError:
    return PrepareError("no", reason=reason)


ITEM = claim(1, [4])
PLAN = made(ITEM, host())


def test_of_many_states_the_last_is_written_once() -> None:
    api = Api(ITEM)
    writer = Rounds(api)
    writer.note_refused(ITEM, refused("DeviceInUse"))
    writer.note_prepared(PLAN, ITEM)
    writer.round()
    writer.round(3600)
    assert api.words == ["Prepared"]
    assert api.asked == 1


def test_a_refusal_is_written_when_its_word_changes_and_at_most_once_a_minute() -> None:
    api = Api(ITEM)
    writer = Rounds(api)
    for reason in ("DeviceInUse", "DeviceInUse", "DeviceMissing", "DeviceHeldBack"):
        writer.note_refused(api.claims["claim-1"], refused(reason)) if api.applied else writer.note_refused(
            ITEM, refused(reason)
        )
        writer.round(1)
    assert api.words == ["DeviceInUse"]
    writer.round(REFUSAL_SECONDS)
    assert api.words == ["DeviceInUse", "DeviceHeldBack"]
    writer.note_prepared(PLAN, api.claims["claim-1"])
    writer.round()
    assert api.words[-1] == "Prepared"


def test_of_a_refused_claim_nothing_is_kept_that_its_tenant_wrote() -> None:
    api = Api(ITEM)
    writer = Rounds(api)
    tracemalloc.start()
    try:
        for number in range(20):
            labels = {f"{number}-{label}": "" for label in range(5_000)}
            item = claim(number, [4])
            writer.note_refused(changed(item, metadata=changed(item.metadata, labels=labels)), refused("DeviceInUse"))
        del item, labels
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()


def test_of_entries_that_a_webhook_changed_little_is_kept_while_the_claim_cannot_be_written() -> None:
    """The driver compares them with what it wants, and no more."""
    api = Api(ITEM)
    writer = Rounds(api)
    (entry,) = entries(made(claim(1, [4]), host()), well(), host(), (), NOW)
    theirs = Condition("Theirs", "True", "r", "x" * 30_000)
    long = tuple(changed(item, message="y" * 30_000) for item in entry.conditions)
    evil = changed(entry, conditions=(*long, theirs))
    tracemalloc.start()
    try:
        for number in range(20):
            item = claim(number, [4])
            conditions = tuple(changed(one, message=f"{number}{one.message}") for one in evil.conditions)
            status = changed(item.status, devices=(changed(evil, conditions=conditions),))
            writer.note_refused(changed(item, status=status), refused("DeviceInUse"))
        del item, status, conditions
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()


def test_what_comes_while_the_state_before_is_written_is_written_too() -> None:
    api = Api(ITEM)
    writer = Rounds(api)
    writer.note_prepared(PLAN, ITEM)
    writer.round()
    seen = api.claims["claim-1"]
    writer.note_refused(seen, refused("DeviceMissing"))

    def kubelet_tries_again() -> None:
        api.meanwhile = lambda: None
        writer.note_prepared(PLAN, seen)  # the claim was read before the refusal was in it

    api.meanwhile = kubelet_tries_again
    writer.round()
    assert api.words == ["Prepared", "DeviceMissing", "Prepared"]


def test_what_was_read_before_the_last_write_is_read_again() -> None:
    api = Api(ITEM)
    writer = Rounds(api)
    writer.note_prepared(PLAN, ITEM)
    writer.round()
    before = api.claims["claim-1"]
    writer.note_refused(before, refused("DeviceMissing"))
    writer.round()
    writer.note_prepared(PLAN, before)  # by a call that had read the claim, and then took its time
    writer.round()
    assert api.words == ["Prepared", "DeviceMissing", "Prepared"]


def test_a_claim_that_has_nothing_of_this_node_is_not_written_when_it_is_refused() -> None:
    api = Api(ITEM)
    writer = Rounds(api)
    writer.note_refused(claim(2, [result(4, pool="node-2")]), refused("UnknownDevice"))
    writer.round()
    assert api.asked == 0


def test_after_a_start_prepared_claims_are_read_and_only_those_that_lack_something_written() -> None:
    api = Api(ITEM, claim(2, [5]))
    first = Rounds(api)
    first.note_prepared(PLAN, ITEM)
    first.round()
    second = Rounds(api)
    second.catch_up([PLAN, made(claim(2, [5]), host())])
    second.catch_up([PLAN, made(claim(2, [5]), host())])
    second.round()
    second.round(60)
    assert [name for name, _ in api.applied] == ["claim-1", "claim-2"]
    assert api.asked == 1 + 2 + 1


def test_a_claim_that_is_prepared_while_a_pass_tells_what_is_prepared_is_written(tmp_path: Path) -> None:
    server, api = ApiServer(ITEM), Api(ITEM)
    node, writer = Node(tmp_path, server), Rounds(api)
    preparer = Preparer(
        server,
        node.checkpoint,
        node.cdi,
        lambda _: host(),
        SETTINGS,
        metadata=node.metadata,
        status=writer,
    )
    kubelet = threading.Thread(target=lambda: preparer.prepare(ref(ITEM), in_time()))

    def tell(claims: PreparedClaims) -> None:
        kubelet.start()
        kubelet.join(0.5)  # a call that could be through now would be
        writer.catch_up([entry.plan for entry in claims.entries.values()])

    Reconciler(node.checkpoint, node.cdi, server, host, NODE, metadata=node.metadata, prepared=tell).repair()
    kubelet.join(30)
    writer.round()
    node.checkpoint.close()
    assert api.words == ["Prepared"]


def test_nothing_is_written_before_the_health_is_known() -> None:
    api = Api(ITEM)
    writer = Rounds(api)
    writer.health = None
    writer.note_prepared(PLAN, ITEM)
    assert writer.round() == 1.0
    assert not api.applied
    writer.health = well()
    writer.round(1)
    assert len(api.applied) == 1


def test_health_is_written_as_rarely_as_slices() -> None:
    api = Api(ITEM)
    writer = Rounds(api)
    writer.note_prepared(PLAN, ITEM)
    writer.round()
    for turn in range(200):
        writer.health = well(chip4="hbm-repairable") if turn % 2 == 0 else well(chip5="hbm-repairable")
        writer.health_changed()
        writer.round(15)
    assert len(api.applied) == 1 + 5  # the sixth of the hour is for what is worse
    writer.health = well()
    writer.round(3700)
    assert api.applied[-1][1][0].conditions[1].status == "True"


@pytest.mark.parametrize("error", [Unreachable("no answer"), ApiError("no", status=500), DriverError("not understood")])
def test_a_write_that_takes_effect_and_fails_is_not_taken_for_one_that_did_not(error: DriverError) -> None:
    api = Api(ITEM)
    writer = Rounds(api)
    writer.note_prepared(PLAN, ITEM)
    writer.round()
    writer.health = well(chip4="hbm-repairable")
    writer.health_changed()
    api.lost = [error]
    writer.round(15)
    assert len(api.applied) == 2
    writer.health = well()  # before it is tried again
    writer.health_changed()
    for _ in range(4):
        writer.round(600)
    assert api.claims["claim-1"].status.devices[0].conditions[1].message == ""


def test_an_api_server_in_trouble_is_asked_ever_more_rarely_and_nothing_is_lost() -> None:
    api = Api(ITEM, claim(2, [5]))
    writer = Rounds(api)
    api.trouble = [Unreachable("gone"), Unreachable("gone"), ApiError("busy", status=429, retry_after=90.0)]
    writer.note_prepared(PLAN, ITEM)
    writer.note_prepared(made(claim(2, [5]), host()), claim(2, [5]))
    waits = []
    while len(api.applied) < 2:
        waits.append(writer.round())
        writer.now += waits[-1] if len(api.applied) < 2 else 0
    assert api.asked == 3 + 2 + 1, "once it is read again, since an answer was missing"
    assert waits[2] >= 89


@pytest.mark.parametrize("error", [Unreachable("no answer in time"), ApiError("failed calling webhook", status=500)])
def test_webhooks_that_hang_hold_up_others_for_the_one_write_that_is_under_way(error: ApiError) -> None:
    """However many claims and namespaces have one, and for however long."""
    other = claim(20, [15], namespace="other")
    evil = [claim(number, [number], namespace=f"evil-{number % 3}") for number in range(12)]
    tries: list[str] = []
    times: list[float] = []

    class HangingApi(Api):
        def apply_claim_devices(self, claim: ObjectMeta, *_: Any) -> None:
            tries.append(claim.namespace)
            if claim.namespace == "other":
                times.append(writer.now)
                return
            writer.now += 15
            if len(tries) == 40:
                times.append(writer.now)
                writer.note_prepared(made(other, host()), other)
            raise error

    writer = Rounds(HangingApi(other, *evil))
    for item in evil:
        writer.note_prepared(made(item, host()), item)
    while "other" not in tries and len(tries) < 60:
        writer.now += writer.round()
    assert tries.index("other") == 40
    assert times[0] == times[1]
    assert {"evil-0", "evil-1", "evil-2"} <= set(tries[20:40]), "nobody is forgotten"


@pytest.mark.parametrize(("after", "order"), [(60, ["fresh", "evil"]), (SLOW_MEMORY_SECONDS, ["evil", "fresh"])])
def test_a_namespace_that_was_slow_once_is_not_known_for_it_for_ever(after: float, order: list[str]) -> None:
    spaces = ["evil", "worse", "evil", "fresh"]
    items = [claim(number, [number], namespace=space) for number, space in enumerate(spaces, start=1)]
    hanging = ["evil", "worse"]
    writes: list[str] = []

    class HangingApi(Api):
        def apply_claim_devices(self, claim: ObjectMeta, *_: Any) -> None:
            writes.append(claim.namespace)
            writer.now += 15 if claim.namespace in hanging else 0

    writer = Rounds(HangingApi(*items))
    for item in items[:2]:
        writer.note_prepared(made(item, host()), item)
        writer.round(after)
        writer.note_unprepared(item.metadata, own_pod=True)
    hanging.clear()
    writes.clear()
    for item in items[2:]:
        writer.note_prepared(made(item, host()), item)
        writer.now += 1
    writer.round()
    assert writes == order


@pytest.mark.parametrize("status", [403, 422])
def test_without_the_right_that_is_said_once(caplog: pytest.LogCaptureFixture, status: int) -> None:
    """From Kubernetes 1.36 on, a lack of the right to ``resourceclaims/driver`` is an invalid object (422)."""
    api = Api(ITEM, claim(2, [5]))
    writer = Rounds(api)
    api.trouble = [ApiError("forbidden", status=status) for _ in range(99)]
    writer.note_prepared(PLAN, ITEM)
    writer.note_prepared(made(claim(2, [5]), host()), claim(2, [5]))
    for _ in range(60):
        writer.catch_up([PLAN, made(claim(2, [5]), host())])
        writer.round(60)
    assert api.asked <= 2 * 9, "in an hour"
    assert len(caplog.records) == 1
    golden(caplog.messages)


@pytest.mark.parametrize("now", [None, claim(9, [4], name="claim-1"), claim(1, [result(4, pool="node-2")])])
def test_a_claim_that_is_gone_or_replaced_or_allocated_elsewhere_is_done(now: ResourceClaim | None) -> None:
    api = Api(*([] if now is None else [now]))
    api.trouble = [ApiError("422", status=422, message="status.devices: must be an allocated device in the claim")]
    writer = Rounds(api)
    writer.note_prepared(PLAN, ITEM)
    writer.round()
    writer.catch_up([PLAN])
    writer.round(3600)
    assert not api.applied
    assert api.asked == 2


def test_an_unprepare_writes_nothing_and_the_claim_loses_its_entries_if_it_stays_allocated() -> None:
    api = Api(ITEM)
    writer = Rounds(api)
    writer.note_prepared(PLAN, ITEM)
    writer.round()
    writer.note_unprepared(ITEM.metadata, own_pod=False)
    writer.round(1)
    assert api.asked == 1
    writer.round(LEFT_SECONDS)
    assert api.applied[1:] == [("claim-1", ())]
    writer.round(LEFT_SECONDS)
    assert api.asked == 3


def test_a_claim_that_stays_allocated_loses_its_entries_also_where_nothing_else_happens() -> None:
    api = Api(ITEM)
    first = Rounds(api)
    first.note_prepared(PLAN, ITEM)
    first.round()
    looked, removed, kubelet = threading.Event(), threading.Event(), threading.current_thread()
    api.meanwhile = removed.set

    def clock() -> float:
        if threading.current_thread() is kubelet:
            return 0.0
        looked.set()
        return LEFT_SECONDS

    writer = ClaimStatusWriter(api, NODE, well, host, clock=clock)
    writer.worker.start()
    try:
        assert looked.wait(30)
        time.sleep(0.1)  # so that it rests
        writer.note_unprepared(ITEM.metadata, own_pod=False)
        assert removed.wait(30)
    finally:
        writer.worker.stop()
    assert api.applied[1:] == [("claim-1", ())]


def test_of_a_claim_that_was_made_for_its_pod_an_unprepare_asks_nothing_ever() -> None:
    api = Api(ITEM)
    writer = Rounds(api)
    writer.note_unprepared(ITEM.metadata, own_pod=True)
    writer.round(10 * LEFT_SECONDS)
    assert api.asked == 0


def test_a_refused_claim_that_stays_allocated_loses_its_entries_when_its_pod_has_ended() -> None:
    """Also where another instance of the driver refused it."""
    api = Api(ITEM)
    former = Rounds(api)
    former.note_refused(ITEM, refused("DeviceHeldBack"))
    former.round()
    writer = Rounds(api)
    writer.note_unprepared(ITEM.metadata, own_pod=False)
    writer.round()
    assert api.words == ["DeviceHeldBack"]
    writer.round(LEFT_SECONDS)
    assert not api.claims["claim-1"].status.devices


def test_claims_that_are_no_longer_prepared_or_asked_for_are_forgotten() -> None:
    api = Api(ITEM, claim(2, [5]))
    writer = Rounds(api)
    writer.note_prepared(PLAN, ITEM)
    writer.note_refused(claim(2, [5]), refused("DeviceInUse"))
    writer.round()
    writer.catch_up([])
    writer.now += FORGET_SECONDS + 1
    writer.catch_up([])
    assert not writer._writer.objects()
