"""What commands print as JSON and YAML: the kinds of objects, and their keys.

A key means the same, and has the same keys in it, wherever it stands. ``docs/reference/commands.md`` has the tables
(``scripts/generate commands``); ``tests/plugin/cli/test_kinds.py`` compares them with what commands print. Where a
document is made of structs, its keys are their fields.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from dra_driver.simulator.preparation import Container
from dra_driver.simulator.report import Claim, Item, NodeLeft, Offer, Pool, Report, Shared, Summary
from dra_driver.util.envelope import Document

FOREIGN: Final = "*"
"""As the keys of an object: those of somebody else, or names of other things."""


class Kind(NamedTuple):
    """What a command prints."""

    command: str
    item: str
    """What an item is."""
    keys: str
    """Of an item."""
    beside: str = ""
    """Keys beside ``apiVersion``, ``kind`` and ``items``."""


def _keys(document: type[Document]) -> str:
    return " ".join(field.encode_name for field in msgspec.structs.fields(document))


NODE: Final = (
    "node instanceType status driverPod findings condition kubeletProblem devicePluginProblem taints ultraservers "
    "offers counts chips"
)
KINDS: Final = {
    "Overview": Kind(
        "top",
        "a node",
        NODE,
        "server types holders pending",
    ),
    "Topology": Kind(
        "topology",
        "an instance type, or the node of one",
        "instanceType family chips coresPerChip memoryBytesPerChip logicalCoreSizes defaultLogicalCoreSize fabric "
        "deviceGroups ultraserver concluded allocatedDevices offered chosen",
    ),
    "Simulation": Kind(
        "simulate",
        "a pod, or a claim that no pod uses",
        _keys(Item),
        _keys(Report).removeprefix("apiVersion kind items "),
    ),
    "Explanation": Kind(
        "explain",
        "a pod, a claim that no pod uses, or a workload whose pods cannot be created",
        "subject pod like claims fits node couldGoTo message podState causes findings error allocations nodeGroups "
        "nearestMiss refusals warnings holders remedies traps",
        "kubernetes notConsidered",
    ),
    "Health": Kind(
        "health",
        "a node: of a cluster, as in `Overview`; of a host, `node`, `faults` and `chips` alone",
        f"{NODE} faults",
    ),
    "Plan": Kind("plan", "a claim", "claim node refusal deviceNodes environment cdi warnings", "pods"),
    "Selection": Kind("select", "a device", "pool device matches error", "kubernetes cost"),
    "HostReport": Kind(
        "verify-host",
        "an assumption of the driver",
        "number code assumption source where seen verdict reason consequence",
        "programVersion features evidence",
    ),
    "InstanceTypes": Kind("template --for karpenter", "an instance type, with Karpenter's own keys", FOREIGN),
}
"""By the name of the kind."""
LISTS: Final = {
    "slices": "ResourceSlices",
    "template": "a Node and its ResourceSlices; not for Karpenter",
    "migrate": "the objects of FILE; `-o yaml` prints them one after the other, as they stand in files",
    "simulate": "with `-o yaml`: Pods and ResourceClaims",
}
"""Commands that print objects of Kubernetes, and which."""


class Key(NamedTuple):
    """A key."""

    meaning: str
    keys: str = ""
    """Of the object, or of each object of the list, that it has."""


KEYS: Final = {
    "allocated": Key("how many are allocated, or have a part that is"),
    "allocatedDevices": Key("devices of this driver that claims hold, by name; null of an instance type"),
    "allocation": Key("what `status.allocation` of the claim is, or would be; null while it waits", FOREIGN),
    "allocations": Key("the devices that each claim gets or has", "claim results claimSays"),
    "asks": Key("which devices a pod asks for, in words"),
    "assumption": Key("what the driver assumes of a host"),
    "attribute": Key("name of an attribute of devices"),
    "because": Key("numbers of the assumptions on which the trust rests"),
    "causes": Key("why a pod that has a node is not well there"),
    "cdi": Key("the claim's CDI spec", FOREIGN),
    "cdiDevices": Key("qualified names of a container's CDI devices"),
    "chips": Key(
        "chips of a node or type (null: it is not public how many it has), or those that a device is made of, by the "
        "host's `index`",
        "index state logicalCores faults holders cores pciAddress numaNode neighbours",
    ),
    "chosen": Key(
        "the chips of `--devices`, and what is true of them as a set", "indexes connected vendorSet run group named"
    ),
    "claim": Key("a ResourceClaim; null: none", "namespace name uid"),
    "claims": Key(
        "ResourceClaims, in the order in which they were tried",
        _keys(Claim),
    ),
    "claimSays": Key("what the claim's status says of devices that are not ready or not healthy"),
    "clause": Key("the clause of a selector that is false or fails"),
    "code": Key("stable name of a fault, a finding or an assumption; the taint of somebody else as kubectl writes it"),
    "complete": Key("whether the chips are the whole group"),
    "concluded": Key("keys whose values were concluded, not read in a source"),
    "condition": Key("reason of the Node's condition NeuronHealth, unless all is well"),
    "connected": Key("whether links among these chips join them all; null: not known"),
    "connectedSets": Key("sets of chips, by index, that the vendor connects"),
    "consequence": Key("what depends on it"),
    "constraint": Key("`matchAttribute` or `distinctAttribute`"),
    "constraints": Key("constraints that a node cannot satisfy", "constraint attribute requestNames wanted groups"),
    "containerPath": Key("path of a device node in the container"),
    "containers": Key("what each container gets", _keys(Container)),
    "controller": Key("what makes the pod, such as `Deployment web`"),
    "cores": Key("physical cores by number; null or absent: all of the chip"),
    "coresPerChip": Key("physical cores of a chip"),
    "cost": Key("estimated cost of the selectors, as the API server counts it"),
    "couldGoTo": Key("names of all nodes where the claims fit, and whose drivers would prepare them"),
    "counts": Key("numbers of chips; `free` is null where it is not known", "total free allocated sick"),
    "defaultLogicalCoreSize": Key("physical cores in a logical one, unless set otherwise"),
    "description": Key("what it is, in words"),
    "device": Key("name of a device"),
    "deviceGroups": Key("chips that share EFA devices", "attribute id indexes"),
    "deviceNodes": Key("device nodes that a container gets", "request device hostPath containerPath cores environment"),
    "devicePluginProblem": Key("why the driver holds devices back: a device plugin has them"),
    "devices": Key("devices by name"),
    "doubt": Key("why a holder may have more or less than that"),
    "driver": Key("name of a DRA driver"),
    "driverPod": Key("the pod of the driver or device plugin of a node", "status problem since remedy"),
    "effect": Key("effect of the fault's taint"),
    "environment": Key("variables by name", FOREIGN),
    "error": Key("the error of a selector, or the one that ends the scheduling of a pod"),
    "evidence": Key("what was read from the host", FOREIGN),
    "explanation": Key("an item of `Explanation`: of the first pod, if nothing is placed", KINDS["Explanation"].keys),
    "fabric": Key("how chips are linked", "type description connectedSets"),
    "family": Key("family of the instance type"),
    "faults": Key("what is wrong with a chip, or with the host as a whole", "code severity since effect remedy"),
    "feature": Key("a feature of the driver"),
    "features": Key("which features can be relied on", "feature trust because"),
    "finding": Key("`free`, or what is the matter with devices: `in use`, `taint`, `selector` and so on"),
    "findings": Key(
        "what the cluster says of a pod or node that is not well, the cause first", "code message since remedy who"
    ),
    "fits": Key("false also if `refusals` has claims, or a claim says of a device that it is not ready or not healthy"),
    "free": Key("how many are free"),
    "freeDevices": Key("the free devices by name"),
    "group": Key("the smallest device group that has all these chips", "attribute id complete"),
    "groups": Key(
        "devices of which the same is true",
        "devices finding message clause saw usedUpBy description freeDevices missing",
    ),
    "holders": Key(
        "who has devices; of a chip, its pods, and claims that no pod uses",
        "pod claim node devices description indexes status since problem sickChips claimSays doubt",
    ),
    "hostPath": Key("path of a device node on the host"),
    "id": Key("id of a device group"),
    "index": Key("number of a chip on its host: 3 is `/dev/neuron3`"),
    "indexes": Key("chips by `index`"),
    "instanceType": Key("EC2 instance type"),
    "kubeletProblem": Key("why the driver offers nothing anew: kubelet's release"),
    "kubernetes": Key("the release of Kubernetes by whose rules this was determined"),
    "left": Key("what is left of each capacity: quantities by name", FOREIGN),
    "like": Key("an earlier `subject` of which all the same is true"),
    "links": Key("how the nodes of an UltraServer are linked: `ring` or `switch`"),
    "logicalCores": Key("logical cores of a chip", "total allocated"),
    "logicalCoreSizes": Key("physical cores that can be one logical core"),
    "matches": Key("whether all selectors match; null: one fails, with the `error`"),
    "memoryBytesPerChip": Key("memory of a chip"),
    "message": Key("a sentence, without a full stop"),
    "missing": Key("how many more devices would do; null: the number is not what is missing"),
    "name": Key("name of a pod, claim, container or trap"),
    "named": Key("the devices of `--devices` that have names there", "device resourceType chips"),
    "namespace": Key("namespace of a pod or claim"),
    "nearestMiss": Key("the node that comes closest, and what it lacks"),
    "neighbours": Key("chips to which a chip has links, by index; null: not known"),
    "node": Key("name of a node; null: none, or not known"),
    "nodeChoice": Key("why this node of several: `only`, `score`, `alternative` or `name`"),
    "nodeCount": Key("number of nodes"),
    "nodeGroups": Key("nodes of which the same is true", "nodeNames step message missing notes requests constraints"),
    "nodeNames": Key("nodes by name"),
    "nodes": Key("what is left on each node", _keys(NodeLeft)),
    "notConsidered": Key("what has no influence on the result"),
    "notes": Key("more about the nodes"),
    "numaNode": Key("NUMA node of a chip; null: not public"),
    "number": Key("number of the assumption"),
    "offered": Key("devices that a node offers with `--partitions`", "device resourceType chips"),
    "offers": Key("what is offered, by kind of device", _keys(Offer)),
    "pciAddress": Key("PCI address of a chip; null: not public"),
    "pending": Key("pods that ask for devices and have no node", "pod asks reason findings"),
    "placed": Key("how many are placed"),
    "plan": Key("what the node's driver makes of the claim: an item of `Plan`", KINDS["Plan"].keys),
    "pod": Key("a Pod; null: none uses the claim", "namespace name"),
    "pods": Key("the pods of the claims", "namespace name containers"),
    "podState": Key("how a pod is, as the cluster says it, in words"),
    "pool": Key("name of a pool of devices"),
    "pools": Key("pools of devices of a node", _keys(Pool)),
    "problem": Key("what is wrong, in words"),
    "programVersion": Key("version of `dra-driver`"),
    "reason": Key("why not, or why so, in words"),
    "refusal": Key("why the node's driver would refuse the claim; null: it would not"),
    "refusals": Key("claims that the node's driver would refuse", "claim reason"),
    "refusedClaims": Key("how many claims nodes' drivers would refuse"),
    "remedies": Key("what would help"),
    "remedy": Key("what would help: a word of the [table of faults](../operate/health.md), or a sentence"),
    "request": Key("name of a request of the claim"),
    "requestNames": Key("requests by name"),
    "requests": Key("what a node has for each request", "claim request wanted free total groups"),
    "resourceType": Key("the attribute of that name, such as `neuron_device` or `neuron_core`"),
    "result": Key(
        "`placed`, `refused` (all are placed, but drivers would refuse claims), `partly placed`, `not placed`"
    ),
    "results": Key("as in `status.allocation.devices.results`", FOREIGN),
    "run": Key("whether the indexes are a run without gaps"),
    "saw": Key("what the clause read: values by expression", FOREIGN),
    "seen": Key("what was read"),
    "server": Key("address of the API server"),
    "serverID": Key("id of an UltraServer"),
    "severity": Key("of a fault: `unhealthy`, `degraded` or `unknown`; `tainted`: by somebody else"),
    "shared": Key("devices of which several claims have a share", _keys(Shared)),
    "sick": Key("how many have a fault or a taint of somebody else"),
    "sickChips": Key("those of a holder's chips that have faults, in words"),
    "since": Key("since when (RFC 3339)"),
    "source": Key("where the assumption comes from"),
    "state": Key("health of a chip: `healthy`, `degraded`, `unhealthy`, `unknown` or `tainted`; null of a type"),
    "status": Key("of a node or pod, as in kubectl's column STATUS"),
    "step": Key("which step of scheduling decides about these nodes"),
    "subject": Key("what is explained: `pod NAMESPACE/NAME`, `claim ...`, or a workload such as `Job ...`"),
    "summary": Key("of everything that was to be placed", _keys(Summary)),
    "taints": Key("taints of a Node that keep pods away, or those of its devices, in words"),
    "total": Key("how many there are"),
    "traps": Key("known traps that affect the claims, by their stable `name`", "name message"),
    "trust": Key("how far a feature can be relied on"),
    "type": Key("kind of fabric, such as `torus2d`"),
    "types": Key("all nodes by instance type; null: slices may not be listed", "instanceType nodeCount counts"),
    "uid": Key("UID of a claim"),
    "ultraserver": Key("the UltraServers of a type", "nodeCount usableNodeCounts links"),
    "ultraservers": Key("UltraServers that a node is part of", "nodeCount serverID"),
    "usableNodeCounts": Key("how many nodes of an UltraServer can be used together"),
    "usedUpBy": Key("devices in use that have used up what these are made of"),
    "vendorSet": Key("whether the vendor offers these chips as a set"),
    "verdict": Key("`ok`, `differs`, `not checked` or `n/a`"),
    "wanted": Key("how many are wanted; null: all"),
    "warnings": Key("what else is odd"),
    "where": Key("where it was read"),
    "who": Key("who can do something: `owner` (of the pod), `administrator` or `nobody`: it ends by itself"),
}
"""The keys of our own, in their order; ``items`` has those of the kind."""
