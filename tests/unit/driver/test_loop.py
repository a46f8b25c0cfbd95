"""What a node offers follows from the last word of each source, in whatever order and by whatever thread it comes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dra_driver.cli import kubelet_plugin
from dra_driver.driver.metrics import offer_samples
from dra_driver.driver.node import decide as decisions
from dra_driver.driver.node import loop as loops
from dra_driver.driver.node.decide import HEALTH_PATIENCE, Memory, NodeSnapshot, Wanted, decide
from dra_driver.driver.node.loop import NodeLoop
from dra_driver.driver.node.review import SliceReview
from dra_driver.driver.resourceslices import kept
from dra_driver.driver.resourceslices.devices import completed, effective_partitions, offer, with_faults
from dra_driver.driver.resourceslices.kept import PreparedDevices, PublishedPool
from dra_driver.driver.resourceslices.messages import Desired
from dra_driver.driver.settings import PARTITIONS_LABEL, DriverSettings
from dra_driver.kube.kubelet.podresources import PodDevices
from dra_driver.kube.objects.resource import Device
from dra_driver.neuron.exclusion import held_back
from dra_driver.neuron.health.faults import ActiveFault, ChipHealth, NodeHealth
from dra_driver.neuron.host.inventory import Membership, NodeInventory, ServerSet
from dra_driver.neuron.topology.partitions import Partitions, core_name
from dra_driver.neuron.topology.ultraserver import Mode
from tests.builders.claims import NODE, changed, host, without
from tests.eventually import eventually
from tests.golden import golden

PLUGIN = "aws.amazon.com/neuron: 16"
WELL = NodeHealth()
SICK = NodeHealth((ChipHealth(2, (ActiveFault("hbm-uncorrectable", 100),)),))
POD = PodDevices("default", "old", {"main": {"aws.amazon.com/neuron": frozenset({"7"})}})
READY = NodeSnapshot(host(), {}, health_decided=True, labels={}, kubelet_problem="", plugin_pods=())
"""All is known that an offer needs."""


def settings(**options: str) -> DriverSettings:
    return kubelet_plugin.read_settings({"node_name": NODE, **options}, {})[0]


def loop_of(sources: NodeSnapshot = READY, carry_out: Any = lambda _: None) -> NodeLoop:
    loop = NodeLoop(settings(device_metadata="on"), carry_out)
    loop.update(lambda _: sources)
    return loop


def names(wanted: Wanted) -> list[str]:
    return [device.name for device in wanted.offer.devices]


def shown(devices: Sequence[Device]) -> list[tuple[str, set[str], dict[str, Any]]]:
    return [(item.name, {taint.key for taint in item.taints}, dict(item.attributes)) for item in devices]


HOSTS = (host(), without(host(), 3), changed(host(), 5, minor=None), replace(host(), default_lnc=1), host(1, None))
NEWS = st.one_of(
    st.tuples(st.just("inventory"), st.sampled_from(HOSTS)),
    st.tuples(st.just("health"), st.sampled_from((WELL, SICK))),
    st.tuples(st.just("label"), st.sampled_from((None, "core", "chip.core", "node", "nonsense"))),
    st.tuples(st.just("kubelet_problem"), st.sampled_from(("", "it is too old"))),
    st.tuples(st.just("device_plugin"), st.sampled_from(("", PLUGIN))),
    st.tuples(st.just("plugin_pods"), st.sampled_from(((), (POD,), None))),
)


@given(st.lists(st.tuples(NEWS, st.booleans()), max_size=12), st.sampled_from(HOSTS))
@example([(("inventory", HOSTS[0]), True)], HOSTS[1])
def test_an_offer_follows_from_the_last_word_of_each_source(
    news: list[tuple[tuple[str, Any], bool]], now: NodeInventory
) -> None:
    loop = loop_of()
    last: dict[str, Any] = {
        "health": WELL,
        "label": None,
        "kubelet_problem": "",
        "device_plugin": "",
        "plugin_pods": (),
    }
    whole, _ = completed(host(), None)
    _ = loop.wanted
    for (kind, value), is_seen in [*news, (("inventory", now), True)]:
        last[kind] = value
        loop.post(labels={} if value is None else {PARTITIONS_LABEL: value}) if kind == "label" else loop.post(
            **{kind: value}
        )
        if is_seen:  # else the loop is late, and misses it
            _ = loop.wanted
            whole, missing = completed(last.get("inventory", host()), whole)
    wanted = loop.wanted
    lost = {index: ActiveFault(code, 0) for index, code in missing.items()}
    try:
        partitions = Partitions.parse(last["label"]) if last["label"] is not None else None
    except Exception:  # noqa: BLE001 # whichever way it is refused
        partitions = None
    back = held_back(last["device_plugin"], last["plugin_pods"], whole)
    expected = offer(
        whole,
        Partitions() if last["kubelet_problem"] else effective_partitions(whole, partitions),
        with_faults(last["health"], lost),
        held_back=back.chips,
    )
    assert wanted.published
    assert shown(wanted.offer.devices) == shown(expected.devices)
    assert (wanted.offer.counters, wanted.held_back) == (expected.counters, back)
    assert bool(wanted.label_problem) == (last["label"] == "nonsense" and not last["kubelet_problem"])
    facts = wanted.facts
    assert facts.held_back == back
    assert facts.attributes is not None
    assert set(facts.attributes) == {device.name for device in (*expected.fallback, *expected.devices)}
    assert set(facts.unhealthy) >= ({2} if last["health"] is SICK else set())


@pytest.mark.parametrize("lacking", ["inventory", "scan_labels", "plugin_pods"])
def test_nothing_is_published_before_all_is_known_that_an_offer_needs(lacking: str) -> None:
    loop = loop_of()
    loop.post(**{lacking: None})
    before = loop.wanted
    loop.post(**{lacking: getattr(READY, lacking)})
    assert (before.published, loop.wanted.published) == (False, True)
    assert len(names(loop.wanted)) == 16


def test_the_first_publication_waits_for_what_is_wrong_with_the_chips_but_not_for_long() -> None:
    first, memory = decide(replace(READY, health_decided=False, moment=100.0), Memory(), settings())
    assert (first.published, first.until) == (False, 100.0 + HEALTH_PATIENCE)
    later, _ = decide(replace(READY, health_decided=False, moment=103.0), memory, settings())
    assert later.published
    at_once, _ = decide(replace(READY, moment=101.0), memory, settings())
    assert at_once.published


def test_what_an_earlier_instance_has_prepared_stays_on_offer_from_the_first_publication_on() -> None:
    loop = loop_of(replace(READY, prepared=PreparedDevices({core_name(3, 1): 2})))
    assert core_name(3, 1) in names(loop.wanted)
    assert loop.wanted.offer.retired == {core_name(3, 1)}


class Review:
    """The slices of a node are looked at while it has a device that it keeps."""

    def __init__(self) -> None:
        self.prepared: dict[str, int | None] = {core_name(3, 1): 2}
        self.loop = loop_of()
        self.read_prepared()
        assert self.loop.wanted.offer.retired == {core_name(3, 1)}
        self.meanwhile: Callable[[], object] = lambda: None
        """What happens while claims are listed."""
        self.source = SliceReview(self.loop, read_prepared=self.read_prepared, allocated=self.list_claims)

    def read_prepared(self) -> None:
        self.loop.post(prepared=PreparedDevices(dict(self.prepared)))

    def list_claims(self) -> frozenset[str]:
        self.meanwhile()
        return frozenset()

    def look(self) -> Desired:
        """What is to be written when the claim of the device that is kept has ended."""
        self.prepared.clear()
        return self.source.review(PublishedPool(1, empty=True))[0]


def test_what_the_host_shows_while_it_is_asked_who_holds_what_is_not_lost() -> None:
    review = Review()
    review.meanwhile = lambda: review.loop.post(inventory=without(host(), 15))
    lost = {item.name for item in review.look().devices if any("device-lost" in taint.key for taint in item.taints)}
    assert lost == {"neuron-device-15"}
    assert not review.loop.wanted.offer.retired, "and no claim holds what was kept"


def test_what_is_prepared_while_it_is_asked_who_holds_what_is_kept() -> None:
    review = Review()

    review.meanwhile = lambda: review.prepared.update({core_name(4, 1): 2})
    assert core_name(4, 1) in {device.name for device in review.look().devices}
    assert review.loop.wanted.offer.retired == {core_name(4, 1)}


def test_a_look_whose_moment_is_over_before_it_can_be_made_comes_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the list of claims took longer than that. What cannot be decided waits: it would be asked again."""
    monkeypatch.setattr(kept, "HELD_SECONDS", 0.0)
    review = Review()
    pool = PublishedPool(1, empty=True)
    assert review.source.review(pool)[1] <= time.monotonic() + kept.SETTLE_SECONDS
    monkeypatch.setattr(decisions, "offer", lambda *_: 1 / 0)
    assert review.source.review(replace(pool, look=2))[1] > time.monotonic() + kept.SETTLE_SECONDS


@pytest.mark.parametrize(
    ("part", "broken"),
    [("offer", "offer"), ("labels", "ultraserver_labels"), ("device health", "device_health")],
)
def test_a_part_that_fails_keeps_its_last_values_and_the_others_go_on(
    part: str, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    carried: list[Wanted] = []
    loop = loop_of(carry_out=carried.append)
    before = loop.wanted
    server = replace(host(), ultraserver=Membership((Mode.X4,), (ServerSet(4, "a" * 16, 2),), elected=True))
    parts: dict[str, Callable[[Wanted], object]] = {
        "offer": lambda wanted: (wanted.offer, wanted.facts),
        "labels": lambda wanted: (wanted.labels, wanted.present),
        "device health": lambda wanted: wanted.device_health,
        "conditions": lambda wanted: (wanted.health, wanted.kubelet_problem),
    }

    def fail(*_: Any, **__: Any) -> Any:
        raise ValueError("on purpose")

    with monkeypatch.context() as patch:
        patch.setattr(decisions, broken, fail)
        loop.post(health=SICK, inventory=server)
        during = loop.wanted
        assert during.failures.keys() == {part}
        assert {name for name, values in parts.items() if values(during) == values(before)} == {part}
        loop.worker.start()
        try:
            eventually(lambda: "on purpose" in loop.worker.problem(), what="the problem")
            golden(loop.worker.problem())
            undecided = {one.labels: one.value for one in offer_samples(during) if one.name == "undecided_parts"}
            assert {labels for labels, value in undecided.items() if value} == {(("part", part),)}
            patch.undo()
            loop.worker.wake()
            eventually(lambda: not loop.worker.problem(), what="the end of the problem")
        finally:
            loop.worker.stop()
    after = carried[-1]
    assert not after.failures
    assert {name for name, values in parts.items() if values(after) == values(before)} == set()


def test_words_of_many_threads_are_all_in_the_last_decision() -> None:
    carried: list[Wanted] = []
    loop = loop_of(carry_out=carried.append)
    loop.worker.start()
    words: list[dict[str, Any]] = [{"health": SICK}, {"device_plugin": PLUGIN}, {"labels": {PARTITIONS_LABEL: "core"}}]
    threads = [threading.Thread(target=loop.post, kwargs=word) for word in words]
    try:
        for thread in threads:
            thread.start()
        eventually(
            lambda: (
                carried
                and carried[-1].held_back.chips
                and carried[-1].facts.unhealthy
                and not any("device" in name for name in names(carried[-1]))
            ),
            what="all of it",
        )
        revisions = [wanted.revision for wanted in carried]
        assert revisions == sorted(revisions)
    finally:
        loop.worker.stop()


def test_what_follows_is_decided_again_when_its_time_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    carried: list[tuple[float, Wanted]] = []
    loop = loop_of(carry_out=lambda wanted: carried.append((time.monotonic(), wanted)))

    def decide_for_a_moment(snapshot: NodeSnapshot, memory: Memory, _: DriverSettings) -> tuple[Wanted, Memory]:
        return Wanted(until=None if carried else snapshot.moment + 0.3), memory

    monkeypatch.setattr(loops, "decide", decide_for_a_moment)
    loop.worker.start()
    try:
        eventually(lambda: len(carried) == 2, what="the second decision")
    finally:
        loop.worker.stop()
    (first, wanted), (second, _) = carried
    assert wanted.until is not None
    assert first < wanted.until <= second
