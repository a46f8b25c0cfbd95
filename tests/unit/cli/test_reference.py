"""The reference pages of the commands say what their parsers do."""

from __future__ import annotations

from generating.reference import INTRODUCTIONS, page

from dra_driver.cli.main import COMMANDS, DAEMONS


def test_each_command_is_on_one_of_the_pages() -> None:
    pages = [page(kind) for kind in INTRODUCTIONS]
    for name in (*COMMANDS, *DAEMONS):
        assert sum(f"\n## {name.replace('_', '-')}\n" in text for text in pages) == 1, name


def test_a_setting_names_its_variable_its_choices_and_its_default() -> None:
    text = " ".join(page("settings").split())
    assert "- `--device-numbering`, `DEVICE_NUMBERING`: " in text
    assert "(one of `renumber`, `host`; default `renumber`; chart: `draDriver.deviceNumbering`)" in text


def test_an_option_shows_its_value_and_its_default() -> None:
    text = " ".join(page("commands").split())
    assert "- `--instance-type TYPE[=N]`: one or N emulated nodes" in text
    assert "%(default)s" not in text
