"""Who uses which device and chip, for the metrics."""

from __future__ import annotations

from dra_driver.driver import device_use
from dra_driver.driver.claims.model import ChipNode, Plan, PlannedDevice
from dra_driver.driver.device_use import MOST_SERIES, DeviceUse, allocation_samples, allocations
from dra_driver.kube.kubelet.podresources import ClaimUse, PodClaim, PodDevices
from tests.builders.claims import uid
from tests.calls import calls_in


def device(name: str, *chips: int, admin: bool = False) -> PlannedDevice:
    nodes = tuple(ChipNode(chip, rank, 240, chip) for rank, chip in enumerate(chips))
    return PlannedDevice("neurons", "node-1", name, nodes, "", admin)


def plan(*devices: PlannedDevice, name: str = "claim", consumers: tuple[str, ...] = ()) -> Plan:
    """Reserved for pods of these names, each with a UID that begins with its name."""
    return Plan(
        "team", name, uid(1), devices, consumers=consumers, consumer_uids=tuple(f"{pod}-1" for pod in consumers)
    )


def listed(pod: str, *uses: tuple[str, str], claim: str = "claim") -> PodDevices:
    """``uses`` are (container, device)."""
    devices = frozenset(("node-1", name) for _, name in uses)
    return PodDevices("team", pod, {}, (ClaimUse(PodClaim(claim, devices), tuple(container for container, _ in uses)),))


def found(plans: list[Plan], *pods: PodDevices) -> list[DeviceUse]:
    return list(allocations(plans, pods, lambda plan: plan.reserved_for))


CHIP = device("neuron-device-3", 3)


def test_kubelet_says_which_containers_share_a_device() -> None:
    shared = listed("train", ("main", CHIP.device), ("side", CHIP.device))
    assert found([plan(CHIP, consumers=("train",))], shared) == [
        DeviceUse((CHIP,), "team", "claim", "train", "train-1", "main"),
        DeviceUse((CHIP,), "team", "claim", "train", "train-1", "side"),
    ]


def test_without_kubelets_word_the_pods_are_those_that_the_claim_is_reserved_for() -> None:
    users = found([plan(CHIP, consumers=("a", "b"))])
    assert [(item.pod, item.pod_uid, item.container) for item in users] == [("a", "a-1", ""), ("b", "b-1", "")]


def test_the_plan_of_an_older_driver_has_no_uids() -> None:
    (only,) = found([Plan("team", "claim", uid(1), (CHIP,), consumers=("a",))])
    assert (only.pod, only.pod_uid) == ("a", "")


def test_a_device_is_in_use_also_when_nobody_is_known() -> None:
    assert found([plan(CHIP)]) == [DeviceUse((CHIP,), "team", "claim", "", "", "")]


def test_kubelet_knows_pods_that_came_and_went_since_the_claim_was_read() -> None:
    (only,) = found([plan(CHIP, consumers=("gone",))], listed("new", ("main", CHIP.device)))
    assert (only.pod, only.pod_uid) == ("new", ""), "kubelet's list has no UIDs"


def test_the_pods_of_a_group_are_those_that_kubelet_names() -> None:
    users = found([plan(CHIP)], listed("a", ("main", CHIP.device)), listed("b", ("main", CHIP.device)))
    assert [(item.pod, item.pod_uid, item.container) for item in users] == [("a", "", "main"), ("b", "", "main")]


def test_what_others_use_and_what_is_only_looked_at_is_left_out() -> None:
    other_claim = listed("p", ("main", CHIP.device), claim="other")
    other_device = listed("p", ("main", "neuron-device-4"))
    assert [item.pod for item in found([plan(CHIP)], other_claim, other_device)] == [""]
    assert found([plan(device("neuron-device-3", 3, admin=True))]) == []


def test_groups_and_nodes_are_one_device_and_all_their_chips() -> None:
    group = plan(device("neuron-group4-0", 0, 1, 2, 3), consumers=("p",))
    samples = list(allocation_samples(found([group])))
    rows = [(sample.name, dict(sample.labels)) for sample in samples]
    assert [labels["device"] for name, labels in rows if name == "device_allocation"] == ["neuron-group4-0"]
    chips = [labels for name, labels in rows if name == "chip_allocation"]
    assert [(labels["device"], labels["neuron_device_index"]) for labels in chips] == [
        ("neuron0", "0"),
        ("neuron1", "1"),
        ("neuron2", "2"),
        ("neuron3", "3"),
    ]


def test_two_cores_of_one_chip_in_one_container_are_one_series_of_the_chip() -> None:
    cores = plan(device("neuron-core-3-0", 3), device("neuron-core-3-1", 3), consumers=("p",))
    names = [sample.name for sample in allocation_samples(found([cores]))]
    assert (names.count("device_allocation"), names.count("chip_allocation")) == (2, 1)


def test_the_series_are_bounded_and_what_is_left_out_is_counted() -> None:
    everything = device("neuron-node", *range(16))
    consumers = tuple(f"pod-{number}" for number in range(100))
    samples = list(allocation_samples(found([plan(everything, consumers=consumers)])))
    assert sum(sample.name == "chip_allocation" for sample in samples) == MOST_SERIES
    assert samples[-1].value == 16 * 100 - MOST_SERIES


def test_containers_whose_names_are_not_kept_are_counted_and_make_no_series() -> None:
    four = plan(device("neuron-group4-0", 0, 1, 2, 3), consumers=("train",))
    claim = PodClaim("claim", frozenset({("node-1", "neuron-group4-0")}))
    samples = list(allocation_samples(found([four], PodDevices("team", "train", {}, (ClaimUse(claim, ("a",), 30),)))))
    assert {dict(sample.labels)["container"] for sample in samples[:-1]} == {"a"}
    assert (len(samples) - 1, samples[-1].value) == (1 + 4, 30 * (1 + 4))


def test_a_page_costs_the_same_however_many_containers_share_how_many_devices() -> None:
    def crowd(*, pods: int) -> tuple[list[Plan], list[PodDevices]]:
        devices = [device(f"neuron-device-{number}", number % 16) for number in range(32)]
        claim = PodClaim("claim", frozenset(("node-1", item.device) for item in devices))
        use = ClaimUse(claim, tuple(f"c{number}" for number in range(250)), 7)
        return [plan(*devices)], [PodDevices("team", f"p{number}", {}, (use,)) for number in range(pods)]

    costs = []
    for pods in (4, 40):
        plans, pods_list = crowd(pods=pods)
        uses = found(plans, *pods_list)
        with calls_in(device_use) as calls:
            samples = list(allocation_samples(uses))
        costs.append((len(uses) - pods, calls.number))
        assert len(samples) == 2 * MOST_SERIES + 1
        assert samples[-1].value == pods * 257 * (32 + 16) - 2 * MOST_SERIES
    assert costs[1][0] <= MOST_SERIES
    assert costs[1][1] < 2 * costs[0][1]


def test_pods_that_are_reserved_for_claims_are_named_up_to_a_number_and_counted() -> None:
    plans = [
        plan(device(f"neuron-device-{n}", n), name=f"c{n}", consumers=tuple(map(str, range(250)))) for n in range(8)
    ]
    uses = found(plans)
    assert sum(not use.unnamed for use in uses) == MOST_SERIES
    assert list(allocation_samples(uses))[-1].value == 2 * (8 * 250 - MOST_SERIES)
