"""The administrator's table of effects: what is refused, and the taints that follow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.kube.objects import limits
from dra_driver.neuron.health.faults import DEFAULT_EFFECTS, FAULTS, SEVERITIES, ActiveFault, ChipHealth, in_order
from dra_driver.neuron.health.policy import EFFECTS, HealthPolicy, HealthTaint, Rule
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES
from dra_driver.util.errors import UsageError
from tests.golden import golden_error

BOOTED = 400.0
"""Unix time; the clock has not been set since."""
UPTIME = 1_800_000_000.0


def policy(*rules: dict[str, Any], **fields: Any) -> HealthPolicy:
    return HealthPolicy.parse(json.dumps({**fields, "rules": list(rules)}))


def chip(index: int, **since: int) -> ChipHealth:
    """A chip with faults by code (``_`` for ``-``), and when they began."""
    return ChipHealth(
        index, in_order(ActiveFault(code.replace("_", "-"), at, uptime=at - BOOTED) for code, at in since.items())
    )


# Effects


@pytest.mark.parametrize("code", FAULTS)
def test_without_a_table_the_severity_decides(code: str) -> None:
    assert HealthPolicy.default().effect(code, "trn2.48xlarge") == (DEFAULT_EFFECTS[FAULTS[code].severity], 0)


def test_the_first_rule_that_fits_counts() -> None:
    table = policy(
        {"fault": "hbm-uncorrectable", "instanceTypes": ["trn2.48xlarge"], "effect": "NoExecute", "graceSeconds": 60},
        {"fault": "hbm-uncorrectable", "effect": "None"},
        {"severity": "degraded", "effect": "NoSchedule"},
    )
    assert table.effect("hbm-uncorrectable", "trn2.48xlarge") == ("NoExecute", 60)
    assert table.effect("hbm-uncorrectable", "trn1.32xlarge") == ("None", 0)
    assert table.effect("hbm-uncorrectable", None) == ("None", 0)
    assert table.effect("hbm-corrected-rising", None) == ("NoSchedule", 0)
    assert table.effect("sram-uncorrectable", None) == ("NoSchedule", 0)
    assert table.effect("unreadable", None) == ("None", 0)


def test_a_rule_for_all_faults_evicts_no_pod_for_what_pods_can_forge() -> None:
    table = policy({"effect": "NoExecute", "graceSeconds": 5})
    assert {code: table.effect(code, None) for code in FAULTS} == {
        code: ("NoExecute", 5) if row.strongest == "NoExecute" else (row.strongest, 0) for code, row in FAULTS.items()
    }
    assert table.effect("log-hbm", None) == ("NoSchedule", 0)


# Taints


def test_a_device_has_a_taint_for_each_fault_of_its_chips_with_the_earliest_time() -> None:
    chips = [chip(0, hbm_uncorrectable=200, hbm_corrected_rising=50), chip(1, hbm_uncorrectable=100)]
    assert HealthPolicy.default().taints(chips, "trn2.48xlarge", UPTIME) == (
        HealthTaint("health.neuron.aws.com/hbm-uncorrectable", "unhealthy", "NoSchedule", 100),
        HealthTaint("health.neuron.aws.com/hbm-corrected-rising", "degraded", "None", 50),
    )
    assert HealthPolicy.default().taints([chip(2)], None, UPTIME) == ()


def test_the_domain_of_keys_is_adjustable() -> None:
    (taint,) = policy(keyDomain="chips.example.com").taints([chip(0, device_lost=1)], None, UPTIME)
    assert taint.key == "chips.example.com/device-lost"


def test_pods_are_evicted_when_the_fault_has_lasted_for_the_grace_time() -> None:
    table = policy({"fault": "hbm-uncorrectable", "effect": "NoExecute", "graceSeconds": 60})
    sick = [chip(0, hbm_uncorrectable=1000)]
    (before,) = table.taints(sick, None, 659.9)
    assert (before.effect, before.since) == ("NoSchedule", 1000)
    assert table.next_change(sick, None, 659.9) == 660.0
    (after,) = table.taints(sick, None, 660.0)
    assert (after.effect, after.since) == ("NoExecute", 1060), "a pod's tolerationSeconds count from here"
    assert table.next_change(sick, None, 660.0) is None
    assert HealthPolicy.default().next_change(sick, None, 600.0) is None


def test_no_grace_time_ends_while_it_is_not_known_how_long_the_fault_has_lasted() -> None:
    table = policy({"fault": "hbm-uncorrectable", "effect": "NoExecute", "graceSeconds": 60})
    sick = [ChipHealth(0, (ActiveFault("hbm-uncorrectable", 0),))]
    assert [taint.effect for taint in table.taints(sick, None, UPTIME)] == ["NoSchedule"]
    assert table.next_change(sick, None, 0.0) is None


def test_chips_in_and_after_their_grace_time_give_a_device_both_taints() -> None:
    table = policy({"fault": "hbm-uncorrectable", "effect": "NoExecute", "graceSeconds": 60})
    node = [chip(0, hbm_uncorrectable=1000), chip(1, hbm_uncorrectable=1050)]
    assert [(taint.effect, taint.since) for taint in table.taints(node, None, 670.0)] == [
        ("NoExecute", 1060),
        ("NoSchedule", 1050),
    ]
    assert table.next_change(node, None, 670.0) == 710.0


STRONG = [code for code, row in FAULTS.items() if row.strongest == "NoExecute"]
RULES = st.dictionaries(
    st.sampled_from(STRONG), st.tuples(st.sampled_from(EFFECTS), st.integers(0, 300)), max_size=4
).map(
    lambda found: tuple(
        Rule(effect, code, grace_seconds=grace if effect == "NoExecute" else 0)
        for code, (effect, grace) in found.items()
    )
)
FAULTY = st.dictionaries(st.sampled_from(list(FAULTS)), st.integers(0, 2000), max_size=4) | st.integers(0, 2000).map(
    lambda since: dict.fromkeys(FAULTS, since)
)
CHIPS = st.lists(FAULTY, max_size=3).map(
    lambda found: [
        ChipHealth(index, in_order(ActiveFault(code, since, uptime=since) for code, since in faults.items()))
        for index, faults in enumerate(found)
    ]
)


@given(RULES, CHIPS, st.integers(0, 3000))
def test_taints_are_bounded_ordered_and_change_only_when_said(
    rules: tuple[Rule, ...], chips: list[ChipHealth], now: int
) -> None:
    table = HealthPolicy(rules=rules)
    found = table.taints(chips, None, now)
    assert len(found) <= limits.MAX_TAINTS
    assert len({(taint.key, taint.effect) for taint in found}) == len(found)
    assert [taint.effect for taint in found] == sorted((taint.effect for taint in found), key=EFFECTS.index)
    assert found == table.taints(list(reversed(chips)), None, now)
    present = {f"{table.key_domain}/{fault.code}": fault.fault.severity for chip in chips for fault in chip.faults}
    assert all(present[taint.key] == taint.value for taint in found)
    assert {taint.key for taint in found} == set(present) or len(found) == limits.MAX_TAINTS
    end = table.next_change(chips, None, now)
    assert end is None or end > now
    quiet = 10_000 if end is None else end - 0.5
    if quiet > now:
        assert table.taints(chips, None, quiet) == found
    if end is not None and len(found) < limits.MAX_TAINTS // 2:
        assert table.taints(chips, None, end) != found


# What is refused


REFUSED = [
    (
        "rules: [{fault: hbm-uncorrectable, effct: None}]",
        r"rules\[0\].effct: unknown field; did you mean effect",
    ),
    ("rule: []", "rule: unknown field; did you mean rules"),
    ("rules: [{fault: hbm-uncorrectable}]", r"rules\[0\].*effect"),
    ("rules: {fault: x}", "rules: .*array"),
    ("rules: [hbm-uncorrectable]", r"rules\[0\]: .*object"),
    ("[]", "an object with the fields"),
    ("rules: [{fault: hbm, effect: None}]", r"rules\[0\].fault: 'hbm' is not known; .*use one of: sram-uncorrectable"),
    ("rules: [{fault: hbm-uncorectable, effect: None}]", "did you mean hbm-uncorrectable"),
    ("rules: [{severity: bad, effect: None}]", "severity: 'bad' is not known; .*unhealthy, unknown, degraded"),
    ("rules: [{severity: healthy, effect: None}]", "'healthy' is not known"),
    ("rules: [{effect: PreferNoSchedule}]", "did you mean NoSchedule.*NoExecute, NoSchedule, None"),
    ("rules: [{effect: 3}]", r"rules\[0\].effect: .*str"),
    ("rules: [{fault: log-hbm, effect: NoExecute}]", "not allowed for log-hbm.*use one of: NoSchedule, None"),
    (
        "rules: [{fault: core-dma-abort, effect: NoExecute}]",
        "not allowed for core-dma-abort.*use one of: NoSchedule, None",
    ),
    ("rules: [{fault: log-hbm, severity: degraded, effect: None}]", "the severity of log-hbm is unhealthy"),
    ("rules: [{effect: NoSchedule, graceSeconds: 3}]", "graceSeconds: is only valid with effect NoExecute"),
    ("rules: [{effect: NoExecute, graceSeconds: -1}]", "give a number from 0 to 604800"),
    ("rules: [{effect: NoExecute, graceSeconds: 1.5}]", "graceSeconds: .*int"),
    ("rules: [{effect: NoExecute, graceSeconds: true}]", "graceSeconds: .*int"),
    ("rules: [{effect: None, instanceTypes: [trn2.48xlrge]}]", "did you mean trn2.48xlarge"),
    ("rules: [{effect: None, instanceTypes: [ml.trn2.48xlarge]}]", "omit ml."),
    ("rules: [{effect: None, instanceTypes: trn2.48xlarge}]", "instanceTypes: .*array"),
    ("rules: [{effect: None, instanceTypes: [trn2.48xlarge, trn2.48xlarge]}]", "listed twice"),
    ("rules: [{effect: None}, {fault: log-hbm, effect: None}]", r"rules\[1\]: it has no effect, because rules\[0\]"),
    ("rules: [{fault: log-hbm, effect: None}, {fault: log-hbm, effect: NoSchedule}]", "has no effect"),
    ("prepare: never", "prepare: 'never' is not known; use one of: warn, refuse"),
    ("keyDomain: Not_A_Domain", "keyDomain: "),
    ("keyDomain: ''", "keyDomain: "),
    ("a: 1\n---\nb: 2", "second document"),
    ("rules: [", "not YAML or JSON"),
    ("prepare: warn\nprepare: warn", "prepare"),
]


@pytest.mark.parametrize(("text", "problem"), REFUSED, ids=[text[:60] for text, _ in REFUSED])
def test_a_table_that_is_not_understood_is_refused_with_the_path(text: str, problem: str) -> None:
    with golden_error(UsageError):
        HealthPolicy.parse(text, "table.yaml")


def test_a_broad_rule_after_narrower_ones_is_fine() -> None:
    policy(
        {"fault": "log-hbm", "instanceTypes": ["trn2.48xlarge"], "effect": "None"},
        {"fault": "log-hbm", "effect": "NoSchedule"},
        {"severity": "unhealthy", "effect": "NoExecute"},
        {"effect": "None"},
    )


def test_too_many_rules_are_refused() -> None:
    rules = [
        {"fault": code, "instanceTypes": [name], "effect": "None"}
        for code in list(FAULTS)[:30]
        for name in list(INSTANCE_TYPES)[:9]
    ]
    with golden_error(UsageError):
        policy(*rules)


@pytest.mark.slow
@given(st.text(max_size=200))
def test_any_text_is_a_table_or_a_usage_error(text: str) -> None:
    try:
        found = HealthPolicy.parse(text)
    except UsageError:
        return
    assert found == HealthPolicy.default()


# Files


def test_a_file_is_yaml_or_json_and_may_be_empty(tmp_path: Path) -> None:
    table = {"prepare": "refuse", "rules": [{"severity": "degraded", "effect": "NoSchedule"}]}
    (tmp_path / "yaml").write_text(yaml.safe_dump(table))
    (tmp_path / "json").write_text(json.dumps(table))
    (tmp_path / "empty").write_text("# nothing\n")
    loaded = HealthPolicy.load(tmp_path / "yaml")
    assert loaded == HealthPolicy.load(tmp_path / "json")
    assert (loaded.prepare, loaded.effect("link-lost", None)) == ("refuse", ("NoSchedule", 0))
    assert HealthPolicy.load(tmp_path / "empty") == HealthPolicy.default()


def test_a_file_that_cannot_be_read_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "huge").write_bytes(b"#" * (1 << 20) + b"\n")
    for name, problem in (
        ("none", "cannot be read: No such file"),
        (".", "directory"),
        ("binary", "UTF-8"),
        ("huge", "longer"),
    ):
        with pytest.raises(UsageError, match=problem):
            HealthPolicy.load(tmp_path / name)


def test_every_severity_has_a_default_effect() -> None:
    assert set(DEFAULT_EFFECTS) == set(SEVERITIES)
