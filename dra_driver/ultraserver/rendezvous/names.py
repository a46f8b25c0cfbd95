"""Whether a connection comes from the pod that it says it is: the cluster's DNS knows the pods of a group.

LeaderWorkerSet's headless Service publishes the name and address of each pod of a group, ready or not, and of no pod of
another namespace. So a stranger elsewhere can neither take a name of the group nor have a member's name resolve to it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from dra_driver.ultraserver.rendezvous.roster import Member
from dra_driver.util.text import first_of

RESOLVE_SECONDS = 5.0
MAX_LISTED = 4
"""Addresses in a message."""


async def resolve(host: str) -> frozenset[str]:
    """Addresses of a host name. Raises OSError if it has none, UnicodeError if it is no name."""
    async with asyncio.timeout(RESOLVE_SECONDS):
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return frozenset(_plain(str(address[0])) for *_, address in found)


@dataclass(frozen=True, slots=True)
class GroupNames:
    """The names that pods of the group have in the cluster's DNS.

    Attributes:
        domain: what follows the pod's own name, such as ``vllm.default``; "" if nothing does.
        resolve: looks up a name.
    """

    domain: str
    resolve: Callable[[str], Awaitable[frozenset[str]]] = resolve

    async def objection(self, member: Member, peer: str) -> str:
        """Why the peer with that address is not the member, or "". It may be so later: DNS learns of a pod late."""
        if _is_address(member.host) or member.host.partition(".")[2] != self.domain:
            return f"{member} is not in the group's domain {self.domain or '(none)'}"
        try:
            addresses = await self.resolve(member.host)
        except (OSError, UnicodeError) as error:
            return f"{member} is not known to DNS yet: {str(error)[:100] or 'no answer'}"
        if _plain(peer) in addresses:
            return ""
        return f"{member} has the address {first_of(sorted(addresses), MAX_LISTED)}"


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _plain(address: str) -> str:
    """The address as one text of those that it may have: without the zone, IPv4 not as IPv6."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    return str(getattr(found, "ipv4_mapped", None) or found)
