"""What the documents say can be found where they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.manifests.support import ROOT, install, name_of

DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.md")])


def anchors(path: Path) -> set[str]:
    """The anchors that hosting sites make from headings."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if link.startswith("https://"):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_options_of_the_installer_exist(path: Path) -> None:
    text = install("--help").stdout
    commands = re.findall(r"install-dra-driver\.sh( [^\n`]*)", path.read_text())
    for option in re.findall(r" (--[a-z-]+)", " ".join(commands)):
        assert option in text


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_named_example_files_exist(path: Path) -> None:
    for name in re.findall(r"examples/specs/[A-Za-z0-9./-]+\.yaml", path.read_text()):
        assert (ROOT / name).is_file(), name
