from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.manifests import ManifestError
from dra_driver.simulator.fragmentation import read_workload
from dra_driver.simulator.fragmentation.scenario import Duration, Exponential, Fixed, Lognormal, Uniform
from tests.builders.workload import TEXT, workload


def test_a_workload_file_says_everything_about_the_stream() -> None:
    found = workload()
    assert dict(found.nodes) == {"trn2.48xlarge": 2}
    assert (found.per_hour, found.length, found.warm_up) == (6, 240, 24)
    assert [(kind.name, kind.weight, kind.count) for kind in found.kinds] == [
        ("single", 5, 1),
        ("row", 3.5, 4),
        ("half", 1, 8),
    ]
    assert [kind.duration for kind in found.kinds] == [Exponential(4), Fixed(0.5), Exponential(4)]


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("fixed: 90m", Fixed(1.5)),
        ("uniform: {from: 1h, to: 2d}", Uniform(1, 48)),
        ("exponential: {mean: 36s}", Exponential(0.01)),
        ("lognormal: {median: 2.5h, sigma: 1.25}", Lognormal(2.5, 1.25)),
    ],
)
def test_a_duration_has_one_of_four_distributions(text: str, duration: Duration) -> None:
    found = workload(TEXT.replace("exponential:\n    mean: 4h", text)).kinds[0].duration
    assert found == duration


@pytest.mark.parametrize("duration", [Fixed(2), Uniform(1, 5), Exponential(3), Lognormal(2, 0.8)])
def test_the_mean_of_a_distribution_is_the_mean_of_its_shares(duration: Duration) -> None:
    count = 20_000
    mean = sum(duration.at((place + 0.5) / count) for place in range(count)) / count
    assert math.isclose(mean, duration.mean, rel_tol=0.01)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("pods:", "podz:", "3: podz: there is no such field; did you mean pods?"),
        ("  weight: 5\n", "  wait: 5\n", "5: pods[0].wait: there is no such field; did you mean weight?"),
        ("  weight: 5\n", "", "4: pods[0]: Object missing required field `weight`"),
        ("weight: 5", "weight: five", "5: pods[0].weight: Expected `float`, got `str`"),
        ("weight: 5", "weight: 0", "5: pods[0].weight: 0.0 is not in the range from 1e-06 to 1e+06"),
        ("weight: 5", "weight: .nan", "5: pods[0].weight: nan is not in the range"),
        ("weight: 5", "weight: .inf", "5: pods[0].weight: inf is not in the range"),
        ("weight: 5", "weight: yes", "5: pods[0].weight: Expected `float`, got `bool`"),
        ("count: 4", "count: 4.0", "9: pods[1].count: Expected `int | null`, got `float`"),
        ("count: 4", "count: 33", "9: pods[1].count: 33 is not in the range from 1 to 32"),
        ("warmUp: 1d", "devices: cores", "21: devices: 'cores' does not say what a node offers; give one or more of"),
        (
            "count: 4",
            "device: cores",
            "9: pods[1].device: 'cores' is not a kind of device; write chip, core, group, group4",
        ),
        ("count: 4", "device: group1", "9: pods[1].device: 'group1' is not a kind of device"),
        ("  count: 4\n", "", "7: pods[1]: exactly one of count and claims is needed"),
        ("count: 4", "claims: []", "7: pods[1]: exactly one of count and claims is needed"),
        ("name: half", "name: row", "12: pods[2].name: the name row comes twice"),
        ("name: half", "name: Half", "12: pods[2].name: 'Half' is not a valid name: lower-case letters, digits and -"),
        ("name: half", "name: [half]", "12: pods[2].name: Expected `str`, got `array`"),
        ("trn2.48xlarge: 2", "trn2.48xlarge: 0", "2: nodes.trn2.48xlarge: 0 is not in the range from 1 to 10000"),
        ("\n  trn2.48xlarge: 2", " {}", "1: nodes: no type is named; write, for example, trn2.48xlarge: 4"),
        ("perHour: 6", "perHour: 900000", "16: arrivals.perHour: 216000000 pods in 240 h are more than 1000000"),
        ("perHour: 6", "perDay: 6", "16: arrivals.perDay: there is no such field"),
        ("length: 10d", "length: 99999d", "20: length: 99999d is more than a workload can have"),
        ("trn2.48xlarge: 2", "a=b: 2", "2: nodes.a=b: unknown instance type 'a=b'; known types: inf1.xlarge, "),
        ("weight: 5", f"weight: {'9' * 400}", "5: pods[0].weight: Number out of range"),
        ("length: 10d", "length: 10", "20: length: Expected `str`, got `int`"),
        ("length: 10d", "length: 10w", "20: length: '10w' is not a duration; write a number and a unit (s, m, h, d)"),
        ("length: 10d", "length: 0s", "20: length: 0s is less than a workload can have"),
        ("warmUp: 1d", "warmUp: 10d", "21: warmUp: 240 h are not less than the length of 240 h"),
        ("fixed: 30m", "fixed: 30m\n    exponential: {mean: 1h}", "10: pods[1].duration: exactly one distribution"),
        ("fixed: 30m", "normal: 30m", "11: pods[1].duration.normal: there is no such field; did you mean lognormal?"),
        ("fixed: 30m", "uniform: {from: 2h, to: 1h}", "11: pods[1].duration.uniform.to: 1h is less than 2h"),
        ("fixed: 30m", "lognormal: {median: 3650d, sigma: 4}", "11: pods[1].duration.lognormal: the mean of 2611"),
        ("fixed: 30m", "exponential: 30m", "11: pods[1].duration.exponential: Expected `object | null`, got `str`"),
        ("warmUp: 1d", "warmUp: 1d\nlength: 3d", "22: not YAML or JSON: key 'length' comes twice"),
        ("warmUp: 1d", "1: 1d", "21: 1: there is no such field"),
        ("warmUp: 1d", "warmUp: [1d", "22: not YAML or JSON"),
        ("warmUp: 1d", "warmUp: !!int maybe", " not YAML or JSON"),
        ("warmUp: 1d", "warmUp: !!python/name:os.system x", "21: not YAML or JSON"),
        ("warmUp: 1d", "---\nwarmUp: 1d", " 2 documents, and a workload is one; docs/placement.md has an example"),
        ("count: 4", "claims: [{devices: {requests: [{name: x}]}}]", "9: pods[1].claims[0].devices.requests[0]: exac"),
        ("count: 4", "claims: [{device: {}}]", "9: pods[1].claims[0].device: there is no such field; did you mean d"),
    ],
)
def test_what_is_not_understood_is_refused_with_file_line_and_path(before: str, after: str, says: str) -> None:
    assert before in TEXT
    with pytest.raises(ManifestError) as caught:
        workload(TEXT.replace(before, after, 1))
    assert str(caught.value).startswith(f"workload.yaml:{says}")


CLAIM = """\
  claims:
  - devices:
      requests:
      - name: chips
        exactly:
          deviceClassName: neuron.aws.com
          count: 2
          selectors:
          - cel:
              expression: device.attributes['neuron.aws.com'].topology_x == 1
"""


def test_a_kind_may_have_claims_of_its_own() -> None:
    kind = workload(TEXT.replace("  count: 4\n", CLAIM)).kinds[1]
    (request,) = kind.claims[0].requests
    assert kind.count is None
    assert request.exactly is not None
    assert (request.exactly.device_class_name, request.exactly.count) == ("neuron.aws.com", 2)


def test_a_selector_that_kubernetes_would_refuse_is_refused() -> None:
    wrong = CLAIM.replace("topology_x == 1", "topology_x = 1")
    with pytest.raises(ManifestError, match=r"^workload\.yaml:18: .*selectors\[0\]\.cel\.expression"):
        workload(TEXT.replace("  count: 4\n", wrong))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", " 0 documents, and a workload is one"),
        ("# nothing\n", " 0 documents, and a workload is one"),
        ("- a\n", "1: a workload expected, found list"),
        ("pods: []\narrivals: {perHour: 1}\nduration: {fixed: 1h}\nlength: 1d\n", "1: pods: 0 kinds; 1 to 100 are po"),
        ("a: &x [*x]\n", "1: not YAML or JSON: aliases (*name) stand for too much"),
        ("[" * 3000, "1: not YAML or JSON: more than 1000 levels of nesting"),
        ("a: \x00", " not YAML or JSON"),
    ],
)
def test_a_text_that_is_no_workload_is_refused(text: str, says: str) -> None:
    with pytest.raises(ManifestError) as caught:
        read_workload("workload.yaml", text)
    assert str(caught.value).startswith(f"workload.yaml:{says}")


@given(st.text(alphabet="abnodepsu:-[]{}&*!|>'\"#\n 0123456789.,%@`\t?", max_size=60))
def test_no_text_ends_in_another_error(text: str) -> None:
    for candidate in (text, TEXT.replace("single", text, 1), TEXT.replace("30m", text, 1)):
        try:
            read_workload("workload.yaml", candidate)
        except ManifestError as error:
            assert str(error).startswith("workload.yaml")
