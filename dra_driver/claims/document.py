"""A plan as the JSON document of ``dra-driver plan``."""

from __future__ import annotations

from typing import Any

import msgspec

from dra_driver.cdi.spec import Spec
from dra_driver.claims.values import Plan


def plan_document(plan: Plan, spec: Spec) -> dict[str, Any]:
    """JSON-ready values: ``claim``, ``devices`` (one row a device node), ``environment``, ``cdi``."""
    return {
        "claim": {"namespace": plan.namespace, "name": plan.name, "uid": plan.uid},
        "devices": [
            {
                "request": device.request,
                "device": device.device,
                "hostPath": node.host_path,
                "containerPath": node.container_path,
            }
            for device in plan.devices
            for node in device.nodes
        ],
        "environment": dict(sorted(plan.env.items())),
        "cdi": msgspec.json.decode(msgspec.json.encode(spec)),
    }
