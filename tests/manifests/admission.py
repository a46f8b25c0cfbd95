"""What a ValidatingAdmissionPolicy of the chart lets through, without an API server."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import celpy
from celpy.adapter import json_to_cel

from tests.manifests.support import Object

CEL = celpy.Environment()
logging.getLogger("celpy").setLevel(logging.CRITICAL)


def admits(policy: Object, groups: Sequence[str], before: Object | None, after: Object) -> bool:
    """Whether a policy lets somebody create or update an object: what the API server does with it, for plain CEL."""
    variables: dict[str, Any] = {}
    request = {"operation": "UPDATE" if before else "CREATE", "userInfo": {"username": "x", "groups": list(groups)}}
    context = {"request": request, "object": after, "oldObject": before, "variables": variables}

    def value(item: Object) -> Any:
        program = CEL.program(CEL.compile(item["expression"]))
        return program.evaluate({name: json_to_cel(given) for name, given in context.items()})

    if not all(value(item) for item in policy["matchConditions"]):
        return True
    for item in policy["variables"]:
        variables[item["name"]] = value(item)
    return all(value(item) for item in policy["validations"])
