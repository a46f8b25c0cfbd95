"""Which EC2 instance a Node names, and what speaks against its being the node's own. Values in, values out.

A kubelet writes its Node's ``spec.providerID`` when it registers, and its addresses at any time, and one that is
compromised names there whichever machine it likes. The Node's name is what its credential is bound to. So the name is
held against what is known of the instance, and only a contradiction counts: nodes have names of any kind.

Sources: EC2 (instance hostname types: ``ip-10-0-0-5`` and ``i-0123456789abcdef0``, of ``ec2.internal``,
``REGION.compute.internal`` or a domain of the VPC's own DHCP options, which can change while an instance runs);
Kubernetes (node authorizer, admission plugin NodeRestriction).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dra_driver.util.errors import DriverError
from dra_driver.util.text import first_of, quoted

_PROVIDER_ID: Final = re.compile(
    r"aws:///(?P<region>[a-z]{2}(?:-[a-z]{2,16}){1,3}-[0-9]{1,2})(?:[a-z]|(?:-[a-z0-9]{1,8}){1,4})"
    r"/(?P<instance>i-(?:[0-9a-f]{8}|[0-9a-f]{17}))",
    re.ASCII,
)
_ID: Final = re.compile(r"i-[0-9a-f]{8,}", re.ASCII)
"""An id of EC2's in any text, as a hook may look for it."""
_IP_NAME: Final = re.compile(r"ip(?:-[0-9]{1,3}){4}", re.ASCII)
_MAX_LENGTH: Final = 512
"""Of a provider id; Azure's have some 200 characters."""
_NO_ID: Final = f"its spec.providerID has more than {_MAX_LENGTH} characters, or some that cannot be printed"


@dataclass(frozen=True, slots=True)
class Instance:
    """An EC2 instance."""

    region: str
    id: str


@dataclass(frozen=True, slots=True)
class Hostnames:
    """What EC2 calls an instance; a terminated one has no more than its id."""

    id: str
    private_dns: str = ""
    addresses: frozenset[str] = frozenset()
    """Private IPv4 addresses of all its interfaces."""

    @property
    def labels(self) -> frozenset[str]:
        """The names without their domains: that of the node may be another one."""
        return frozenset({self.id, _host(self.private_dns) or self.id})


def instance_of(provider_id: str) -> Instance:
    """The instance that a Node's ``spec.providerID`` names: ``aws:///us-east-1a/i-0123456789abcdef0``.

    Raises:
        DriverError: another text.
    """
    match = _PROVIDER_ID.fullmatch(provider_id)
    if match is None:
        raise DriverError(
            f"the Node's spec.providerID is {quoted(provider_id)}, which names no EC2 instance",
            consequence="its instance cannot be replaced by Auto Scaling",
            remedy="remove the step replace from the policy for such nodes",
        )
    return Instance(match["region"], match["instance"])


def names_instance(provider_id: str) -> bool:
    """Whether the text has an id of EC2's in it, well-formed or not."""
    return bool(_ID.search(provider_id.casefold()))


def contradiction(node: str, hostnames: Hostnames, nodes: Iterable[str]) -> str:
    """Why an instance is not the node's own, by the node's name; "" if nothing speaks against it.

    Args:
        node: name of the Node.
        hostnames: of the instance.
        nodes: names of all Nodes.
    """
    claim = f"its spec.providerID names the instance {hostnames.id}"
    if rival := next((name for name in nodes if name != node and _host(name) in hostnames.labels), ""):
        return f"{claim}, whose name the node {rival} has"
    host = _host(node)
    address = host.removeprefix("ip-").replace("-", ".") if _IP_NAME.fullmatch(host) else ""
    if host in hostnames.labels or address in hostnames.addresses:
        return ""
    if _ID.fullmatch(host):
        return f"{claim}, but its name is that of another one"
    return f"{claim}, which does not have the address {address}" if address and hostnames.addresses else ""


def doubts(provider_ids: Mapping[str, str]) -> dict[str, str]:
    """Why the machines that Nodes name may not be their own, as far as the Nodes alone tell.

    Args:
        provider_ids: name of each Node of the cluster to its ``spec.providerID``.

    Returns:
        The text for each Node about whose machine there is a doubt.
    """
    machines = {name: _machines(text) for name, text in sorted(provider_ids.items())}
    claims: dict[str, list[str]] = {}
    hosts: dict[str, list[str]] = {}
    for name, its in machines.items():
        hosts.setdefault(_host(name), []).append(name)
        for machine in its:
            claims.setdefault(machine, []).append(name)
    texts = {name: _of_nodes(name, its, claims, hosts) for name, its in machines.items()}
    texts |= {name: _NO_ID for name, text in provider_ids.items() if len(text) > _MAX_LENGTH or not text.isprintable()}
    return {name: text for name, text in texts.items() if text}


def _of_nodes(
    name: str, machines: Iterable[str], claims: Mapping[str, Sequence[str]], hosts: Mapping[str, Sequence[str]]
) -> str:
    for machine in sorted(machines):
        if others := [other for other in claims[machine] if other != name]:
            verb = "names" if len(others) == 1 else "name"
            return f"its spec.providerID names a machine that {first_of(others, 4)} {verb} too"
        if _ID.fullmatch(machine) and (text := contradiction(name, Hostnames(machine), hosts.get(machine, ()))):
            return text
    return ""


def _machines(provider_id: str) -> frozenset[str]:
    """The machines that a text may be taken to name: EC2's ids in it, or else the text itself."""
    text = provider_id[:_MAX_LENGTH].casefold()
    return frozenset(_ID.findall(text) or ([text] if text else []))


def _host(name: str) -> str:
    return name.partition(".")[0]
