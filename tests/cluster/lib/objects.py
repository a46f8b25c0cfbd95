"""Builders of the objects that tests apply, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.cluster.lib.kube import Object

IMAGE = "public.ecr.aws/ubuntu/ubuntu:22.04"
"""What all test pods run; the lab loads a small stand-in under this name."""
DRIVER = "neuron.aws.com"
SLEEP = ["sh", "-c", "trap 'exit 0' TERM; sleep infinity & wait"]
"""Runs until it is asked to end, and then ends at once."""


def request(
    name: str = "neurons",
    count: int | None = 1,
    *,
    device_class: str = DRIVER,
    selectors: Sequence[str] = (),
    admin: bool = False,
) -> Object:
    """A device request; ``count`` None asks for all devices of a node."""
    exactly: Object = {"deviceClassName": device_class}
    exactly |= {"allocationMode": "All"} if count is None else {"allocationMode": "ExactCount", "count": count}
    if selectors:
        exactly["selectors"] = [{"cel": {"expression": selector}} for selector in selectors]
    if admin:
        exactly["adminAccess"] = True
    return {"name": name, "exactly": exactly}


def first_available(name: str, *alternatives: Object) -> Object:
    """A request with a list of alternatives, each made by ``request``."""
    return {"name": name, "firstAvailable": [{"name": item["name"], **item["exactly"]} for item in alternatives]}


def config(parameters: Object, *requests: str) -> Object:
    """Opaque parameters for requests (none: for all)."""
    entry: Object = {"opaque": {"driver": DRIVER, "parameters": parameters}}
    return entry | ({"requests": list(requests)} if requests else {})


def neuron_config(lnc: object = 1, **more: object) -> Object:
    """Parameters of kind NeuronConfig."""
    return {"apiVersion": f"{DRIVER}/v1", "kind": "NeuronConfig", "logicalNeuronCore": lnc, **more}


def connected(size: int, *requests: str) -> Object:
    """The constraint that all devices of the requests are of one connected group."""
    return {"matchAttribute": f"resource.aws.com/devicegroup{size}_id"} | (
        {"requests": list(requests)} if requests else {}
    )


def claim_spec(*requests: Object, constraints: Sequence[Object] = (), configs: Sequence[Object] = ()) -> Object:
    """The spec of a claim."""
    devices: Object = {"requests": list(requests)}
    devices |= {"constraints": list(constraints)} if constraints else {}
    devices |= {"config": list(configs)} if configs else {}
    return {"devices": devices}


def claim(name: str, *requests: Object, constraints: Sequence[Object] = (), configs: Sequence[Object] = ()) -> Object:
    """A ResourceClaim."""
    spec = claim_spec(*requests, constraints=constraints, configs=configs)
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}


def template(
    name: str, *requests: Object, constraints: Sequence[Object] = (), configs: Sequence[Object] = ()
) -> Object:
    """A ResourceClaimTemplate."""
    spec = {"spec": claim_spec(*requests, constraints=constraints, configs=configs)}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": spec,
    }


def container(name: str = "main", *claims: str | tuple[str, str], command: Sequence[str] = SLEEP) -> Object:
    """A container that uses claims by the pod's names for them, or ``(claim, request)``."""
    used = [{"name": item} if isinstance(item, str) else {"name": item[0], "request": item[1]} for item in claims]
    return {
        "name": name,
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": list(command),
        "resources": {"claims": used} if used else {},
    }


def pod(
    name: str,
    claims: Mapping[str, str] | None = None,
    *,
    templates: Mapping[str, str] | None = None,
    containers: Sequence[Object] = (),
    init: Sequence[Object] = (),
    node: str = "",
) -> Object:
    """A pod.

    Args:
        name: of the pod.
        claims: the pod's name of a claim to the name of the ResourceClaim.
        templates: the same for ResourceClaimTemplates.
        containers: none: one, ``main``, that uses all of the claims.
        init: init containers.
        node: the scheduler may choose no other node than this one.
    """
    named = [{"name": key, "resourceClaimName": value} for key, value in (claims or {}).items()]
    named += [{"name": key, "resourceClaimTemplateName": value} for key, value in (templates or {}).items()]
    spec: Object = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 5,
        "containers": list(containers) or [container("main", *(str(item["name"]) for item in named))],
        "resourceClaims": named,
    }
    if init:
        spec["initContainers"] = list(init)
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def asking(name: str, containers: Mapping[str, Mapping[str, int]], node: str = "") -> Object:
    """A pod as users of the device plugin have it: limits by container."""
    spec: Object = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [
            {
                "name": key,
                "image": IMAGE,
                "command": SLEEP,
                "resources": {"limits": {resource: str(count) for resource, count in limits.items()}},
            }
            for key, limits in containers.items()
        ],
    }
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
