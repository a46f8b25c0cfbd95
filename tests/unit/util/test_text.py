"""Texts shortened for messages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dra_driver.util.text import escaped, first_of, lines_to_print, one_line, printable, quoted, quoted_ascii, shorten
from tests.golden import golden


@given(st.text(st.characters(), max_size=3000), st.integers(3, 1024))
def test_one_line_is_printable_utf8_within_its_bound(text: str, most: int) -> None:
    line = one_line(text, most)
    assert len(line.encode()) <= most
    assert line.isprintable()


def test_one_line_keeps_what_fits_and_marks_what_does_not() -> None:
    assert one_line("a  b\n\tc ") == "a b c"
    assert one_line("x" * 1024) == "x" * 1024
    assert one_line("x" * 1025) == "x" * 1021 + "..."
    assert one_line(" " * 2000 + "late").endswith("...")


def test_ascii_quotes_cut_and_escape() -> None:
    assert quoted_ascii("a\nb") == r"'a\nb'"
    assert quoted_ascii("x" * 81) == f"'{'x' * 80}'... (81 characters)"


def test_a_text_is_shortened_to_its_limit_or_to_what_is_to_be_kept() -> None:
    assert [shorten("abcdef", limit) for limit in (6, 5)] == ["abcdef", "ab..."]
    assert [shorten("abcdef", 4, keep=keep) for keep in (4, 2)] == ["abcd...", "ab..."]


def test_quotes_escape_and_hold_the_shortened_text() -> None:
    assert quoted("a\x1b") == r"'a\x1b'"
    assert quoted("x" * 65) == f"'{'x' * 61}...'"


def test_of_a_long_list_the_rest_is_counted() -> None:
    assert first_of([1, 2], 2) == "1, 2"
    golden(first_of(list("abcde"), 3))


def test_text_of_the_other_side_moves_no_cursor() -> None:
    assert printable("no\x1b[2J\nroom") == "no?[2J?room"


def test_what_is_escaped_can_still_be_read_and_lines_stay_lines() -> None:
    assert escaped("no\x1b[2J\nr\u202eoom") == r"no\x1b[2J\nr\u202eoom"
    assert lines_to_print("a\tb\nc\x9b2J\r") == "a\tb\nc\\x9b2J\\r"


@given(st.text())
def test_what_is_escaped_drives_no_terminal(text: str) -> None:
    assert escaped(text).isprintable()
    assert all(line.isprintable() for line in lines_to_print(text).replace("\t", "").split("\n"))
