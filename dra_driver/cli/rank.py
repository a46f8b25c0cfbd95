"""``dra-driver rank``: the command of an init container that determines a pod's rank in a group on UltraServers."""

from __future__ import annotations

import argparse
import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from dra_driver.cli import vocabulary
from dra_driver.util.errors import UsageError, blaming_usage
from dra_driver.util.text import lines_to_print

if TYPE_CHECKING:
    from dra_driver.ultraserver.rendezvous.environment import GroupMembership
    from dra_driver.ultraserver.rendezvous.members import RankTable
    from dra_driver.ultraserver.rendezvous.messages import Hello

DEFAULT_PORT = 46900
DEFAULT_SECONDS = 600.0
MAX_SECONDS = 86400.0

NOTES = """\
Reads LWS_LEADER_ADDRESS, LWS_GROUP_SIZE and LWS_WORKER_INDEX, which LeaderWorkerSet sets, and \
NEURON_RT_ULTRASERVER_MODE, _SERVER_ID and _NODE_ID, which the claim provides, so the init container needs the claim \
too. Writes NEURON_GLOBAL_TOPOID and NEURON_GLOBAL_TOPOID0_HOST. The pods of a group connect to the leader's port; \
no state is kept between starts of a group. In the main container: set -a; . /neuron/env; exec my-program
"""


def register(entry: vocabulary.Entry) -> None:
    """Add the command."""
    parser = entry.command(
        about="Find the other pods of a group of a LeaderWorkerSet, check that their nodes form complete UltraServers, "
        "and write this pod's rank to a file.",
        notes=NOTES,
        examples=["rank --env-file /neuron/env"],
        done="written",
        refused="the group cannot start",
    )
    parser.add_argument(
        "--env-file",
        type=Path,
        default=Path("/neuron/env"),
        metavar="FILE",
        help="file to write (default: %(default)s)",
    )
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="port of the leader (default: %(default)s)")
    parser.add_argument(
        "--timeout",
        type=float,
        default=DEFAULT_SECONDS,
        metavar="SECONDS",
        help="total time limit (default: %(default)g)",
    )
    parser.add_argument("--leader-address", metavar="HOST", help="address of the leader (default: $LWS_LEADER_ADDRESS)")
    parser.add_argument(
        "--host", help="name under which others reach this pod (default: its name in the group's domain)"
    )
    parser.add_argument(
        "--listen", default="", metavar="ADDRESS", help="address on which the leader listens (default: all)"
    )
    parser.add_argument(
        "--no-dns-check",
        dest="dns_check",
        action="store_false",
        help="leader: accept members whose names do not resolve to their addresses (default: only if the leader itself "
        "is known by an address)",
    )


def run(args: argparse.Namespace) -> int:
    """Determine the rank and write it; raises GroupError if the group cannot start."""
    import asyncio

    from dra_driver.ultraserver.rendezvous.environment import group_domain, hello, own_membership
    from dra_driver.ultraserver.rendezvous.leader import lead, listen
    from dra_driver.ultraserver.rendezvous.names import GroupNames, services_zone, whole_name
    from dra_driver.ultraserver.rendezvous.worker import follow

    # PID 1 of a container has no default action for SIGTERM, and a deleted pod would run until it is killed. No cleanup
    # is needed: the file appears complete or not at all.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    if not (0 < args.port < 65536 and 0 < args.timeout <= MAX_SECONDS):
        raise UsageError(f"--port must be 1-65535, --timeout up to {MAX_SECONDS:g} s, not {args.port}, {args.timeout}")
    with blaming_usage():
        given = {"LWS_LEADER_ADDRESS": args.leader_address} if args.leader_address else {}
        membership = own_membership({**os.environ, **given})
        own = hello(membership, args.host or _host(membership, args.port))

    def keep(table: RankTable) -> None:
        _keep(args.env_file, table, own)

    zone = "" if args.leader_address else services_zone()  # an address that is given may be outside of the cluster
    _say(f"{own.member} of {own.size}, in sets of {own.nodes} nodes" + _server(own))
    if membership.index:
        asyncio.run(follow(own, (whole_name(membership.leader, zone), args.port), args.timeout, keep, _say))
    else:
        domain = group_domain(membership)
        names = None if domain is None or not args.dns_check else GroupNames(domain, zone=zone)
        asyncio.run(lead(own, listen(args.listen, args.port), args.timeout, keep, _say, names))
    return 0


def _keep(path: Path, table: RankTable, own: Hello) -> None:
    """Print the group and write the file; raises OSError if that is not possible."""
    from dra_driver.ultraserver.rendezvous.environment import env_file, variables
    from dra_driver.util.files import replace_file

    for rank, member in enumerate(table.members):
        where = f" node {member.node} of server {member.server}" if member.server else ""
        _say(f"rank {rank}: {member}{where}")
    values = variables(table, own.member.index)
    replace_file(path, env_file(values), temporary=f".{path.name}.new", mode=0o644, synced=False)
    _say(f"{path}: " + " ".join(f"{name}={value}" for name, value in values.items()))


def _host(membership: GroupMembership, port: int) -> str:
    from dra_driver.ultraserver.rendezvous.environment import own_host

    return own_host(membership, socket.gethostname()) or _address_towards(membership.leader, port)


def _address_towards(leader: str, port: int) -> str:
    """The local address from which another address is reached; nothing is sent."""
    family = socket.AF_INET6 if ":" in leader else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((leader, port))
        return str(probe.getsockname()[0])


def _server(own: Hello) -> str:
    return f", node {own.member.node} of server {own.member.server}" if own.nodes > 1 else ""


def _say(text: str) -> None:
    print(lines_to_print(text), flush=True)
