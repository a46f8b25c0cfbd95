"""What scripts/benchmark scheduling asks for, and what its check says."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from bench.scheduling import Extent, Figures, chosen, figures, relative, report, slower
from bench.schedulingfleet import Sample, Size
from bench.schedulingrows import (
    ALL_CUTS,
    STATES,
    Row,
    World,
    classes,
    efa_class,
    exploding_rows,
    fitting,
    node_name,
    own_rows,
    pod,
    taken,
    template_classes,
    template_rows,
)
from bench.schedulingslices import devices_of, offered, slices

from tests.paths import ROOT

EMPTY, HALF, NEARLY = STATES
TEMPLATES = ROOT / "examples" / "specs"
CHIP, FOUR, SIXTEEN = (Row(str(size), World(), size) for size in (1, 4, 16))


@pytest.mark.parametrize(
    ("row", "state", "pods"),
    [
        (CHIP, EMPTY, 1600),
        (CHIP, HALF, 800),
        (CHIP, NEARLY, 400),
        (FOUR, NEARLY, 100),
        (SIXTEEN, EMPTY, 100),
        (SIXTEEN, HALF, 50),
        (SIXTEEN, NEARLY, 10),
    ],
)
def test_as_many_pods_fit_as_there_are_free_chips_for(row: Row, state: object, pods: int) -> None:
    assert fitting(row, state, 100) == pods  # type: ignore[arg-type]


def test_pods_of_every_row_find_room_on_every_fleet() -> None:
    for row in (*own_rows(), *template_rows(TEMPLATES)):
        for state in STATES:
            assert fitting(row, state, 100) >= 5, f"{row.name} on {state.name}"


def test_where_each_node_has_one_chip_taken_no_whole_node_is_free() -> None:
    for row in exploding_rows():
        assert taken(row, EMPTY, 50) == (1, 50)
        assert fitting(row, EMPTY, 50) == 0


def test_every_template_of_the_project_has_a_row() -> None:
    files = {path.stem for folder in (TEMPLATES, TEMPLATES / "cuts") for path in folder.glob("*.yaml")}
    assert {row.name for row in template_rows(TEMPLATES)} == files


@pytest.mark.parametrize("row", template_rows(TEMPLATES), ids=lambda row: row.name)
def test_nodes_of_a_template_offer_what_it_asks_for(row: Row) -> None:
    assert row.claim is not None
    requests = [request["exactly"] for request in row.claim["devices"]["requests"]]
    made = [*classes(), efa_class(), *template_classes(TEMPLATES)]
    assert {request["deviceClassName"] for request in requests} <= {item["metadata"]["name"] for item in made}
    published: Counter[str] = Counter()
    for item in slices(row.world, node_name(7), "uid"):
        published[item["spec"]["driver"]] += len(item["spec"].get("devices", ()))
    assert len(published) == len(requests), "a driver for each request"
    for request, devices in zip(requests, published.values(), strict=True):
        assert request.get("count", 1) <= devices
    assert 0 < row.chips <= row.world.chips


@pytest.mark.parametrize("cuts", ["chip", "group4", "node", "core", ALL_CUTS])
def test_chips_taken_by_others_are_devices_that_the_node_offers(cuts: str) -> None:
    world = World(cuts)
    names = {device.name for device in offered(world).devices}
    assert set(devices_of(world, range(16))) <= names
    assert devices_of(world, range(16))
    assert devices_of(world, range(0)) == []
    published = [item for one in slices(world, node_name(7), "uid") for item in one["spec"].get("devices", ())]
    assert {item["name"] for item in published} == names


def test_a_pod_names_its_claim_or_its_limit() -> None:
    by_name = {row.name: row for row in own_rows() if row.world != World(ALL_CUTS)}
    assert pod("a", by_name["chip"])["spec"]["resourceClaims"] == [{"name": "neurons", "resourceClaimName": "a"}]
    limited = pod("a", by_name["limit neuroncore: 2"])["spec"]
    assert limited["containers"][0]["resources"] == {"limits": {"aws.amazon.com/neuroncore": "2"}}
    assert "resourceClaims" not in limited
    extended = {item["spec"].get("extendedResourceName") for item in classes()}
    assert {name for row in own_rows() for name in row.limits} <= extended


def figured(name: str, processor: float, plain: float = 2.0) -> Figures:
    sample = Sample(pods=10, seconds=0.5, p50=1, p99=2, processor=processor)
    return figures(Row(name, World(), 1), EMPTY, [sample], [replace(sample, processor=plain)])


def test_a_row_is_too_slow_when_it_costs_a_third_more_plain_pods_than_before() -> None:
    before = relative([figured("a", 20), figured("b", 40)])
    assert sorted(before.values()) == [10, 20]
    assert slower([figured("a", 26), figured("b", 53)], before) == []
    assert slower([figured("a", 30), figured("b", 40)], before) == [figured("a", 1).key]
    assert slower([figured("a", 30, plain=3), figured("b", 60, plain=3)], before) == [], "all is slower: the machine"
    assert slower([figured("new", 300)], before) == []


def test_the_report_has_a_line_for_each_row_and_each_kind_of_node() -> None:
    found = [figured("a", 20)]
    text = report("a machine", 0.5, "1.37.1", Extent(500, 10, 1), found, {World(): Size(1, 16, 14000, 9000.0)})
    assert "| a | trn2.48xlarge offering chip | empty | 10 | 20.0 | 20 | 1 | 2 | 20.0 | 10.0 |" in text
    assert "| trn2.48xlarge offering chip | 1 | 16 | 14000 | 9000 | 4.5 |" in text


def test_rows_are_chosen_by_name_and_nodes() -> None:
    assert [row.world.cuts for row in chosen(own_rows(), "^node / .*offering node$")] == ["node"]
    assert len(chosen(own_rows(), "")) == len(own_rows())
