"""What must hold on a simulated node, by what is true of host, API server and containers: not by the driver's word."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from dra_driver.driver.settings import PARTITIONS_LABEL
from dra_driver.neuron.health import condition
from dra_driver.neuron.names import DRIVER_NAME, RETIRED
from dra_driver.neuron.topology.partitions import NODE_DEVICE
from dra_driver.util.files import UUID_LENGTH
from tests.doubles.apiserver.store import Object
from tests.simulation.node import NAME, Node
from tests.simulation.workloads import TAINT as WORKLOAD_TAINT

PRESENT: Final = "neuron.amazonaws.com/present"
LAYER_LABEL: Final = "topology.k8s.aws/network-node-layer-1"
LAYER: Final = "networkNodeLayer1"
LATELY_SECONDS: Final = 15.0
"""The host is read every ten seconds."""
REPAIR_SECONDS: Final = 65.0
"""Repair makes a pass each minute."""
_KINDS: Final = {"device": "chip", "core": "core", "node": "node"}
"""Words of the label, by the names of devices; all others are groups."""


def watch_over(node: Node) -> None:
    """Look at what passes, too, from now on; what is wrong with it is in ``Node.wrong``."""

    def look_at_slice(item: Object) -> None:
        node.wrong += _wrong_labels(node, item)
        node.wrong += node.workloads.look_at_slice(item) if node.has_workloads else ()

    def look_at_health(before: dict[str, str], now: dict[str, str]) -> None:
        node.wrong += _taken_back(node, before, now)

    def look_at_start(pod: str, names: Sequence[str], numbers: frozenset[tuple[int, int]] | None) -> None:
        node.wrong += _wrong_start(node, pod, names, numbers)

    node.server.on_slice = look_at_slice
    node.kubelet.on_health = look_at_health
    node.kubelet.on_start = look_at_start
    if node.has_workloads:
        node.kubelet.on_prepare = node.workloads.watch_call


def violations(node: Node) -> list[str]:
    """What must never be, at no moment."""
    return [*node.wrong, *_shared_chips(node), *_foreign_chips(node), *_unreadable_files(node)]


def _wrong_labels(node: Node, item: Object) -> Iterator[str]:
    """Nothing is published by labels that the Node never had."""
    texts = node.labelled[PARTITIONS_LABEL]
    kinds = {kind for text in texts for kind in (text or "").split(".")}
    for device in item["spec"].get("devices") or ():
        kind = _KINDS.get(device["name"].split("-")[1], "group")
        layer = device["attributes"].get(LAYER, {}).get("string")
        if kind == "chip" and layer not in node.labelled[LAYER_LABEL]:
            yield f"{device['name']} is published with the layer {layer!r}, which the Node never had"
        # Without the label, it is the instance type that decides.
        if None not in texts and kind not in kinds and not _repels(device):
            yield f"{device['name']} is published, and the Node's label never said so"


def _taken_back(node: Node, before: dict[str, str], now: dict[str, str]) -> Iterator[str]:
    """A chip of which kubelet was told that it is ill, and that stays so, is not called well."""
    for name, health in now.items():
        chips = _chips(node, [name])
        ill = any(node.ails(chip) for chip in chips)
        lately = any(node.scheduler.clock - node.changed.get(chip, -math.inf) < LATELY_SECONDS for chip in chips)
        if before.get(name) == "UNHEALTHY" and health == "HEALTHY" and ill and not lately:
            yield f"{name} is ill, and kubelet was told so, and then that it is well"


def _wrong_start(
    node: Node, pod: str, names: Sequence[str], numbers: frozenset[tuple[int, int]] | None
) -> Iterator[str]:
    """What was prepared is there, and of the present kernel module."""
    chips = _chips(node, names)
    now = node.scheduler.clock
    lately = any(now - node.changed.get(chip, -math.inf) < REPAIR_SECONDS for chip in chips)
    lately = lately or now - node.spec_removed < REPAIR_SECONDS
    if numbers is None and not lately and chips <= node.present:
        yield f"{pod} starts, and no spec has its devices {', '.join(names)}"
    if now - node.renumbered > REPAIR_SECONDS and any(major != node.major for major, _ in numbers or ()):
        yield f"{pod} starts with {sorted(numbers or ())}, numbers of a kernel module that is gone"


def _shared_chips(node: Node) -> Iterator[str]:
    """Containers of two claims have one core."""
    users: dict[tuple[int, int | None], tuple[str, str]] = {}
    for pod in node.kubelet.pods.values():
        for uid, names in pod.names.items():
            if uid in node.watching:
                continue
            for part in {part for name in names for part in node.parts(name)}:
                other = users.setdefault(part, (uid, pod.name))
                if other[0] != uid:
                    yield f"core {part} is in containers of {pod.name} and {other[1]}, which have different claims"


def _unreadable_files(node: Node) -> Iterator[str]:
    """A checkpoint file cannot be read that nobody but the driver has written."""
    uids = {path.stem for path in (node.state / "quarantine").glob("*.json")} - node.damaged
    if uids:
        yield f"checkpoint files of {sorted(uids)} cannot be read"


def _foreign_chips(node: Node) -> Iterator[str]:
    """A container has the device node of a chip that is no part of its claim."""
    for pod in node.kubelet.pods.values():
        for uid, names in pod.names.items():
            chips = _chips(node, names)
            if chips != {minor for _, minor in pod.numbers[uid]}:
                yield f"{pod.name} has the nodes {sorted(pod.numbers[uid])}, and its devices are {', '.join(names)}"


def unrest(node: Node) -> list[str]:
    """What is said of claims and chips, and not as it should be, when nothing has happened for a while.

    All that the driver needs is there, and one instance of it.
    """
    return [*_claims(node), *_words(node), *(node.workloads.unrest() if node.has_workloads else ())]


def remains(node: Node, *, plugin: bool) -> Iterator[str]:
    """What is not as it should be after longer: of health, few changes a minute are published; a pass takes a minute.

    ``plugin``: whether a device plugin offers the chips.
    """
    yield from _offer(node, plugin=plugin)
    yield from _layers(node)
    yield from _retired(node)
    devices = {uid: names for pod in node.kubelet.pods.values() for uid, names in pod.names.items()}
    whole = {uid for uid, names in devices.items() if _chips(node, names) <= node.present}
    in_use = _in_use(node)
    for claim in node.claims():
        uid, entries = claim["metadata"]["uid"], claim["status"].get("devices")
        # The entries stay for five minutes, and with them goes what the instance knows of a claim that it unprepared.
        forgotten = node.instance_ended > node.kubelet.unprepared.get(uid, -math.inf)
        # Nobody tells the driver which claims are used on other nodes alone.
        elsewhere = uid in node.kubelet.left and claim["status"].get("reservedFor")
        if entries and uid not in in_use and not forgotten and not elsewhere:
            yield f"claim {claim['metadata']['name']} is used by nobody here, and has the entries {entries}"
        for item in entries or () if uid in devices and uid not in node.reused | node.damaged else ():
            healthy = {of["type"]: of["status"] for of in item["conditions"]}.get("Healthy")
            ill = any(node.ails(chip) or chip not in node.present for chip, _ in node.parts(item["device"]))
            if not ill and healthy != "True":
                yield f"device {item['device']} of claim {claim['metadata']['name']} is well, and it says: {healthy}"
    if left := _prepared(node) - in_use - node.kubelet.left:
        yield f"claims of no pod are prepared: {sorted(left)}"
    if hidden := whole - _claims_with_specs(node) - node.damaged:
        yield f"no spec shows the devices of {sorted(hidden)}"
    for name, numbers in node.kubelet.specs().items():
        damaged = name.rpartition("=")[2][:UUID_LENGTH] in node.damaged
        if not damaged and any(major != node.major for major, _ in numbers):
            yield f"{name} has the numbers of a kernel module that is gone: {sorted(numbers)}, now {node.major}"


def _claims(node: Node) -> Iterator[str]:
    """Claims of pods of the node are prepared, and no others; and their objects say so."""
    pods = node.kubelet.pods.values()
    in_use, prepared = _in_use(node), _prepared(node)
    running = {uid for pod in pods if pod.running for uid in pod.names}
    if lost := running - prepared - node.damaged:
        yield f"containers run with claims that the driver does not know: {sorted(lost)}"
    # What a call of a kubelet that has ended prepared after its successor's calls, a pass of repair unprepares.
    if left := prepared - in_use - node.kubelet.left:
        yield f"claims of no pod are prepared: {sorted(left)}"
    if strange := _claims_with_specs(node) - prepared - (node.damaged & in_use):
        yield f"specs are there for claims that are not prepared: {sorted(strange)}"
    for claim in node.claims():
        meta, status = claim["metadata"], claim["status"]
        entries = {item["device"]: item for item in status.get("devices") or ()}
        if meta["uid"] in running:
            if meta["uid"] in node.reused or meta["uid"] in node.damaged:
                continue
            yield from _entries(node, meta["name"], status, entries)
        elif meta["uid"] not in in_use and entries and not status.get("reservedFor"):
            yield f"claim {meta['name']} is used by nobody, and has the entries {entries}"


def _in_use(node: Node) -> set[str]:
    """UIDs of the claims of its pods."""
    return {claim.uid for pod in node.kubelet.pods.values() for claim in pod.claims}


def _prepared(node: Node) -> set[str]:
    """UIDs of claims."""
    return {path.stem for path in (node.root / f"kubelet/plugins/{DRIVER_NAME}/claims").glob("*.json")}


def _claims_with_specs(node: Node) -> set[str]:
    """By the names of CDI devices, which begin with the UID."""
    return {name.rpartition("=")[2][:UUID_LENGTH] for name in node.kubelet.specs()}


def _chips(node: Node, devices: Iterable[str]) -> set[int]:
    return {chip for name in devices for chip, _ in node.parts(name)}


def _entries(node: Node, claim: str, status: Object, entries: dict[str, Any]) -> Iterator[str]:
    names = [result["device"] for result in status["allocation"]["devices"]["results"]]
    # With one chip missing, the claim is refused as a whole when it is to be prepared again.
    is_whole = _chips(node, names) <= node.present
    for name in names:
        statuses = {item["type"]: item["status"] for item in entries.get(name, {}).get("conditions") or ()}
        if statuses.get("Ready") != "True" and is_whole:
            yield f"claim {claim} is prepared, and says of {name}: {statuses}"
        ill = any(node.ails(chip) or chip not in node.present for chip, _ in node.parts(name))
        if ill and statuses.get("Healthy") == "True":
            yield f"device {name} of claim {claim} is ill, and the claim says: {statuses}"


def _offer(node: Node, *, plugin: bool) -> Iterator[str]:
    offered = node.offered()
    open_to_all = {name for name, device in offered.items() if not _repels(device)}
    allocations = node.allocations()
    held = {device for devices in allocations.values() for device in devices}
    # A pod of another node that has a claim of this one never starts. If nobody else has it, its device may go with the
    # slices, where these are deleted and the label changes before the driver is back.
    here = _prepared(node) | {uid for pod in node.kubelet.pods.values() for uid in pod.names}
    needed = {
        device for uid, devices in allocations.items() if uid in here or uid not in node.elsewhere for device in devices
    }
    if lost := {name for name in needed if _chips(node, [name]) <= node.present} - offered.keys():
        yield f"claims hold {sorted(lost)}, which is not on offer"
    for name in open_to_all:
        for chip in _chips(node, [name]):
            if node.ails(chip) or chip not in node.present:
                yield f"{name} is on offer to everybody, and chip {chip} is ill or gone"
    on_offer = {part for name in open_to_all for part in node.parts(name)}
    if plugin:
        if free := open_to_all - held:
            yield f"a device plugin offers the chips, and so is {sorted(free)}"
        return
    wanted = {
        name for name, device in offered.items() if all(taint["key"] != RETIRED for taint in device.get("taints") or ())
    }
    if wanted <= {NODE_DEVICE} and not open_to_all and (offered or node.kind.ultraserver):
        return  # UltraServers offer nothing smaller, unless it is set, and one of the chips is ill or gone
    for chip in node.present:
        if not node.ails(chip) and not any(part[0] == chip for part in on_offer):
            yield f"chip {chip} is well, and no device of it is on offer: {sorted(offered)}"


def _retired(node: Node) -> Iterator[str]:
    """What is no longer wanted is on offer only as long as claims hold it; they are asked for every ten minutes."""
    if _prepared(node) & node.kubelet.left:
        return  # nobody unprepares them, and which devices they have only the driver knows
    held = {device for devices in node.allocations().values() for device in devices}
    held |= {name for pod in node.kubelet.pods.values() for names in pod.names.values() for name in names}
    # Where only their chips are known of claims, each device of these may be theirs.
    unknown = {
        chip
        for pod in node.kubelet.pods.values()
        for uid, names in pod.names.items()
        if uid in node.damaged
        for chip in _chips(node, names)
    }
    for name, device in node.offered().items():
        if name in held or unknown & _chips(node, [name]):
            continue
        if any(taint["key"] == RETIRED for taint in device.get("taints") or ()):
            yield f"{name} is on offer as long as a claim holds it, and none does"


def _layers(node: Node) -> Iterator[str]:
    """What is published is what the Node's labels say now."""
    layer = node.server.store.get("nodes", NAME)["metadata"]["labels"].get(LAYER_LABEL)
    for name, device in node.offered().items():
        published = device["attributes"].get(LAYER, {}).get("string")
        if name.startswith("neuron-device-") and published != layer:
            yield f"{name} is on offer with the layer {published!r}, and the Node's label is {layer!r}"


def _repels(device: Object) -> bool:
    """Whether it is to be given to nobody, whosever node it is of."""
    taints = [taint for taint in device.get("taints") or () if taint["key"] != WORKLOAD_TAINT]
    return any(taint["effect"] in ("NoSchedule", "NoExecute") for taint in taints)


def _words(node: Node) -> Iterator[str]:
    """Label and condition of the Node, and what kubelet was told of the devices."""
    stored = node.server.store.get("nodes", NAME)
    if (label := stored["metadata"]["labels"].get(PRESENT)) != ("true" if node.chips else None):
        yield f"the label is {label!r}"
    ill = {chip for chip in node.chips if node.ails(chip) or chip not in node.present}
    conditions = {item["type"]: item for item in stored["status"].get("conditions") or ()}
    health_condition = conditions.get(condition.TYPE, {})
    named = {chip for chip in node.chips if f"neuron{chip}:" in health_condition.get("message", "")}
    if health_condition.get("status") != ("True" if ill else "False") or named != ill:
        yield f"ill are {sorted(ill)}, and the condition says {health_condition}"
    for name, health in node.kubelet.health.items():
        sick = bool(_chips(node, [name]) & ill)
        if (health == "UNHEALTHY") != sick:
            yield f"device {name} is {'ill' if sick else 'well'}, and kubelet was told {health}"
