"""One pod spec: which claims its containers share, and the spec rewritten to use them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dra_driver.legacy.migration.claims import Template, template
from dra_driver.legacy.migration.limits import Nodes, Path, Place, Warnings, chosen_type, not_possible, places, without
from dra_driver.legacy.placement import fits, unsupported
from dra_driver.legacy.resource_requests import Role
from dra_driver.legacy.rules import Hardware, Resource, candidates
from dra_driver.manifests import Origin
from dra_driver.topology.instance_types import InstanceType, lookup
from dra_driver.util.errors import DriverError

SECOND_SCHEDULER: Final = "my-scheduler"
"""The scheduler name in the extender's documentation."""
_GIVE_TYPE: Final = "give the nodes' type with --instance-type, or in the pod's nodeSelector"


@dataclass(frozen=True, slots=True)
class MigratedSpec:
    """A pod spec with claims, and the templates of the claims."""

    spec: dict[str, Any]
    templates: tuple[Template, ...]


@dataclass(frozen=True, slots=True)
class _Pod:
    spec: Mapping[str, Any]
    origin: Origin
    path: Path
    row: InstanceType | None
    node: Hardware | None
    warnings: Warnings

    def warn(self, path: Path, text: str) -> None:
        self.warnings.add(self.origin, (*self.path, *path), text)


def migrate_spec(
    spec: Mapping[str, Any], origin: Origin, path: Path, nodes: Nodes, warnings: Warnings
) -> MigratedSpec | None:
    """A pod spec with claims instead of limits; None if it requests no Neuron resources.

    Raises:
        ManifestError: an invalid amount, or one that requires the nodes' type to be known.
        NotPossibleError: no node could ever have run it, or no node has that many whole devices.
    """
    found = places(spec, origin, path)
    if not found:
        return None
    row = _type_of(spec, nodes)
    pod = _Pod(spec, origin, path, row, _node(row, nodes, origin, path), warnings)
    chips = [_chips(pod, place) for place in found]
    _check_together(pod, found)
    numbers, of_place = _shared(pod, found, chips)
    if pod.node is not None and sum(numbers) > pod.node.devices:
        raise not_possible(
            origin,
            path,
            f"with whole devices for each container the pod would need {sum(numbers)} of them, and "
            f"{pod.node.instance_type} has {pod.node.devices}",
            remedy="merge the containers that ask for cores into one, or share a claim between them by hand",
        )
    templates = [_template(pod, number, found[of_place.index(claim)]) for claim, number in enumerate(numbers)]
    _warn_of_scheduling(pod)
    return MigratedSpec(_rewritten(pod, found, of_place, templates), tuple(templates))


def _type_of(spec: Mapping[str, Any], nodes: Nodes) -> InstanceType | None:
    """The pod's own node selection takes precedence."""
    own = lookup(chosen_type(spec) or "")
    return own if own is not None and own.devices is not None else nodes.instance_type


def _node(row: InstanceType | None, nodes: Nodes, origin: Origin, path: Path) -> Hardware | None:
    try:
        return nodes.of(row) if row is not None else None
    except DriverError as error:
        raise origin.error(path, str(error)) from error


def _chips(pod: _Pod, place: Place) -> int:
    """Number of chips that hold what a container requests, by the rules of its node's type."""
    request, node = place.request, pod.node
    where = (*pod.path, *place.path)
    if node is None:
        if request.resource is Resource.CORE:
            what = f"how many devices hold {request.count} cores depends on the instance type"
            raise pod.origin.error(where, what, remedy=_GIVE_TYPE)
        return request.count
    sets = candidates(node, request.resource, request.count)
    if not sets:
        raise not_possible(pod.origin, where, unsupported(node, request))
    chips = min(len(node.ids(Resource.DEVICE, mask)) for mask in sets)
    if request.resource is Resource.CORE:
        _warn_of_cores(pod, place, chips, node)
    return chips


def _warn_of_cores(pod: _Pod, place: Place, chips: int, node: Hardware) -> None:
    asked, held = place.request.count, chips * node.cores_per_device
    if asked == held:
        return
    devices = f"{chips} whole device{'s' if chips > 1 else ''}"
    pod.warn(
        place.path,
        f"{asked} cores become {devices} of {node.instance_type} with {held} cores: the container sees all of them "
        f"(set NEURON_RT_NUM_CORES={asked} if the program takes what it sees), and no other pod gets the rest",
    )


def _check_together(pod: _Pod, found: Sequence[Place]) -> None:
    refusal = fits(pod.node, 0, tuple(place.request for place in found)) if pod.node is not None else None
    if refusal is not None:
        raise not_possible(pod.origin, pod.path, f"no node could run this pod: {refusal.text}")


def _shared(pod: _Pod, found: Sequence[Place], chips: Sequence[int]) -> tuple[list[int], list[int]]:
    """The number of chips of each claim, and the claim of each place.

    Containers that run together have separate claims. An init container uses the smallest sufficient claim of a
    container that runs after it.
    """
    numbers: list[int] = []
    of_place = [-1] * len(found)
    later_users: list[int] = []
    """For each claim, the last place that uses it."""
    for at, place in enumerate(found):
        if place.request.role is not Role.INIT:
            of_place[at] = len(numbers)
            numbers.append(chips[at])
            later_users.append(at)
    init = [at for at, place in enumerate(found) if place.request.role is Role.INIT]
    for at in sorted(init, key=lambda one: (-chips[one], one)):
        usable = [claim for claim, number in enumerate(numbers) if number >= chips[at] and later_users[claim] > at]
        if usable:
            of_place[at] = min(usable, key=lambda claim: (numbers[claim], claim))
            if numbers[of_place[at]] > chips[at]:
                text = f"the init container sees {numbers[of_place[at]]} devices, those of a container after it"
                pod.warn(found[at].path, text)
            continue
        of_place[at] = len(numbers)
        numbers.append(chips[at])
        # Init containers run one after another, so all of them may use it.
        later_users.append(len(found))
        pod.warn(
            found[at].path,
            "the init container asks for more than any container after it: the pod keeps its devices to the end, and "
            "gets those of the other containers in addition",
        )
    return numbers, of_place


def _template(pod: _Pod, number: int, place: Place) -> Template:
    made = template(number, pod.row)
    if made is None:
        what = f"which {number} devices are connected depends on the instance type"
        raise pod.origin.error((*pod.path, *place.path), what, remedy=_GIVE_TYPE)
    for text in made.differences:
        pod.warn(place.path, text)
    return made


def _warn_of_scheduling(pod: _Pod) -> None:
    if pod.spec.get("schedulerName") == SECOND_SCHEDULER:
        pod.warn(("schedulerName",), f"{SECOND_SCHEDULER} is left out: claims need no extender")
    if pod.spec.get("nodeName"):
        pod.warn(("nodeName",), "it bypasses the scheduler, which allocates claims: use a nodeSelector instead")


def _rewritten(
    pod: _Pod, found: Sequence[Place], of_place: Sequence[int], templates: Sequence[Template]
) -> dict[str, Any]:
    present = list(pod.spec.get("resourceClaims") or ())
    names = _names(len(templates), {entry["name"] for entry in present})
    spec = {key: value for key, value in pod.spec.items() if (key, value) != ("schedulerName", SECOND_SCHEDULER)}
    claims = {(place.list_name, place.index): names[claim] for place, claim in zip(found, of_place, strict=True)}
    for list_name in dict.fromkeys(place.list_name for place in found):
        spec[list_name] = [
            _container(item, claims.get((list_name, index))) for index, item in enumerate(spec[list_name])
        ]
    added = [
        {"name": name, "resourceClaimTemplateName": made.name} for name, made in zip(names, templates, strict=True)
    ]
    spec["resourceClaims"] = present + added
    return spec


def _container(container: Mapping[str, Any], claim: str | None) -> dict[str, Any]:
    """The container with the claim instead of limits; one that requested 0 just loses the limit."""
    resources = without(container.get("resources") or {})
    if claim is not None:
        resources["claims"] = [*(resources.get("claims") or ()), {"name": claim}]
    made = {key: value for key, value in container.items() if key != "resources"}
    return {**made, "resources": resources} if resources else made


def _names(count: int, taken: set[str]) -> list[str]:
    """Unused names for the pod's new claims."""
    if count == 1 and "neurons" not in taken:
        return ["neurons"]
    free = (name for name in (f"neurons-{number}" for number in itertools.count()) if name not in taken)
    return list(itertools.islice(free, count))
