"""The Node's condition NeuronHealth: what it says of any health, and what is read from any condition."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dra_driver.kube.objects.meta import Condition
from dra_driver.neuron.health.condition import (
    KERNEL_DRIVER,
    MAX_MESSAGE_BYTES,
    STOPPED_REASON,
    condition,
    message,
    parse,
    stopped,
    told_by,
)
from dra_driver.neuron.health.faults import FAULTS, NOT_LOADED, ActiveFault, ChipHealth, NodeHealth, in_order
from tests.golden import golden

codes = st.lists(st.sampled_from(sorted(FAULTS)), unique=True, max_size=4)


def health(faults: dict[int, list[str]]) -> NodeHealth:
    chips = (
        ChipHealth(index, in_order(ActiveFault(code, 1_700_000_000) for code in found))
        for index, found in sorted(faults.items())
    )
    return NodeHealth(tuple(chips), 1.0)


nodes = st.dictionaries(st.integers(0, 127), codes, max_size=16).map(health)


def said(faults: dict[int, list[str]]) -> tuple[str, str, str]:
    found = condition(health(faults))
    assert found.type == "NeuronHealth"
    return found.status, found.reason, found.message


def test_well_chips_have_the_detectors_words() -> None:
    golden(said({0: [], 1: []}))


def test_the_gravest_fault_gives_the_reason_and_its_chip_comes_first() -> None:
    golden(said({2: ["hbm-corrected-rising"], 3: ["heartbeat-stalled"], 5: ["unreadable", "sram-uncorrectable"]}))


def test_a_degraded_chip_is_told_and_is_no_error() -> None:
    assert said({2: ["hbm-corrected-rising"]}) == ("False", "NeuronHasNoError", "neuron2: hbm-corrected-rising")


def test_unknown_is_not_healthy() -> None:
    assert said({0: [], 2: ["unreadable"]}) == ("Unknown", "NeuronHealthUnknown", "neuron2: unreadable")


def unloaded(faults: dict[int, list[str]]) -> NodeHealth:
    """With a host whose kernel driver is not loaded."""
    lacking = ActiveFault("unreadable", 1_700_000_000, NOT_LOADED)
    chips = (ChipHealth(chip.index, in_order((*chip.faults, lacking))) for chip in health(faults).chips)
    return NodeHealth(tuple(chips), 1.0)


def test_a_kernel_driver_that_is_not_loaded_is_one_finding_with_its_remedy() -> None:
    found = condition(unloaded({index: [] for index in range(16)}))
    assert (found.status, found.reason) == ("Unknown", KERNEL_DRIVER.reason)
    golden(found.message)
    assert told_by(found) == {}


def test_what_was_known_before_the_kernel_driver_went_is_read_back() -> None:
    found = condition(unloaded({0: [], 3: ["hbm-corrected-rising"]}))
    assert (found.status, found.reason) == ("Unknown", KERNEL_DRIVER.reason)
    assert told_by(found) == {3: ("hbm-corrected-rising",)}
    found = condition(unloaded({0: [], 3: ["log-dma"]}))
    assert (found.status, found.message) == ("True", "neuron3: log-dma")


@pytest.mark.parametrize(
    "before",
    [health({0: []}), health({3: ["sram-uncorrectable"]}), unloaded({3: ["hbm-corrected-rising"]}), unloaded({3: []})],
    ids=["well", "sick", "worn, kernel driver not loaded", "kernel driver not loaded"],
)
def test_the_last_word_keeps_what_was_told_before(before: NodeHealth) -> None:
    found = stopped(before)
    assert (found.status, found.reason) == ("Unknown", STOPPED_REASON)
    golden(found.message)
    assert told_by(found) == told_by(condition(before))


def test_what_does_not_fit_is_left_out_by_whole_chips() -> None:
    text = message(health({index: ["firmware-service-processor-unhealthy"] for index in range(64)}))
    assert len(text) <= MAX_MESSAGE_BYTES
    *chips, more = text.split("; ")
    assert more == f"and {64 - len(chips)} more"
    assert parse(condition(health({0: ["firmware-service-processor-unhealthy"]})).reason, text).keys() == set(
        range(len(chips))
    )


def test_a_chip_with_every_fault_fits() -> None:
    assert message(health({127: sorted(FAULTS)})).count(", ") == len(FAULTS) - 1


@given(nodes)
def test_what_is_said_is_read_back(node: NodeHealth) -> None:
    found = condition(node)
    assert len(found.message.encode()) <= MAX_MESSAGE_BYTES
    wanted = {chip.index: tuple(fault.code for fault in chip.faults) for chip in node.chips if chip.faults}
    read = told_by(found)
    if "more" in found.message:
        assert read.items() < wanted.items()
    else:
        assert read == wanted


@given(nodes)
def test_the_status_is_that_of_the_gravest_chip(node: NodeHealth) -> None:
    states = {chip.state for chip in node.chips}
    wanted = "True" if "unhealthy" in states else "Unknown" if "unknown" in states else "False"
    assert condition(node).status == wanted
    assert (condition(node).reason == "NeuronHasNoError") == (wanted == "False")


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("NeuronHasError_SRAM_UNCORRECTABLE_ERROR", "log-sram"),
        ("NeuronHasError_NC_UNCORRECTABLE_ERROR", "log-core"),
        ("NeuronHasError_HBM_UNCORRECTABLE_ERROR", "log-hbm"),
        ("NeuronHasError_DMA_ERROR", "log-dma"),
        ("NeuronHasError_HEARTBEAT_STALLED", "heartbeat-stalled"),
    ],
)
def test_the_detectors_reasons_are_read_without_a_chip(reason: str, code: str) -> None:
    line = "neuron:npd: NEURON_HW_ERR=SRAM_UNCORRECTABLE_ERROR instance-id=i-1 nd-id=3 serial-num=0"
    assert parse(reason, line) == {None: (code,)}


def test_no_error_and_strange_reasons_name_no_fault() -> None:
    assert parse("NeuronHasNoError", "Neuron has no error") == {}
    assert parse("KubeletReady", "neuron0: reboot me") == {}
    assert told_by(None) == {}
    assert told_by(Condition("Ready", "True", "NeuronHasError_DMA_ERROR")) == {}


SRAM, SRAM_REASON = "neuron3: sram-uncorrectable", "NeuronHasError_SRAM_UNCORRECTABLE_ERROR"


@pytest.mark.parametrize(
    "text",
    [
        SRAM + "\n",
        SRAM + "; ",
        SRAM + "; and 0 more",
        SRAM + "; " + SRAM,
        "and 3 more",
        "neuron03: sram-uncorrectable",
        "neuron3: sram-uncorrectable, sram-uncorrectable",
        "neuron3: sram-uncorrectable,hbm-uncorrectable",
        "neuron3: no-such-fault",
        "neuron3: ",
        "neuron٣: sram-uncorrectable",
        "neuron1000: sram-uncorrectable",
        "neuron3: heartbeat-stalled",
        "; ".join(f"neuron{index}: sram-uncorrectable" for index in range(100)),
    ],
)
def test_of_a_message_that_is_not_ours_only_the_reason_counts(text: str) -> None:
    assert parse(SRAM_REASON, text) == {None: ("log-sram",)}


def test_a_reason_that_contradicts_the_message_counts_alone() -> None:
    assert parse("NeuronHasNoError", SRAM) == {}
    assert parse("NeuronHasNoError", "neuron2: hbm-corrected-rising") == {2: ("hbm-corrected-rising",)}


rows = sorted({row.reason for row in FAULTS.values()} | {"NeuronHasNoError"})


@given(
    st.one_of(st.sampled_from(rows), st.text(max_size=50)),
    st.one_of(
        st.text(max_size=2000),
        st.lists(st.sampled_from(["neuron3", ": ", "; ", ", ", "and 2 more", *sorted(FAULTS)])).map("".join),
    ),
)
@example("", "neuron0: " * 100_000)
def test_any_condition_is_read_as_known_faults(reason: str, text: str) -> None:
    for index, found in parse(reason, text).items():
        assert index is None or 0 <= index <= 999
        assert found
        assert set(found) <= FAULTS.keys()
