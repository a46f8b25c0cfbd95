"""Sets for all containers of a pod, and what is said when there are none."""

from __future__ import annotations

import time
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.legacy.placement import DoesNotFit, Packing, fits, list_counts, place, union
from dra_driver.legacy.resource_requests import (
    MAX_CONTAINERS,
    ContainerRequest,
    Limits,
    LimitsContainer,
    Number,
    PodRequest,
    Resources,
    Role,
    pod_request,
)
from dra_driver.legacy.rules import NeuronResource, NodeHardware, candidates, hardware
from dra_driver.util.errors import DriverError
from tests.builders.effort import effort
from tests.golden import golden, golden_error

DEVICE, CORE = NeuronResource.DEVICE, NeuronResource.CORE
TRN1, INF2 = hardware("trn1.32xlarge", 16, 32), hardware("inf2.48xlarge", 12, 24)
INF1 = hardware("inf1.6xlarge", 4, 16)


def requests(*items: tuple[Role, NeuronResource, int]) -> PodRequest:
    return tuple(ContainerRequest(f"c{number}", *item) for number, item in enumerate(items))


def main(count: int, resource: NeuronResource = DEVICE) -> tuple[Role, NeuronResource, int]:
    return Role.MAIN, resource, count


def placed(kind: NodeHardware, taken: Sequence[int], asked: PodRequest) -> list[tuple[int, ...]]:
    found = place(kind, kind.mask(DEVICE, taken), asked)
    assert not isinstance(found, DoesNotFit), found
    return [kind.ids(request.resource, mask) for request, mask in zip(asked, found, strict=True)]


def refused(kind: NodeHardware, taken: Sequence[int], asked: PodRequest) -> DoesNotFit:
    found = place(kind, kind.mask(DEVICE, taken), asked)
    assert isinstance(found, DoesNotFit)
    assert fits(kind, kind.mask(DEVICE, taken), asked) == found
    return found


def test_a_bad_count_gets_the_vendors_sentence_and_what_would_do() -> None:
    found = refused(TRN1, [0], requests(main(7)))
    assert found.lasting
    golden(found.text)


def test_a_bad_count_of_cores_is_refused_in_the_same_words() -> None:
    found = refused(TRN1, [], requests(main(3, CORE)))
    golden(found.text)


def test_devices_that_are_free_but_not_connected_are_refused_for_now() -> None:
    found = refused(INF2, [2, 5, 8, 11], requests(main(3)))
    assert not found.lasting
    golden(found.text)


@pytest.mark.parametrize("count", [9, 600])
def test_a_node_that_calls_itself_something_new_is_refused_with_little_effort(count: int) -> None:
    """The namespace of whoever asks pays for it, and everybody waits."""
    found, calls = effort(lambda: refused(hardware(f"new-{count}", 63, 504), [], requests(main(count, CORE))))
    golden(found.text)
    assert calls < 10_000


def test_a_full_node_says_so() -> None:
    found = refused(INF1, range(4), requests(main(1, CORE)))
    golden(found.text)


def test_containers_get_sets_of_their_own() -> None:
    assert placed(INF2, [], requests(main(2), main(3), main(1))) == [(3, 4), (0, 1, 2), (5,)]


def test_an_init_container_shares_the_devices_of_those_after_it() -> None:
    found = placed(TRN1, [], requests((Role.INIT, DEVICE, 4), main(1), main(1)))
    assert found[0] == (0, 1, 2, 3)
    assert {*found[1], *found[2]} == {0, 1}


def test_a_larger_container_after_a_small_init_container_covers_it() -> None:
    found = placed(INF2, [0], requests((Role.INIT, DEVICE, 1), main(3)))
    assert set(found[0]) < set(found[1])


def test_a_sidecar_keeps_its_devices_from_the_init_containers_after_it() -> None:
    first, init, last = placed(INF2, [], requests((Role.SIDECAR, DEVICE, 2), (Role.INIT, DEVICE, 3), main(1)))
    assert not {*first} & {*init}
    assert not {*first} & {*last}
    assert {*last} < {*init}


def test_an_init_container_gets_the_best_set_of_those_that_leave_room_for_the_sidecar() -> None:
    assert placed(INF1, [], requests((Role.SIDECAR, DEVICE, 1), (Role.INIT, DEVICE, 3), main(1))) == [
        (3,),
        (0, 1, 2),
        (0,),
    ]


def test_a_sidecar_may_take_over_from_an_init_container_before_it() -> None:
    init, sidecar = placed(INF2, [], requests((Role.INIT, DEVICE, 3), (Role.SIDECAR, DEVICE, 2)))
    assert {*sidecar} < {*init}


def test_two_containers_that_fit_one_by_one_only_are_refused_together() -> None:
    found = refused(TRN1, [0, 4, 8], requests(main(4), main(4)))
    golden(found.text)
    assert not found.lasting
    assert refused(TRN1, [], requests(main(16), main(1))).lasting


def test_a_refusal_names_a_few_amounts_of_many() -> None:
    found = refused(CHAIN, [], requests(*(main(count, CORE) for count in range(1, 13))))
    golden(found.text)


def test_holes_are_searched_for_a_way_to_fit_all() -> None:
    # Free runs of 6 and 5 devices: only 4+2 and 3+2 fill them.
    found = placed(INF2, [6], requests(main(4), main(3), main(2), main(2)))
    assert sorted(number for ids in found for number in ids) == [0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11]


def check(kind: NodeHardware, taken: int, asked: PodRequest, found: Sequence[int]) -> None:
    """Check that sets are free, obey the rules and collide with nothing that runs beside them."""
    assert not union(found) & taken
    for request, mask in zip(asked, found, strict=True):
        assert mask in candidates(kind, request.resource, request.count)
    lasting = [mask for request, mask in zip(asked, found, strict=True) if request.role is not Role.INIT]
    assert sum(mask.bit_count() for mask in lasting) == union(lasting).bit_count()
    for number, request in enumerate(asked):
        if request.role is Role.INIT:
            before = [found[item] for item in range(number) if asked[item].role is Role.SIDECAR]
            assert not found[number] & union(before)


roles = st.sampled_from(Role)


@given(
    st.sampled_from([TRN1, INF2, INF1, hardware("trn2.48xlarge", 16, 64), hardware("x", 5, 10)]),
    st.lists(st.tuples(roles, st.sampled_from(NeuronResource), st.integers(1, 17)), max_size=5),
    st.data(),
)
def test_what_is_placed_is_free_obeys_the_rules_and_collides_with_nothing_that_runs_beside_it(
    kind: NodeHardware, asked: list[tuple[Role, NeuronResource, int]], data: st.DataObject
) -> None:
    taken = data.draw(st.integers(0, (1 << kind.cores) - 1)) & data.draw(st.integers(0, (1 << kind.cores) - 1))
    demanded = requests(*asked)
    found = place(kind, taken, demanded)
    assert fits(kind, taken, demanded) == (found if isinstance(found, DoesNotFit) else None)
    if isinstance(found, DoesNotFit):
        assert "Free: " in found.text
        return
    check(kind, taken, demanded, found)


def test_many_containers_are_refused_in_time() -> None:
    asked = requests(*[main(2)] * 5, *[main(1)] * 3)
    assert isinstance(place(INF2, INF2.mask(DEVICE, [1]), asked), DoesNotFit)


CHAIN, STRANGER = hardware("inf1.24xlarge", 16, 64), hardware("stranger", 64, 512)
LETTERS = {"I": Role.INIT, "S": Role.SIDECAR, "M": Role.MAIN}


def cores(text: str) -> PodRequest:
    """Such as ``I1 S2``: an init container with one core, then a sidecar with two."""
    return requests(*((LETTERS[item[0]], CORE, int(item[1:])) for item in text.split()))


@pytest.mark.parametrize(
    ("kind", "taken", "asked", "most"),
    [
        (STRANGER, 0, cores(" ".join(f"{'IS'[number % 2]}{1 + number % 7}" for number in range(63)) + " M1"), 10**6),
        (
            STRANGER,
            STRANGER.mask(DEVICE, [*range(27, 41), 45, 46, 47, 49]),
            cores(" ".join(f"{'IS'[number % 2]}{1 + number % 7}" for number in range(63)) + " S3"),
            10**6,
        ),
        (
            CHAIN,
            0x1820183087400A00,
            cores("S2 I8 M5 S1 M2 I2 S1 I1 S4 M2 I4 S2 M5 M2 M2 S4 M2 M1 I1 I3 M2 M3 M5 M4"),
            150_000,
        ),
    ],
    ids=["init containers and sidecars by turns", "between gaps", "that fit in few ways"],
)
def test_containers_that_are_hard_to_place_are_placed_with_bounded_effort(
    kind: NodeHardware, taken: int, asked: PodRequest, most: int
) -> None:
    """It is done under the lock, and who creates pods and nodes chooses how hard it is."""
    found, calls = effort(lambda: place(kind, taken, asked))
    assert not isinstance(found, DoesNotFit)
    assert fits(kind, taken, asked) is None
    check(kind, taken, asked, found)
    assert calls < most


def test_whether_many_containers_fit_is_cheap_on_nodes_that_are_all_different() -> None:
    """A filter asks it for thousands of nodes; 20 ms each would be far too much."""
    kind = hardware("trn2.48xlarge", 16, 128)
    for asked in (requests(*[main(1, CORE)] * 64), requests(*[main(2, CORE)] * 20, *[main(1, CORE)] * 44)):
        packing = Packing(kind, asked)
        random = Random(1)
        masks = [random.getrandbits(128) & random.getrandbits(128) for _ in range(500)]
        started = time.thread_time()
        fitting = sum(packing.fits(mask) is None for mask in masks)
        assert time.thread_time() - started < 1.0
        assert fitting, "else counting alone would have done"


@given(st.lists(st.tuples(st.sampled_from(NeuronResource), st.integers(1, 4)), min_size=1, max_size=4), st.data())
def test_containers_side_by_side_are_refused_only_where_no_disjoint_sets_exist(
    asked: list[tuple[NeuronResource, int]], data: st.DataObject
) -> None:
    kind = data.draw(st.sampled_from([INF1, hardware("inf2.24xlarge", 6, 12)]))
    taken = data.draw(st.integers(0, (1 << kind.cores) - 1)) & data.draw(st.integers(0, (1 << kind.cores) - 1))

    def possible(busy: int, left: list[tuple[NeuronResource, int]]) -> bool:
        masks = candidates(kind, *left[0]) if left else ()
        return not left or any(not mask & busy and possible(busy | mask, left[1:]) for mask in masks)

    found = place(kind, taken, requests(*((Role.MAIN, *item) for item in asked)))
    assert isinstance(found, DoesNotFit) == (not possible(taken, asked))


def container(name: str, devices: Number = None, cores: Number = None, policy: str | None = None) -> LimitsContainer:
    return LimitsContainer(name, Resources(Limits(devices, cores)), policy)


@pytest.mark.parametrize(
    ("value", "count"),
    [("4", 4), (4, 4), ("4000m", 4), ("1k", 1000), ("1G", 10**9), ("1Ki", 1024)],
)
def test_whole_quantities_are_read(value: Number, count: int) -> None:
    assert pod_request(None, (container("main", value),)) == (ContainerRequest("main", Role.MAIN, DEVICE, count),)


@pytest.mark.parametrize(
    "value", ["-1", -1, "1.5", 1.5, "1500m", "", "two", "1e400", "٤", "4 ", "9" * 30, float("nan")]
)
def test_other_numbers_are_refused_with_the_container(value: Number) -> None:
    with golden_error(DriverError):
        pod_request(None, (container("main", value),))


def test_zero_is_no_demand() -> None:
    assert pod_request((container("first", "0"),), (container("main", None, "0"), LimitsContainer("plain"))) == ()


def test_init_containers_that_keep_running_are_sidecars() -> None:
    found = pod_request((container("a", "1"), container("b", None, "2", "Always")), (container("c", "3"),))
    assert [(request.container, request.role) for request in found] == [
        ("a", Role.INIT),
        ("b", Role.SIDECAR),
        ("c", Role.MAIN),
    ]


def test_requests_count_where_there_are_no_limits() -> None:
    found = pod_request(None, (LimitsContainer("main", Resources(requests=Limits("2"))),))
    assert found[0].count == 2


def test_devices_and_cores_for_one_container_are_refused() -> None:
    with golden_error(DriverError):
        pod_request(None, (container("main", "1", "1"),))


def test_too_many_containers_are_refused() -> None:
    with golden_error(DriverError):
        pod_request(None, tuple(container(f"c{number}", "1") for number in range(MAX_CONTAINERS + 1)))


@pytest.mark.parametrize(
    ("numbers", "text"),
    [((), ""), ((1,), "1"), ((1, 2), "1, 2"), ((1, 2, 3, 5), "1 to 3, 5"), ((1, 4, 8, 16), "1, 4, 8, 16")],
)
def test_counts_are_listed_shortly(numbers: tuple[int, ...], text: str) -> None:
    assert list_counts(numbers) == text
