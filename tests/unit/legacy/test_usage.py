"""What annotations say, what is taken from that, and what edits by others can do."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.legacy.annotations import (
    ALLOC_TIME,
    ALLOCATION,
    OF,
    POD_KEYS,
    ContainerShare,
    PodAnnotations,
    RecordedAllocation,
    copied,
    from_mapping,
    in_short,
    parse_ids,
    present,
    read,
    said,
    usage_map,
    write,
)
from dra_driver.legacy.placement import union
from dra_driver.legacy.resource_requests import ContainerRequest, PodRequest, Role
from dra_driver.legacy.rules import NeuronResource, NodeHardware, candidates, hardware
from dra_driver.legacy.usage import Holding, held, holding, usage
from dra_driver.legacy.usage import in_short as whole_in_short
from dra_driver.util.errors import DriverError
from dra_driver.util.text import ranges
from tests.golden import golden, golden_error

DEVICE, CORE = NeuronResource.DEVICE, NeuronResource.CORE
TRN1, INF1 = hardware("trn1.32xlarge", 16, 32), hardware("inf1.6xlarge", 4, 16)


def asks(*counts: int, resource: NeuronResource = DEVICE) -> PodRequest:
    return tuple(ContainerRequest(f"c{number}", Role.MAIN, resource, count) for number, count in enumerate(counts))


def taken(annotations: dict[str, str], requests: PodRequest | None) -> tuple[tuple[int, ...], str]:
    found = holding("a/p", from_mapping(annotations), requests)
    result = usage(TRN1, [found] if found else [])
    return TRN1.ids(CORE, result.taken), result.trouble


def test_nine_cores_are_written_under_all_names() -> None:
    found = write(INF1, "uid", (ContainerShare("main", CORE, tuple(range(9))),), 1_700_000_000_000_000_000)
    assert found == {
        "AWS_NEURON_IDS": "0,1,2,3,4,5,6,7,8",
        "NEURON_RESOURCE_TYPE": "aws.amazon.com/neuroncore",
        "NEURON_ALLOCATED": "false",
        "NEURON_ALLOC_TIME": "1700000000000000000",
        "NEURON_CORES": "0,1,2,3,4,5,6,7,8",
        "neuron.aws.com/allocation": '{"coresPerDevice":4,"containers":[{"name":"main",'
        '"resource":"aws.amazon.com/neuroncore","ids":"0-8"}]}',
        "neuron.aws.com/allocation-of": "uid 1700000000000000000",
    }


def test_devices_and_cores_of_one_pod_are_listed_as_cores() -> None:
    found = write(INF1, "uid", (ContainerShare("a", DEVICE, (1,)), ContainerShare("b", CORE, (2, 3))), 1)
    assert found["AWS_NEURON_IDS"] == "2,3,4,5,6,7"
    assert (found["NEURON_DEVS"], found["NEURON_CORES"]) == ("1", "2,3")


shares = st.lists(
    st.builds(
        ContainerShare,
        st.text("abc-", min_size=1),
        st.sampled_from(NeuronResource),
        st.sets(st.integers(0, 15), min_size=1).map(lambda ids: tuple(sorted(ids))),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda share: share.container,
).map(tuple)


@given(shares, st.integers(0, 2**62))
def test_what_is_written_is_read(given_: tuple[ContainerShare, ...], now: int) -> None:
    written = write(TRN1, "uid", given_, now)
    assert read(from_mapping(written)) == RecordedAllocation(given_, 2, handed_out=False, chosen_at=now)
    assert written.keys() <= set(POD_KEYS)
    mask = held(TRN1, RecordedAllocation(given_, 2))
    for key in ({"AWS_NEURON_IDS", "NEURON_RESOURCE_TYPE"}, {"NEURON_CORES", "NEURON_DEVS"}):
        found = read(from_mapping({name: text for name, text in written.items() if name in key}))
        assert found is not None
        assert held(TRN1, found) == mask


@pytest.mark.parametrize(
    ("annotations", "requests", "cores"),
    [
        ({"NEURON_DEVS": "2,3"}, asks(2), (4, 5, 6, 7)),
        ({"NEURON_CORES": "2,3"}, asks(2, resource=CORE), (2, 3)),
        ({"AWS_NEURON_IDS": "1"}, asks(1), (2, 3)),
        ({"AWS_NEURON_IDS": "1"}, asks(1, resource=CORE), (1,)),
        ({"AWS_NEURON_IDS": "1, 0", "NEURON_RESOURCE_TYPE": "aws.amazon.com/neurondevice"}, asks(2), (0, 1, 2, 3)),
        ({"AWS_NEURON_IDS": "1", "NEURON_ALLOCATED": "maybe", "NEURON_ALLOC_TIME": "now"}, asks(1), (2, 3)),
    ],
)
def test_annotations_of_the_vendors_extender_count(
    annotations: dict[str, str], requests: PodRequest, cores: tuple[int, ...]
) -> None:
    assert taken(annotations, requests) == (cores, "")


SIDECAR, INIT, MAIN = (ContainerRequest(role.name, role, DEVICE, 1) for role in (Role.SIDECAR, Role.INIT, Role.MAIN))


@pytest.mark.parametrize(
    ("requests", "number"),
    [
        ((SIDECAR, INIT), 2),
        ((SIDECAR, SIDECAR, INIT, MAIN), 3),
        ((INIT, SIDECAR), 1),
        ((INIT, INIT, MAIN), 1),
        ((SIDECAR, INIT, SIDECAR, MAIN), 3),
    ],
    ids=lambda value: "-".join(item.container for item in value) if isinstance(value, tuple) else str(value),
)
def test_annotations_with_fewer_devices_than_run_at_one_time_do_not_tell_all(requests: PodRequest, number: int) -> None:
    for listed in range(1, number + 1):
        cores, trouble = taken({"NEURON_DEVS": ranges(range(listed))}, requests)
        assert (len(cores) == 2 * listed, not trouble) == (listed == number, listed == number)


HOSTILE = ["", ",", "a", "-1", "0,0", "0-", "3-1", "1.5", "0x1", "1e3", "٣", "512", "0-99999999", "9" * 20000, "0-8,8"]


@pytest.mark.parametrize("text", HOSTILE)
def test_ids_that_cannot_be_are_refused(text: str) -> None:
    with golden_error(DriverError):
        parse_ids("X", text)


@pytest.mark.parametrize(
    "text",
    [
        "x" * 20000,
        "{}",
        "[]",
        "null",
        "[" * 5000,
        '{"coresPerDevice":2,"containers":[]}',
        '{"coresPerDevice":0,"containers":[{"name":"a","resource":"aws.amazon.com/neuron","ids":"0"}]}',
        '{"coresPerDevice":2,"containers":[{"name":"a","resource":"cpu","ids":"0"}]}',
        '{"coresPerDevice":2,"containers":[{"name":"a","resource":"aws.amazon.com/neuron","ids":""}]}',
        '{"coresPerDevice":2,"more":1,"containers":[{"name":"a","resource":"aws.amazon.com/neuron","ids":"0"}]}',
    ],
)
def test_our_own_annotation_is_read_strictly(text: str) -> None:
    with golden_error(DriverError):
        read(from_mapping({ALLOCATION: text}))


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    for key in ("AWS_NEURON_IDS", "NEURON_CORES", "NEURON_DEVS", "NEURON_RESOURCE_TYPE", ALLOCATION):
        cores, trouble = taken({key: text}, asks(1))
        assert cores or trouble


@given(st.sets(st.integers(0, 511), min_size=1))
def test_ids_as_ranges_are_read_again(ids: set[int]) -> None:
    assert parse_ids("X", ranges(sorted(ids))) == tuple(sorted(ids))


def test_a_pod_that_asks_for_nothing_takes_nothing_whatever_it_says() -> None:
    assert taken({"NEURON_DEVS": "0-15"}, ()) == ((), "")


def test_a_bound_pod_without_annotations_makes_the_node_uncertain() -> None:
    devices, problem = taken({}, asks(1))
    assert devices == tuple(range(32))
    golden(problem)


@pytest.mark.parametrize(
    "edit",
    [
        {"AWS_NEURON_IDS": "0"},
        {"NEURON_DEVS": "0"},
        {ALLOCATION: json.dumps({"coresPerDevice": 2, "containers": [
            {"name": "c0", "resource": "aws.amazon.com/neuron", "ids": "0"}]})},
    ],
)  # fmt: skip
def test_an_edit_of_one_annotation_frees_nothing(edit: dict[str, str]) -> None:
    written = write(TRN1, "uid", (ContainerShare("c0", DEVICE, (4, 5, 6, 7)),), 1) | edit
    cores, trouble = taken(written, asks(4))
    assert set(range(8, 16)) <= {*cores}
    assert trouble == ""


@pytest.mark.parametrize("key", [ALLOCATION, "AWS_NEURON_IDS", "NEURON_RESOURCE_TYPE", "NEURON_DEVS"])
def test_one_unreadable_annotation_beside_others_that_tell_enough_hides_nothing(key: str) -> None:
    written = write(TRN1, "uid", (ContainerShare("c0", DEVICE, (4, 5, 6, 7)),), 1) | {key: "nonsense"}
    assert taken(written, asks(4)) == (tuple(range(8, 16)), "")


def own(cores_per_device: int, *shares: tuple[str, NeuronResource, str]) -> dict[str, str]:
    containers = [{"name": name, "resource": kind.value, "ids": ids} for name, kind, ids in shares]
    return {ALLOCATION: json.dumps({"coresPerDevice": cores_per_device, "containers": containers})}


FORGERIES: list[tuple[PodRequest, dict[str, str]]] = [
    (asks(1, resource=CORE), {"AWS_NEURON_IDS": "5-31", "NEURON_RESOURCE_TYPE": CORE.value}),
    (asks(1, resource=CORE), {"NEURON_CORES": "5-31"}),
    (asks(1, resource=CORE), {"NEURON_DEVS": "0"}),
    (asks(2), {"NEURON_DEVS": "0-2"}),
    (asks(2), {"NEURON_CORES": "0-16"}),
    (asks(1, resource=CORE), own(2, ("c0", CORE, "5"), ("invented", CORE, "6"))),
    (asks(1, resource=CORE), own(2, ("c0", CORE, "5"), ("c0", CORE, "6"))),
    (asks(1, resource=CORE), own(2, ("c0", CORE, "5-6"))),
    (asks(1, resource=CORE), own(2, ("c0", DEVICE, "5"))),
    (asks(2, 1), own(2, ("c0", DEVICE, "5"), ("c1", DEVICE, "6-7"))),
]  # fmt: skip


@pytest.mark.parametrize(("requests", "annotations"), FORGERIES)
def test_more_than_a_pod_requests_is_none_of_it(requests: PodRequest, annotations: dict[str, str]) -> None:
    alone = holding("a/p", from_mapping(annotations), requests)
    assert alone is not None
    assert not alone.allocations
    golden(usage(TRN1, [alone]).trouble)
    others = [known("0-3"), known("4-11")]
    assert usage(TRN1, [*others, alone]).taken == usage(TRN1, [*others, unknown(requests)]).taken


@pytest.mark.parametrize(("requests", "annotations"), FORGERIES)
def test_more_under_one_key_withholds_nothing_beside_others_that_tell_enough(
    requests: PodRequest, annotations: dict[str, str]
) -> None:
    shares, start = [], 0
    for request in requests:
        ids = tuple(range(start, start + request.count))
        shares.append(ContainerShare(request.container, request.resource, ids))
        start += request.count
    written = write(TRN1, "uid", tuple(shares), 1)
    truth = taken(written, requests)
    assert truth[1] == ""
    # One key at a time, with what says how it is to be read.
    assert taken(written | annotations, requests) == truth


roles = st.sampled_from(Role)


@given(shares, st.lists(roles, min_size=4, max_size=4))
def test_what_is_written_is_never_more_than_the_pod_requests(
    given_: tuple[ContainerShare, ...], roles: list[Role]
) -> None:
    requests = tuple(
        ContainerRequest(share.container, role, share.resource, len(share.ids))
        for share, role in zip(given_, roles, strict=False)
    )
    # The node may have more cores a device since, or fewer.
    for width in (1, 2, 4, 8):
        found = holding("a/p", from_mapping(write(hardware("", 64, 64 * width), "uid", given_, 1)), requests)
        assert found is not None
        assert "more devices" not in found.trouble
        assert len(found.allocations) == len({share.resource for share in given_}) + 2


@given(
    st.lists(st.tuples(roles, st.sampled_from(NeuronResource), st.integers(1, 4)), min_size=1, max_size=4),
    st.sampled_from(["AWS_NEURON_IDS", "NEURON_CORES", "NEURON_DEVS"]),
    st.sets(st.integers(0, 31), min_size=1),
    st.lists(st.tuples(st.sampled_from(["c0", "c1", "x"]), st.sampled_from(NeuronResource), st.integers(1, 6))),
)
def test_whatever_it_says_a_pod_withholds_no_more_by_each_key_than_it_requests(
    containers: list[tuple[Role, NeuronResource, int]],
    key: str,
    ids: set[int],
    named: list[tuple[str, NeuronResource, int]],
) -> None:
    requests = tuple(ContainerRequest(f"c{n}", *asked) for n, asked in enumerate(containers))
    annotations = {key: ranges(sorted(ids))} | own(2, *((name, kind, f"0-{n - 1}") for name, kind, n in named))
    found = holding("a/p", from_mapping(annotations), requests)
    assert found is not None
    total = {kind: sum(request.count for request in requests if request.resource is kind) for kind in NeuronResource}
    most = {DEVICE: total[DEVICE], CORE: total[CORE] + 8 * total[DEVICE]}
    for allocation in found.allocations:
        for kind in NeuronResource:
            assert len({n for share in allocation.shares if share.resource is kind for n in share.ids}) <= most[kind]
        for share in allocation.shares:
            assert not share.container or any(
                (share.container, share.resource) == (request.container, request.resource)
                and len(share.ids) <= request.count
                for request in requests
            )


NOON = "2026-01-01T12:00:00Z"
NOON_NANOSECONDS = 1_767_268_800 * 10**9


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({}, False),
        ({OF: f"uid {NOON_NANOSECONDS}"}, False),
        ({OF: f"other {NOON_NANOSECONDS}"}, True),
        # Another extender has chosen since, and left what it does not know.
        ({OF: "other 1"}, False),
        ({OF: "junk"}, False),
        ({ALLOC_TIME: str(NOON_NANOSECONDS - 299 * 10**9)}, False),
        ({ALLOC_TIME: str(NOON_NANOSECONDS - 301 * 10**9)}, True),
        ({ALLOC_TIME: "now"}, False),
    ],
)
def test_annotations_of_another_pod_are_told_by_its_uid_or_by_their_age(
    annotations: dict[str, str], expected: bool
) -> None:
    found = from_mapping({ALLOC_TIME: str(NOON_NANOSECONDS)} | annotations)
    assert copied(found, "uid", NOON) is expected
    assert copied(found, "uid") is (expected and OF in annotations)


def test_a_pod_with_copied_annotations_may_have_other_devices_than_they_say() -> None:
    found = holding("a/copy", PodAnnotations(devices="3"), asks(1), of_another=True)
    assert found is not None
    golden(usage(TRN1, [found]).trouble)


def unknown(requests: PodRequest | None) -> Holding:
    found = holding("a/unknown", from_mapping(dict.fromkeys(POD_KEYS, "nonsense")), requests)
    assert found is not None
    return found


def may_have(requests: PodRequest, others: int) -> int:
    """What a pod of which nothing is known may have, as the rules say."""
    found = 0
    for request in requests:
        masks = [mask for mask in candidates(TRN1, request.resource, request.count) if not mask & others]
        found |= union(masks) if masks else (1 << TRN1.cores) - 1
    return found


amounts = st.lists(st.tuples(st.sampled_from(NeuronResource), st.integers(1, 32)), min_size=1, max_size=4)


@given(st.sets(st.integers(0, 15), max_size=5), st.lists(amounts, max_size=6))
def test_pods_of_which_nothing_is_known_together_keep_what_each_of_them_may_have(
    devices: set[int], doubtful: list[list[tuple[NeuronResource, int]]]
) -> None:
    certain = [known(str(device)) for device in devices]
    requests = [tuple(ContainerRequest("c", Role.MAIN, *amount) for amount in pod) for pod in doubtful]
    others = TRN1.mask(DEVICE, devices)
    expected = others | union(may_have(asked, others) for asked in requests)
    assert usage(TRN1, [*map(unknown, requests), *certain]).taken == expected


def test_a_crowd_of_pods_of_which_nothing_is_known_keeps_everything() -> None:
    few = usage(TRN1, [known("0"), *[unknown(asks(8))] * 32])
    many = usage(TRN1, [known("0"), *[unknown(asks(8))] * 33])
    assert TRN1.ids(DEVICE, few.taken) == (0, *range(8, 16))
    assert TRN1.ids(DEVICE, many.taken) == tuple(range(16))
    assert few.trouble == many.trouble != ""


LATER = ",".join(map(str, range(100, 300))) + ",x"
"""What cannot be read stands at the end."""
texts = st.one_of(
    st.sampled_from(
        ["", "0", "1,2", " 3 , 5-7 ", "0-15", "9" * 200, "0," * 300, "x" * 400, LATER, "nonsense", "true", " True "]
    ),
    st.sampled_from(["aws.amazon.com/neuron", "aws.amazon.com/neuroncore", "uid 1", "other 1", "1", "5", "0-600"]),
    st.sampled_from([text for ids in ("0-1", "4", "4-3") for text in own(2, ("c0", DEVICE, ids)).values()]),
    st.text(max_size=80),
)


@given(
    st.dictionaries(st.sampled_from(POD_KEYS), texts, max_size=8),
    st.one_of(st.none(), amounts),
    st.sampled_from([TRN1, INF1, hardware("", 16, 16)]),
)
def test_what_is_kept_of_annotations_says_the_same(
    annotations: dict[str, str], amounts: list[tuple[NeuronResource, int]] | None, machine: NodeHardware
) -> None:
    requests = (
        None if amounts is None else tuple(ContainerRequest(f"c{n}", Role.MAIN, *a) for n, a in enumerate(amounts))
    )
    asked = {request.resource for request in requests or ()}
    found = from_mapping(annotations)
    short = in_short(found, asked)

    def reading(item: PodAnnotations) -> RecordedAllocation | str | None:
        try:
            return read(item, asked)
        except DriverError as error:
            return str(error)

    assert reading(short) == reading(found)
    assert said(short, asked) == said(found, asked)
    assert present(short) == present(found)
    assert copied(short, "uid", NOON) == copied(found, "uid", NOON)
    assert sum(map(len, msgspec.to_builtins(short).values())) < 2_000
    whole = holding("a/p", found, requests)
    assert holding("a/p", short, requests) == whole
    if whole is not None:
        assert usage(machine, [whole_in_short(whole)]).taken == usage(machine, [whole]).taken


def known(devices: str) -> Holding:
    found = holding(f"a/{devices}", PodAnnotations(devices=devices), asks(len(parse_ids("", devices))))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("requests", "others", "devices"),
    [
        (asks(8), ["0-3", "4"], {*range(5), *range(8, 16)}),
        (asks(4), ["0-3", "4", "8"], {*range(5), 8, *range(12, 16)}),
        (asks(8, 4), ["0-3"], {*range(16)}),
        (asks(7, resource=CORE), ["1", "6"], {1, 6, *range(8, 16)}),
        (asks(1), ["0-3"], {*range(16)}),
    ],
)  # fmt: skip
def test_a_pod_whose_annotations_cannot_be_read_keeps_only_what_it_may_have(
    requests: PodRequest, others: list[str], devices: set[int]
) -> None:
    found = usage(TRN1, [*map(known, others), unknown(requests)])
    assert {*TRN1.ids(DEVICE, found.taken)} == devices
    assert "pod a/unknown: annotation " in found.trouble


@pytest.mark.parametrize("requests", [None, asks(16), asks(7)], ids=["unreadable", "no room", "impossible"])
def test_a_pod_of_which_nothing_is_known_keeps_everything(requests: PodRequest | None) -> None:
    assert usage(TRN1, [known("0-3"), unknown(requests)]).taken == (1 << 32) - 1


def test_what_a_pod_may_have_is_not_less_where_its_devices_have_failed() -> None:
    assert usage(TRN1, [known("0-11"), unknown(asks(4))], "13").taken == (1 << 32) - 1


def test_pods_of_unknown_devices_do_not_tell_of_each_other() -> None:
    """What one of them says may be wrong."""
    fewer = holding("a/fewer", PodAnnotations(devices="4"), asks(4))
    assert fewer is not None
    found = usage(TRN1, [known("0-3"), known("8-11"), fewer, unknown(asks(4))])
    assert TRN1.ids(DEVICE, found.taken) == tuple(range(16))


def test_fewer_ids_than_asked_for_make_the_node_uncertain() -> None:
    cores, trouble = taken({"NEURON_DEVS": "4"}, asks(4))
    assert cores == tuple(range(32))
    golden(trouble)


def test_ids_that_the_node_has_not_make_it_uncertain() -> None:
    golden(taken({"NEURON_DEVS": "16"}, asks(1))[1])


def test_cores_chosen_under_another_logical_core_size_take_their_whole_devices() -> None:
    wide, narrow = hardware("trn2.48xlarge", 16, 64), hardware("trn2.48xlarge", 16, 128)
    found = read(from_mapping(write(wide, "uid", (ContainerShare("c0", CORE, (5, 6)),), 1)))
    assert found is not None
    assert narrow.ids(DEVICE, held(narrow, found)) == (1,)
    assert narrow.ids(CORE, held(narrow, found)) == tuple(range(8, 16))


def test_overlapping_pods_are_both_counted() -> None:
    one = holding("a/one", PodAnnotations(devices="0,1"), asks(2))
    two = holding("a/two", PodAnnotations(devices="1,2"), asks(2))
    assert one is not None
    assert two is not None
    assert TRN1.ids(DEVICE, usage(TRN1, [one, two]).taken) == (0, 1, 2)


def test_devices_that_are_not_to_be_used_are_taken() -> None:
    assert TRN1.ids(DEVICE, usage(TRN1, [], "3,7").taken) == (3, 7)
    assert "unusable-devices is 'x'" in usage(TRN1, [], "x").trouble


def test_usage_maps_say_true_for_each_id_in_use() -> None:
    mask = INF1.mask(CORE, range(9))
    assert usage_map(INF1, mask, CORE) == ",".join(["true"] * 9 + ["false"] * 7)
    assert usage_map(INF1, mask, DEVICE) == "true,true,true,false"
    assert usage_map(INF1, 0, DEVICE) == "false,false,false,false"


def test_a_pod_whose_requests_cannot_be_read_may_have_more_than_it_says() -> None:
    golden(taken({"AWS_NEURON_IDS": "0", "NEURON_RESOURCE_TYPE": DEVICE.value}, None)[1])
