"""Random pods with claims for cores, chips, groups and nodes, as users of one kind of node write them.

Each request is made twice from the same words: as a part of a claim, and as ``Want``, what the ledger understands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import Any

from tests.oracles.core_ledger import Want

Object = dict[str, Any]

DOMAIN = "neuron.aws.com"
GROUP_ATTRIBUTE = "resource.aws.com/devicegroup4_id"

CHIP = Want("neuron_device")
CORE = Want("neuron_core")
NODE = Want("neuron_node")
VAGUE = Want("")


@dataclass(frozen=True)
class Request:
    """One request, or alternatives in order of preference."""

    options: tuple[Want, ...]


@dataclass(frozen=True)
class CutClaim:
    """A claim of one or more requests."""

    requests: tuple[Request, ...]
    lnc: int | None = None
    """``logicalNeuronCore`` of its configuration; None: it has none."""

    def spec(self) -> Object:
        """``spec`` of the ResourceClaim."""
        requests: list[Object] = []
        constraints: list[Object] = []
        for number, request in enumerate(self.requests):
            name = f"r{number}"
            made = [_exactly(want) for want in request.options]
            if len(made) == 1:
                requests.append({"name": name, "exactly": made[0]})
            else:
                options = [{"name": f"o{place}", **item} for place, item in enumerate(made)]
                requests.append({"name": name, "firstAvailable": options})
            for place, want in enumerate(request.options):
                if want.same:
                    attribute = want.same if "/" in want.same else f"{DOMAIN}/{want.same}"
                    of = name if len(made) == 1 else f"{name}/o{place}"
                    constraints.append({"requests": [of], "matchAttribute": attribute})
        devices: Object = {"requests": requests}
        if constraints:
            devices["constraints"] = constraints
        if self.lnc is not None:
            parameters = {"apiVersion": f"{DOMAIN}/v1", "kind": "NeuronConfig", "logicalNeuronCore": self.lnc}
            devices["config"] = [{"opaque": {"driver": DOMAIN, "parameters": parameters}}]
        return {"devices": devices}


@dataclass(frozen=True)
class CutPod:
    """The claims of a pod, each used by a container of its own."""

    claims: tuple[CutClaim, ...]

    def alternatives(self) -> list[list[Want]]:
        """Everything that would do for it."""
        requests = [request.options for claim in self.claims for request in claim.requests]
        return [list(choice) for choice in product(*requests)]


def random_pod(random: Random, instance_type: str) -> CutPod:
    """One claim mostly; at times several for cores."""
    if random.randrange(100) < 18:
        return CutPod(tuple(_core_claim(random) for _ in range(random.choice((2, 2, 3)))))
    return CutPod((_claim(random, instance_type),))


_SIZES: Mapping[str, Sequence[int]] = {"inf2.48xlarge": (2, 2, 3, 3, 4, 5, 6, 11)}
"""Sizes of groups, the more frequent the more often they stand there; else those of a torus."""
_TORUS_SIZES = (4, 4, 4, 8)

_CLASS = {
    "neuron_device": f"chip.{DOMAIN}",
    "neuron_core": f"core.{DOMAIN}",
    "neuron_node": f"node.{DOMAIN}",
    "": DOMAIN,
}
_SIZED_CLASSES = (2, 4, 8)


def _exactly(want: Want) -> Object:
    made: Object = {"deviceClassName": _CLASS.get(want.kind, f"group.{DOMAIN}"), "count": want.count}
    if want.kind == "neuron_group":
        if want.size in _SIZED_CLASSES:
            made["deviceClassName"] = f"group{want.size}.{DOMAIN}"
        elif want.size is not None:
            made["selectors"] = [{"cel": {"expression": f"device.attributes['{DOMAIN}'].size == {want.size}"}}]
    return made


def _cores(random: Random) -> Want:
    count, same = random.choice(
        ((1, ""), (1, ""), (2, ""), (2, "deviceId"), (2, "coreRun2_id"), (4, "coreRun4_id"), (3, ""), (2, "deviceId"))
    )
    return Want("neuron_core", count, same=same)


def _core_claim(random: Random) -> CutClaim:
    return CutClaim((Request((_cores(random),)),))


def _claim(random: Random, instance_type: str) -> CutClaim:
    group = Want("neuron_group", size=random.choice(_SIZES.get(instance_type, _TORUS_SIZES)))
    chips = Want("neuron_device", random.choice((1, 1, 2, 3)))
    kind = random.choices(
        ("core", "chip", "group", "node", "vague", "any group", "row", "chip and cores", "two groups", "either"),
        (40, 16, 18, 4, 6, 2, 4, 5, 2, 4),
    )[0]
    wants: Mapping[str, Sequence[Sequence[Want]]] = {
        "core": [[_cores(random)]],
        "chip": [[chips]],
        "group": [[group]],
        "node": [[NODE]],
        "vague": [[VAGUE]],
        "any group": [[Want("neuron_group")]],
        # Four chips as the founding template asks for them; a ring has no such blocks.
        "row": [[chips if instance_type.startswith("inf2") else Want("neuron_device", 4, same=GROUP_ATTRIBUTE)]],
        "chip and cores": [[CHIP], [_cores(random)]],
        "two groups": [[Want("neuron_group", 2, size=group.size)]],
        "either": [[group, Want("neuron_core", 2, same="deviceId")]],
    }
    requests = tuple(Request(tuple(options)) for options in wants[kind])
    # Another size than the node's for hardware that is one claim's alone.
    alone = kind in ("chip", "group", "node", "row") and instance_type.startswith("trn2")
    return CutClaim(requests, random.choice((None, None, 1, 2)) if alone else None)
