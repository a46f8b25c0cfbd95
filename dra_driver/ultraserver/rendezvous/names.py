"""Whether a connection comes from the pod that it says it is: the cluster's DNS knows the pods of a group.

LeaderWorkerSet's headless Service publishes the name and address of each pod of a group, ready or not, and of no pod of
another namespace. So a stranger elsewhere can neither take a name of the group nor have a member's name resolve to it.
These names end with the namespace, and a resolver that finds one nowhere in the cluster asks for it outside: where the
namespace is called like a public domain, such as ``dev``, somebody can own it. So names are looked up whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from dra_driver.ultraserver.rendezvous.members import Member
from dra_driver.util import runtime
from dra_driver.util.text import first_of

RESOLVE_SECONDS = 5.0
MAX_LOOKUPS = 64
"""At a time, each for another address."""
MAX_LISTED = 4
"""Addresses in a message."""
RESOLV_CONF = Path("/etc/resolv.conf")


def services_zone() -> str:
    """The domain of all Services, such as ``svc.cluster.local``, which kubelet has the resolver search; "" without it.

    A pod of the host's network searches what its node does, unless its dnsPolicy is ClusterFirstWithHostNet.
    """
    try:
        lines = RESOLV_CONF.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    searched = [words[1:] for words in map(str.split, lines) if words[:1] == ["search"]]
    zones = [domain.strip(".") for domain in (searched or [[]])[-1]]
    return next((zone for zone in zones if zone.startswith("svc.")), "")


def whole_name(host: str, zone: str) -> str:
    """A name of LeaderWorkerSet as the resolver looks it up in the zone alone. Without a zone, and addresses, as is."""
    if not zone or _is_address(host):
        return host
    return f"{host.removesuffix(f'.{zone}')}.{zone}."


class Lookups:
    """Looks names up for whoever connects, at most one at a time for each address.

    The system's resolver blocks, and a thread is busy with an unknown name for seconds, also when nobody waits for the
    answer any more. So the names that one address gives, however many, take one thread. The threads are not asyncio's:
    it has as few as six, and waits for them at the end.
    """

    def __init__(self) -> None:
        self._running: dict[str, asyncio.Future[frozenset[str]]] = {}  # by the address that gave the name

    async def resolve(self, host: str, peer: str) -> frozenset[str]:
        """Addresses of a host name that a peer gave. Raises OSError if it has none, UnicodeError if it is no name."""
        while before := self._before(peer):
            await asyncio.wait(before, return_when=asyncio.FIRST_COMPLETED)
        running = self._start(host, peer)
        # Unlike asyncio.timeout, this leaves it running, and its address busy.
        await asyncio.wait([running], timeout=RESOLVE_SECONDS)
        if not running.done():
            raise TimeoutError
        return running.result()

    def _before(self, peer: str) -> list[asyncio.Future[frozenset[str]]]:
        """Of these lookups, one has to end before one for the peer may begin."""
        if peer in self._running:
            return [self._running[peer]]
        return list(self._running.values()) if len(self._running) >= MAX_LOOKUPS else []

    def _start(self, host: str, peer: str) -> asyncio.Future[frozenset[str]]:
        loop = asyncio.get_running_loop()
        running = self._running[peer] = loop.create_future()

        def end(found: frozenset[str] | Exception) -> None:
            del self._running[peer]
            if isinstance(found, Exception):
                running.set_exception(found)
                running.exception()  # nobody may be left who asks
            else:
                running.set_result(found)

        def look_up() -> None:
            found: frozenset[str] | Exception
            try:
                entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
                found = frozenset(_plain(str(address[0])) for *_, address in entries)
            except Exception as error:  # noqa: BLE001 - whoever asked gets it
                found = error
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(end, found)

        try:
            runtime.spawn(look_up, f"lookup for {peer}")
        except RuntimeError as error:
            end(OSError(str(error)))
        return running


@dataclass(frozen=True, slots=True)
class GroupNames:
    """The names that pods of the group have in the cluster's DNS.

    Attributes:
        domain: what follows the pod's own name, such as ``vllm.default``; "" if nothing does.
        resolve: looks up a name that the peer with an address gave.
        zone: that all of these names are in, see ``services_zone``; "" if they may be anywhere.
    """

    domain: str
    resolve: Callable[[str, str], Awaitable[frozenset[str]]] = field(default_factory=lambda: Lookups().resolve)
    zone: str = ""

    async def objection(self, member: Member, peer: str) -> str:
        """Why the peer with that address is not the member, or "". It may be so later: DNS learns of a pod late."""
        if _is_address(member.host) or member.host.partition(".")[2] != self.domain:
            return f"{member} is not in the group's domain {self.domain or '(none)'}"
        try:
            addresses = await self.resolve(whole_name(member.host, self.zone), _plain(peer))
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
