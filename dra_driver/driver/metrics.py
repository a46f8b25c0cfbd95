"""The driver's metrics that are read from its state when Prometheus scrapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from dra_driver.driver.node.decide import PARTS, Wanted
from dra_driver.driver.resourceslices.controller import SliceStatus
from dra_driver.kube.kubelet.registration import Registration
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.util.metrics import Sample
from dra_driver.version import VERSION


def samples(inventory: NodeInventory, status: SliceStatus, registration: Registration) -> Iterator[Sample]:
    """What the host has, what is published, and how registration stands."""
    version = (("version", VERSION), ("instance_type", inventory.instance_type or ""))
    yield Sample("info", "Version and instance type; always 1.", 1, version)
    yield Sample("registered", "1 while registered with kubelet.", float(registration.problem() is None))
    yield Sample("registrations", "Registrations by kubelet.", registration.registrations, kind="counter")
    yield Sample("devices", "Neuron devices that the host has.", len(inventory.devices))
    for finding in inventory.findings:
        labels = (("code", finding.code), ("subject", finding.subject), ("severity", finding.severity))
        yield Sample("host_finding", "Findings about the host; see the log for the text.", 1, labels)
    yield Sample("slices_published", "1 while the API server has what is offered.", float(status.published))
    yield Sample(
        "slices_fallback",
        "1 while fewer devices are published than set, because the API server cannot be trusted with shared counters.",
        float(status.fallback != ""),
    )
    yield Sample(
        "slices_taints_dropped",
        "1 while unhealthy devices are withdrawn, because the API server does not keep taints.",
        float(status.taints_problem != ""),
    )
    yield Sample("slices_withdrawn_devices", "Unhealthy devices withdrawn for that reason.", len(status.withdrawn))
    yield Sample(
        "slices_taints_postponed", "1 while a change of taints waits, after many lately.", float(status.postponed)
    )
    yield Sample("slices_missing", "Slices that should exist but do not.", status.missing)
    for verb, count in (("create", status.creates), ("update", status.updates), ("delete", status.deletes)):
        yield Sample("slice_writes", "Writes of slices.", count, (("verb", verb),), "counter")
    yield Sample("slice_errors", "Failed attempts to publish.", status.errors, kind="counter")
    yield Sample("slice_repairs", "Times that others had changed slices.", status.repairs, kind="counter")


def offer_samples(now: Wanted) -> Iterator[Sample]:
    """What the node offers, and what of the setting it cannot."""
    offer = now.offer
    kinds = Counter(device.attributes["resourceType"].string or "" for device in offer.devices)
    for kind, count in sorted(kinds.items()):
        yield Sample("offered_devices", "Published devices, by resource type.", count, (("resource_type", kind),))
    yield Sample("kept_devices", "Devices that are published only because claims hold them.", len(offer.retired))
    yield Sample(
        "partitions_label_invalid",
        "1 while the Node's label of what it offers is ignored, or leaves nothing to offer.",
        float(bool(now.label_problem)),
    )
    yield Sample(
        "node_not_offered", "1 while chips keep the whole node from being offered.", float(offer.problem != "")
    )
    yield Sample(
        "kubelet_unsupported",
        "1 while kubelet's version keeps devices that no claim holds from being offered.",
        float(bool(now.kubelet_problem)),
    )
    yield Sample(
        "held_back_chips", "Chips not offered to new claims because of a device plugin.", len(now.held_back.chips)
    )
    for part in PARTS:
        yield Sample(
            "undecided_parts",
            "1 while a part of what the node offers and says keeps its last value, because of an internal error.",
            float(part in now.failures),
            (("part", part),),
        )
    taints = Counter((taint.key, taint.effect) for device in offer.devices for taint in device.taints)
    for (key, effect), count in sorted(taints.items()):
        yield Sample("tainted_devices", "Devices by taint.", count, (("key", key), ("effect", effect)))


def checkpoint_samples(counts: tuple[int, int] | None, repairs: Mapping[str, int]) -> Iterator[Sample]:
    """What is prepared (``Checkpoint.counts``), and what was repaired by kind."""
    if counts is not None:
        prepared, unreadable = counts
        yield Sample("prepared_claims", "Claims that are prepared.", prepared)
        yield Sample("unreadable_journal_files", "Checkpoint files that cannot be read; see the log.", unreadable)
    for kind, count in sorted(repairs.items()):
        yield Sample("repairs", "Repairs of checkpoint and CDI specs.", count, (("kind", kind),), "counter")
