"""What the API server and kube-scheduler say of selectors that are wrong."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable

import pytest

from dra_driver.kube.objects.resource import Device
from dra_driver.simulator.allocator.release import release
from dra_driver.simulator.cel import (
    CelDevice,
    CelError,
    compile,  # noqa: A004 # the usual word for it
    release_of,
)
from dra_driver.util.errors import DriverError
from tests.golden import golden, golden_error

DEVICE = CelDevice.of("dra.example.com", Device(name="d0"))


def refusal(expression: str) -> str:
    with pytest.raises(CelError) as caught:
        compile(expression).matches(DEVICE)
    return str(caught.value)


def table(expressions: tuple[str, ...]) -> list[str]:
    return [f"{expression}\n  {refusal(expression)}" for expression in expressions]


def test_an_expression_that_cannot_be_compiled_is_refused_when_its_claim_is_created() -> None:
    golden(
        table(
            (
                "device.driver.x{a: 1} == 1 && [1]{a: 1} == 1",
                r"'\q' == ''",
                r"b'\u0041' == b''",
                r"'\ud800' == ''",
                "1.x",
                "1 && true",
                "[?1] == [1]",
                "Unknown{} == 1",
                "[1].all(a.b, true)",
                "[1].all(__result__, true)",
                "has(device)",
                "cel.bind(a.b, 1, true)",
                "optional.of(1).optMap(a.b, true).orValue(true)",
                "1.sortBy(e, e) == []",
            )
        )
    )


def test_an_expression_that_fails_on_a_device_says_why() -> None:
    golden(
        table(
            (
                "quantity('1.5').asInteger() == 1",
                "[].min() == 1",
                "[1].slice(-1, 0) == []",
                "[1].flatten(-1) == []",
                "[dyn(1), dyn('a')].sort().size() == 0",
                "lists.range(-1) == []",
                r"'a'.matches('\\C')",
                "uint('x') == 1u",
                "double('x') == 1.0",
                "double('1e999') == 1.0",
                "bool('x')",
                r"string(b'\xff') == ''",
                "'a'.charAt(2) == ''",
                "'a'.indexOf('a', -1) == 1",
                "'a'.lastIndexOf('a', -1) == 1",
                "'a'.substring(1, 0) == ''",
                "'a'.substring(2) == ''",
                "double('NaN') < 1.0",
                "semver('99999999999999999999.0.0').major() == 1",
                "semver('1-a', true).major() == 1",
                "semver('1.0.0-01').major() == 1",
                "semver('1.0.x').major() == 1",
                "semver('1.0.0') in dyn({'a': 1})",
            )
        )
    )


def doubled(start: str, times: int, use: str) -> str:
    """An expression that uses ``x``, something that was doubled so often."""
    for number in range(times, 0, -1):
        before = f"x{number - 1}" if number > 1 else start
        use = f"cel.bind(x{number}, {before} + {before}, {use.replace('{x}', f'x{number}')})"
    return use


def repeated(part: str, times: int) -> str:
    return " + ".join([part] * times) + " > 1"


@pytest.mark.parametrize(
    "expression",
    [
        doubled("'1'", 14, f"{{x}}.replace('1', '{'2' * 2000}').size() > 1"),
        doubled("'1'", 11, repeated("{x}.replace('1', '" + "2" * 990 + "').size()", 9)),
        doubled("[1]", 24, "{x}.size() > 1"),
        doubled("'1'", 16, repeated("{x}.findAll('[0-9]').size()", 60)),
        doubled("'1'", 18, repeated("{x}.split('').size()", 12)),
    ],
)
def test_what_a_few_hundred_bytes_ask_for_is_made_up_to_a_bound(expression: str) -> None:
    tracemalloc.start()
    try:
        golden(refusal(expression))
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("pattern", [".*.*x", "[a-z0-9]*[0-9]*x"])
def test_a_pattern_is_searched_for_in_time_in_a_text_of_any_length(pattern: str) -> None:
    program = compile(doubled("'1'", 13, f"{{x}}.matches('{pattern}')"))
    start = time.process_time()
    assert not program.matches(DEVICE)
    assert time.process_time() - start < 5


@pytest.mark.parametrize("repetition", ["?", "*"])
@pytest.mark.timeout(30)
def test_a_pattern_is_searched_for_in_time_whatever_it_repeats(repetition: str) -> None:
    pattern = f"a{repetition}" * 64 + "a" * 64
    assert compile(f"'{'a' * 64}'.matches('{pattern}')").matches(DEVICE)


@pytest.mark.parametrize("start", ["1", "0x1"])
@pytest.mark.timeout(30)
def test_a_long_text_is_told_from_a_number_in_time(start: str) -> None:
    long = doubled("'1'", 17, f"double('{start}' + {{x}} + 'z') > 1.0")
    with pytest.raises(CelError, match="type conversion error from 'string' to 'double'"):
        compile(long).matches(DEVICE)


@pytest.mark.parametrize("named", [release_of, release])
def test_a_release_that_is_not_known_is_refused_with_those_that_are(named: Callable[[str], object]) -> None:
    with golden_error(DriverError):
        named("1.12")
