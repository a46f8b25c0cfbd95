"""One pod spec: which claims its containers share, and the spec rewritten to use them."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from dra_driver.kube.documents import Origin
from dra_driver.kube.objects import limits
from dra_driver.legacy.migration.claims import (
    Template,
    Wanted,
    most_cores_of_any_type,
    size_of,
    template,
)
from dra_driver.legacy.migration.container_settings import (
    ContainerSettings,
    container_settings,
    warn_of_host_access,
)
from dra_driver.legacy.migration.limits import (
    EFA,
    LISTS,
    RESOURCES,
    Nodes,
    Path,
    Place,
    Warnings,
    Wishes,
    chosen_types,
    devices_of_limits,
    not_possible,
    places,
    without,
)
from dra_driver.legacy.placement import fits, unsupported
from dra_driver.legacy.resource_requests import ContainerRequest, Role
from dra_driver.legacy.rules import NeuronResource, NodeHardware, candidates, counts
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES, InstanceType, lookup
from dra_driver.util.errors import DriverError

LOGICAL_CORE_SIZES: Final = tuple(sorted({size for row in INSTANCE_TYPES.values() for size in row.lnc_values}))
SECOND_SCHEDULER: Final = "my-scheduler"
"""The scheduler name in the extender's documentation."""
BYPASSES: Final = "it bypasses the scheduler, which allocates claims: use a nodeSelector instead"
"""Of a node that a pod names itself."""
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
    node: NodeHardware | None
    core_size: int | None
    wishes: Wishes
    warnings: Warnings

    def warn(self, path: Path, text: str) -> None:
        self.warnings.add(self.origin, (*self.path, *path), text)


def migrate_spec(
    spec: Mapping[str, Any], origin: Origin, path: Path, nodes: Nodes, wishes: Wishes, warnings: Warnings
) -> MigratedSpec | None:
    """A pod spec with claims instead of limits; None if it requests no Neuron resources.

    Raises:
        ManifestError: an invalid amount, or one that requires the nodes' type to be known.
        NotPossibleError: no node could ever have run it, or claims cannot express it.
    """
    found = places(spec, origin, path)
    if not found:
        return None
    rows = _types_of(spec, nodes)
    made = [
        _migrated(
            _Pod(spec, origin, path, row, _node(row, nodes, origin, path), nodes.logical_core_size, wishes, own), found
        )
        for row, own in ((row, warnings if number == 0 else Warnings()) for number, row in enumerate(rows))
    ]
    return made[0] if len(made) == 1 else _of_any_type(made, [row for row in rows if row is not None], origin, path)


def _types_of(spec: Mapping[str, Any], nodes: Nodes) -> tuple[InstanceType | None, ...]:
    """The pod's own node selection takes precedence, unless it leaves a choice that the user has made."""
    own = [row for row in map(lookup, chosen_types(spec)) if row is not None and row.devices is not None]
    return tuple(own) if len(own) == 1 or (own and nodes.instance_type is None) else (nodes.instance_type,)


def _of_any_type(
    made: Sequence[MigratedSpec], rows: Sequence[InstanceType], origin: Origin, path: Path
) -> MigratedSpec:
    """What is the same for nodes of several types, with a selector that admits all of them."""
    common = {_with_types(each, row, rows): each for each, row in zip(made, rows, strict=True)}
    if len(common) > 1:
        names = " and ".join(row.name for row in rows)
        what = f"the claim must request different devices on {names}, which the pod allows"
        raise origin.error(path, what, remedy="name one of them in the pod, or give --instance-type")
    return msgspec.json.decode(next(iter(common)), type=MigratedSpec)


def _with_types(made: MigratedSpec, row: InstanceType, rows: Sequence[InstanceType]) -> bytes:
    text = msgspec.json.encode(made).decode()
    names = ", ".join(f"'{each.name}'" for each in rows)
    text = text.replace(f"instanceType == '{row.name}'", f"instanceType in [{names}]")
    own, joined = (f"-{'-or-'.join(each.name for each in some)}".replace(".", "-") for some in ([row], rows))
    return text.replace(own + '"', joined + '"').encode()


def _migrated(pod: _Pod, found: Sequence[Place]) -> MigratedSpec:
    settings = [_settings(pod, place) for place in found]
    wanted = [
        replace(_wanted(pod, place), core_size=each.core_size) for place, each in zip(found, settings, strict=True)
    ]
    _check_together(pod, found, wanted)
    claims, of_place = _shared(pod, found, wanted)
    _check_sum(pod, claims)
    templates = [_template(pod, claim, found[_owner(found, of_place, number)]) for number, claim in enumerate(claims)]
    _warn_of_efa(pod, found)
    _warn_of_scheduling(pod)
    for place in found:
        warn_of_host_access(pod.spec, place.list_name, place.index, pod.warn)
    left_out = {(place.list_name, place.index): each.left_out for place, each in zip(found, settings, strict=True)}
    return MigratedSpec(_rewritten(pod, found, of_place, templates, left_out), tuple(templates))


def _node(row: InstanceType | None, nodes: Nodes, origin: Origin, path: Path) -> NodeHardware | None:
    try:
        return nodes.of(row) if row is not None else None
    except DriverError as error:
        raise origin.error(path, str(error)) from error


def _settings(pod: _Pod, place: Place) -> ContainerSettings:
    """What the container says of its cores."""
    above = (place.list_name, place.index)
    container = pod.spec[place.list_name][place.index]
    sizes = pod.row.lnc_values if pod.row is not None else LOGICAL_CORE_SIZES
    is_part = place.request.resource is NeuronResource.CORE and (
        pod.node is None or place.request.count < pod.node.cores_per_device
    )
    return container_settings(container, sizes, lambda path, text: pod.warn((*above, *path), text), cores=is_part)


def _wanted(pod: _Pod, place: Place) -> Wanted:
    """What a container's claim has to hold: whole chips, or fewer cores than a chip has."""
    request, node = place.request, pod.node
    where = (*pod.path, *place.path)
    count, efa = request.count, place.efa if pod.wishes.efa else 0
    if node is None:
        if request.resource is NeuronResource.DEVICE:
            return Wanted(chips=count, efa=efa)
        if count <= most_cores_of_any_type(pod.core_size):
            return Wanted(cores=count, efa=efa)
        what = f"how many devices have {count} cores depends on the instance type"
        raise pod.origin.error(where, what, remedy=_GIVE_TYPE)
    if request.resource is NeuronResource.DEVICE:
        if not candidates(node, NeuronResource.DEVICE, count):
            raise not_possible(pod.origin, where, unsupported(node, request))
        return Wanted(chips=count, efa=efa)
    if count < node.cores_per_device:
        return Wanted(cores=count, efa=efa)
    chips, rest = divmod(count, node.cores_per_device)
    if rest or not candidates(node, NeuronResource.DEVICE, chips):
        what = f"no claim can request {count} cores of {node.instance_type}: {_possible_cores(node)} are possible"
        raise not_possible(pod.origin, where, what, remedy=_instead(pod))
    return Wanted(chips=chips, efa=efa)


def _instead(pod: _Pod) -> str:
    """What makes a number of cores possible that no claim for chips has: another core size, or a claim for cores."""
    if other := _other_size(pod, places(pod.spec, pod.origin, pod.path)):
        return other
    if devices_of_limits(pod.spec) <= limits.MAX_RESULTS:
        return "or keep the pod as it is, with a DeviceClass that offers cores: migrate --extended-resources"
    return f"a claim has at most {limits.MAX_RESULTS} devices: ask for chips"


def _other_size(pod: _Pod, asking: Sequence[Place]) -> str:
    """The logical core size with which these containers would fit on a node together; "" if none is."""
    row, cores = pod.row, [place.request.count for place in asking if place.request.resource is NeuronResource.CORE]
    if row is None or len(cores) < len(asking):
        return ""
    for size in row.lnc_values:
        node = Nodes(row, size).of(row)
        width = node.cores_per_device
        wholes = [divmod(count, width) for count in cores if count >= width]
        if sum(cores) <= node.cores and all(
            not rest and candidates(node, NeuronResource.DEVICE, chips) for chips, rest in wholes
        ):
            return f"if these are cores of nodes with logical core size {size}, give --logical-core-size {size}"
    return ""


def _possible_cores(node: NodeHardware) -> str:
    """The numbers of cores for which there is a claim: a part of one chip, or connected chips."""
    width = node.cores_per_device
    found = [*range(1, width), *(chips * width for chips in counts(node, NeuronResource.DEVICE))]
    return ", ".join(map(str, found))


def _check_together(pod: _Pod, found: Sequence[Place], wanted: Sequence[Wanted]) -> None:
    """Whether the containers that ask for whole chips fit on one node together."""
    requests = tuple(
        ContainerRequest(place.request.container, place.request.role, NeuronResource.DEVICE, each.chips)
        for place, each in zip(found, wanted, strict=True)
        if each.chips
    )
    refusal = fits(pod.node, 0, requests) if pod.node is not None and requests else None
    if refusal is not None:
        what = f"no node could run this pod: {refusal.text}"
        raise not_possible(pod.origin, pod.path, what, remedy=_other_size(pod, found))


def _check_sum(pod: _Pod, claims: Sequence[Wanted]) -> None:
    if pod.node is None:
        return
    width = pod.node.cores_per_device
    cores = sum(claim.chips * width + claim.cores for claim in claims)
    if cores > pod.node.cores:
        raise not_possible(
            pod.origin,
            pod.path,
            f"the claims of its containers together would need {cores} cores, and {pod.node.instance_type} has "
            f"{pod.node.cores}, {width} on each device",
            remedy="merge containers, or share a claim between them by hand",
        )


def _holds(claim: Wanted, wanted: Wanted, node: NodeHardware | None) -> bool:
    """Whether a claim has what a container wants."""
    cores = claim.chips * node.cores_per_device if node is not None else 0
    if wanted.core_size not in (None, claim.core_size):
        return False
    return claim.chips >= wanted.chips and max(claim.cores, cores) >= wanted.cores and claim.efa >= wanted.efa


def _size(wanted: Wanted) -> tuple[int, int, int]:
    return wanted.chips, wanted.cores, wanted.efa


def _shared(pod: _Pod, found: Sequence[Place], wanted: Sequence[Wanted]) -> tuple[list[Wanted], list[int]]:
    """What each claim is for, and the claim of each place.

    Containers that run together have separate claims. An init container uses the smallest sufficient claim of a
    container that runs after it.
    """
    claims: list[Wanted] = []
    of_place = [-1] * len(found)
    later_users: list[int] = []
    """For each claim, the last place that uses it."""
    for at, place in enumerate(found):
        if place.request.role is not Role.INIT:
            of_place[at] = len(claims)
            claims.append(wanted[at])
            later_users.append(at)
    init = [at for at, place in enumerate(found) if place.request.role is Role.INIT]
    for at in sorted(init, key=lambda one: (*(-part for part in _size(wanted[one])), one)):
        sufficient = [number for number, claim in enumerate(claims) if _holds(claim, wanted[at], pod.node)]
        usable = [number for number in sufficient if later_users[number] > at]
        if usable:
            chosen = min(usable, key=lambda number: (_size(claims[number]), number))
            of_place[at] = chosen
            if claims[chosen] != wanted[at]:
                text = f"the init container sees {_told(claims[chosen])}, those of a later container"
                pod.warn(found[at].path, text)
            continue
        of_place[at] = len(claims)
        claims.append(wanted[at])
        # Init containers run one after another, so all of them may use it.
        later_users.append(len(found))
        pod.warn(
            found[at].path,
            "the init container requests more than any later container: the pod keeps these devices until it ends, in "
            "addition to those of the other containers",
        )
    return claims, of_place


def _owner(found: Sequence[Place], of_place: Sequence[int], number: int) -> int:
    """The place that a claim was made for: of an init container only if no other one uses it."""
    users = [at for at, claim in enumerate(of_place) if claim == number]
    return min(users, key=lambda at: (found[at].request.role is Role.INIT, at))


def _told(claim: Wanted) -> str:
    parts = [(claim.chips, "device"), (claim.cores, "core"), (claim.efa, "EFA device")]
    return " and ".join(f"{count} {noun}{'s' * (count > 1)}" for count, noun in parts if count)


def _template(pod: _Pod, claim: Wanted, place: Place) -> Template:
    made = template(claim, pod.row, pod.core_size, groups=pod.wishes.groups)
    if made is None:
        what = f"which {claim.chips} devices are connected depends on the instance type"
        raise pod.origin.error((*pod.path, *place.path), what, remedy=_GIVE_TYPE)
    if size_of(made.devices) > limits.MAX_RESULTS:
        what = f"{_told(claim)} are more than the {limits.MAX_RESULTS} devices that a claim can hold"
        raise not_possible(pod.origin, (*pod.path, *place.path), what)
    for text in made.differences:
        pod.warn(place.path, text)
    return made


def _warn_of_efa(pod: _Pod, found: Sequence[Place]) -> None:
    """EFA devices that remain limits."""
    beside = {(place.list_name, place.index) for place in found}
    for list_name in LISTS:
        for index, container in enumerate(pod.spec.get(list_name) or ()):
            limits = (container.get("resources") or {}).get("limits") or {}
            if not limits.get(EFA) or (pod.wishes.efa and (list_name, index) in beside):
                continue
            text = (
                "this container has no Neuron devices: a node's EFA devices come from either the device plugin or the "
                "DRA driver, so this container should use a claim, too"
                if pod.wishes.efa
                else "EFA's device plugin serves it with any of the node's EFA devices: --efa makes those next to the "
                "Neuron devices a part of the claim"
            )
            pod.warn((list_name, index, "resources", "limits", EFA), f"{EFA} remains a limit; {text}")


def _warn_of_scheduling(pod: _Pod) -> None:
    if pod.spec.get("schedulerName") == SECOND_SCHEDULER:
        pod.warn(("schedulerName",), f"{SECOND_SCHEDULER} is left out: claims need no extender")
    if pod.spec.get("nodeName"):
        pod.warn(("nodeName",), BYPASSES)


def _rewritten(
    pod: _Pod,
    found: Sequence[Place],
    of_place: Sequence[int],
    templates: Sequence[Template],
    left_out: Mapping[tuple[str, int], Collection[str]],
) -> dict[str, Any]:
    present = list(pod.spec.get("resourceClaims") or ())
    names = _names(len(templates), {entry["name"] for entry in present})
    spec = {key: value for key, value in pod.spec.items() if (key, value) != ("schedulerName", SECOND_SCHEDULER)}
    claims = {(place.list_name, place.index): names[claim] for place, claim in zip(found, of_place, strict=True)}
    for list_name in dict.fromkeys(place.list_name for place in found):
        spec[list_name] = [
            _container(item, claims.get((list_name, index)), left_out.get((list_name, index), ()), efa=pod.wishes.efa)
            for index, item in enumerate(spec[list_name])
        ]
    added = [
        {"name": name, "resourceClaimTemplateName": made.name} for name, made in zip(names, templates, strict=True)
    ]
    spec["resourceClaims"] = present + added
    return spec


def _container(
    container: Mapping[str, Any], claim: str | None, left_out: Collection[str], *, efa: bool
) -> dict[str, Any]:
    """The container with the claim instead of limits; one that requested 0 just loses the limit."""
    names = {*RESOURCES, EFA} if efa and claim is not None else RESOURCES
    resources = without(container.get("resources") or {}, names)
    if claim is not None:
        resources["claims"] = [*(resources.get("claims") or ()), {"name": claim}]
    env = [entry for entry in container.get("env") or () if entry.get("name") not in left_out]
    changed = {"resources": resources} | ({"env": env} if left_out else {})
    rest = {key: value for key, value in container.items() if key not in changed}
    return {**rest, **{key: value for key, value in changed.items() if value}}


def _names(count: int, taken: set[str]) -> list[str]:
    """Unused names for the pod's new claims."""
    if count == 1 and "neurons" not in taken:
        return ["neurons"]
    free = (name for name in (f"neurons-{number}" for number in itertools.count()) if name not in taken)
    return list(itertools.islice(free, count))
