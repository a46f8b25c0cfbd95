"""Claims whose containers are told what their devices are, of all kinds of devices and requests."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from dra_driver.driver.claims.metadata import files, with_metadata
from dra_driver.driver.claims.model import Attributes, Plan, PreparedClaims
from dra_driver.driver.claims.situation import NodeFacts, Situation, claim_facts
from dra_driver.driver.resourceslices.devices import offer
from dra_driver.kube.objects.resource import POD_CLAIM, ResourceClaim
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.neuron.topology.partitions import Partitions
from tests.builders.claims import SETTINGS, claim, host, plan, result

DIRECTORY = Path("/var/lib/kubelet/plugins/neuron.aws.com/metadata")


def attributes(inventory: NodeInventory) -> Attributes:
    """Of all devices that such a host can offer, without the driver's version, so that what is recorded stays."""
    found = offer(inventory, Partitions.parse("chip.core.group.node"))
    return {
        device.name: {name: value for name, value in device.attributes.items() if name != "draDriverVersion"}
        for device in (*found.fallback, *found.devices)
    }


def annotated(item: ResourceClaim, name: str) -> ResourceClaim:
    """The claim as if made from a template for what the pod calls ``name``."""
    return replace(item, metadata=replace(item.metadata, annotations={POD_CLAIM: name}))


CASES: dict[str, ResourceClaim] = {
    "chips of a claim": claim(1, [4, 5, 6, 7], name="four-chips"),
    "a chip of a claim from a template": annotated(claim(2, [0], name="pod-chip-x7k2p", template=True), "chip"),
    "two requests": claim(3, [result(0, "first"), result(1, "second")]),
    "a subrequest": claim(4, [result(3, "chips/small")]),
    "a group": claim(5, [result("neuron-group4-0", "group")]),
    "cores": claim(6, [result("neuron-core-2-0", "cores"), result("neuron-core-2-1", "cores")]),
    "a whole node": claim(7, [result("neuron-node", "node")]),
    "admin access": claim(8, [result(1, "look", admin_access=True)]),
}


def planned(item: ResourceClaim, directory: Path = DIRECTORY) -> Plan:
    """What the claim gets on a host with 16 chips."""
    inventory = host()
    made = plan(item, inventory, PreparedClaims(), SETTINGS)
    facts = NodeFacts(attributes=attributes(inventory))
    return with_metadata(made, Situation(claim_facts(item), inventory, facts), directory)


def documents() -> dict[str, str]:
    """Each file of each case by what it is, ``case: name of the file``."""
    return {
        f"{case}: {name}": content.decode()
        for case, item in CASES.items()
        for name, content in files(planned(item)).items()
    }
