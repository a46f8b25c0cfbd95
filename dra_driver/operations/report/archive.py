"""The archive: what was collected as files, with a manifest, names redacted on request. Values in, bytes out.

Equal input gives equal bytes: files in the order of their names, JSON with sorted keys, and no time but the one given.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dra_driver.kube.objects.meta import timestamp
from dra_driver.util.text import printable
from dra_driver.version import VERSION

MANIFEST: Final = "MANIFEST.txt"
TOP: Final = "dra-driver-report"
"""Directory in the archive."""
SCRUBBED: Final = "(removed)"

# Every repetition is bounded: logs are of any origin, and must not make the search quadratic.
_SECRETS: Final = re.compile(
    r"""
      \b(?:AKIA|ASIA|AROA)[A-Z0-9]{16}\b                                        # ids of AWS credentials
    | (?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,2000}\.[A-Za-z0-9_-]{8,4000}(?:\.[A-Za-z0-9_-]{0,2000})?   # JSON web tokens
    | -----BEGIN\ [A-Z ]{0,40}-----(?:[^-]{0,20000}-----END\ [A-Z ]{0,40}-----)?
    | \b(?:gh[pousr]_|github_pat_|hf_|xox[abprs]-|sk-)[A-Za-z0-9_-]{16,200}
    | (?i:\bbearer\s{1,4})[A-Za-z0-9._~+/=-]{8,4000}
    | (?i:password|passwd|secret|token|api_?key|access_?key|credential)[A-Za-z0-9_.-]{0,40}["']?\s{0,4}[=:]\s{0,4}
      (?:"[^"]{0,1000}"|'[^']{0,1000}'|[^\s,;&"']{1,4000})
    | (?<=://)[^/\s:@]{1,256}:[^/\s@]{1,256}(?=@)                              # user and password in a URL
    | (?<=serial[ ]number[ ])[0-9A-Fa-f]{1,64} | (?<=serial-num=)[0-9A-Fa-f]{1,64}   # of a chip: the detector's log,
    | (?<=-)[0-9A-Fa-f]{16}(?=\.json\b)                                        # and its files
    """,
    re.VERBOSE,
)
_TOKEN: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?", re.ASCII)

_PARTS: Final = re.compile(r"[A-Za-z0-9]+|[.-]+")
_OURS: Final = re.compile(r"(?:[a-z]+\.)?neuron\.aws\.com|neuron-(?:device|core|group[0-9]+|window[0-9]+|node)[0-9-]*")
"""Names of the driver and its devices stay, whatever a namespace or a pod is called."""
_OUR_LENGTHS: Final = (7, 5, 3, 1)
"""How many words and separators these have."""


@dataclass(frozen=True, slots=True)
class File:
    """A file of the archive: JSON values, or lines of text."""

    path: str
    """Below the archive's directory; its parts may be names of objects."""
    why: str
    """What it is for, for the manifest."""
    content: Any
    """A text for a path that ends with ``.log`` or ``.txt``, else plain values."""


@dataclass(slots=True)
class Collected:
    """What was collected."""

    files: list[File] = field(default_factory=list)
    missing: list[tuple[str, str]] = field(default_factory=list)
    """What could not be read, or was left out, and why."""
    names: dict[str, set[str]] = field(default_factory=dict)
    """Names by kind in lower case, such as ``node``: those that can be redacted."""

    def add_name(self, kind: str, *names: object) -> None:
        """Remember names of objects of a kind; "" and what is no text are none."""
        self.names.setdefault(kind, set()).update(name for name in names if isinstance(name, str) and name)


def scrubbed(text: str) -> str:
    """A text without what looks like a credential or names a chip by its serial number.

    A second net below the table of fields, not the first.
    """
    return _SECRETS.sub(SCRUBBED, text)


KEPT_NAMES: Final = frozenset({"default", "kube-system", "kube-public", "kube-node-lease"})


class Names:
    """Replaces names of objects by their kind and a number, the same one everywhere."""

    def __init__(self, names: Mapping[str, Iterable[str]], kept: Iterable[str] = ()) -> None:
        self._new: dict[str, str] = {}
        for kind in sorted(names):
            ordered = sorted({*names[kind]} - {*KEPT_NAMES, *kept} - self._new.keys())
            self._new |= {name: f"{kind}-x{place}" for place, name in enumerate(ordered, 1)}
        lengths: dict[str, set[int]] = {}
        for name in self._new:
            if _TOKEN.fullmatch(name):
                first, *rest = _PARTS.findall(name)
                lengths.setdefault(first, set()).add(1 + len(rest))
        # Whoever names a pod must not decide how long it takes to look for names in the texts of others.
        self._lengths = {first: sorted({*own, *_OUR_LENGTHS}, reverse=True) for first, own in lengths.items()}
        """Numbers of words and separators of names, the highest first, by their first word."""

    def redacted(self, text: str) -> str:
        """The text with the names replaced, also inside of longer ones (``pod-x7k2p``, ``00000-driver-node-x1b2``)."""
        return _TOKEN.sub(self._replaced, text) if self._new else text

    def _replaced(self, match: re.Match[str]) -> str:
        token, found = match[0], []
        ends = [part.end() for part in _PARTS.finditer(token)]
        place = start = 0
        while place < len(ends):
            # The longest name that begins here; names and separators alternate.
            first = token[start : ends[place]]
            for length in self._lengths.get(first, _OUR_LENGTHS):
                if place + length > len(ends):
                    continue
                name = token[start : ends[place + length - 1]]
                if length <= _OUR_LENGTHS[0] and _OURS.fullmatch(name):
                    found.append(name)
                elif name in self._new:
                    found.append(self._new[name])
                else:
                    continue
                place += length
                break
            else:
                found.append(first)
                place += 1
            following = ends[place] if place < len(ends) else len(token)
            found.append(token[ends[place - 1] : following])
            place, start = place + 1, following
        return "".join(found)


def plain(value: object, names: Names) -> object:
    """JSON values with all texts scrubbed and redacted; names of fields stay, but for those of labels."""
    if isinstance(value, str):
        return names.redacted(scrubbed(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item, names) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, names) for item in value]
    return value


def archive(collected: Collected, *, at: float, redact: bool = False, kept: Sequence[str] = ()) -> bytes:
    """The ``.tar.gz``.

    Args:
        collected: what was collected.
        at: Unix time of the collection.
        redact: replace the names of namespaces, nodes, pods and claims.
        kept: names that stay all the same, such as those of the driver's own namespace.
    """
    names = Names(collected.names if redact else {}, kept)
    files, about = {}, {}
    for file in sorted(collected.files, key=lambda file: file.path):
        body, path = plain(file.content, names), names.redacted(file.path)
        text = body if isinstance(body, str) else json.dumps(body, indent=1, sort_keys=True)
        files[path], about[path] = text.rstrip("\n").encode() + b"\n", file.why
    missing = [(names.redacted(scrubbed(what)), names.redacted(scrubbed(why))) for what, why in collected.missing]
    files[MANIFEST] = "\n".join(_manifest(files, about, missing, at, redact=redact)).encode() + b"\n"
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(files, key=lambda path: (path != MANIFEST, path)):
            entry = tarfile.TarInfo(f"{TOP}/{path}")
            entry.size, entry.mtime, entry.mode = len(files[path]), int(at), 0o644
            tar.addfile(entry, io.BytesIO(files[path]))
    return gzip.compress(out.getvalue(), mtime=int(at))


def _manifest(
    files: Mapping[str, bytes],
    about: Mapping[str, str],
    missing: Sequence[tuple[str, str]],
    at: float,
    *,
    redact: bool,
) -> Iterator[str]:
    yield f"Report of dra-driver {VERSION}, collected at {timestamp(at)}."
    yield ""
    yield "It contains only fields that are on the program's list: no environment, command, volume or image of other"
    yield "pods than the driver's own, no Secret, no ConfigMap but the driver's policies, no annotation but the"
    yield "driver's, and no opaque parameter of other drivers. Apparent credentials were removed from messages"
    yield "and logs. These, and CEL expressions, are free text: check them before you send this report."
    if redact:
        yield "Names of namespaces, nodes, pods and claims were replaced, each by the same word everywhere."
    yield ""
    yield "Files:"
    for path, body in sorted(files.items()):
        yield f"  {path} ({len(body)} bytes): {about.get(path, '')}"
    yield ""
    yield "Not collected:" if missing else "Nothing was left out."
    for what, why in sorted(set(missing)):
        yield f"  {printable(what)}: {printable(why)}"
