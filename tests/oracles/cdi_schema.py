"""A JSON schema for CDI specs.

Written for these tests after SPEC.md of cncf-tags/container-device-interface 1.1.0 and its naming rules; equivalent to
that project's ``schema/schema.json`` and ``defs.json``, but stricter: empty edits and names that runtimes refuse are
invalid here too.
"""

from __future__ import annotations

from typing import Any

_TEXT = {"type": "string", "minLength": 1}
_PATH = {"type": "string", "pattern": "^/[^\\0]+$"}
_UINT32 = {"type": "integer", "minimum": 0, "maximum": 2**32 - 1}
_INT64 = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
_KIND_PART = "[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?"


def _object(required: list[str], properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


_DEVICE_NODE = _object(
    ["path"],
    {
        "path": _PATH,
        "hostPath": _PATH,
        "type": {"enum": ["b", "c", "u", "p"]},
        "major": _INT64,
        "minor": _INT64,
        "fileMode": {"type": "integer", "minimum": 0, "maximum": 0o7777},
        "permissions": {"type": "string", "pattern": "^(?:[rwm]{1,3}|none)$"},
        "uid": _UINT32,
        "gid": _UINT32,
    },
)
_MOUNT = _object(
    ["hostPath", "containerPath"],
    {
        "hostPath": _PATH,
        "containerPath": _PATH,
        "options": {"type": "array", "items": _TEXT, "minItems": 1},
        "type": _TEXT,
    },
)
_EDITS = _object(
    [],
    {
        "env": {"type": "array", "items": {"type": "string", "pattern": "^[^=\\0]+="}, "minItems": 1},
        "deviceNodes": {"type": "array", "items": _DEVICE_NODE, "minItems": 1},
        "mounts": {"type": "array", "items": _MOUNT, "minItems": 1},
    },
)
_DEVICE = _object(
    ["name", "containerEdits"],
    {
        "name": {"type": "string", "pattern": "^[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?$"},
        "containerEdits": {**_EDITS, "minProperties": 1},
    },
)

SCHEMA = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    **_object(
        ["cdiVersion", "kind", "devices"],
        {
            "cdiVersion": {"enum": ["0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"]},
            "kind": {"type": "string", "pattern": f"^{_KIND_PART}/{_KIND_PART}$"},
            "devices": {"type": "array", "items": _DEVICE, "minItems": 1},
            "containerEdits": _EDITS,
        },
    ),
}
