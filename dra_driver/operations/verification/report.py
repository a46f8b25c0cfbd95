"""A host's report: the evidence, the verdicts on it, and what they mean, as one JSON document.

It is made to be sent in: it holds no name, number or id of an instance, chip or server, and nothing that is not listed
in ``hostfiles`` or ``evidence``. Read, it is what a stranger sent: bounded, and strict in every field.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from dra_driver.operations.verification.assumptions import TABLE, judge, trust
from dra_driver.operations.verification.evidence import Evidence, Word
from dra_driver.operations.verification.hostfiles import row_of
from dra_driver.util.envelope import API_VERSION, ApiVersion, envelope
from dra_driver.util.errors import UsageError
from dra_driver.util.text import first_of, quoted
from dra_driver.version import VERSION

KIND: Final = "HostReport"
MAX_REPORT_BYTES: Final = 4 << 20

_Line = Annotated[dict[str, Any], Meta(max_length=16)]


class _Document(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    api_version: ApiVersion
    kind: Literal["HostReport"]
    items: Annotated[tuple[_Line, ...], Meta(max_length=256)]
    program_version: Word
    features: Annotated[tuple[_Line, ...], Meta(max_length=64)]
    evidence: Evidence


def document(host: Evidence) -> dict[str, Any]:
    """The report as JSON-ready values; the lines follow from the evidence."""
    lines = judge(host)
    return envelope(
        KIND,
        [
            {
                "number": line.number,
                "code": line.assumption.code,
                "assumption": line.assumption.text,
                "source": line.assumption.source.text,
                "where": line.assumption.check.where,
                "seen": line.verdict.seen,
                "verdict": line.verdict.state,
                "reason": line.verdict.why,
                "consequence": line.assumption.consequence,
            }
            for line in lines
        ],
        programVersion=VERSION,
        features=[
            {"feature": item.feature, "trust": item.trust, "because": list(item.because)} for item in trust(lines)
        ],
        evidence=msgspec.to_builtins(host, str_keys=True),
    )


def written(host: Evidence) -> str:
    """The text of the report: equal evidence gives equal bytes."""
    return json.dumps(document(host), indent=2) + "\n"


def read(data: bytes) -> Evidence:
    """The evidence of a report; its lines are not believed, but follow from the evidence again.

    Raises:
        UsageError: this is no report, or one of another version, or one that no program of this kind wrote.
    """
    if len(data) > MAX_REPORT_BYTES:
        raise _unusable(f"it is longer than {MAX_REPORT_BYTES >> 20} MiB")
    try:
        found = msgspec.json.decode(data, type=_Document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _unusable(quoted(str(error), 200)) from error
    files = found.evidence.files
    strange = [quoted(path) for path, seen in files.items() if (row := row_of(path)) is None or row.kind != seen.kind]
    if strange:
        raise _unusable(f"it contains unexpected files: {first_of(strange, 3)}")
    if any(seen.text is not None and seen.text != seen.text.strip() for seen in files.values()):
        raise _unusable("a text in it begins or ends with white space")
    return found.evidence


def _unusable(reason: str) -> UsageError:
    return UsageError(
        f"this report cannot be used: {reason}",
        consequence="nothing was written",
        remedy=f"give a file that 'dra-driver verify-host --report FILE' wrote ({len(TABLE)} lines, {API_VERSION})",
    )
