"""The site of the pages (``scripts/build-site`` builds it, and has mkdocs check the links)."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import yaml
from docsite.hooks import PAGES, four_spaces, on_page_markdown

from tests.paths import ROOT

pytestmark = pytest.mark.slow


class Loader(yaml.SafeLoader):
    """Reads mkdocs' configuration, whose tags for Python objects do not matter here."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: None)
CONFIGURATION = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)


def pages_of(nav: object) -> Iterator[str]:
    """The files that a part of the navigation leads to."""
    if isinstance(nav, str):
        yield nav
    for part in nav if isinstance(nav, list) else nav.values() if isinstance(nav, dict) else ():
        yield from pages_of(part)


def test_each_page_has_its_place_in_the_navigation() -> None:
    shown = list(pages_of(CONFIGURATION["nav"]))
    assert len(shown) == len(set(shown))
    assert set(shown) == {str(path.relative_to(ROOT)) for pattern in PAGES for path in ROOT.glob(pattern)}


def test_each_decision_is_dated_and_has_its_line_on_the_page_of_architecture() -> None:
    """In their order; the site shows them from there, without a place in its navigation."""
    folder = ROOT / "docs/develop/decisions"
    numbers = [int(path.name[:4]) for path in sorted(folder.iterdir())]
    assert numbers == list(range(1, len(numbers) + 1))
    lines = []
    for path in sorted(folder.iterdir()):
        title, date, *headings = re.findall(r"^(?:# (.+)|(\d{4}-\d\d-\d\d)|## (.+))$", path.read_text(), re.MULTILINE)
        assert [heading[2] for heading in headings] == ["Context", "Decision", "What it costs"], path.name
        assert date[1], path.name
        lines.append(f"- [{title[0]}](decisions/{path.name})")
    page = (ROOT / "docs/develop/architecture.md").read_text()
    assert " ".join(lines) in " ".join(page.split())  # a long line of the list may be wrapped


def test_what_belongs_to_a_lists_items_moves_to_four_spaces_a_level() -> None:
    hosted = (
        "1. one:\n\n   ```console\n   $ x\n     y\n   ```\n\n   more\n"
        "2. two\n\n   - deep\n     text\n\n     last\n\nend\n"
    )
    wanted = (
        "1. one:\n\n    ```console\n    $ x\n      y\n    ```\n\n    more\n"
        "2. two\n\n    - deep\n        text\n\n        last\n\nend\n"
    )
    assert four_spaces(hosted) == wanted


def test_text_without_lists_stays_as_it_is() -> None:
    text = "# Title\n\npara\n\n```yaml\n- a:\n    b\n   c\n```\n\n| a |\n|---|\n"
    assert four_spaces(text) == text


def test_a_listing_shows_its_file_and_remarks_about_tests_are_left_out() -> None:
    text = "<!-- not run: why -->\n```console\n$ x\n```\n\n<!-- file: a.yaml -->\n```yaml\na: 1\n```\n"
    shown = '```console\n$ x\n```\n\n```yaml title="a.yaml"\na: 1\n```\n'
    assert on_page_markdown(text, page=None, config=None, files=None) == shown
