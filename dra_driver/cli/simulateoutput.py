"""Output of a simulation: as text, as a list of claims, or as pictures."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from dra_driver.cli import terminal
from dra_driver.names import DRIVER_NAME
from dra_driver.util.text import first_of

if TYPE_CHECKING:
    from dra_driver.cli.clusterinput import ClusterInput
    from dra_driver.manifests.objects import Device
    from dra_driver.simulator.explain import Explanation
    from dra_driver.simulator.placement import Outcome, Simulation
    from dra_driver.simulator.preparation import NodeDrivers, Prepared
    from dra_driver.topology.drawing import Sickness
    from dra_driver.topology.instance_types import InstanceType

MAX_PICTURES = 64
"""Maximum number of pictures in one SVG document."""
_SHOWN = 32
"""Maximum number of devices or nodes named on one line."""
_EACH: Final = 8
"""Maximum number of pods of one controller that are shown one by one without -o wide."""
_NODES: Final = 8
"""Maximum number of nodes whose free devices are named without -o wide; the others are counted."""
_REASONS: Final = 4
_PICTURES_OF_NODES: Final = 4
"""Maximum number of different nodes that are drawn where nothing is placed."""
_CHOICES: Final = {
    "name": "node choice by name, not by score",
    "alternative": "node choice by alternative; the rest of the scores is not known",
}
_OPENING = re.compile(r'<svg [^>]*width="([0-9]+)" height="([0-9]+)"[^>]*>')
_MARGIN = 40
_HEADING = 160
"""Maximum number of characters above a picture."""


def show(given: ClusterInput, simulation: Simulation, output: str) -> None:
    """Print the simulation; for every format except text, what was not considered goes to standard error."""
    from dra_driver.cli.slices import print_object

    if output in ("text", "wide"):
        terminal.show("\n".join(text(given, simulation, wide=output == "wide")))
        return
    for line in given.manifests.not_considered:
        print(f"not considered: {line}", file=sys.stderr)
    for outcome in simulation.outcomes:
        if not outcome.claims and not outcome.placed:
            print(f"{title(outcome)}: not placed: {outcome.reason}", file=sys.stderr)
    if output == "svg":
        print(pictures(given, simulation), end="")
    else:
        print_object(document(simulation), output)


def document(simulation: Simulation) -> dict[str, Any]:
    """``claims``: one entry each, in the order in which they were tried.

    A claim shared by several pods appears where it was allocated, whatever the outcome for the other pods.
    """
    import msgspec

    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for outcome in simulation.outcomes:
        for claim in outcome.claims:
            meta, allocation = claim.metadata, claim.status.allocation
            before = rows.get((meta.namespace, meta.name))
            if before is not None and before["node"] is not None:
                continue
            rows[meta.namespace, meta.name] = {
                "namespace": meta.namespace,
                "name": meta.name,
                "node": outcome.node if allocation is not None else None,
                "allocation": msgspec.to_builtins(allocation) if allocation is not None else None,
                "nodeChoice": outcome.choice if allocation is not None else None,
                "reason": outcome.reason,
            }
    return {"claims": list(rows.values())}


def text(given: ClusterInput, simulation: Simulation, *, wide: bool = True) -> Iterator[str]:
    """The lines of the text output; without ``wide``, many pods of one controller and many nodes are summarized."""
    from dra_driver.simulator.preparation import NodeDrivers

    drivers = NodeDrivers(given.manifests)
    for outcomes in _together(simulation.outcomes, wide=wide):
        yield from _outcome(outcomes[0], drivers, simulation)
        if len(outcomes) > 1:
            yield from _summary(outcomes)
        yield ""
    if not any(outcome.placed for outcome in simulation.outcomes):
        yield from _why(given)
        yield from _unused(simulation, drivers)
    yield from _left(simulation, wide=wide)
    if given.manifests.not_considered:
        yield "not considered"
        yield from (f"  {line}" for line in given.manifests.not_considered)
    placed = sum(outcome.placed for outcome in simulation.outcomes)
    yield f"{placed} of {len(simulation.outcomes)} placed"
    if placed < len(simulation.outcomes):
        yield "what is in the way, and what would help: dra-driver explain, with the same arguments"


def _together(outcomes: Sequence[Outcome], *, wide: bool) -> Iterator[list[Outcome]]:
    """Each outcome by itself, but many pods of one controller together, in the place of the first of them."""
    by_controller: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.pod is not None and outcome.pod.controller:
            by_controller.setdefault(outcome.pod.controller, []).append(outcome)
    for outcome in outcomes:
        alike = by_controller.get(outcome.pod.controller, []) if outcome.pod is not None else []
        if wide or len(alike) <= _EACH:
            yield [outcome]
        elif outcome is alike[0]:
            yield alike


def _summary(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """What becomes of the pods of one controller: how many go to each node, and why the others go nowhere."""
    controller = outcomes[0].pod.controller if outcomes[0].pod is not None else ""
    placed = Counter(outcome.node for outcome in outcomes if outcome.node is not None)
    yield ""
    yield f"{controller}: {placed.total()} of {len(outcomes)} pods placed (-o wide shows each)"
    for node, count in list(placed.items())[:_SHOWN]:
        yield f"  node {node}: {count} pod{'s' if count > 1 else ''}"
    if len(placed) > _SHOWN:
        yield f"  and {len(placed) - _SHOWN} more nodes: {sum(list(placed.values())[_SHOWN:])} pods"
    reasons = Counter(outcome.reason for outcome in outcomes if not outcome.placed)
    for reason, count in reasons.most_common(_REASONS):
        yield f"  {count} not placed: {reason}"
    if len(reasons) > _REASONS:
        yield f"  and {len(reasons) - _REASONS} more reasons"


def _explained(given: ClusterInput) -> Explanation | None:
    """Of what was to be placed first, if it was not."""
    from dra_driver.simulator.explain import explanations

    first = next(explanations(given.manifests, given.kubernetes, server=given.server), None)
    return None if first is None or first.fits else first


def _why(given: ClusterInput) -> Iterator[str]:
    """Where nothing is placed: what keeps the first pod off each node, in the words of ``explain``."""
    from dra_driver.simulator.explain import obstacles

    first = _explained(given)
    groups = obstacles(first) if first is not None else []
    if first is None or not groups:
        return
    yield f"what is in the way of {first.subject}"
    for lines in groups[:_REASONS]:
        yield from (f"  {line}" for line in lines)
    if len(groups) > _REASONS:
        yield f"  and {len(groups) - _REASONS} more groups of nodes"
    yield ""


def _unused(simulation: Simulation, drivers: NodeDrivers) -> Iterator[str]:
    """Where nothing is placed: the nodes with what is in use already, drawn once for all that look alike."""
    from dra_driver.topology.drawing import text as draw

    nodes_of: dict[str, list[str]] = {}
    for node in simulation.nodes:
        hardware = drivers.hardware(node.name)
        if hardware.kind is not None:
            picture = draw(
                hardware.kind,
                hardware.marks(_in_use(simulation, node.name)),
                _sick(simulation, node.name, hardware.kind),
            )
            nodes_of.setdefault(picture, []).append(node.name)
    for picture, nodes in list(nodes_of.items())[:_PICTURES_OF_NODES]:
        yield f"node{'s' if len(nodes) > 1 else ''} {listed(nodes)}, on which nothing was placed"
        yield ""
        yield from picture.split("\n")
        yield ""
    if len(nodes_of) > _PICTURES_OF_NODES:
        yield f"nodes that look otherwise, not drawn: {sum(map(len, list(nodes_of.values())[_PICTURES_OF_NODES:]))}"
        yield ""


def _in_use(simulation: Simulation, node: str) -> list[str]:
    """The devices of this driver on a node that claims hold."""
    return [
        offer.device.name
        for view in simulation.nodes
        if view.name == node
        for pool in simulation.world.pools.pools(view)
        for offer in pool.offers
        if offer.driver == DRIVER_NAME and simulation.world.usage.exclusive(offer.id)
    ]


def title(outcome: Outcome) -> str:
    """The pod or claim that an outcome is about."""
    if outcome.pod is None:
        meta = outcome.claims[0].metadata
        return f"ResourceClaim {meta.namespace}/{meta.name}"
    by = f" ({outcome.pod.controller})" if outcome.pod.controller else ""
    return f"Pod {outcome.pod.namespace}/{outcome.pod.name}{by}"


def _outcome(outcome: Outcome, drivers: NodeDrivers, simulation: Simulation) -> Iterator[str]:
    if outcome.node is None:
        yield f"{title(outcome)}: not placed"
        yield f"  {outcome.reason}"
        return
    yield f"{title(outcome)}: node {outcome.node}"
    if outcome.choice in _CHOICES:
        yield f"  {_CHOICES[outcome.choice]}"
    for claim in outcome.claims:
        yield f"  claim {claim.metadata.name}"
        yield from _results(claim.status.allocation)
    prepared = drivers.prepare(outcome)
    yield from _picture(outcome, drivers, prepared, simulation)
    for item in prepared:
        yield from _containers(item)


def _results(allocation: Any) -> Iterator[str]:
    found: dict[tuple[str, str, str, bool], list[str]] = {}
    for result in allocation.devices.results if allocation is not None else ():
        key = (result.request, result.driver, result.pool, bool(result.admin_access))
        found.setdefault(key, []).append(result.device)
    for (request, driver, pool, admin), devices in found.items():
        access = ", admin access" if admin else ""
        yield f"    request {request}: {listed(devices)} (driver {driver}, pool {pool}{access})"


def _picture(outcome: Outcome, drivers: NodeDrivers, prepared: list[Prepared], simulation: Simulation) -> Iterator[str]:
    from dra_driver.simulator.preparation import devices
    from dra_driver.topology.drawing import text as draw

    hardware = drivers.hardware(outcome.node or "")
    marks = hardware.marks(devices(prepared))
    if hardware.kind is not None and marks.chips:
        yield ""
        yield from draw(hardware.kind, marks, _sick(simulation, outcome.node or "", hardware.kind)).split("\n")
        yield ""


def _containers(item: Prepared) -> Iterator[str]:
    if item.plan is None or item.document is None:
        yield f"  the node's driver would refuse claim {item.claim}: {item.problem}"
        return
    yield f"  in containers with claim {item.claim}"
    yield from (f"    {line}" for line in nodes(item.document))
    yield from (f"    {line}" for line in environment(item.document))
    yield "  CDI devices"
    for device in item.document["cdi"]["devices"]:
        yield f"    {item.document['cdi']['kind']}={device['name']}"
    yield from (f"  warning: {warning}" for warning in item.plan.warnings)


def nodes(document: Mapping[str, Any]) -> Iterator[str]:
    """The device nodes of a plan, each once, with the devices that it is there for."""
    from dra_driver.simulator.explain.findings import named

    rows: dict[tuple[str, str, str], list[str]] = {}
    for row in document["devices"]:
        whose = f", request {row['request']}" if row.get("environment") else ""
        rows.setdefault((row["containerPath"], row["hostPath"], whose), []).append(row["device"])
    for (path, host, whose), devices in rows.items():
        yield f"{path:<14} is {host} of the host ({named(devices)}{whose})"


def environment(document: Mapping[str, Any]) -> Iterator[str]:
    """The variables of a plan: those of all its containers, then those of the containers that use one request."""
    yield from (f"{name}={value}" for name, value in document["environment"].items())
    by_request: dict[str, dict[str, str]] = {}
    for row in document["devices"]:
        by_request.setdefault(row["request"], {}).update(row.get("environment", {}))
    for request, found in by_request.items():
        yield from (f"{name}={value} with request {request}" for name, value in found.items())


def _sick(simulation: Simulation, node: str, kind: InstanceType) -> Mapping[int, Sickness]:
    """The chips of a node that taints make known as not well, or as not to be used."""
    from dra_driver.simulator.taints import sick

    return sick(_devices(simulation, node), range(kind.devices or 0))


def _devices(simulation: Simulation, node: str) -> list[Device]:
    """The devices of this driver on a node, with their taints."""
    views = (view for view in simulation.nodes if view.name == node)
    return [
        offer.device
        for view in views
        for pool in simulation.world.pools.pools(view)
        for offer in pool.offers
        if offer.driver == DRIVER_NAME
    ]


def _left(simulation: Simulation, *, wide: bool) -> Iterator[str]:
    """The free devices of the nodes that were used, and how many are free on the others."""
    from dra_driver.simulator.explain.findings import named
    from dra_driver.simulator.placement import free_devices
    from dra_driver.simulator.taints import listed as taints

    used = dict.fromkeys(outcome.node for outcome in simulation.outcomes)
    if not wide:
        used = dict.fromkeys(list(used)[:_NODES])
    others, free_on_others, all_on_others = 0, 0, 0
    yield "left"
    for node in simulation.nodes:
        free = free_devices(simulation, node)
        pools = {pool.key: len(pool.offers) for pool in simulation.world.pools.pools(node)}
        if node.name not in used:
            others += 1
            free_on_others += sum(map(len, free.values()))
            all_on_others += sum(pools.values())
            continue
        for (driver, pool), names in free.items():
            if driver == DRIVER_NAME and (kinds := list(_by_kind(_devices(simulation, node.name), names))):
                counts = ", ".join(f"{len(free_ones)} of {total} {what}" for what, total, free_ones in kinds)
                yield f"  node {node.name}: {counts} of {driver}/{pool}"
                yield from (f"    {what}: {named(free_ones)}" for what, _, free_ones in kinds if free_ones)
                continue
            what = f": {listed(names)}" if names else ""
            yield f"  node {node.name}: {len(names)} of {pools[driver, pool]} devices of {driver}/{pool}{what}"
        tainted = list(taints(_devices(simulation, node.name)))
        yield from (f"    {line}" for line in tainted[:_SHOWN])
        if len(tainted) > _SHOWN:
            yield f"    and {len(tainted) - _SHOWN} more taints"
    if others:
        other = "other " if others < len(simulation.nodes) else ""
        what = f"{others} {other}node{'s' if others > 1 else ''}"
        yield f"  {what}: {free_on_others} of {all_on_others} device{'s' if all_on_others != 1 else ''}"


def _by_kind(devices: list[Device], free: list[str]) -> Iterator[tuple[str, int, list[str]]]:
    """Where a node offers several kinds of devices: what each is called, how many there are, and which are free."""
    from dra_driver.simulator.hardware import MEANINGS, number_of, resource_of

    names: dict[tuple[str, str], list[str]] = {}
    for device in devices:
        kind = resource_of(device)
        one, several = MEANINGS[kind] if kind is not None else ("other device", "other devices")
        of_size = f" of {number_of(device, 'size')}" if kind == "neuron_group" else ""
        names.setdefault((f"{one}{of_size}", f"{several}{of_size}"), []).append(device.name)
    available = set(free)
    for (one, several), found in names.items() if len(names) > 1 else ():
        yield one if len(found) == 1 else several, len(found), [name for name in found if name in available]


def listed(names: list[str]) -> str:
    """Names separated by commas; of many, only the first ones."""
    return first_of(names, _SHOWN)


def pictures(given: ClusterInput, simulation: Simulation) -> str:
    """One SVG document with the pictures of all placed pods, one below the other, with their chips marked."""
    from html import escape

    from dra_driver.simulator.preparation import NodeDrivers

    drivers = NodeDrivers(given.manifests)
    drawn = [(f"{title(outcome)}: node {outcome.node}", picture) for outcome, picture in _drawn(simulation, drivers)]
    if not drawn:
        drawn = list(_drawn_nodes(given, simulation, drivers))
    for heading, _ in drawn[MAX_PICTURES:]:
        print(f"not drawn: {heading}", file=sys.stderr)
    parts: list[str] = []
    width, height = 520, 0
    for place, (heading, picture) in enumerate(drawn[:MAX_PICTURES]):
        opening = _OPENING.search(picture)
        wide, high = (int(opening[1]), int(opening[2])) if opening else (0, 0)
        inner = picture.replace('"title"', f'"title{place}"').replace('"description"', f'"description{place}"')
        inner = inner.replace("title description", f"title{place} description{place}")
        caption = f'<text class="head" x="24" y="{height + 28}">{escape(heading)}</text>'
        parts += [caption, inner.replace("<svg ", f'<svg y="{height + _MARGIN}" ', 1).rstrip("\n")]
        width, height = max(width, wide, 48 + 8 * len(heading)), height + _MARGIN + high
    size = f'width="{width}" height="{max(height, _MARGIN)}"'
    opening_tag = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {max(height, _MARGIN)}" {size}>'
    return "\n".join([opening_tag, f'<rect fill="#fff" {size}/>', *parts, "</svg>"]) + "\n"


def _drawn_nodes(given: ClusterInput, simulation: Simulation, drivers: NodeDrivers) -> Iterator[tuple[str, str]]:
    """Headings and pictures of the nodes, where no pod is drawn; the heading says why."""
    from dra_driver.topology.drawing import svg
    from dra_driver.util.text import shorten

    first = None if any(outcome.placed for outcome in simulation.outcomes) else _explained(given)
    groups = first.nodes if first is not None else ()
    why = {name: f": {first.subject}: {group.diagnosis.sentence}" for group in groups for name in group.nodes if first}
    for node in simulation.nodes:
        hardware = drivers.hardware(node.name)
        if hardware.kind is not None:
            marks = hardware.marks(_in_use(simulation, node.name))
            sick = _sick(simulation, node.name, hardware.kind)
            yield (
                shorten(f"node {node.name}, nothing placed{why.get(node.name, '')}", _HEADING),
                svg(hardware.kind, marks, sick),
            )


def _drawn(simulation: Simulation, drivers: NodeDrivers) -> Iterator[tuple[Outcome, str]]:
    from dra_driver.simulator.preparation import devices
    from dra_driver.topology.drawing import svg

    for outcome in simulation.outcomes:
        hardware = drivers.hardware(outcome.node or "")
        marks = hardware.marks(devices(drivers.prepare(outcome)))
        if hardware.kind is None or not marks.chips:
            print(f"not drawn: {title(outcome)}{'' if outcome.placed else ', which is not placed'}", file=sys.stderr)
        else:
            yield outcome, svg(hardware.kind, marks, _sick(simulation, outcome.node or "", hardware.kind))
