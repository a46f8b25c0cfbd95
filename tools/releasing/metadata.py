"""What catalogues such as Artifact Hub are told of the chart, made at a release from what the released tree says.

A home without maintainers, or a tree without an address, has fewer of these: nothing is made up.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from lab import oci

from releasing.addresses import CHART
from releasing.publish import Place, Published

KINDS = ("added", "changed", "deprecated", "removed", "fixed", "security")
"""Kinds of changes that Artifact Hub knows; they are the headings of the changelog."""
PLATFORMS = ("linux/amd64", "linux/arm64")
_ARTIFACT_HUB = "application/vnd.cncf.artifacthub"


def describe_chart(tree: Path) -> None:
    """Write what the released tree says into its chart's Chart.yaml."""
    path = tree / CHART / "Chart.yaml"
    chart = yaml.safe_load(path.read_text())
    values = yaml.safe_load((tree / CHART / "values.yaml").read_text())
    described = described_chart(
        chart,
        changelog=_text(tree / "CHANGELOG.md"),
        owners=yaml.safe_load(_text(tree / "OWNERS")) or {},
        icon=(tree / CHART / "icon.svg").read_bytes(),
        image=values["image"],
    )
    path.write_text(yaml.safe_dump(described, sort_keys=False, allow_unicode=True, width=10_000))


def described_chart(
    chart: Mapping[str, Any], *, changelog: str, owners: Mapping[str, Any], icon: bytes, image: Mapping[str, str]
) -> dict[str, Any]:
    """A chart's metadata with icon, maintainers and the annotations of Artifact Hub."""
    home = chart.get("home")
    annotations = {
        "changes": changes(changelog, chart["version"]),
        "images": images(image, chart["appVersion"]),
        "links": links(home),
    }
    return {
        **chart,
        "icon": f"data:image/svg+xml;base64,{base64.b64encode(icon).decode()}",
        **({"maintainers": people} if (people := maintainers(owners, home)) else {}),
        "annotations": {
            **chart["annotations"],
            "artifacthub.io/prerelease": str("-" in chart["version"]).lower(),
            **{
                f"artifacthub.io/{name}": yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=10_000)
                for name, value in annotations.items()
                if value
            },
        },
    }


def maintainers(owners: Mapping[str, Any], home: str | None) -> list[dict[str, str]]:
    """The approvers; accounts are those of the site that the project is on."""
    site = "://".join(urlsplit(home)[:2]) if home else None
    return [
        {"name": account, **({"url": f"{site}/{account}"} if site else {})} for account in owners.get("approvers") or ()
    ]


def links(home: str | None) -> list[dict[str, str]]:
    """Where questions go, and the pages."""
    if home is None:
        return []
    return [{"name": "support", "url": f"{home}/issues"}, {"name": "documentation", "url": f"{home}#readme"}]


def images(image: Mapping[str, str], version: str) -> list[dict[str, Any]]:
    """The chart's one image, if the release has written where it is."""
    if not image["repository"] or not image["digest"]:
        return []
    reference = f"{image['repository']}:{image['tag'] or version}@{image['digest']}"
    return [{"name": "neuron-dra-driver", "image": reference, "platforms": list(PLATFORMS)}]


def changes(changelog: str, version: str) -> list[dict[str, str]]:
    """The points of a version's section with their kind, in plain words: the first sentence of each."""
    section = re.search(rf"(?ms)^## {re.escape(version)}\b.*?(?=^## |\Z)", changelog)
    listed = []
    for heading, text in re.findall(r"(?ms)^### (\w+)\n(.*?)(?=^### |\Z)", section[0] if section else ""):
        if heading.lower() in KINDS:
            listed += [{"kind": heading.lower(), "description": point} for point in _points(text.splitlines())]
    return listed


def _points(lines: Sequence[str]) -> Iterator[str]:
    """The items of a list, each as the plain text of its first sentence."""
    for item in re.split(r"(?m)^- ", "\n".join(lines))[1:]:
        text = " ".join(item.partition("\n\n")[0].split())
        text = re.sub(r" \(\[[^]]+]\([^)]+\)\)", "", text)  # where the page is
        text = re.sub(r"\[([^]]+)]\([^)]+\)", r"\1", text).replace("`", "").replace("**", "")
        yield re.split(r"(?<=\.) (?=[A-Z]|dra-driver|kubectl)", text, maxsplit=1)[0].rstrip(".")


def registration(place: Place, identifier: str, layout: Path) -> Published:
    """What tells Artifact Hub that who publishes the chart is who has registered it, as an OCI layout.

    The identifier is the one that Artifact Hub has given to the repository. Nobody's name or address is in it. It goes
    beside the chart's versions, under a tag that Artifact Hub looks for.
    """
    written = oci.Layout()
    content = yaml.safe_dump({"repositoryID": identifier}).encode()
    manifest = {
        "schemaVersion": 2,
        "mediaType": oci.MANIFEST,
        "config": written.add_document(f"{_ARTIFACT_HUB}.config.v1+yaml", {}),
        "layers": [written.add(f"{_ARTIFACT_HUB}.repository-metadata.layer.v1.yaml", content)],
    }
    digest = written.write_directory(layout, written.add_document(oci.MANIFEST, manifest))
    return Published("registration", place.chart, "artifacthub.io", digest, layout)


def _text(path: Path) -> str:
    return path.read_text() if path.is_file() else ""
