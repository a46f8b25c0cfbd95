from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.kube.objects.resource import Device, DeviceAttribute
from dra_driver.simulator.cel import CelDevice, clauses, compile, references  # noqa: A004 # the usual word for it
from dra_driver.util.errors import DriverError

D = 'device.attributes["a.example"]'


@pytest.mark.parametrize(
    ("expression", "parts"),
    [
        ("true", ["true"]),
        ("a && b", ["a", "b"]),
        ("a&&b&&c", ["a", "b", "c"]),
        ("  (a && b)  ", ["a", "b"]),
        ("((a && (b && c)))", ["a", "b", "c"]),
        ("(a) && (b || c)", ["(a)", "(b || c)"]),
        ('x == "a && b" && y == r"\\" && z', ['x == "a && b"', 'y == r"\\"', "z"]),
        ("f(a && b) && [a && b][0] && {1: a && b}[1]", ["f(a && b)", "[a && b][0]", "{1: a && b}[1]"]),
        ('// a && b (\n "é" == "é" && c', ['// a && b (\n "é" == "é"', "c"]),
        ("// ( is open\n (a && b)", ["a", "b"]),
        ("a && b || c", ["a && b || c"]),
        ("a && b ? c : d", ["a && b ? c : d"]),
        ("!(a && b)", ["!(a && b)"]),
        ("cel.bind(x, a, x && b)", ["cel.bind(x, a, x && b)"]),
        ("[1].all(x, a && b)", ["[1].all(x, a && b)"]),
        ("a.?b.orValue(true) && c[?1].hasValue()", ["a.?b.orValue(true)", "c[?1].hasValue()"]),
        ("a &&", ["a &&"]),
        ("", [""]),
    ],
)
def test_the_outermost_operands_of_and_are_the_clauses(expression: str, parts: list[str]) -> None:
    assert list(clauses(expression)) == parts


def nested(depth: int) -> str:
    expression = "true"
    for _ in range(depth):
        expression = f"device.driver == 'x' && ({expression})"
    return expression


@pytest.mark.slow
@pytest.mark.parametrize(
    "expression",
    [
        nested(240),
        "(" * 240 + "true && false" + ")" * 240,
        " && ".join(["device.driver == 'x'"] * 450),
        f"device.driver == 'x' && {'!' * 9000}true",
        "cel.bind(a, device, " * 200 + "a.driver == 'x'" + ")" * 200,
        f"true && {' + '.join(['device.driver'] * 500)} == ''",
        "true && [" * 200 + "true" + "]" * 200,
    ],
    ids=["nested", "brackets", "many", "signs", "bound", "long", "lists"],
)
def test_hostile_expressions_are_cut_too(expression: str) -> None:
    assert "".join("".join(clauses(expression)).split())
    assert len(references(expression)) <= 1


ATOMS = ["true", "false", f"{D}.yes", f"{D}.no", f"{D}.absent", f'{D}.text == "&& ("', "1 / 0 == 1"]
EXPRESSIONS = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=4).map(" && ".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({' || '.join(parts)})"),
        inner.map(lambda part: f"({part})"),
        st.tuples(inner, inner, inner).map(lambda parts: f"({parts[0]} ? {parts[1]} : {parts[2]})"),
    ),
    max_leaves=8,
)
DEVICE = CelDevice.of(
    "a.example",
    Device(
        "d",
        attributes={
            "yes": DeviceAttribute(bool_=True),
            "no": DeviceAttribute(bool_=False),
            "text": DeviceAttribute(string="&& ("),
        },
    ),
)


def outcome(expression: str) -> bool | None:
    try:
        return compile(expression).matches(DEVICE)
    except DriverError:
        return None


@given(EXPRESSIONS)
def test_clauses_together_say_what_the_expression_says(expression: str) -> None:
    single = [outcome(clause) for clause in clauses(expression)]
    together = False if False in single else None if None in single else True
    assert together == outcome(expression)


@pytest.mark.parametrize(
    ("expression", "read"),
    [
        ("device.driver == 'x'", ["device.driver"]),
        ("device.allowMultipleAllocations", ["device.allowMultipleAllocations"]),
        (f"{D}.a == {D}['b']", [f"{D}.a", f"{D}.b"]),
        (f"{D}['a-b'] == 1 && {D}['a-b'] != 2", [f'{D}["a-b"]']),
        ("device.capacity['a.example'].memory.isGreaterThan(quantity('1Gi'))", ['device.capacity["a.example"].memory']),
        (f"has({D}.a)", [f"{D}.a"]),
        (f"'a' in {D}", [f"{D}.a"]),
        (f"{D}.?a.orValue(1) == 1", [f"{D}.a"]),
        (f"{D}[?'a'].orValue(1) == 1", [f"{D}.a"]),
        (f"cel.bind(x, {D}, x.a == 1 && x.b == 2)", [f"{D}.a", f"{D}.b"]),
        (f"{D}.a in [{D}.b, 1]", [f"{D}.a", f"{D}.b"]),
        (f"{{'k': {D}.a}}['k'] == 1", [f"{D}.a"]),
        (f"['x'].exists(device, device.driver == {D}.a)", []),
        (f"['x'].exists(d, d == {D}.a)", [f"{D}.a"]),
        ("device.attributes[device.driver].a", ["device.driver"]),
        ("not an expression", []),
    ],
)
def test_what_an_expression_reads_by_name_is_found(expression: str, read: list[str]) -> None:
    assert [item.text for item in references(expression)] == read
