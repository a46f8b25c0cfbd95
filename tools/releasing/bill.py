"""The bill of materials: what an image, or the wheel with what it needs, consists of, and under which licences.

CycloneDX 1.6 (JSON), and a plain list for people. Python packages are known from the metadata that pip installs, Debian
packages from dpkg's status file and the `copyright` files beside it.
"""

from __future__ import annotations

import email.parser
import json
import re
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import Message
from importlib.metadata import Distribution
from pathlib import Path, PurePosixPath
from typing import IO
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from lab import filetree
from lab.bases import PulledBase
from packageurl import PackageURL

UNKNOWN = "unknown"
_PYTHON = re.compile(
    r"opt/(?:node|commands)/lib/python3[^/]*/site-packages/[^/]+\.dist-info/(METADATA|licenses/.+|LICEN[SC]E.*)"
)
_COPYRIGHT = re.compile(r"usr/share/doc/([^/]+)/copyright")
_DOCUMENTATION = re.compile(r"usr/share/doc/([^/]+)")
_DPKG_STATUS = "var/lib/dpkg/status"
_MAX_BYTES = 4 << 20


@dataclass(frozen=True, order=True)
class Package:
    """What an image or an installation consists of: ``kind`` as in a package URL, such as ``pypi`` or ``deb``."""

    kind: str
    name: str
    version: str
    licence: str = UNKNOWN

    @property
    def url(self) -> PackageURL:
        """Its package URL."""
        namespace = "debian" if self.kind == "deb" else None
        return PackageURL(self.kind, namespace, self.name, self.version)


def of_image(archive: Path) -> list[Package]:
    """The packages in an image (docker archive): those of its Python environment, and the system's."""
    return _packages(_read_image(archive))


def of_layout(layout: Path, architectures: Iterable[str] = ()) -> list[Package]:
    """The packages in the images of an OCI layout, of these architectures or of all; what they have alike, once."""
    image = PulledBase(layout)
    names = tuple(architectures) or image.architectures
    return sorted({package for name in names for package in _of_tree(image.tree(name))})


def _of_tree(tree: filetree.Tree) -> list[Package]:
    texts = {
        path: filetree.read_file(tree, path).decode(errors="replace")
        for path in tree
        if path == _DPKG_STATUS or _PYTHON.fullmatch(path) or _COPYRIGHT.fullmatch(path)
    }
    shared = {match[1]: entry.target for path, entry in tree.items() if (match := _DOCUMENTATION.fullmatch(path))}
    for name, target in shared.items():
        if target is not None:
            path = f"usr/share/doc/{name}/copyright"
            texts[path] = filetree.read_file(tree, path).decode(errors="replace")
    return _packages(texts)


def _packages(files: Mapping[str, str]) -> list[Package]:
    licences = {match[1]: text for name, text in files.items() if (match := _COPYRIGHT.fullmatch(name))}
    found = {
        _python(fields(text), _licence_beside(name, files))
        for name, text in files.items()
        if name.endswith("/METADATA")
    }
    for paragraph in files.get(_DPKG_STATUS, "").split("\n\n"):
        package = fields(paragraph)
        if "installed" in str(package.get("Status", "")).split():
            name = str(package["Package"])
            found.add(Package("deb", name, str(package["Version"]), _debian_licence(licences.get(name, ""))))
    return sorted(found)


def of_distributions(distributions: Iterable[Distribution]) -> list[Package]:
    """The packages of installed distributions."""
    return sorted(
        {_python(fields(item.read_text("METADATA") or ""), _first_licence_line(item)) for item in distributions}
    )


def document(subject: str, version: str, packages: Iterable[Package], epoch: int) -> str:
    """The bill as CycloneDX JSON, valid by its schema; equal arguments give equal bytes."""
    make = LicenseFactory()
    component = Component(name=subject, version=version, type=ComponentType.APPLICATION, bom_ref=subject)
    bom = Bom(
        serial_number=uuid5(NAMESPACE_URL, f"{subject}@{version}"),
        metadata=BomMetaData(
            timestamp=datetime.fromtimestamp(epoch, UTC),
            component=component,
        ),
        components=[
            Component(
                name=item.name,
                version=item.version,
                type=ComponentType.LIBRARY,
                purl=item.url,
                bom_ref=item.url.to_string(),
                licenses=[make.make_from_string(item.licence)] if item.licence != UNKNOWN else (),
            )
            for item in packages
        ],
    )
    bom.register_dependency(component, bom.components)
    text = json.dumps(json.loads(JsonV1Dot6(bom).output_as_string()), indent=1, sort_keys=True) + "\n"
    problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if problem is not None:
        raise ValueError(f"the bill of materials of {subject} is not valid CycloneDX: {problem}")
    return text


def licence_list(subject: str, version: str, packages: Iterable[Package]) -> str:
    """Every package with its licence, a line each."""
    listed = sorted(packages)
    lines = [f"{item.kind}  {item.name} {item.version}: {item.licence}" for item in listed]
    return "\n".join([f"{subject} {version} contains, or needs, {len(listed)} packages.", "", *lines]) + "\n"


def _read_image(archive: Path) -> dict[str, str]:
    """The files of an image that tell of its packages, by their name; later layers win."""
    found: dict[str, str] = {}
    shared: dict[str, str] = {}
    with tarfile.open(archive) as outer:
        for layer in json.loads(_content(outer, "manifest.json").read())[0]["Layers"]:
            with tarfile.open(fileobj=_content(outer, layer)) as inner:
                for member in inner:
                    name = member.name.removeprefix("./").removeprefix("/")
                    wanted = name == _DPKG_STATUS or _PYTHON.fullmatch(name) or _COPYRIGHT.fullmatch(name)
                    if member.issym() and (link := _DOCUMENTATION.fullmatch(name)):
                        shared[link[1]] = PurePosixPath(member.linkname).name
                    if wanted and member.isfile() and member.size <= _MAX_BYTES:
                        found[name] = _content(inner, member).read().decode(errors="replace")
    for name, other in shared.items():
        text = found.get(f"usr/share/doc/{other}/copyright")
        if text is not None:
            found[f"usr/share/doc/{name}/copyright"] = text
    return found


def _content(archive: tarfile.TarFile, member: str | tarfile.TarInfo) -> IO[bytes]:
    content = archive.extractfile(member)
    if content is None:
        raise ValueError(f"{member!r} is not a regular file of {archive.name!r}")
    return content


def fields(text: str) -> Message:
    """The fields of a package's metadata, or of a paragraph of dpkg's status."""
    return email.parser.HeaderParser().parsestr(text)


def _python(metadata: Message, beside: str) -> Package:
    name = re.sub(r"[-_.]+", "-", str(metadata["Name"])).lower()
    return Package("pypi", name, str(metadata["Version"]), _python_licence(metadata, beside))


def _python_licence(metadata: Message, beside: str) -> str:
    """From the best source that a package gives: an SPDX expression, a line of its own, a classifier, its file."""
    expression = metadata.get("License-Expression")
    own = (metadata.get("License") or "").strip()
    classified = [
        text.rpartition(" :: ")[2] for text in metadata.get_all("Classifier", []) if text.startswith("License ::")
    ]
    for text in (
        expression,
        own if own and "\n" not in own and own != "UNKNOWN" else "",
        " AND ".join(classified),
        beside,
    ):
        if text:
            return str(text)
    return UNKNOWN


def _licence_beside(metadata_file: str, files: Mapping[str, str]) -> str:
    directory = str(PurePosixPath(metadata_file).parent)
    beside = sorted(name for name in files if name.startswith(f"{directory}/") and not name.endswith("/METADATA"))
    return _first_line(files[beside[0]]) if beside else ""


def _first_licence_line(distribution: Distribution) -> str:
    for file in sorted(
        str(path) for path in distribution.files or () if re.search(r"dist-info/(licenses/|LICEN[SC]E)", str(path))
    ):
        return _first_line(distribution.read_text(file.partition("/")[2]) or "")
    return ""


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[:80]


def _debian_licence(copyright_file: str) -> str:
    """The short names in a machine-readable copyright file, else where the text is."""
    names = sorted({name.strip() for name in re.findall(r"(?m)^License: *([^\n]{1,60})$", copyright_file)})
    if names:
        return ", ".join(names)
    return "see usr/share/doc/*/copyright in the image" if copyright_file else UNKNOWN
