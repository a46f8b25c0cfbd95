"""What files cost that are made to cost much: no more than in proportion to their length."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from dra_driver.kube.documents import ManifestError, Origin, documents
from tests.operations import operations


class Text(str):
    """Counts the characters that are copied out of it."""

    __slots__ = ("copied",)

    def __getitem__(self, place: Any) -> str:
        part = super().__getitem__(place)
        self.copied = getattr(self, "copied", 0) + len(part)
        return part


def test_json_values_one_after_the_other_are_read_without_copies_of_the_rest() -> None:
    text = Text("{} \n" * 1_000)
    assert len(list(documents("file", text))) == 1_000
    assert getattr(text, "copied", 0) <= len(text)


@pytest.mark.parametrize("last", ['"k1999"', '"k0"'])
def test_a_key_that_stands_twice_is_found_without_comparing_all_with_all(last: str) -> None:
    text = "{" + "".join(f'"k{place}": 1,' for place in range(2_000)) + f"{last}: 1}}"

    def read() -> None:
        with pytest.raises(ManifestError, match=f"duplicate key '{last[1:-1]}'"):
            list(documents("file", text))

    assert operations(read) < 1_000


def wide_list(parts: int) -> str:
    return "parts:\n" + "".join(f"- {{value: {place}}}\n" for place in range(parts))


def wide_mapping(parts: int) -> str:
    return "parts:\n" + "".join(f"  k{place}: {{value: {place}}}\n" for place in range(parts))


def many_documents(parts: int) -> str:
    return "---\n".join(f"value: {place}\n" for place in range(parts))


def messages(text: str) -> list[str]:
    """One about each value of the file."""
    listed = []
    for value, origin in ((value, origin) for origin, value in documents("file", text)):
        parts = value.get("parts")
        steps: list[tuple[str | int, ...]] = (
            [("value",)]
            if parts is None
            else [("parts", step, "value") for step in (parts if isinstance(parts, dict) else range(len(parts)))]
        )
        listed += [origin.located(step, "wrong") for step in steps]
    return listed


@pytest.mark.parametrize("text", [wide_list, wide_mapping, many_documents])
def test_as_many_messages_as_lines_cost_in_proportion(text: Callable[[int], str]) -> None:
    few, many = (operations(partial(messages, text(parts))) for parts in (100, 400))
    assert many < 5 * few
    lines = [int(message.split(":")[1]) for message in messages(text(100))]
    assert lines == [2 * place + 1 if text is many_documents else place + 2 for place in range(100)]


def test_lines_are_those_of_the_file_that_a_message_is_about() -> None:
    origins = [Origin("a", "x: 1\ny: 2\n"), Origin("b", "y: 2\nx: 1\n")] * 2
    assert [origin.located(("x",), "no") for origin in origins] == ["a:1: x: no", "b:2: x: no"] * 2


def test_documents_before_one_that_is_no_yaml_have_lines() -> None:
    origin = Origin("a", "x: 1\ny: 2\n---\n{")
    assert origin.located(("y",), "no") == "a:2: y: no"
    assert Origin("a", origin.text, document=1).located(("y",), "no") == "a: y: no"


def test_a_name_of_several_lines_makes_no_line_of_its_own() -> None:
    origin = Origin("f.yaml", "kind: Pod", 0).at((), "Pod a\nerror: b")
    assert "\n" not in origin.located((), "it is wrong")
