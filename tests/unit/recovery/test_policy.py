"""What is done about which fault, and how an administrator's file is read."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.health.faults import FAULTS
from dra_driver.recovery.policy import DEFAULT_STEPS, HARMLESS, STEPS, Policy, decode_policy
from dra_driver.util.errors import UsageError


@pytest.mark.parametrize("code", FAULTS)
def test_the_defaults_follow_the_remedies_and_nothing_evicts_for_what_a_pod_can_forge(code: str) -> None:
    fault, steps = FAULTS[code], Policy().steps(code)
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
    ("text", "told"),
    [
        ("pauseSecond: 1", "policy:1: pauseSecond: unknown; legal: persistSeconds, healthySeconds, pauseSeconds"),
        ("a: 1\na: 2", "policy:2: not YAML or JSON: key 'a' comes twice"),
        ("pauseSeconds: 1.5", "policy:1: pauseSeconds: a whole number from 0 to 86400 expected, found 1.5"),
        ("pauseSeconds: true", "expected, found true"),
        ("pauseSeconds: null", "expected, found null"),
        ("maxAtOnce: 0", "maxAtOnce: a whole number from 1 to 1000 expected, found 0"),
        (f"maxAtOnce: {'9' * 60}", "expected, found int"),
        ("leaveToAWS: 'no'", "leaveToAWS: true or false expected, found 'no'"),
        ("- a", "an object expected, found list"),
        ("faults: [a]", "faults: an object expected, found list"),
        ("\nfaults:\n  hbm: []", "policy:3: faults.hbm: unknown; legal: sram-uncorrectable, hbm-uncorrectable"),
        ("remedies: {restart: []}", "remedies.restart: unknown; legal: nothing, driver-reload, reboot, replacement"),
        ("remedies: {reboot: cordon}", "a list of steps expected, found 'cordon'; legal: taint, cordon, drain"),
        ("remedies: {reboot: [cordon, explode]}", "reboot[1]: no step: 'explode'; legal: taint, cordon, drain"),
        ("remedies: {reboot: [[cordon]]}", "no step: list; legal"),
        ("remedies: {reboot: [drain, cordon]}", "each step once and in their order expected: cordon, drain"),
        ("remedies: {reboot: [cordon, cordon]}", "each step once"),
        ("remedies: {reboot: [drain]}", "drain without taint or cordon: the pods would come back"),
        ("remedies: {nothing: [cordon, request]}", "remedies.nothing: request: there is no remedy to request"),
        ("faults: {unreadable: [request]}", "faults.unreadable: request: there is no remedy"),
        ("faults: {log-sram: [cordon, drain]}", "taint, cordon expected, since pods can forge this fault"),
        ("a: 1\n---\nb: 1", "one document expected, found more"),
        ("a: [", "not YAML or JSON"),
        ("{" * 8000, "not YAML or JSON"),
        ("x" * 9000, "longer than 8192 bytes"),
    ],
)
def test_what_means_nothing_is_refused_with_path_and_legal_values(text: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        decode_policy(text)
    assert told in str(caught.value)
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
