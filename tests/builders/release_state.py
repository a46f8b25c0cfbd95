"""A node's state as a release of the driver leaves it: claims of every kind, prepared, with what is on the disk then.

``tests/data/releases/VERSION`` holds it for every release, written by that release. Before a release,

    python -m tests.builders.release_state tests/data/releases/VERSION

writes the directory of the version that is about to be released; once released it is never written again.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from dra_driver.driver.resourceslices.attributes import ATTRIBUTES
from dra_driver.driver.resourceslices.devices import devices
from dra_driver.kube.types import ResourceClaim
from dra_driver.topology.cuts import Cuts
from dra_driver.topology.instance_types import resolve
from tests.builders.claims import ApiServer, Node, claim, config, host, neuron_config, result

CHIPS = (2, 3, 6, 7)


def claims() -> list[ResourceClaim]:
    """What the node has prepared: chips with a core size, a shared chip, a group, cores of two pods on one chip."""
    return [
        claim(1, CHIPS, pods=["a"], template=True, configs=[config(neuron_config(1), "neurons")]),
        claim(2, [0], pods=["b", "c"]),
        claim(3, [result("neuron-group4-2")], pods=["d"], template=True),
        claim(4, [result("neuron-core-5-0"), result("neuron-core-5-1")], pods=["e"], template=True),
        claim(5, [result("neuron-core-5-3")], pods=["f"], template=True),
    ]


def record(target: Path) -> None:
    """Prepare the claims on a node below ``target``, which must not exist, and add what they and the devices are."""
    target.mkdir(parents=True)
    node = Node(target, ApiServer(*claims()))
    for item in claims():
        node.prepare(item)
    node.checkpoint.close()
    (target / "claims.json").write_bytes(msgspec.json.format(msgspec.json.encode(claims())) + b"\n")
    (target / "devices.json").write_bytes(msgspec.json.format(msgspec.json.encode(offered())) + b"\n")


def read_claims(directory: Path) -> list[ResourceClaim]:
    """The claims that a release had prepared."""
    return msgspec.json.decode((directory / "claims.json").read_bytes(), type=list[ResourceClaim])


def offered() -> dict[str, list[str]]:
    """Names that users' claims and classes refer to: all attributes, and the devices of some instance types by cut."""
    names = {"attributes": sorted({row.name for row in ATTRIBUTES})}
    for kind in ("trn2.48xlarge", "trn1.32xlarge", "inf2.48xlarge", "inf1.6xlarge"):
        inventory = host(resolve(kind).devices or 0, kind)
        for cut in ("chip", "core", "group", "node"):
            names[f"{kind} {cut}"] = sorted(device.name for device in devices(inventory, Cuts.parse(cut)))
    return names


if __name__ == "__main__":
    record(Path(sys.argv[1]))
