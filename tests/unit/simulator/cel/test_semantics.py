"""Selectors as users write them: values, errors, limits, and what is refused."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.kube.objects.resource import Device, DeviceAttribute, DeviceCapacity
from dra_driver.kube.quantity import parse
from dra_driver.simulator.cel import (
    CelDevice,
    CelError,
    Position,
    UnsupportedError,
    compile,  # noqa: A004 # the usual word for it
)
from tests.golden import golden, golden_error

DRIVER = "dra.example.com"
DEVICE = CelDevice.of(
    DRIVER,
    Device(
        name="d0",
        attributes={
            "oneBool": DeviceAttribute(bool_=True),
            "cores": DeviceAttribute(int_=8),
            "type": DeviceAttribute(string="trn2.48xlarge"),
            "version": DeviceAttribute(version="1.2.3"),
            "services": DeviceAttribute(string="example1,example2"),
            "other.io/cores": DeviceAttribute(int_=2),
        },
        capacity={"memory": DeviceCapacity("96Gi"), "other.io/memory": DeviceCapacity("1500m")},
    ),
)


def matches(expression: str, device: CelDevice = DEVICE) -> bool:
    return compile(expression).matches(device)


def failure(expression: str, device: CelDevice = DEVICE) -> CelError:
    with pytest.raises(CelError) as caught:
        compile(expression).matches(device)
    return caught.value


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("true", True),
        ("false", False),
        ("dyn(device)[?[1]].hasValue()", False),
        ("optional.of(dyn(device))[?{'a': 1}].hasValue()", False),
        (f'device.driver == "{DRIVER}"', True),
        (f'device.attributes["{DRIVER}"].oneBool', True),
        (f'device.attributes["{DRIVER}"]["cores"] > 4', True),
        (f'device.attributes["{DRIVER}"].cores > 4.5', True),
        (f'device.attributes["{DRIVER}"].cores == 8u', True),
        (f'device.attributes["{DRIVER}"].type.matches("^trn2[.]")', True),
        (f'device.attributes["{DRIVER}"].type == 8', False),
        (f'device.attributes["{DRIVER}"].version.isGreaterThan(semver("0.0.1"))', True),
        (f'device.attributes["{DRIVER}"].version == semver("1.2.3+build")', True),
        (f'device.capacity["{DRIVER}"].memory.isLessThan(quantity("1Ti"))', True),
        (f'device.capacity["{DRIVER}"].memory == quantity("96Gi")', True),
        ('device.attributes["other.io"].cores == 2', True),
        ('"other.io" in device.attributes', True),
        ('"nowhere.io" in device.attributes', False),
        ('has(device.attributes["nowhere.io"].x)', False),
        (f'has(device.attributes["{DRIVER}"].cores)', True),
        (f'device.attributes["{DRIVER}"].services.split(",").exists(s, s == "example2")', True),
        (f'cel.bind(dra, device.attributes["{DRIVER}"], dra.oneBool && dra.cores == 8)', True),
        (f'device.attributes["{DRIVER}"].?missing.orValue(7) == 7', True),
        (f'device.attributes["{DRIVER}"][?"cores"].optMap(n, n == 8).orValue(false)', True),
        ('device.attributes.all(domain, device.attributes[domain].exists(id, id == "cores"))', True),
        ('device.attributes.exists(domain, ids, "type" in ids && domain.endsWith("com"))', True),
        ("device.allowMultipleAllocations", False),
        ("sets.equivalent([1, 2, 2], [2, 1])", True),
    ],
)
def test_a_selector_has_its_value(expression: str, expected: bool) -> None:
    assert matches(expression) is expected


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ('device.attributes["nowhere.io"].x == 1', "no such key: x"),
        (f'device.attributes["{DRIVER}"].missing', "no such key: missing"),
        (f'device.capacity["{DRIVER}"].missing == quantity("1")', "no such key: missing"),
        (f'device.attributes["{DRIVER}"].version == "1.2.3"', "no such overload"),
        (f'device.attributes["{DRIVER}"].type > 4', "no such overload"),
        (f'device.attributes["{DRIVER}"].cores', "CEL result of type int could not be converted to bool"),
        ("9223372036854775807 + 1 > 0", "integer overflow"),
        ("0u - 1u == 0u", "unsigned integer overflow"),
        ("1 / 0 == 1", "division by zero"),
        ("[1][3] == 1", "index out of bounds: 3"),
        ('quantity("much") == quantity("1")', "quantities must match"),
        ('quantity("1K") == quantity("1")', "unable to parse quantity's suffix"),
    ],
)
def test_a_selector_fails_on_a_device(expression: str, message: str) -> None:
    error = failure(expression)
    assert error.kind == "runtime"
    golden(error.message)
    assert error.position is None


@pytest.mark.parametrize(
    ("expression", "message", "position"),
    [
        ("device.driver ==", "ends too early", (1, 17)),
        ("true &&\n  ) false", "unexpected ')'", (2, 3)),
        ("device.name == 'x'", "undefined field 'name'", (1, 7)),
        ("gpu.driver == 'x'", "undeclared reference to 'gpu'", (1, 1)),
        ("frob(1)", "undeclared reference to 'frob'", (1, 5)),
        ("device.driver", "must evaluate to bool or the unknown type, not string", (1, 1)),
        ("1 == 1.0", "found no matching overload for '_==_' applied to '(int, double)'", (1, 3)),
        ("[1, 'a'].size() == 2", "expected type 'int' but found 'string'", (1, 5)),
        ("'a'.matches('(')", "invalid matches argument", (1, 13)),
        ("int('x') == 1", "type conversion error from 'string' to 'int'", (1, 4)),
        ('device.attributes["a"].b.all(x, x)', "cannot be range of a comprehension", (1, 23)),
        ("if == 1", "reserved identifier: if", (1, 1)),
        ('"a', "unexpected '\"'", (1, 1)),
        ("   ", "the expression is empty", (1, 1)),
    ],
)
def test_what_the_api_server_refuses_is_refused_with_the_place(
    expression: str, message: str, position: tuple[int, int]
) -> None:
    error = failure(expression)
    assert error.kind == "compile"
    golden(error.message)
    assert error.position == Position(*position)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("1 / 0 == 1 || true", True),
        ("true || 1 / 0 == 1", True),
        ("1 / 0 == 1 && false", False),
        ('device.attributes["a"].b || true', True),
        ("[1, 0].exists(x, 1 / x == 1)", True),
        ("[0, 1].exists(x, 1 / x == 1)", True),
        ("[0, 2].all(x, 1 / x == 1)", False),
        ("false ? 1 / 0 == 1 : true", True),
        ("cel.bind(x, 1 / 0, true)", True),
    ],
)
def test_errors_that_cannot_matter_are_absorbed(expression: str, expected: bool) -> None:
    assert matches(expression) is expected


@pytest.mark.parametrize("expression", ["1 / 0 == 1 || false", "[0, 1].all(x, 1 / x == 1)", "[0].map(x, 1 / x) == []"])
def test_errors_that_matter_are_not_absorbed(expression: str) -> None:
    golden(failure(expression).message)


def test_a_selector_that_could_cost_too_much_is_refused() -> None:
    rounds = "device.attributes.all(a, " * 4 + "true" + ")" * 4
    golden(failure(rounds).message)
    assert matches("device.attributes.all(a, device.attributes.all(b, true))")


def test_a_selector_is_at_most_ten_kibibytes_long() -> None:
    longest = "true || " + '"' + "a" * (10 * 1024 - 16) + '" == ""'
    golden(failure(longest + " ").message)
    assert len(longest) == 10 * 1024
    assert matches(longest)


@pytest.mark.parametrize(
    ("opening", "inside", "closing", "deepest"),
    [
        ("(", "true", ")", 249),
        ("!(!", "true", ")", 249),
        ("[", "", "]", 150),
        ("dyn(", "true", ")", 248),
        ("true ? true : ", "true", "", 248),
    ],
)
def test_brackets_are_read_to_the_depth_that_kubernetes_reads(
    opening: str, inside: str, closing: str, deepest: int
) -> None:
    def nested(depth: int) -> str:
        text = f"{opening * depth}{inside}{closing * depth}"
        return text if inside and opening != "dyn(" else f"{text} == {text}"

    assert matches(nested(deepest))
    golden(failure(nested(251)).message)


@pytest.mark.parametrize(
    ("start", "link", "end"), [("1", "+1", " == 250"), ("'a'", ".trim()", " == 'a'"), ("true", "==true", "==true")]
)
def test_chains_are_read_to_the_length_that_kubernetes_reads(start: str, link: str, end: str) -> None:
    assert matches(start + link * 249 + end)
    golden(failure(start + link * 250 + end).message)


def test_deep_and_long_at_once_is_refused_and_no_crash() -> None:
    text = "1"
    for _ in range(100):
        text = "(" + text + "+1" * 40 + ")"
    assert failure(text[: 10 * 1024]).kind == "compile"


def test_long_chains_of_and_are_no_nesting() -> None:
    assert matches(" && ".join(['device.driver != ""'] * 400))


def test_text_that_never_ends_is_refused_at_once() -> None:
    assert failure('"' + r"\x41" * 2000).kind == "compile"


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ('duration("1s") < duration("2s")', "does not have duration()"),
        ('device.attributes["a"].b.getHours() == 0', "does not have getHours()"),
        ('ip("10.1.2.3").family() == 4 && cidr("10.0.0.0/8").containsIP("10.1.2.3")', "does not have ip()"),
        ("type(device) == net.CIDR", "does not have the type net.CIDR"),
        ('url("https://a.io:8080/b?c=d").getPort() == "8080"', "does not have url()"),
        ("'%s-%d'.format(['a', 7]) == 'a-7'", "does not have format()"),
        ("!format.dns1123Label().validate('a-b').hasValue()", "does not have format.dns1123Label()"),
        ("google.protobuf.Int64Value{value: 5} == 5", "no value of type google.protobuf.Int64Value"),
        ("kubernetes.DRADevice{} == device", "no value of type kubernetes.DRADevice"),
        ('quantity("1e5000").isInteger()', "more than 1000 digits"),
        ('sign(quantity("1").sub(-9223372036854775808)) == 1', "subtracts -9223372036854775808 wrongly"),
    ],
)
def test_what_is_not_simulated_says_so(expression: str, message: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        compile(expression).matches(DEVICE)
    golden(caught.value.message)


def test_a_quantity_that_1_36_changes_by_adding_is_not_simulated() -> None:
    expression = 'sign(quantity("1234567890123456789").add(1)) == 1'
    assert compile(expression, "1.37").matches(DEVICE)
    with golden_error(UnsupportedError):
        compile(expression, "1.36").matches(DEVICE)


@pytest.mark.parametrize(
    "expression",
    [f"device.attributes.`{DRIVER}`.oneBool", f"device.attributes.?`{DRIVER}`.oneBool.orValue(false)"],
)
def test_fields_in_back_quotes_came_with_1_37(expression: str) -> None:
    assert compile(expression, "1.37").matches(DEVICE)
    with golden_error(CelError):
        compile(expression, "1.36")


@pytest.mark.parametrize(
    ("expression", "matches"),
    [
        ("'pci0000:80' in device.attributes['dra.example.com'].roots", True),
        ("'pci0000:81' in device.attributes['dra.example.com'].roots", False),
        ("device.attributes['dra.example.com'].nodes == [0, 1]", True),
        ("device.attributes['dra.example.com'].flags == [true, false]", True),
        ("semver('1.2.3') in device.attributes['dra.example.com'].versions", True),
    ],
)
def test_a_list_attribute_is_a_list(expression: str, matches: bool) -> None:
    """KEP-5491; that a server has stored one means that its schedulers read it."""
    listed = {
        "roots": DeviceAttribute(strings=("pci0000:00", "pci0000:80")),
        "nodes": DeviceAttribute(ints=(0, 1)),
        "versions": DeviceAttribute(versions=("1.0.0", "1.2.3")),
        "flags": DeviceAttribute(bools=(True, False)),
    }
    assert compile(expression).matches(CelDevice.of(DRIVER, Device(name="d", attributes=listed))) is matches


def test_an_attribute_that_selectors_cannot_have_fails_the_device() -> None:
    with golden_error(CelError):
        CelDevice.of(DRIVER, Device(name="d", attributes={"list": DeviceAttribute()}))
    with golden_error(CelError):
        CelDevice.of(DRIVER, Device(name="d", attributes={"v": DeviceAttribute(version="1.2")}))


def test_a_program_can_be_used_by_several_threads() -> None:
    program = compile("device.attributes.exists(d, cel.bind(n, device.attributes[d].cores, n == 8 && n > 4))")
    other = CelDevice(DRIVER, {DRIVER: {"cores": 2}}, {})
    wrong: list[object] = []

    def ask(device: CelDevice, expected: bool) -> None:
        wrong.extend("x" for _ in range(3000) if program.matches(device) is not expected)

    threads = [threading.Thread(target=ask, args=pair) for pair in ((DEVICE, True), (other, False)) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@given(st.text(max_size=60))
def test_any_text_compiles_or_is_refused(text: str) -> None:
    try:
        compile(text)
    except CelError as error:
        assert error.kind == "compile"  # both ways out are right


@given(
    st.lists(
        st.sampled_from(
            [
                "(",
                ")",
                "[",
                "]",
                "{",
                "}",
                ".",
                "?",
                ":",
                ",",
                "&&",
                "||",
                "!",
                "-",
                "+",
                "1",
                "2u",
                "'a'",
                "x",
                "in",
                "device",
                "driver",
                "==",
                "has",
                "size",
                "true",
                "r'",
            ]
        ),
        max_size=14,
    )
)
def test_any_series_of_tokens_compiles_or_is_refused(tokens: list[str]) -> None:
    try:
        compile(" ".join(tokens))
    except CelError as error:
        assert error.kind == "compile"  # both ways out are right


@given(st.integers(-(2**40), 2**40), st.sampled_from(["", "m", "k", "Ki", "M", "Mi", "Gi", "e3", "E-3", "n"]))
def test_quantities_add_up(number: int, suffix: str) -> None:
    quantity = parse(f"{number}{suffix}")
    assert quantity.add(quantity).sub(quantity).nanos == quantity.nanos
    assert parse(f"{number}.0{suffix}").nanos == quantity.nanos
