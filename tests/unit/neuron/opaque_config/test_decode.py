from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.neuron.names import API_VERSIONS
from dra_driver.neuron.opaque_config import ConfigError, NeuronConfig, UltraServerConfig, decode, shown
from tests.golden import golden, golden_error
from tests.oracles.opaque_parameters import ILLEGAL, LEGAL


def neuron(**fields: Any) -> dict[str, Any]:
    return {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig", **fields}


def ultra(**fields: Any) -> dict[str, Any]:
    return {"apiVersion": "neuron.aws.com/v1", "kind": "UltraServerConfig", **fields}


def refusal(parameters: object) -> str:
    with pytest.raises(ConfigError) as caught:
        decode(parameters)
    return caught.value.what


@pytest.mark.parametrize("version", API_VERSIONS)
@pytest.mark.parametrize("size", [1, 2])
def test_each_api_version_takes_each_logical_core_size(version: str, size: int) -> None:
    config = decode({"apiVersion": version, "kind": "NeuronConfig", "logicalNeuronCore": size})
    assert isinstance(config, NeuronConfig)
    assert config.logical_neuron_core == size


@pytest.mark.parametrize("mode", [1, 2, 4])
def test_an_ultraserver_mode_is_a_number_of_nodes(mode: int) -> None:
    config = decode(ultra(ultraserverMode=mode))
    assert isinstance(config, UltraServerConfig)
    assert config.ultraserver_mode == mode


def test_a_neuron_config_may_leave_the_size_out() -> None:
    config = decode(neuron())
    assert isinstance(config, NeuronConfig)
    assert config.logical_neuron_core is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("1", '"1"'),
        (1.0, "1.0"),
        (True, "true"),
        (False, "false"),
        (None, "null"),
        (0, "0"),
        (3, "3"),
        (-1, "-1"),
        ([1], "a list"),
        ({"value": 1}, "an object"),
        pytest.param(10**5000, "a huge number", id="huge"),
        (float("nan"), "nan"),
    ],
)
def test_values_are_never_coerced(value: object, text: str) -> None:
    golden(refusal(neuron(logicalNeuronCore=value)))
    golden(refusal(ultra(ultraserverMode=value)))


def test_a_workload_is_named_by_its_uid() -> None:
    golden(refusal(neuron(workload="train")))


def test_an_unknown_field_is_named_with_the_legal_ones() -> None:
    golden(refusal(neuron(logicalNeuronCoreCount=1)))
    golden(refusal(ultra(ultraserverMode=1, logicalNeuronCore=1)))


def test_the_internal_spelling_of_a_field_is_unknown() -> None:
    golden(refusal(neuron(logical_neuron_core=1)))


def test_a_missing_mode_is_said_to_be_missing() -> None:
    golden(refusal(ultra()))


@pytest.mark.parametrize(
    "parameters",
    [
        None,
        "NeuronConfig",
        [{}],
        1,
        {"kind": "NeuronConfig"},
        {"apiVersion": "neuron.aws.com/v2", "kind": "NeuronConfig"},
        {"apiVersion": "neuron.aws.com/v1"},
        {"apiVersion": "neuron.aws.com/v1", "kind": "neuronconfig"},
        {"apiVersion": ["neuron.aws.com/v1"], "kind": "NeuronConfig"},
        {"apiVersion": "neuron.aws.com/v1", "kind": {"a": 1}},
    ],
)
def test_the_wrong_shape_is_refused_with_the_path(parameters: object) -> None:
    golden(refusal(parameters))


def test_huge_values_are_not_repeated() -> None:
    text = refusal(neuron(logicalNeuronCore="x" * 10_000))
    assert len(text) < 120
    text = refusal(neuron(**{f"field{i}" + "y" * 200: i for i in range(100)}))
    assert "and 95 more" in text
    assert len(text) < 900


def test_control_characters_do_not_reach_the_log() -> None:
    assert "\n" not in refusal(neuron(logicalNeuronCore="1\n2"))
    assert "\x1b" not in refusal(neuron(**{"\x1b[31mred": 1}))


def test_deep_nesting_is_refused_like_any_other_value() -> None:
    deep: object = 1
    for _ in range(5000):
        deep = [deep]
    golden(refusal(neuron(logicalNeuronCore=deep)))
    golden(refusal(neuron(other=deep)))


def test_the_error_says_what_to_do() -> None:
    with golden_error(ConfigError):
        decode({})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_any_json_is_decoded_or_refused(parameters: object) -> None:
    with pytest.raises(ConfigError):
        decode(parameters)


@given(
    st.dictionaries(st.sampled_from(["apiVersion", "kind", "logicalNeuronCore", "ultraserverMode", "workload"]), JSON),
    st.sampled_from(["NeuronConfig", "UltraServerConfig"]),
)
def test_anything_with_a_right_head_is_decoded_or_refused_on_one_line(fields: dict[str, Any], kind: str) -> None:
    parameters = {**fields, "apiVersion": API_VERSIONS[0], "kind": kind}
    try:
        config = decode(parameters)
    except ConfigError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 1200
    else:
        by_alias = config.model_dump(by_alias=True, exclude_unset=True)
        written = {key: value for key, value in parameters.items() if key not in {"apiVersion", "kind"}}
        # JSON keeps 1, 1.0 and true apart.
        assert json.dumps(by_alias, sort_keys=True) == json.dumps(written, sort_keys=True)


@given(JSON)
def test_shown_values_are_short_single_lines(value: object) -> None:
    text = shown(value)
    assert len(text) <= 60
    assert text.isprintable()


@pytest.mark.parametrize("text", LEGAL)
def test_what_is_legal_is_decoded(text: str) -> None:
    decode(json.loads(text))


@pytest.mark.parametrize("text", ILLEGAL)
def test_what_is_not_is_refused_with_path_value_and_what_is_legal(text: str) -> None:
    assert ILLEGAL[text] in refusal(json.loads(text))
