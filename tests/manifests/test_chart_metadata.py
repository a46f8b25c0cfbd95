"""What a released chart says of itself: what the tree says, and nothing that nobody said."""

from __future__ import annotations

import base64
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import yaml
from releasing import metadata
from releasing.addresses import CHART as PATH

from dra_driver.version import VERSION
from tests.golden import golden
from tests.manifests.chart import CHART, helm, needs_helm
from tests.paths import ROOT

URL = "https://git.example/team/neuron-dra-driver"
CHANGELOG = """\
# Changelog

## 2.0.0-rc.1 (unreleased)

Read this first.

### Added

- **Cores**: `neuron-core` devices ([page](docs/x.md)). A second sentence
  goes on.

  ```yaml
  - not a point
  ```

### Fixed

- A driver that hung
  no longer does.

## 1.0.0

### Removed

- Everything.
"""
CHART_FILE = {"version": "2.0.0-rc.1", "appVersion": "2.0.0-rc.1", "annotations": {"artifacthub.io/license": "X"}}
PUBLISHED = {"repository": "registry.example/n", "tag": "", "digest": "sha256:" + "0" * 64}
UNKNOWN = {"repository": "", "tag": "", "digest": ""}


def described(**facts: Any) -> dict[str, Any]:
    return metadata.described_chart(
        facts.get("chart", CHART_FILE),
        changelog=facts.get("changelog", CHANGELOG),
        owners=facts.get("owners", {"approvers": []}),
        icon=b"<svg/>",
        image=facts.get("image", UNKNOWN),
    )


def test_a_published_chart_has_its_home_people_image_and_changes() -> None:
    chart = described(chart=CHART_FILE | {"home": URL}, owners={"approvers": ["ada"]}, image=PUBLISHED)
    golden(yaml.safe_dump(chart, sort_keys=False, width=200))


def test_what_nobody_said_is_not_there() -> None:
    chart = described(changelog="")
    assert set(chart) == {*CHART_FILE, "icon"}
    assert set(chart["annotations"]) == {"artifacthub.io/license", "artifacthub.io/prerelease"}


@pytest.mark.parametrize(("version", "early"), [("1.2.0", "false"), ("1.2.0-rc.1", "true")])
def test_a_version_before_a_release_is_said_to_be_one(version: str, early: str) -> None:
    chart = described(chart=CHART_FILE | {"version": version})
    assert chart["annotations"]["artifacthub.io/prerelease"] == early


def test_the_projects_own_files_name_nobody() -> None:
    owners = yaml.safe_load((ROOT / "OWNERS").read_text())
    assert owners == {"approvers": [], "reviewers": []}
    assert "maintainers" not in yaml.safe_load((CHART / "Chart.yaml").read_text())


def test_the_icon_is_a_small_picture_that_loads_nothing() -> None:
    content = (CHART / "icon.svg").read_bytes()
    assert len(content) < 2_000
    root = ET.fromstring(content)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert b"href" not in content


@needs_helm
def test_helm_finds_nothing_to_say_of_a_released_chart(tmp_path: Path) -> None:
    shutil.copytree(CHART, tmp_path / PATH)
    for name in ("CHANGELOG.md", "OWNERS"):
        shutil.copy(ROOT / name, tmp_path)
    metadata.describe_chart(tmp_path)
    written = yaml.safe_load((tmp_path / PATH / "Chart.yaml").read_text())
    assert base64.b64decode(written["icon"].partition(",")[2]) == (CHART / "icon.svg").read_bytes()
    changes = yaml.safe_load(written["annotations"]["artifacthub.io/changes"])
    assert changes
    assert {change["kind"] for change in changes} <= set(metadata.KINDS)
    assert written["version"] == VERSION
    options = ("--strict", "--set", "image.repository=registry.example/n")
    done = helm("lint", str(tmp_path / PATH), *options)
    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout
    assert "[INFO]" not in done.stdout
