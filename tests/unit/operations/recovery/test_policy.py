"""What is done about which fault, and how an administrator's file is read."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.neuron.health.faults import FAULTS
from dra_driver.operations.recovery.policy import DEFAULT_STEPS, HARMLESS, STEPS, Policy, decode_policy
from dra_driver.util.errors import UsageError
from tests.golden import golden


@pytest.mark.parametrize("code", FAULTS)
def test_the_defaults_follow_the_remedies_and_nothing_evicts_for_what_a_pod_can_forge(code: str) -> None:
    fault, steps = FAULTS[code], Policy().steps(code)
    assert (fault.strongest == "NoSchedule") == code.startswith(("core-", "log-"))
    if fault.severity != "unhealthy" or fault.strongest != "NoExecute" or fault.remedy == "nothing":
        assert steps == ()
    else:
        assert steps == ("cordon", "drain", "request")


def test_nothing_is_done_about_a_fault_that_is_not_in_the_table() -> None:
    assert Policy(faults={"other": ("cordon",)}).steps("other") == ()


def test_a_file_changes_what_it_names() -> None:
    policy = decode_policy(
        "persistSeconds: 60\nleaveToAWS: false\n"
        "remedies: {replacement: [taint, drain, replace]}\n"
        "faults: {log-sram: [cordon], server-link-lost: [cordon, drain], heartbeat-stalled: []}\n"
    )
    assert (policy.persist_seconds, policy.healthy_seconds, policy.leave_to_aws) == (60, 60, False)
    assert policy.steps("hbm-uncorrectable") == ("taint", "drain", "replace")
    assert policy.steps("hbm-repairable") == DEFAULT_STEPS["driver-reload"]
    assert policy.steps("log-sram") == ("cordon",)
    assert policy.steps("server-link-lost") == ("cordon", "drain")
    assert policy.steps("heartbeat-stalled") == ()


@pytest.mark.parametrize("text", ["", "---\n", "{}", "# nothing\n"])
def test_an_empty_file_is_the_default(text: str) -> None:
    assert decode_policy(text) == Policy()


@pytest.mark.parametrize(
    "text",
    [
        "pauseSecond: 1",
        "a: 1\na: 2",
        "pauseSeconds: 1.5",
        "pauseSeconds: true",
        "pauseSeconds: null",
        "maxAtOnce: 0",
        "drainSeconds: 599",
        f"maxAtOnce: {'9' * 60}",
        "leaveToAWS: 'no'",
        "- a",
        "faults: [a]",
        "\nfaults:\n  hbm: []",
        "remedies: {restart: []}",
        "remedies: {reboot: cordon}",
        "remedies: {reboot: [cordon, explode]}",
        "remedies: {reboot: [[cordon]]}",
        "remedies: {reboot: [drain, cordon]}",
        "remedies: {reboot: [cordon, cordon]}",
        "remedies: {reboot: [drain]}",
        "remedies: {nothing: [cordon, request]}",
        "faults: {unreadable: [request]}",
        "faults: {log-sram: [cordon, drain]}",
        "faults: {core-uncorrectable: [cordon, drain]}",
        "a: 1\n---\nb: 1",
        "a: [",
        "{" * 8000,
        "x" * 9000,
    ],
)
def test_what_means_nothing_is_refused_with_path_and_legal_values(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        decode_policy(text)
    golden(str(caught.value))
    assert "\n" not in str(caught.value)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from([*STEPS, *FAULTS, "faults", "remedies"]), inner),
    max_leaves=20,
)


@given(VALUES)
def test_any_document_is_a_policy_or_refused_in_one_line(document: object) -> None:
    try:
        policy = decode_policy(json.dumps(document))
    except UsageError as error:
        assert "\n" not in str(error)
        return
    for code, fault in FAULTS.items():
        assert fault.strongest == "NoExecute" or set(policy.steps(code)) <= set(HARMLESS)
