"""Which pods the extender has evicted for a pod of higher priority."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.legacy.annotations import ContainerShare, RecordedAllocation
from dra_driver.legacy.extender.preemption import Tenancy, Tenant, victims
from dra_driver.legacy.placement import fits
from dra_driver.legacy.resource_requests import ContainerRequest, PodRequest, Role
from dra_driver.legacy.rules import NeuronResource, NodeHardware, hardware
from dra_driver.legacy.usage import Holding, usage

DEVICE, CORE = NeuronResource.DEVICE, NeuronResource.CORE
TRN1, INF2 = hardware("trn1.32xlarge", 16, 32), hardware("inf2.48xlarge", 12, 24)


def asks(count: int, resource: NeuronResource = DEVICE) -> PodRequest:
    return (ContainerRequest("main", Role.MAIN, resource, count),)


def tenant(uid: str, ids: Sequence[int], priority: int | None = 0, resource: NeuronResource = DEVICE) -> Tenant:
    share = ContainerShare("main", resource, tuple(ids))
    return Tenant(uid, Holding(f"a/{uid}", (RecordedAllocation((share,)),), asks(len(ids), resource)), priority)


def node(*tenants: Tenant, machine: NodeHardware = TRN1, unusable: str | None = None) -> Tenancy:
    return Tenancy(machine, unusable, tenants)


def evicted(
    where: Tenancy, requests: PodRequest, proposed: Sequence[str], *, priority: int = 100, in_time: bool = True
) -> list[str] | None:
    return victims(where, requests, priority, proposed, lambda: in_time)


SINGLES = [tenant(f"d{number}", (number,)) for number in range(16)]


def test_what_kube_scheduler_proposes_stays_where_it_makes_room() -> None:
    row = ["d7", "d6", "d5", "d4"]
    assert evicted(node(*SINGLES), asks(4), row) == row
    assert evicted(node(*SINGLES), asks(4), ["other", *row]) == ["other", *row]


def test_as_many_others_go_where_the_proposed_are_not_connected() -> None:
    found = evicted(node(*SINGLES), asks(4), ["d3", "d7", "d11", "d15"])
    assert found is not None
    numbers = sorted(int(uid[1:]) for uid in found)
    assert numbers == list(range(numbers[0], numbers[0] + 4))
    assert numbers[0] % 4 == 0


def test_pods_of_the_lowest_priority_go() -> None:
    pods = [tenant(f"d{n}", (n,), {0: 5, 1: 3, 2: 1, 3: 2}[n // 4]) for n in range(16)]
    found = evicted(node(*pods), asks(4), ["d0", "d4", "d8", "d12"])
    assert found is not None
    assert {*found} == {"d8", "d9", "d10", "d11"}


def test_the_set_of_the_fewest_pods_goes_among_equals() -> None:
    pods = [pod for pod in SINGLES if pod.uid not in ("d5", "d6")]
    assert {*(evicted(node(*pods), asks(4), ["d0", "d15"]) or ())} == {"d4", "d7"}


@pytest.mark.parametrize("priority", [100, 200, None], ids=["equal", "higher", "not known yet"])
def test_pods_that_are_not_of_lower_priority_stay(priority: int | None) -> None:
    pods = [tenant(f"d{n}", (n,), priority if n in (0, 5, 10) else 0) for n in range(16)]
    found = evicted(node(*pods), asks(4), ["d1", "d2", "d3", "d4"])
    assert found is not None
    assert {*found} == {"d12", "d13", "d14", "d15"}
    pods = [tenant(f"d{n}", (n,), priority if n in (0, 5, 10, 15) else 0) for n in range(16)]
    assert evicted(node(*pods), asks(4), ["d1", "d2", "d3", "d4"]) is None


def test_failed_devices_are_made_no_room_of() -> None:
    assert evicted(node(*SINGLES, unusable="0,5,10,15"), asks(4), ["d1", "d2", "d3", "d4"]) is None


def test_pods_that_have_something_else_stay_proposed_and_in_order() -> None:
    pods = [tenant(f"d{n}", (n,), 50 if n >= 8 else n) for n in range(16)]
    found = evicted(node(*pods), asks(4), ["cpu", "d7", "d2", "memory"])
    assert found == ["cpu", "d3", "d2", "d1", "d0", "memory"]


def test_at_least_as_many_of_each_resource_are_freed_as_by_count() -> None:
    """Else kube-scheduler would not find room for the pod, and evict again."""
    cores = [tenant(f"c{n}", (2 * n, 2 * n + 1), -5, CORE) for n in range(4)]
    pods = [*cores, *SINGLES[4:]]
    found = evicted(node(*pods), asks(4), ["d4", "d8", "d12", "d15"])
    assert found is not None
    assert len([uid for uid in found if uid.startswith("d")]) == 4


def test_a_sidecar_and_the_init_container_after_it_count_as_two() -> None:
    shares = (ContainerShare("side", DEVICE, (0,)), ContainerShare("init", DEVICE, (2,)))
    both = tuple(ContainerRequest(role.name, role, DEVICE, 1) for role in (Role.SIDECAR, Role.INIT))
    pair = Tenant("pair", Holding("a/pair", (RecordedAllocation(shares),), both), 50)
    pods = [pair, *(tenant(f"d{n}", (n,)) for n in (1, 3, 4, *range(6, 12)))]
    found = evicted(node(*pods, machine=INF2), asks(2), ["pair"])
    assert found is not None
    assert len(found) == 2


def test_a_pod_of_unknown_devices_that_stays_keeps_what_it_may_have() -> None:
    unknown = Tenant("u", Holding("a/u", (), asks(4), "no annotation"), 500)
    row = [tenant(f"d{n}", (n,), 500) for n in range(4)]
    rest = [tenant(f"d{n}", (n,)) for n in range(8, 16)]
    assert evicted(node(unknown, *row, *rest), asks(4), ["d8", "d12"]) is None
    low = Tenant("u", unknown.holding, 0)
    found = evicted(node(low, *row, *rest), asks(4), ["d8", "d12"])
    assert found is not None
    assert "u" in found


def test_what_takes_too_long_is_left() -> None:
    assert evicted(node(*SINGLES), asks(4), ["d3", "d7", "d11", "d15"], in_time=False) is None


@given(st.data())
def test_there_is_room_then_and_every_one_of_them_is_needed(data: st.DataObject) -> None:
    machine = data.draw(st.sampled_from([TRN1, INF2]))
    partitions = sorted(data.draw(st.sets(st.integers(1, machine.devices - 1), max_size=machine.devices)))
    runs = itertools.pairwise([0, *partitions, machine.devices])
    pods = [
        tenant(f"p{number}", range(*run), data.draw(st.integers(0, 3)))
        for number, run in enumerate(runs)
        if data.draw(st.booleans())
    ]
    requests = asks(data.draw(st.sampled_from([1, 4, 8])))
    lower = [pod.uid for pod in pods if (pod.priority or 0) < 2]
    proposed = data.draw(st.lists(st.sampled_from(lower), unique=True)) if lower else []
    where = node(*pods, machine=machine)
    found = victims(where, requests, 2, proposed, lambda: True)

    def room(gone: Sequence[str]) -> bool:
        staying = usage(machine, [pod.holding for pod in pods if pod.uid not in gone]).taken
        return fits(machine, staying, requests) is None

    def freed(gone: Sequence[str]) -> int:
        return sum(request.count for pod in pods if pod.uid in gone for request in pod.holding.requests or ())

    if found is None:
        assert not room(lower)
        return
    assert {*found} <= {*lower}
    assert room(found)
    assert freed(found) >= freed(proposed)
    for uid in found if found != proposed else ():
        rest = [other for other in found if other != uid]
        assert not (room(rest) and freed(rest) >= freed(proposed)), f"{uid} could stay"
