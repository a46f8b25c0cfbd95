"""What a ValidatingAdmissionPolicy of the chart lets through, without an API server."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import celpy
from celpy.adapter import json_to_cel
from celpy.celtypes import MapType, StringType

from tests.manifests.support import Object

CEL = celpy.Environment()
logging.getLogger("celpy").setLevel(logging.CRITICAL)


def admits(
    policy: Object,
    groups: Sequence[str],
    before: Object | None,
    after: Object,
    *,
    user: str = "x",
    resource: str = "",
) -> bool:
    """Whether a policy lets somebody create or update an object: what the API server does with it, for plain CEL."""
    variables: dict[str, Any] = {}
    request = {
        "operation": "UPDATE" if before else "CREATE",
        "userInfo": {"username": user, "groups": list(groups)},
        "resource": {"resource": resource},
    }
    context = {"request": request, "object": after, "oldObject": before, "variables": variables}

    if not all(_value(item, context) for item in policy["matchConditions"]):
        return True
    for item in policy["variables"]:
        variables[item["name"]] = _value(item, context)
    return all(_value(item, context) for item in policy["validations"])


def holds(rule: Object, context: Mapping[str, Any]) -> bool:
    """Whether a validation, or a condition, is true of what it is given."""
    return bool(_value(rule, context))


def _value(item: Object, context: Mapping[str, Any]) -> Any:
    program = CEL.program(CEL.compile(item["expression"]))
    # Variables are values of CEL already: a truth of CEL would become a number.
    values = {StringType(name): value for name, value in context.get("variables", {}).items()}
    given = {name: json_to_cel(value) for name, value in context.items() if name != "variables"}
    return program.evaluate({**given, "variables": MapType(values)})
