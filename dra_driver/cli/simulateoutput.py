"""Output of a simulation: as text, as JSON, as Kubernetes objects, or as pictures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from dra_driver.cli import terminal, vocabulary
from dra_driver.neuron.names import DRIVER_NAME, ULTRASERVER_MODE, ULTRASERVER_NODE_ID, ULTRASERVER_SERVER_ID
from dra_driver.neuron.topology.partitions import NODE_DEVICE
from dra_driver.util.envelope import object_list, plain
from dra_driver.util.text import first_of, shorten

if TYPE_CHECKING:
    from dra_driver.cli.clusterinput import ClusterInput
    from dra_driver.simulator.explain import Explanation
    from dra_driver.simulator.placement import Simulation
    from dra_driver.simulator.preparation import Container, DeviceNode, NodeDrivers, PlanDocument
    from dra_driver.simulator.report import Claim, Item, Report

Rows = Mapping[tuple[str, str], "Claim"]
"""Claims by namespace and name."""
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
    "name": "node chosen by name, not by score",
    "alternative": "node chosen by alternative; the other scores are not known",
}
_OPENING = re.compile(r'<svg [^>]*width="([0-9]+)" height="([0-9]+)"[^>]*>')
_MARGIN = 40
_HEADING = 160
"""Maximum number of characters above a picture."""


def show(given: ClusterInput, simulation: Simulation, output: str) -> Report:
    """Print the simulation, and return what is said of it.

    For every format except text, what was not considered, what is not placed and what drivers would refuse goes to
    standard error.
    """
    from dra_driver.simulator.objects import objects
    from dra_driver.simulator.preparation import NodeDrivers
    from dra_driver.simulator.report import report

    drivers = NodeDrivers(given.manifests)
    explained = None if any(outcome.placed for outcome in simulation.outcomes) else _explained(given)
    found = report(simulation, given.manifests, drivers, explained)
    if output in ("text", "wide"):

        def draw(node: str, names: Sequence[str]) -> str:
            return _drawing(simulation, drivers, node, names, svg=False)

        terminal.show("\n".join(text(found, draw, explained, wide=output == "wide")))
        return found
    _tell(found)
    if output == "svg":
        terminal.say(pictures(found, simulation, drivers, explained).removesuffix("\n"))
    elif output == "yaml":
        terminal.print_object(object_list(objects(simulation.outcomes)), output)
    else:
        terminal.print_object(plain(found), output)
    return found


def _tell(found: Report) -> None:
    """What a format for programs leaves out, on standard error."""
    for line in found.not_considered:
        vocabulary.tell(f"not considered: {line}")
    for item in found.items:
        if not item.claims and item.node is None:
            vocabulary.tell(f"{item.title}: not placed: {item.reason}")
        for warning in item.warnings:
            vocabulary.tell(f"{item.title}: warning: {warning}")
    for row in found.claims:
        if row.refusal:
            vocabulary.tell(f"ResourceClaim {row.namespace}/{row.name}: {row.refused}")


def text(
    found: Report,
    draw: Callable[[str, Sequence[str]], str],
    explained: Explanation | None = None,
    *,
    wide: bool = True,
) -> Iterator[str]:
    """The lines of the text output; without ``wide``, many pods of one controller and many nodes are summarized.

    Args:
        found: what is said.
        draw: the picture of a node on which these devices are marked; "" of one whose hardware is not known.
        explained: of what was to be placed first, if nothing was.
        wide: whether all is shown.
    """
    rows = found.rows
    outcomes = found.items
    tables = [] if wide else _whole_nodes(outcomes, rows)
    for table in tables:
        yield from _table(table, rows)
        yield ""
    told = {id(outcome) for table in tables for outcome in table}
    for together in _together([outcome for outcome in outcomes if id(outcome) not in told], wide=wide):
        yield from _outcome(together[0], rows, draw, wide=wide)
        if len(together) > 1:
            yield from _summary(together)
        yield ""
    summary = found.summary
    if explained is not None:
        yield from _why(explained)
        yield from _unused(found, draw)
    yield from _left(found, wide=wide)
    if found.not_considered:
        yield "not considered"
        yield from (f"  {line}" for line in found.not_considered)
    yield f"{summary.placed} of {summary.total} placed" + _but_refused(summary.refused_claims)
    if summary.placed < summary.total:
        yield "to see what blocks them and what would help, run dra-driver explain with the same arguments"


def _but_refused(claims: int) -> str:
    if not claims:
        return ""
    return f", but the nodes' drivers would refuse {claims} claim{'s' if claims > 1 else ''}"


def _together(outcomes: Sequence[Item], *, wide: bool) -> Iterator[list[Item]]:
    """Each outcome by itself, but many pods of one controller together, in the place of the first of them."""
    by_controller: dict[str | None, list[Item]] = {}
    for outcome in outcomes:
        by_controller.setdefault(outcome.controller, []).append(outcome)
    for outcome in outcomes:
        controller = outcome.controller
        alike = by_controller[controller] if controller else [outcome]
        if wide or len(alike) <= _EACH:
            yield [outcome]
        elif outcome is alike[0]:
            yield alike


def _summary(outcomes: Sequence[Item]) -> Iterator[str]:
    """What becomes of the pods of one controller: how many go to each node, and why the others go nowhere."""
    placed = Counter(outcome.node for outcome in outcomes if outcome.node is not None)
    yield ""
    yield f"{outcomes[0].controller}: {placed.total()} of {len(outcomes)} pods placed (-o wide shows each)"
    for node, count in list(placed.items())[:_SHOWN]:
        yield f"  node {node}: {count} pod{'s' if count > 1 else ''}"
    if len(placed) > _SHOWN:
        yield f"  and {len(placed) - _SHOWN} more nodes: {sum(list(placed.values())[_SHOWN:])} pods"
    reasons = Counter(outcome.reason for outcome in outcomes if outcome.node is None)
    for reason, count in reasons.most_common(_REASONS):
        yield f"  {count} not placed: {reason}"
    if len(reasons) > _REASONS:
        yield f"  and {len(reasons) - _REASONS} more reasons"


def _explained(given: ClusterInput) -> Explanation | None:
    """Of what was to be placed first, if it was not."""
    from dra_driver.cli.searchtime import SearchTime
    from dra_driver.simulator.explain import explanations

    deadline = SearchTime().begin
    first = next(explanations(given.manifests, given.kubernetes, server=given.server, deadline=deadline), None)
    return None if first is None or first.node is not None else first


def _why(explained: Explanation) -> Iterator[str]:
    """Where nothing is placed: what keeps the first pod off each node, in the words of ``explain``."""
    from dra_driver.simulator.explain import obstacles

    groups = obstacles(explained)
    if not groups:
        return
    yield f"what blocks {explained.subject}"
    for lines in groups[:_REASONS]:
        yield from (f"  {line}" for line in lines)
    if len(groups) > _REASONS:
        yield f"  and {len(groups) - _REASONS} more groups of nodes"
    yield ""


def _unused(found: Report, draw: Callable[[str, Sequence[str]], str]) -> Iterator[str]:
    """Where nothing is placed: the nodes with what is in use already, drawn once for all that look alike."""
    nodes_of: dict[str, list[str]] = {}
    for node in found.nodes:
        if picture := draw(node.node, node.allocated_devices):
            nodes_of.setdefault(picture, []).append(node.node)
    for picture, nodes in list(nodes_of.items())[:_PICTURES_OF_NODES]:
        yield f"node{'s' if len(nodes) > 1 else ''} {_listed(nodes)}, on which nothing was placed"
        yield from ("", *picture.split("\n"), "")
    if len(nodes_of) > _PICTURES_OF_NODES:
        yield f"nodes that look different, not drawn: {sum(map(len, list(nodes_of.values())[_PICTURES_OF_NODES:]))}"
        yield ""


def _claims_of(outcome: Item, rows: Rows) -> list[Claim]:
    return [rows[claim.namespace, claim.name] for claim in outcome.claims]


def _whole_nodes(outcomes: Sequence[Item], rows: Rows) -> list[list[Item]]:
    """The pods that get a whole node and nothing else, those together whose containers get the same elsewhere."""
    alike: dict[tuple[str, ...], list[Item]] = {}
    for outcome in outcomes:
        if outcome.pod is None or outcome.node is None or outcome.warnings or len(outcome.claims) != 1:
            continue
        (row,) = _claims_of(outcome, rows)
        devices = [item.device for item in row.results]
        if devices == [NODE_DEVICE] and row.plan is not None and not row.plan.warnings:
            alike.setdefault(_beside_place(row.plan), []).append(outcome)
    return [pods for pods in alike.values() if len(pods) > 1]


def _beside_place(plan: PlanDocument) -> tuple[str, ...]:
    """The variables of a claim's containers but for those of its place on an UltraServer."""
    found = plan.environment.items()
    of_server = (ULTRASERVER_MODE, ULTRASERVER_NODE_ID, ULTRASERVER_SERVER_ID)
    return tuple(sorted(f"{name}={value}" for name, value in found if name not in of_server))


def _table(outcomes: Sequence[Item], rows: Rows) -> Iterator[str]:
    """A row for each of these pods with whole nodes, and what all their containers get."""
    from dra_driver.neuron.topology.ultraserver import Mode

    plans = [row.plan for outcome in outcomes for row in _claims_of(outcome, rows) if row.plan is not None]
    lines = [("POD", "NODE", "SERVER", "NODE ID", "MODE")]
    for outcome, plan in list(zip(outcomes, plans, strict=True))[:_SHOWN]:
        found = plan.environment
        server, node_id = (found.get(name, "-") for name in (ULTRASERVER_SERVER_ID, ULTRASERVER_NODE_ID))
        place = (server, node_id, Mode.named(found.get(ULTRASERVER_MODE, "-")))
        lines.append((outcome.pod.full_name if outcome.pod is not None else "-", outcome.node or "-", *place))
    yield "whole nodes (-o wide shows each)"
    yield from (f"  {line}" for line in terminal.columns(lines).splitlines())
    if len(outcomes) > _SHOWN:
        yield f"  and {len(outcomes) - _SHOWN} more pods"
    yield from dict.fromkeys(f"  {_CHOICES[item.node_choice]}" for item in outcomes if item.node_choice in _CHOICES)
    if others := _beside_place(plans[0]):
        yield f"  in each container: {' '.join(others)}"


def _outcome(outcome: Item, rows: Rows, draw: Callable[[str, Sequence[str]], str], *, wide: bool) -> Iterator[str]:
    if outcome.node is None:
        yield f"{outcome.title}: not placed"
        yield f"  {outcome.reason}"
        return
    yield f"{outcome.title}: node {outcome.node}"
    if outcome.node_choice in _CHOICES:
        yield f"  {_CHOICES[outcome.node_choice]}"
    claims = _claims_of(outcome, rows)
    for row in claims:
        yield f"  claim {row.name}"
        yield from _results(row, wide=wide)
    devices = _devices(claims)
    if devices and (picture := draw(outcome.node, devices)):
        yield from ("", *picture.split("\n"), "")
    for row in claims:
        yield from _containers(row, wide=wide)
    found = outcome.containers
    if any(_gets(item) != _gets(found[0]) for item in found):
        yield from (f"  {line}" for item in found for line in container_lines(item))
    yield from (f"  warning: {warning}" for warning in outcome.warnings)


def _gets(container: Container) -> tuple[Sequence[DeviceNode], Mapping[str, str]]:
    return container.device_nodes, container.environment


def _devices(claims: Sequence[Claim]) -> list[str]:
    """The devices of this driver that the containers with these claims get."""
    return list(dict.fromkeys(item.device for row in claims if row.plan for item in row.plan.device_nodes))


def _results(row: Claim, *, wide: bool) -> Iterator[str]:
    from dra_driver.util.wording import named

    found: dict[tuple[str, str, str, bool], list[str]] = {}
    for result in row.results:
        key = (result.request, result.driver, result.pool, result.admin_access is True)
        found.setdefault(key, []).append(result.device)
    if not found:
        yield "    no devices: it asks for none"
    for (request, driver, pool, admin), devices in found.items():
        access = ", admin access" if admin else ""
        names = _listed(devices) if wide else named(devices)
        yield f"    request {request}: {names} (driver {driver}, pool {pool}{access})"


def _containers(row: Claim, *, wide: bool) -> Iterator[str]:
    plan = row.plan
    if row.refusal:
        yield f"  {row.refused}"
    if plan is None:
        return
    yield f"  in containers with claim {row.name}"
    yield from (f"    {line}" for line in (_nodes(plan) if wide else _runs(plan)))
    yield from (f"    {line}" for line in _environment(plan))
    if wide:
        yield "  CDI devices"
        yield from (f"    {plan.cdi.kind}={device.name}" for device in plan.cdi.devices)
    yield from (f"  warning: {warning}" for warning in plan.warnings)


def _runs(plan: PlanDocument) -> Iterator[str]:
    """The device nodes of a plan; those that follow one another, here and on the host, on one line."""
    from dra_driver.util.wording import named

    rows = plan.device_nodes
    several = len({row.request for row in rows}) > 1
    runs: list[list[tuple[str, str, str]]] = []
    for path, host, request in dict.fromkeys((row.container_path, row.host_path, row.request) for row in rows):
        if not runs or runs[-1][-1][2] != request or tuple(map(_next, runs[-1][-1][:2])) != (path, host):
            runs.append([])
        runs[-1].append((path, host, request))
    for run in runs:
        here, there, requests = zip(*run, strict=True)
        whose = f" (request {requests[0]})" if several else ""
        yield f"{named(here)} {'is' if len(run) == 1 else 'are'} {named(there)} of the host{whose}"


def _next(path: str) -> str:
    """``/dev/neuron4`` after ``/dev/neuron3``."""
    stem = path.rstrip("0123456789")
    return f"{stem}{int(path.removeprefix(stem) or -1) + 1}"


def _nodes(plan: PlanDocument) -> Iterator[str]:
    """The device nodes of a plan, each once, with the devices that it is there for."""
    from dra_driver.util.wording import named

    rows: dict[tuple[str, str, str], list[str]] = {}
    for row in plan.device_nodes:
        whose = f", request {row.request}" if row.environment else ""
        rows.setdefault((row.container_path, row.host_path, whose), []).append(row.device)
    for (path, host, whose), devices in rows.items():
        yield f"{path:<14} is {host} of the host ({named(devices)}{whose})"


def _environment(plan: PlanDocument) -> Iterator[str]:
    """The variables of a plan: those of all its containers, then those of the containers that use one request."""
    yield from (f"{name}={value}" for name, value in plan.environment.items())
    by_request: dict[str, dict[str, str]] = {}
    for row in plan.device_nodes:
        by_request.setdefault(row.request, {}).update(row.environment)
    for request, found in by_request.items():
        yield from (f"{name}={value} with request {request}" for name, value in found.items())


def _drawing(simulation: Simulation, drivers: NodeDrivers, node: str, names: Sequence[str], *, svg: bool) -> str:
    """A node with these devices marked; "" if its hardware is not known, or is not what they are made of."""
    from dra_driver.neuron.health.taints import sick
    from dra_driver.neuron.topology import drawing

    hardware = drivers.hardware(node)
    marks = hardware.marks(names)
    if hardware.kind is None or (names and not marks.chips):
        return ""
    offered = (
        offer.device
        for view in simulation.nodes
        if view.name == node
        for pool in simulation.world.pools.pools(view)
        for offer in pool.offers
        if offer.driver == DRIVER_NAME
    )
    ill = sick(offered, range(hardware.kind.devices or 0))
    return drawing.svg(hardware.kind, marks, ill) if svg else drawing.text(hardware.kind, marks, ill)


def _left(found: Report, *, wide: bool) -> Iterator[str]:
    """The free devices of the nodes that were used, and how many are free on the others."""
    from dra_driver.util.wording import named

    used = list(dict.fromkeys(item.node for item in found.items))[: None if wide else _NODES]
    others, free_on_others, all_on_others = 0, 0, 0
    yield "left"
    for node in found.nodes:
        if node.node not in used:
            others += 1
            free_on_others += sum(len(pool.free_devices) for pool in node.pools)
            all_on_others += sum(pool.total for pool in node.pools)
            continue
        for pool in node.pools:
            name, free = f"{pool.driver}/{pool.pool}", pool.free_devices
            if pool.offers:
                what = ", ".join(f"{len(kind.free_devices)} of {kind.total} {kind.description}" for kind in pool.offers)
                yield f"  node {node.node}: {what} of {name}"
                for kind in pool.offers:
                    if kind.free_devices:
                        yield f"    {kind.description}: {named(kind.free_devices)}"
                continue
            what = f": {_listed(free) if wide else named(free)}" if free else ""
            yield f"  node {node.node}: {len(free)} of {pool.total} devices of {name}{what}"
            for shared in pool.shared[:_SHOWN]:
                yield f"    left of {shared.device}: {first_of([f'{key} {it}' for key, it in shared.left.items()], 4)}"
        yield from (f"    {line}" for line in node.taints[:_SHOWN])
        if len(node.taints) > _SHOWN:
            yield f"    and {len(node.taints) - _SHOWN} more taints"
    if others:
        other = "other " if others < len(found.nodes) else ""
        what = f"{others} {other}node{'s' if others > 1 else ''}"
        yield f"  {what}: {free_on_others} of {all_on_others} device{'s' if all_on_others != 1 else ''}"


def _listed(names: Sequence[str]) -> str:
    """Names separated by commas; of many, only the first ones."""
    return first_of(names, _SHOWN)


def pictures(found: Report, simulation: Simulation, drivers: NodeDrivers, explained: Explanation | None) -> str:
    """One SVG document with the pictures of all placed pods, one below the other, with their chips marked."""
    from html import escape

    def draw(node: str, names: Sequence[str]) -> str:
        return _drawing(simulation, drivers, node, names, svg=True)

    drawn: list[tuple[str, str]] = []
    rows = found.rows
    for outcome in found.items:
        devices = _devices(_claims_of(outcome, rows)) if outcome.node is not None else []
        if outcome.node is not None and devices and (picture := draw(outcome.node, devices)):
            drawn.append((f"{outcome.title}: node {outcome.node}", picture))
        else:
            waits = "" if outcome.node is not None else ", which is not placed"
            vocabulary.tell(f"not drawn: {outcome.title}{waits}")
    if not drawn:
        groups = explained.nodes if explained is not None else ()
        subject = f": {explained.subject}: " if explained is not None else ""
        why = {name: f"{subject}{group.diagnosis.sentence}" for group in groups for name in group.nodes}
        for node in found.nodes:
            name = node.node
            if picture := draw(name, node.allocated_devices):
                drawn.append((shorten(f"node {name}, nothing placed{why.get(name, '')}", _HEADING), picture))
    for heading, _ in drawn[MAX_PICTURES:]:
        vocabulary.tell(f"not drawn: {heading}")
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


def container_lines(container: Container) -> Iterator[str]:
    """What a container gets."""
    yield f"container {container.name}"
    for node in container.device_nodes:
        yield f"  {node.container_path:<14} is {node.host_path} of the host"
    yield from (f"  {name}={value}" for name, value in container.environment.items())
