"""What ``explain`` says of a pod and what helps; and claims whose devices the test chooses, as no scheduler would."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from dra_driver.kube.objects.meta import timestamp
from tests.cluster.lib.commands import Commands
from tests.cluster.lib.kube import Object, eventually
from tests.cluster.lib.lifecycle import nudge
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.objects import DRIVER, claim, config, pod, request

LATE = 150.0
"""Seconds for what a controller or kubelet tries again by itself, ever less often."""
CLAIM = "mine"
"""Name of the claim that ``allocate`` makes unless it is told another."""


def remedy_of(commands: Commands, namespace: Namespace, name: str, code: str) -> str:
    """The remedy of a pod's first finding that has one, as soon as that is ``code``."""
    told = ""

    def probe() -> str | None:
        nonlocal told
        try:
            found = commands.findings(namespace, name)
        except AssertionError as error:  # it is well for a moment
            told = str(error)
            return None
        told = "; ".join(f"{item['code']}: {item['message']} ({item['remedy']})" for item in found)
        first = next((item for item in found if item["remedy"]), None)
        return str(first["remedy"]) if first is not None and first["code"] == code else None

    try:
        return eventually(f"{name} to be {code}", probe, 120)
    except AssertionError as error:
        error.add_note(f"explain said at last: {told}")
        raise


def allocate(
    namespace: Namespace,
    node: str,
    *devices: str,
    name: str = CLAIM,
    driver: str = DRIVER,
    parameters: Object | None = None,
) -> None:
    """Make a claim that has these devices of a node, whatever is free there or published at all."""
    asked = request(count=len(devices))
    namespace.apply(claim(name, asked, configs=[config(parameters)] if parameters is not None else []))
    results = [{"request": asked["name"], "driver": driver, "pool": node, "device": device} for device in devices]
    given: Object = {"results": results}
    if parameters is not None:
        given["config"] = [{"source": "FromClaim", **config(parameters)}]
    fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    allocation = {
        "devices": given,
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]},
        # Without one, kube-scheduler adds it, and the API server refuses that change.
        "allocationTimestamp": timestamp(int(time.time())),
    }
    set_status(namespace, name, {"allocation": allocation})


def set_status(namespace: Namespace, name: str, status: Object) -> None:
    """Change fields of a claim's status."""
    patch = ("--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))
    namespace.kubectl("patch", "resourceclaim", name, *patch)


def user(name: str, node: str, *claims: str) -> Object:
    """A pod that uses claims, ``CLAIM`` if none is named, on a node."""
    named = {f"c{number}": each for number, each in enumerate(claims or (CLAIM,))}
    return pod(name, named, node=node)


def recreate(namespace: Namespace, node: str, name: str, *objects: Object, claims: Sequence[str] = (CLAIM,)) -> None:
    """Delete a pod with its claims, and make it anew with claims of the same names; it has to run then."""
    namespace.delete_pod(name)
    for each in claims:
        namespace.kubectl("delete", "resourceclaim", each)
    namespace.apply(*(objects or [claim(each, request()) for each in claims]), user(name, node, *claims))
    namespace.wait_ready(name, within=LATE)


def wait_retried(namespace: Namespace, name: str) -> None:
    """Wait until a pod runs that kubelet tries to start again; it is asked to try now, and not a minute later."""
    nudge(namespace, name)
    namespace.wait_ready(name, within=LATE)
