"""What a node offers follows from the latest news of each kind, in whatever order and by whichever threads it comes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dra_driver.cli import kubelet_plugin
from dra_driver.driver.offering import Offering
from dra_driver.driver.resourceslices.controller import Desired
from dra_driver.driver.resourceslices.devices import completed, effective_partitions, offer, with_faults
from dra_driver.driver.resourceslices.kept import Keeper
from dra_driver.driver.settings import DriverSettings
from dra_driver.kube.kubelet.podresources import PodDevices
from dra_driver.kube.objects.resource import Device
from dra_driver.neuron.exclusion import HeldBack, held_back
from dra_driver.neuron.health.faults import ActiveFault, ChipHealth, NodeHealth
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.neuron.topology.partitions import Partitions, core_name
from tests.builders.claims import NODE, changed, host, without

PLUGIN = "aws.amazon.com/neuron: 16"
WELL = NodeHealth()
SICK = NodeHealth((ChipHealth(2, (ActiveFault("hbm-uncorrectable", 100),)),))
POD = PodDevices("default", "old", {"main": {"aws.amazon.com/neuron": frozenset({"7"})}})


def settings(**options: str) -> DriverSettings:
    return kubelet_plugin.settings(kubelet_plugin.effective({"node_name": NODE, **options}, {}))


@dataclass
class World:
    """An offering, with what it publishes."""

    pods: Sequence[PodDevices] | None = ()
    published: list[tuple[Desired, HeldBack]] = field(default_factory=list)

    def __post_init__(self) -> None:
        keeper = Keeper(dict, set)
        self.offering = Offering(
            settings(device_metadata="on"), WELL, lambda: self.pods, keeper, lambda *made: self.published.append(made)
        )

    @property
    def names(self) -> list[str]:
        desired, _ = self.published[-1]
        return [device.name for device in desired.devices]


@pytest.fixture
def world() -> World:
    return World()


def shown(devices: Sequence[Device]) -> list[tuple[str, set[str], dict[str, Any]]]:
    return [(item.name, {taint.key for taint in item.taints}, dict(item.attributes)) for item in devices]


HOSTS = (host(), without(host(), 3), changed(host(), 5, minor=None), replace(host(), default_lnc=1), host(1, None))
NEWS = st.one_of(
    st.tuples(st.just("scanned"), st.sampled_from(HOSTS)),
    st.tuples(st.just("health"), st.sampled_from((WELL, SICK))),
    st.tuples(st.just("label"), st.sampled_from((None, "core", "chip.core", "node", "nonsense"))),
    st.tuples(st.just("kubelet"), st.sampled_from(("", "it is too old"))),
    st.tuples(st.just("plugin"), st.sampled_from(("", PLUGIN))),
    st.tuples(st.just("pods"), st.sampled_from(((), (POD,), None))),
)


@given(st.lists(NEWS, max_size=12), st.sampled_from(HOSTS))
@example([("scanned", HOSTS[0])], HOSTS[1])
def test_an_offer_follows_from_the_latest_news_of_each_kind(news: list[tuple[str, Any]], now: NodeInventory) -> None:
    world = World()
    last: dict[str, Any] = {"health": WELL, "label": None, "kubelet": "", "plugin": "", "pods": ()}
    whole: NodeInventory | None = None
    lost: dict[int, ActiveFault] = {}
    for kind, value in [*news, ("scanned", now)]:
        last[kind] = value
        if kind == "scanned":
            whole, missing = completed(value, whole)
            lost = {index: ActiveFault(code, 0) for index, code in missing.items()}
        if kind == "pods":
            world.pods = value
        else:
            getattr(world.offering, kind)(value)
    world.offering.renew()
    assert whole is not None
    try:
        wanted = Partitions.parse(last["label"]) if last["label"] is not None else None
    except Exception:  # noqa: BLE001 # whichever way it is refused
        wanted = None
    back = held_back(last["plugin"], last["pods"], whole)
    expected = offer(
        whole,
        Partitions() if last["kubelet"] else effective_partitions(whole, wanted),
        with_faults(last["health"], lost),
        held_back=back.chips,
    )
    desired, held = world.published[-1]
    assert shown(desired.devices) == shown(expected.devices)
    assert (desired.counters, held) == (expected.counters, back)
    assert bool(world.offering.now.label_problem) == (last["label"] == "nonsense")
    told = world.offering.facts
    assert told.held_back == back
    assert told.attributes is not None
    assert set(told.attributes) == {device.name for device in (*expected.fallback, *expected.devices)}
    assert set(told.unhealthy) >= ({2} if last["health"] is SICK else set())


def test_nothing_is_published_before_the_first_scan_that_may_be(world: World) -> None:
    world.offering.health(SICK)
    world.offering.kubelet("")
    assert len(world.offering.scanned(host(), publish=False).devices) == 16
    world.offering.renew()
    assert (world.published, world.offering.begun) == ([], False)
    world.offering.scanned(host())
    assert len(world.names) == 16


def test_what_an_earlier_instance_has_prepared_stays_on_offer_from_the_first_publication_on(world: World) -> None:
    world.offering.keep({core_name(3, 1): 2})
    world.offering.scanned(host())
    assert core_name(3, 1) in world.names
    assert world.offering.now.offer.retired == {core_name(3, 1)}


def test_news_of_two_threads_is_in_the_offer_that_stays() -> None:
    making, go_on = threading.Event(), threading.Event()
    published: list[Desired] = []

    def publish(desired: Desired, _: HeldBack) -> None:
        if making.is_set() or not published:
            published.append(desired)
            return
        making.set()
        go_on.wait(60)
        published.append(desired)

    offering = Offering(settings(), WELL, lambda: (), Keeper(dict, set), publish)
    offering.scanned(host())
    first = threading.Thread(target=offering.health, args=(SICK,))
    second = threading.Thread(target=offering.kubelet, args=("it is too old",))
    first.start()
    assert making.wait(30)
    second.start()
    second.join(0.2)
    go_on.set()
    first.join(30)
    second.join(30)
    assert [len(desired.devices) for desired in published] == [16, 16, 0]


def test_what_the_host_shows_while_it_is_asked_who_holds_what_is_not_lost() -> None:
    published: list[Desired] = []

    def held() -> set[str]:
        offering.scanned(without(host(), 15))
        return set()

    keeper = Keeper(dict, held, settle_seconds=0.0)
    offering = Offering(settings(), WELL, lambda: (), keeper, lambda desired, _: published.append(desired))
    offering.keep({core_name(3, 1): 2})
    offering.scanned(host())
    offering.review([], published[-1].devices)
    lost = {device.name for device in published[-1].devices if any("device-lost" in t.key for t in device.taints)}
    assert lost == {"neuron-device-15"}
    assert not offering.now.offer.retired, "and no claim holds what was kept"


def test_news_that_comes_while_the_label_is_read_does_not_undo_the_label() -> None:
    published: list[Desired] = []

    class Label(str):
        __slots__ = ()

        def strip(self, chars: str | None = None, /) -> str:
            if published:
                offering.health(SICK)
            return super().strip(chars)

    offering = Offering(settings(), WELL, lambda: (), Keeper(dict, set), lambda desired, _: published.append(desired))
    offering.label("core")
    offering.scanned(host())
    offering.label(Label("core"))  # another label of the Node has changed
    first, second = [{device.name for device in desired.devices} for desired in published]
    assert core_name(3, 1) in first
    assert first == second


@pytest.mark.parametrize(("kind", "value"), [("health", SICK), ("plugin", PLUGIN)])
def test_news_that_comes_while_the_first_offer_is_made_is_published(kind: str, value: Any) -> None:
    published: list[tuple[Desired, HeldBack]] = []
    news = threading.Thread(target=lambda: getattr(offering, kind)(value))

    def pods() -> Sequence[PodDevices]:
        if not published:
            news.start()
            news.join(0.5)  # news that could be taken now would be
        return ()

    offering = Offering(settings(), WELL, pods, Keeper(dict, set), lambda *made: published.append(made))
    offering.scanned(host())
    news.join(30)
    desired, held = published[-1]
    sick = {device.name for device in desired.devices if device.taints}
    assert (sick, bool(held.chips)) == (({"neuron-device-2"}, False) if kind == "health" else (set(), True))
