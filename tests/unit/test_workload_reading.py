from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.simulator.workload import WorkloadError, read_workload
from dra_driver.simulator.workload.values import Duration, Exponential, Fixed, Lognormal, Uniform
from tests.workloadworld import TEXT, workload


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
        (
            "pods:",
            "podz:",
            "line 3: podz: unknown field; known here are pods, arrivals, duration, length, nodes, warmUp",
        ),
        ("  weight: 5\n", "  wait: 5\n", r"line 5: pods\[0\]\.wait: unknown field"),
        ("  weight: 5\n", "", r"line 4: pods\[0\]: weight is missing"),
        ("weight: 5", "weight: five", r"line 5: pods\[0\]\.weight: a number expected, found a text"),
        ("weight: 5", "weight: 0", r"line 5: pods\[0\]\.weight: 0 is not in the range"),
        ("weight: 5", "weight: .nan", r"line 5: pods\[0\]\.weight: nan is not in the range"),
        ("weight: 5", "weight: yes", r"line 5: pods\[0\]\.weight: a number expected, found true or false"),
        ("count: 4", "count: 4.0", r"line 9: pods\[1\]\.count: a whole number expected"),
        ("count: 4", "count: 33", r"line 9: pods\[1\]\.count: 33 is not in the range from 1 to 32"),
        ("name: half", "name: row", r"line 12: pods\[2\]: the name row comes twice"),
        ("name: half", "name: Half", r"line 12: pods\[2\]\.name: 'Half' is not of small letters"),
        ("name: half", "name: [half]", r"line 12: pods\[2\]\.name: a text expected, found a list"),
        ("trn2.48xlarge: 2", "trn2.48xlarge: 0", r"line 2: nodes\.trn2\.48xlarge: 0 is not in the range"),
        ("\n  trn2.48xlarge: 2", " {}", "line 1: nodes: no type is named"),
        ("perHour: 6", "perHour: 900000", r"line 16: arrivals\.perHour: 216000000 arrivals in 240 h are more"),
        ("perHour: 6", "perDay: 6", r"line 16: arrivals\.perDay: unknown field; known here are perHour"),
        ("length: 10d", "length: 10", "line 20: length: a time such as 90m expected, found '10'"),
        ("length: 10d", "length: 10w", "line 20: length: a time such as 90m expected, found '10w'; write a number and"),
        ("length: 10d", "length: 0s", "line 20: length: 0s is not in the range"),
        ("warmUp: 1d", "warmUp: 10d", "line 21: warmUp: 240 h are not less than the length of 240 h"),
        (
            "fixed: 30m",
            "fixed: 30m\n    uniform: 1",
            r"line 10: pods\[1\]\.duration: exactly one distribution expected",
        ),
        ("fixed: 30m", "normal: 30m", r"line 11: pods\[1\]\.duration\.normal: unknown field; known here are fixed"),
        ("fixed: 30m", "uniform: {from: 2h, to: 1h}", r"duration\.uniform\.to: is less than from"),
        ("fixed: 30m", "lognormal: {median: 3650d, sigma: 4}", r"duration\.lognormal: the mean is more than"),
        ("fixed: 30m", "exponential: 30m", r"duration\.exponential: a mapping expected, found a text"),
        ("warmUp: 1d", "warmUp: 1d\nlength: 3d", "line 22: the document: 'length' comes twice"),
        ("warmUp: 1d", "1: 1d", "line 21: the document: the name of a field must be a text"),
        ("warmUp: 1d", "warmUp: [1d", "line 22: not YAML"),
        ("warmUp: 1d", "warmUp: !!int maybe", "not YAML"),
        ("warmUp: 1d", "warmUp: !!python/name:os.system x", "not YAML"),
        ("warmUp: 1d", "---\nwarmUp: 1d", "not YAML: but found another document"),
    ],
)
def test_what_is_not_understood_is_refused_with_file_line_and_path(before: str, after: str, says: str) -> None:
    assert before in TEXT
    with pytest.raises(WorkloadError, match=r"^workload\.yaml") as caught:
        workload(TEXT.replace(before, after, 1))
    caught.match(says)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the file is empty"),
        ("# nothing\n", "the file is empty"),
        ("- a\n", "line 1: the document: a mapping expected, found a list"),
        ("pods: []\narrivals: {perHour: 1}\nduration: {fixed: 1h}\nlength: 1d\n", "pods: the list is empty"),
        ("a: &x 1\nb: *x\n", "line 1: b: aliases"),
        ("[" * 3000, "not YAML"),
        ("a" * (1 << 21), "larger than"),
        ("a: \x00", "not YAML"),
    ],
)
def test_a_text_that_is_no_workload_is_refused(text: str, says: str) -> None:
    with pytest.raises(WorkloadError, match=says):
        read_workload("workload.yaml", text)


@given(st.text(alphabet="abnodepsu:-[]{}&*!|>'\"#\n 0123456789.,%@`\t?", max_size=60))
def test_no_text_ends_in_another_error(text: str) -> None:
    for candidate in (text, TEXT.replace("single", text, 1), TEXT.replace("30m", text, 1)):
        try:
            read_workload("workload.yaml", candidate)
        except WorkloadError as error:
            assert str(error).startswith("workload.yaml")
