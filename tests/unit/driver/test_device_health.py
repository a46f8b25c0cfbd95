from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dra_driver.driver.device_health import device_health
from dra_driver.kube.kubelet.devicehealth import DeviceHealth, fitted
from dra_driver.neuron.health.faults import FAULTS, ActiveFault, ChipHealth, NodeHealth, in_order
from tests.golden import golden

NODE = "node-a"


def chip(index: int, *codes: str) -> ChipHealth:
    return ChipHealth(index, in_order(ActiveFault(code, 1_700_000_000) for code in codes))


def told(health: NodeHealth, chips: range, *others: str) -> dict[str, tuple[str, str]]:
    devices = device_health(health, chips, others, NODE)
    assert {device.pool for device in devices} <= {NODE}
    assert len({device.device for device in devices}) == len(devices)
    return {device.device: (device.health, device.message) for device in devices}


def test_each_state_of_a_chip_has_its_word_and_the_message_says_what_is_wrong_and_what_helps() -> None:
    health = NodeHealth((chip(0), chip(1, "hbm-corrected-rising"), chip(2, "unreadable"), chip(3, "hbm-repairable")), 1)

    devices = told(health, range(4))

    assert [state for state, _ in devices.values()] == ["healthy", "healthy", "unknown", "unhealthy"]
    assert devices["neuron-device-0"] == ("healthy", "")
    golden(devices["neuron-device-1"][1])
    golden(devices["neuron-device-2"][1])
    golden(devices["neuron-device-3"][1])


def test_a_chip_of_which_nothing_was_read_is_unknown() -> None:
    assert told(NodeHealth(), range(1)) == {"neuron-device-0": ("unknown", "neuron0: its health has not been read yet")}


def test_a_lost_chip_is_told_of_although_the_host_has_it_no_more() -> None:
    health = NodeHealth((chip(0), chip(1, "device-lost")), 1)
    assert told(health, range(1))["neuron-device-1"][0] == "unhealthy"


def test_the_whole_node_says_first_what_is_gravest() -> None:
    health = NodeHealth((chip(0, "hbm-corrected-rising"), chip(1, "unreadable"), chip(2, "hbm-uncorrectable")), 1)

    state, message = told(health, range(3), "neuron-node")["neuron-node"]

    assert state == "unhealthy"
    assert [message.index(f"neuron{index}: ") for index in (2, 1, 0)] == sorted(
        message.index(f"neuron{index}: ") for index in range(3)
    )


def test_a_group_and_a_core_are_as_sick_as_their_chips() -> None:
    health = NodeHealth((chip(0), chip(5, "hbm-uncorrectable")), 1)

    names = ("neuron-device-5", "neuron-group4-0", "neuron-group4-1", "neuron-core-5-1", "neuron-core-0-3")
    devices = told(health, range(8), *names, "neuron-group3")

    assert list(devices) == [*(f"neuron-device-{index}" for index in range(8)), *names[1:]]
    assert devices["neuron-group4-0"][0] == "unknown"
    assert devices["neuron-group4-1"][0] == "unhealthy"
    assert devices["neuron-core-5-1"] == devices["neuron-device-5"]
    assert devices["neuron-core-0-3"] == ("healthy", "")


def test_a_host_without_chips_has_no_devices() -> None:
    assert device_health(NodeHealth(), (), ["neuron-node"], NODE) == ()


codes = st.lists(st.sampled_from(sorted(FAULTS)), unique=True, max_size=5)
healths = st.dictionaries(st.integers(0, 31), codes, max_size=16).map(
    lambda faults: NodeHealth(tuple(chip(index, *faults[index]) for index in sorted(faults)), 1)
)
ORDER = ("healthy", "unknown", "unhealthy")


@given(healths, st.integers(0, 32), st.booleans())
def test_every_device_is_told_of_once_and_the_node_is_as_sick_as_its_sickest_chip(
    health: NodeHealth, count: int, whole_node: bool
) -> None:
    devices = device_health(health, range(count), ["neuron-node"] if whole_node else [], NODE)

    indexes = sorted({*range(count), *(chip.index for chip in health.chips)})
    names = [f"neuron-device-{index}" for index in indexes]
    assert [device.device for device in devices] == [*names, *(["neuron-node"] if whole_node and indexes else [])]
    if whole_node and indexes:
        *chips, node = devices
        assert node.health == max((device.health for device in chips), key=ORDER.index)
    assert all(device.message for device in devices if device.health != "healthy")
    sent: tuple[DeviceHealth, ...] = fitted(devices)
    assert [(device.device, device.health) for device in sent] == [(d.device, d.health) for d in devices]
