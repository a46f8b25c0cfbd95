"""One line a record, whatever is in it."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from dra_driver.util.logs import JsonFormatter, TextFormatter


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()], ids=["text", "json"])
def test_what_others_wrote_is_one_line_and_drives_no_terminal(formatter: logging.Formatter) -> None:
    text = "\x1b]0;owned\x07\r\n2026-01-02T03:04:05.678Z INFO forged\x9b2J\u202e"
    try:
        raise ValueError(text)
    except ValueError:
        record = logging.LogRecord("dra_driver.claims", logging.WARNING, "", 1, "claim %s", (text,), sys.exc_info())
    first, *more = formatter.format(record).split("\n")
    assert "owned" in first
    assert "forged" in first
    assert all(line.isprintable() for line in (first, *more))
    if isinstance(formatter, JsonFormatter):
        assert json.loads(first)["message"] == f"claim {text}"
