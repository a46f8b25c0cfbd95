"""Members of a group find their ranks over real sockets, whatever comes late, twice, wrongly, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from dra_driver.cli.main import main
from dra_driver.ultraserver.rendezvous import leader as leader_side
from dra_driver.ultraserver.rendezvous import names as names_side
from dra_driver.ultraserver.rendezvous import worker as worker_side
from dra_driver.ultraserver.rendezvous.leader import lead, listen
from dra_driver.ultraserver.rendezvous.members import GroupError, Member, RankTable
from dra_driver.ultraserver.rendezvous.messages import (
    MAX_HELLO_BYTES,
    Confirmed,
    GroupProgress,
    Hello,
    Ranks,
    RefusalMessage,
    from_leader,
    line_of,
)
from dra_driver.ultraserver.rendezvous.names import GroupNames, Lookups
from dra_driver.ultraserver.rendezvous.worker import follow
from dra_driver.util import runtime
from tests.eventually import eventually
from tests.golden import golden

SERVERS = ("8b6a1c0e5d2f4936", "8b6a1c0e5d2f4937")
SOON = 20.0
FLOODED = 40.0
"""While strangers take all the processor that they can have, too."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_side, "RETRY_SECONDS", 0.05)


class Group:
    """The members of one group, each in a thread with an event loop of its own."""

    def __init__(self, size: int, nodes: Literal[1, 2, 4], pool: ThreadPoolExecutor) -> None:
        self.size = size
        self.nodes = nodes
        self.pool = pool
        self.listener = listen("127.0.0.1", 0)
        self.port: int = self.listener.getsockname()[1]
        self.kept: dict[int, RankTable] = {}
        self.said: dict[int, list[str]] = {index: [] for index in range(size)}

    def member(self, index: int) -> Member:
        """Worker indexes run against the node ids, as they may."""
        seat = self.size - 1 - index
        if self.nodes == 1:
            return Member(index, f"h{index}")
        return Member(index, f"h{index}", SERVERS[seat // self.nodes], seat % self.nodes)

    def lead(self, within: float = SOON, *, own: Member | None = None, names: GroupNames | None = None) -> Future[None]:
        """Start the leader on the listener; it is bound again when it was used up."""
        if self.listener.fileno() < 0:
            self.listener = listen("127.0.0.1", self.port)
        return self.pool.submit(
            asyncio.run, lead(self.hello(own or self.member(0)), self.listener, within, *self._ends(0), names)
        )

    def follow(self, index: int, within: float = SOON, *, own: Member | None = None) -> Future[None]:
        """Start a worker."""
        hello, leader = self.hello(own or self.member(index)), ("127.0.0.1", self.port)
        return self.pool.submit(asyncio.run, follow(hello, leader, within, *self._ends(index)))

    def hello(self, member: Member) -> Hello:
        return Hello(member, self.size, self.nodes)

    def connect(self) -> socket.socket:
        """A connection to the leader that the test itself speaks on."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=SOON)

    def text(self, index: int) -> str:
        """What a member said to people."""
        return "\n".join(self.said[index])

    def wait_said(self, index: int, text: str) -> None:
        eventually(lambda: text in self.text(index), SOON)

    def check_places(self) -> None:
        """Everybody has the same table, sorted by server and node."""
        assert sorted(self.kept) == list(range(self.size))
        assert len({table.members for table in self.kept.values()}) == 1
        expected = list(range(self.size)) if self.nodes == 1 else list(range(self.size))[::-1]
        assert [member.index for member in self.kept[0].members] == expected

    def _ends(self, index: int) -> tuple[Callable[[RankTable], None], Callable[[str], None]]:
        return (lambda table: self.kept.__setitem__(index, table)), self.said[index].append


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as made:
        yield made


Make = Callable[[int, Literal[1, 2, 4]], Group]


@pytest.fixture
def make(pool: ThreadPoolExecutor) -> Iterator[Make]:
    made: list[Group] = []

    def group(size: int, nodes: Literal[1, 2, 4]) -> Group:
        made.append(Group(size, nodes, pool))
        return made[-1]

    yield group
    for item in made:
        item.listener.close()


def outcome(future: Future[None]) -> str:
    """The error that a member ended with."""
    with pytest.raises(GroupError) as caught:
        future.result(SOON)
    return str(caught.value)


def read_answer(connection: socket.socket) -> object:
    """What the leader says after its progress."""
    with connection.makefile("rb") as file:
        while isinstance(answer := from_leader(file.readline()), GroupProgress):
            pass
    return answer


@pytest.mark.parametrize(("size", "nodes"), [(1, 1), (2, 2), (4, 4), (8, 4), (4, 2), (3, 1)])
def test_members_in_any_order_get_one_table(make: Make, size: int, nodes: Literal[1, 2, 4]) -> None:
    group = make(size, nodes)
    indexes = random.sample(range(size), size)
    for future in [group.follow(index) if index else group.lead() for index in indexes]:
        future.result(SOON)
    group.check_places()


def test_everybody_says_who_is_waited_for(make: Make) -> None:
    group = make(4, 4)
    futures = [group.lead(), group.follow(1), group.follow(2)]
    for index in (0, 1, 2):
        group.wait_said(index, "3 of 4 members: waiting for worker 3")
    futures.append(group.follow(3))
    for future in futures:
        future.result(SOON)
    group.check_places()


def test_workers_wait_for_a_leader_that_comes_late(make: Make) -> None:
    group = make(2, 2)
    group.listener.close()
    worker = group.follow(1)
    group.wait_said(1, "cannot be reached yet")
    group.lead().result(SOON)
    worker.result(SOON)
    group.check_places()


def test_a_second_worker_of_one_index_is_refused_and_the_group_goes_on(make: Make) -> None:
    group = make(4, 4)
    futures = [group.lead(), group.follow(1), group.follow(2)]
    group.wait_said(0, "waiting for worker 3")
    other = Member(1, "impostor", SERVERS[0], 2)
    golden(outcome(group.follow(1, own=other)))
    futures.append(group.follow(3))
    for future in futures:
        future.result(SOON)
    group.check_places()


def test_a_worker_that_restarts_is_missing_until_it_is_back(make: Make) -> None:
    group = make(2, 2)
    leader = group.lead()
    with group.connect() as first:
        first.sendall(line_of(Hello(group.member(1), 2, 4)))  # it does not even want what the group wants
        assert isinstance(read_answer(first), RefusalMessage)
    group.wait_said(0, "1 of 2 members: waiting for worker 1")
    group.follow(1).result(SOON)
    leader.result(SOON)
    group.check_places()


def test_the_leader_answers_again_until_a_worker_has_confirmed(make: Make) -> None:
    group = make(2, 2)
    leader = group.lead()
    for _ in range(2):  # killed each time between the table and the confirmation
        with group.connect() as killed:
            killed.sendall(line_of(group.hello(group.member(1))))
            assert read_answer(killed) == Ranks([group.member(1), group.member(0)])
    assert not leader.done()
    group.follow(1).result(SOON)
    leader.result(SOON)
    group.check_places()


def test_a_started_group_takes_no_other_worker_instead(make: Make) -> None:
    group = make(2, 2)
    leader = group.lead()
    with group.connect() as killed:
        killed.sendall(line_of(group.hello(group.member(1))))
        assert isinstance(read_answer(killed), Ranks)
    moved = Member(1, "h1", SERVERS[1], 0)
    golden(outcome(group.follow(1, own=moved)))
    group.follow(1).result(SOON)
    leader.result(SOON)


HOSTILE = [
    b"",
    b"\n",
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\n",
    b"[" * (MAX_HELLO_BYTES - 1) + b"\n",
    b"x" * (8 * MAX_HELLO_BYTES),
    line_of(Confirmed()),
    line_of(Hello(Member(0, "h0", SERVERS[0], 1), 2, 2)),
    line_of(Hello(Member(7, "h7", SERVERS[0], 1), 2, 2)),
]


def test_strangers_do_not_keep_a_group_from_starting(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_side, "HELLO_SECONDS", 0.5)
    group = make(2, 2)
    leader = group.lead()
    silent = [group.connect() for _ in range(20)]
    for line in HOSTILE:
        with group.connect() as stranger:
            stranger.sendall(line)
    group.follow(1).result(SOON)
    leader.result(SOON)
    group.check_places()
    for connection in silent:
        connection.close()
    assert "Traceback" not in group.text(0)


def test_connections_are_bounded_and_free_again_when_they_say_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_side, "HELLO_SECONDS", 0.5)
    monkeypatch.setattr(leader_side, "SILENT_CONNECTIONS", 4)
    group = make(2, 2)
    leader = group.lead()
    crowd = [group.connect() for _ in range(40)]
    group.follow(1).result(SOON)
    leader.result(SOON)
    for connection in crowd:
        connection.close()
    group.check_places()


FLOOD = """
import selectors, socket, sys
port, said = int(sys.argv[1]), sys.argv[2].encode()
opened = selectors.DefaultSelector()
def connect():
    peer = socket.create_connection(("127.0.0.1", port), timeout=60)
    peer.setblocking(False)
    try:
        peer.send(said)
    except OSError:
        pass
    opened.register(peer, selectors.EVENT_READ)
for _ in range(800):
    connect()
print("all", flush=True)
while True:
    for key, _ in opened.select():
        opened.unregister(key.fileobj)
        key.fileobj.close()
        connect()
"""
"""Opens more connections than the leader has places, says the same on each, and opens anew at once what is closed."""


@contextmanager
def flood(port: int, said: bytes) -> Iterator[None]:
    """Two strangers in processes of their own, from the moment when they have all the places that they can have."""
    command = [sys.executable, "-c", FLOOD, str(port), said.decode()]
    strangers = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) for _ in range(2)
    ]
    try:
        for stranger in strangers:
            assert stranger.stdout is not None
            assert stranger.stdout.readline()
        yield
    finally:
        for stranger in strangers:
            stranger.kill()
            stranger.communicate()


# What asyncio has accepted when its loop ends, and not handed over yet, it leaves to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("hello", [False, True], ids=["silent", "with a Hello"])
def test_workers_come_in_while_a_stranger_at_their_address_connects_anew_as_fast_as_he_can(
    pool: ThreadPoolExecutor, hello: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The workers' Hellos come at once. No time limit helps, and DNS is slow with names that it does not know."""
    monkeypatch.setattr(leader_side, "HELLO_SECONDS", 10**6)
    group, dns = Group(4, 1, pool), Dns(unknown_seconds=4.0)
    dns.names = {f"w{index}.set": frozenset({"127.0.0.1"}) for index in range(1, 4)}
    leader = group.lead(FLOODED, own=Member(0, "l.set"), names=GroupNames("set", dns.resolve))
    said = line_of(group.hello(Member(1, "evil.set"))) if hello else b""
    with flood(group.port, said):
        for future in [group.follow(index, FLOODED, own=Member(index, f"w{index}.set")) for index in range(1, 4)]:
            future.result(FLOODED)
        leader.result(FLOODED)
    group.check_places()
    assert not [entry for entry in caplog.records if entry.name == "asyncio"], "it ends while DNS is asked"
    gc.collect()  # here, where the warning is expected, and not while another test runs


def test_of_silent_connections_the_oldest_of_the_address_that_has_most_makes_room(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_side, "SILENT_CONNECTIONS", 4)
    monkeypatch.setattr(leader_side, "HELLO_SECONDS", SOON)
    group = make(3, 1)
    leader = group.lead()
    with contextlib.ExitStack() as stack:
        slow = stack.enter_context(
            socket.create_connection(("127.0.0.1", group.port), SOON, source_address=("127.0.0.9", 0))
        )
        crowd = [stack.enter_context(group.connect()) for _ in range(20)]
        for connection in crowd[:-3]:
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""
        for index, connection in ((1, crowd[-3]), (2, slow)):
            connection.sendall(line_of(group.hello(group.member(index))))
        for connection in (crowd[-3], slow):
            assert isinstance(read_answer(connection), Ranks)
            connection.sendall(line_of(Confirmed()))
        leader.result(SOON)


@pytest.mark.parametrize("said", [b"", b'{"kind":'], ids=["silent", "half a Hello"])
def test_a_connection_that_does_not_come_to_its_hello_is_closed(
    make: Make, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(leader_side, "HELLO_SECONDS", 0.3)
    group = make(2, 2)
    leader = group.lead()
    with group.connect() as stranger:
        stranger.sendall(said)
        assert stranger.recv(1) == b""
    group.follow(1).result(SOON)
    leader.result(SOON)


def test_of_a_flood_of_nonsense_the_log_has_some_lines_and_then_a_number(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_side, "MAX_COMPLAINTS", 3)
    monkeypatch.setattr(leader_side, "PULSE_SECONDS", 3.0)
    group = make(2, 2)
    leader = group.lead()
    connections = 20
    for _ in range(connections):
        with group.connect() as stranger:
            stranger.sendall(b"x\n")
            assert stranger.recv(1) == b""

    def numbers() -> list[int]:
        return [int(line.rpartition(" ")[2]) for line in group.said[0] if line.startswith("more connections")]

    eventually(lambda: group.text(0).count("was ended") + sum(numbers()) == connections, SOON)
    assert numbers()
    golden({re.sub(r"[0-9]+", "N", line) for line in group.said[0] if line.startswith("more")})
    group.follow(1).result(SOON)
    leader.result(SOON)


def test_when_a_worker_never_comes_all_end_with_its_number(make: Make) -> None:
    group = make(4, 4)
    futures = [group.lead(within=6.0), group.follow(1), group.follow(2)]
    golden(outcome(future) for future in futures)
    assert group.kept == {}


def test_a_worker_without_a_leader_ends_with_what_it_last_saw(make: Make) -> None:
    group = make(2, 2)
    group.listener.close()
    golden(outcome(group.follow(1, within=3.0)))


@pytest.mark.parametrize(
    ("server", "node", "text"),
    [
        (SERVERS[1], 1, "1 of the group's members, and 4 must be together: worker 2 (h2)"),
        ("0" * 16, 1, "worker 2 (h2) is on a node that is not part of a set of 4 nodes"),
        (SERVERS[0], 0, "have the same node id"),
    ],
)
def test_a_worker_in_the_wrong_place_stops_everybody_with_the_reason(
    make: Make, server: str, node: int, text: str
) -> None:
    group = make(4, 4)
    wrong = Member(2, "h2", server, node)
    futures = [group.lead(), group.follow(1), group.follow(2, own=wrong), group.follow(3)]
    for told in [outcome(future) for future in futures]:
        assert text in told or "must be together" in told
    assert group.kept == {}


def test_a_leader_that_talks_nonsense_is_asked_again(make: Make) -> None:
    group = make(2, 2)
    worker = group.follow(1)
    answers = [b"SSH-2.0-x\r\n", b"x" * 2_000_000, line_of(Ranks([group.member(0)])), b""]
    for answer in answers:
        connection, _ = group.listener.accept()
        with connection:
            connection.settimeout(SOON)
            assert connection.recv(MAX_HELLO_BYTES)
            # It may hang up before all of a long line is sent.
            connection.sendall(answer) if len(answer) < MAX_HELLO_BYTES else connection.send(answer)
    connection, _ = group.listener.accept()
    with connection:
        assert connection.recv(MAX_HELLO_BYTES)
        connection.sendall(line_of(RefusalMessage("no\x1b[2J")))
        assert outcome(worker) == "no?[2J"


def test_a_rank_that_is_confirmed_when_the_time_ends_is_a_rank(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader has the confirmation and waits for nobody: a worker that failed now would never find it again."""
    monkeypatch.setattr(worker_side, "CLOSING_SECONDS", 1.0)
    group = make(2, 2)
    worker = group.follow(1, within=0.9)
    connection, _ = group.listener.accept()
    with connection:
        connection.settimeout(SOON)
        assert connection.recv(MAX_HELLO_BYTES)
        connection.sendall(line_of(Ranks([group.member(1), group.member(0)])))
        assert worker.result(SOON) is None  # it has waited for the end of the connection, which does not come
    assert 1 in group.kept


# Ends


def is_ended(connection: socket.socket) -> bool:
    """Whether the peer ends it, after whatever it says before."""
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize("turns", range(8))
def test_no_connection_outlives_the_leader_at_whatever_turn_of_the_loop_it_ends(turns: int) -> None:
    listener = listen("127.0.0.1", 0)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.socket()) for _ in range(3)]

        async def leader_that_is_cancelled() -> None:
            group = asyncio.create_task(
                lead(Hello(Member(0, "h0"), 2, 1), listener, SOON, lambda table: None, lambda text: None)
            )
            await asyncio.sleep(0.01)
            for client in clients:
                client.settimeout(SOON)
                client.connect(listener.getsockname())
            for _ in range(turns):
                await asyncio.sleep(0)
            group.cancel()
            await group

        gc.disable()
        stack.callback(gc.enable)
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(leader_that_is_cancelled())
        assert all(map(is_ended, clients))


def test_a_connection_that_is_not_read_does_not_outlive_the_leader(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_side, "CLOSING_SECONDS", 0.1)
    monkeypatch.setattr(leader_side, "PULSE_SECONDS", 0.001)
    group = Group(1024, 1, pool)
    leader = group.lead(2.0)
    with socket.socket() as deaf:
        deaf.settimeout(SOON)
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", group.port))
        deaf.sendall(line_of(group.hello(group.member(1))))
        group.wait_said(0, "2 of 1024 members")
        with pytest.raises(GroupError):
            leader.result(SOON)
        assert is_ended(deaf)


# Names in DNS


class Dns:
    """The cluster's DNS: names to addresses, changed while it is asked."""

    def __init__(self, unknown_seconds: float = 0.0) -> None:
        self.names: dict[str, frozenset[str]] = {}
        self.unknown_seconds = unknown_seconds
        self.questions = 0

    async def resolve(self, host: str, _peer: str) -> frozenset[str]:
        self.questions += 1
        if host not in self.names:
            await asyncio.sleep(self.unknown_seconds)
            raise OSError("Name or service not known")
        return self.names[host]


@pytest.mark.parametrize(
    "strangers_host", ["vllm-0-1.vllm.default", "evil.attacker.svc", "x.vllm.default.attacker.svc", "127.0.0.9"]
)
def test_a_stranger_takes_no_members_place_and_the_member_comes_in_when_dns_knows_it(
    pool: ThreadPoolExecutor, strangers_host: str
) -> None:
    """The stranger connects first, with the worker's name or one of its own; all names but the worker's are its own."""
    group, dns = Group(2, 2, pool), Dns()
    dns.names = {host: frozenset({"127.0.0.9"}) for host in ("evil.attacker.svc", "x.vllm.default.attacker.svc")}
    own = Member(0, "vllm-0.vllm.default", SERVERS[0], 1)
    leader = group.lead(own=own, names=GroupNames("vllm.default", dns.resolve))
    group.wait_said(0, "1 of 2 members")
    with socket.create_connection(("127.0.0.1", group.port), timeout=SOON, source_address=("127.0.0.9", 0)) as peer:
        peer.sendall(line_of(group.hello(Member(1, strangers_host, SERVERS[0], 0))))
        assert peer.recv(4096) == b""
    worker = group.follow(1, own=Member(1, "vllm-0-1.vllm.default", SERVERS[0], 0))
    group.wait_said(1, "closed the connection")
    dns.names["vllm-0-1.vllm.default"] = frozenset({"127.0.0.1", "::1"})
    worker.result()
    leader.result()
    assert group.kept[0].rank0_host == "vllm-0-1.vllm.default"
    golden(sorted({line for line in group.said[0] if "was ended" in line}))


def test_who_waits_for_dns_takes_no_place_of_who_has_not_said_a_hello(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_side, "SILENT_CONNECTIONS", 4)
    monkeypatch.setattr(leader_side, "DOUBTFUL_CONNECTIONS", 4)
    group, dns = Group(2, 1, pool), Dns(unknown_seconds=3600.0)
    dns.names = {"w.set": frozenset({"127.0.0.1"})}
    leader = group.lead(own=Member(0, "l.set"), names=GroupNames("set", dns.resolve))
    with contextlib.ExitStack() as stack:
        slow, crowd = stack.enter_context(group.connect()), []
        for number in range(1, 11):
            crowd.append(stack.enter_context(group.connect()))
            crowd[-1].sendall(line_of(group.hello(Member(1, "evil.set"))))
            eventually(lambda number=number: dns.questions == number, SOON)  # type: ignore[misc] # bound at once
        for connection in crowd[:-4]:
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""
        slow.sendall(line_of(group.hello(Member(1, "w.set"))))
        assert isinstance(read_answer(slow), Ranks)
        slow.sendall(line_of(Confirmed()))
        leader.result(SOON)


def test_a_worker_that_was_restarted_with_another_address_comes_in_when_dns_has_learnt_it(
    pool: ThreadPoolExecutor,
) -> None:
    group, dns = Group(2, 1, pool), Dns()
    dns.names = {"w.set": frozenset({"127.0.0.2"})}
    leader = group.lead(own=Member(0, "l.set"), names=GroupNames("set", dns.resolve))
    worker = group.follow(1, own=Member(1, "w.set"))
    group.wait_said(0, "has the address 127.0.0.2")
    dns.names = {"w.set": frozenset({"127.0.0.1"})}
    worker.result()
    leader.result()


class PublicName:
    """A resolver with kubelet's search domains, for a namespace that is also a public domain, where a name is known."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path, name: str, address: str) -> None:
        self.addresses = {f"{name}.": address}
        self.domains = ("dev.svc.cluster.local", "svc.cluster.local", "cluster.local", "corp.example")
        self.getaddrinfo = socket.getaddrinfo
        configuration = directory / "resolv.conf"
        configuration.write_text(
            f"# as kubelet writes it\nsearch x\nsearch {' '.join(self.domains)}\noptions ndots:5\n"
        )
        monkeypatch.setattr(names_side, "RESOLV_CONF", configuration)
        monkeypatch.setattr(socket, "getaddrinfo", self._look_up)

    def _look_up(self, host: str, *arguments: Any, **options: Any) -> Any:
        if host.replace(".", "").isdigit():
            return self.getaddrinfo(host, *arguments, **options)
        for name in [host] if host.endswith(".") else [*(f"{host}.{domain}." for domain in self.domains), f"{host}."]:
            if name in self.addresses:
                return self.getaddrinfo(self.addresses[name], *arguments, **options)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def test_a_member_has_a_name_in_the_cluster_and_not_one_outside(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dns = PublicName(monkeypatch, tmp_path, "x.vllm.dev", "127.0.0.9")
    group = Group(2, 1, pool)
    names = GroupNames("vllm.dev", zone=names_side.services_zone())
    leader = group.lead(own=Member(0, "vllm-0.vllm.dev"), names=names)
    with socket.create_connection(("127.0.0.1", group.port), timeout=SOON, source_address=("127.0.0.9", 0)) as peer:
        peer.sendall(line_of(group.hello(Member(1, "x.vllm.dev"))))
        assert peer.recv(4096) == b""
    dns.addresses["vllm-0-1.vllm.dev.svc.cluster.local."] = "127.0.0.1"
    group.follow(1, own=Member(1, "vllm-0-1.vllm.dev")).result()
    leader.result()
    assert {member.host for member in group.kept[0].members} == {"vllm-0.vllm.dev", "vllm-0-1.vllm.dev"}


@pytest.mark.parametrize("given", [False, True], ids=["by LeaderWorkerSet", "by an option"])
def test_a_worker_calls_no_leader_outside_of_the_cluster_unless_it_is_given_that(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    port: int,
    capsys: pytest.CaptureFixture[str],
    given: bool,
) -> None:
    PublicName(monkeypatch, tmp_path, "vllm-0.vllm.dev", "127.0.0.1")
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    for name, value in {
        "LWS_LEADER_ADDRESS": "vllm-0.vllm.dev",
        "LWS_GROUP_SIZE": "2",
        "LWS_WORKER_INDEX": "1",
        "NEURON_RT_ULTRASERVER_MODE": "3",
        "NEURON_RT_ULTRASERVER_SERVER_ID": SERVERS[0],
        "NEURON_RT_ULTRASERVER_NODE_ID": "0",
    }.items():
        monkeypatch.setenv(name, value)
    options = ["--env-file", str(tmp_path / "env"), "--port", str(port), "--timeout", "1"]
    with socket.create_server(("127.0.0.1", port)) as stranger:
        stranger.setblocking(False)
        status = main(["rank", *options, *(["--leader-address", "vllm-0.vllm.dev"] if given else [])])
        assert status == 1
        assert ("cannot be reached yet" in capsys.readouterr().out) != given
        with contextlib.nullcontext() if given else pytest.raises(BlockingIOError):
            stranger.accept()[0].close()


def test_names_are_looked_up_on_this_machine() -> None:
    assert "127.0.0.1" in asyncio.run(Lookups().resolve("localhost", "127.0.0.1"))
    with pytest.raises(OSError):
        asyncio.run(Lookups().resolve("no-such-pod.invalid", "127.0.0.1"))


class Resolver:
    """In place of the system's: it does not come back from names that it does not know until it is told to."""

    def __init__(self, known: dict[str, str]) -> None:
        self.known = known
        self.asked: list[str] = []
        self.released = threading.Event()
        self._real = socket.getaddrinfo

    def getaddrinfo(self, host: str, *rest: Any, **options: Any) -> Any:
        if not host.endswith(".set"):
            return self._real(host, *rest, **options)
        self.asked.append(host)
        if host not in self.known:
            self.released.wait()
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return self._real(self.known[host], *rest, **options)


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    made = Resolver({"w.set": "127.0.0.1"})
    monkeypatch.setattr(socket, "getaddrinfo", made.getaddrinfo)
    yield made
    made.released.set()


def test_a_worker_comes_in_while_the_names_that_strangers_gave_are_looked_up(
    pool: ThreadPoolExecutor, resolver: Resolver
) -> None:
    """More names than there are threads. The leader ends, too, although the lookups of these do not."""
    strangers = ("127.0.0.8", "127.0.0.9")
    group = Group(2, 1, pool)
    leader = group.lead(own=Member(0, "l.set"), names=GroupNames("set"))
    with contextlib.ExitStack() as stack:
        for number in range(100):
            for address in strangers:
                peer = socket.create_connection(("127.0.0.1", group.port), SOON, source_address=(address, 0))
                stack.enter_context(peer).sendall(line_of(group.hello(Member(1, f"x{number}.set"))))
        eventually(lambda: len(resolver.asked) >= len(strangers), SOON)
        worker = group.follow(1, own=Member(1, "w.set"))
        try:
            worker.result(SOON / 2)
            leader.result(SOON / 2)
        finally:
            resolver.released.set()
    assert len(resolver.asked) == len(strangers) + 1
    assert resolver.asked[-1] == "w.set"


def test_names_of_one_address_are_looked_up_in_turn_and_only_for_who_still_waits(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names_side, "RESOLVE_SECONDS", 0.2)
    lookups = Lookups()

    async def ask() -> None:
        with pytest.raises(TimeoutError):
            await lookups.resolve("x1.set", "127.0.0.9")
        gone = asyncio.create_task(lookups.resolve("x2.set", "127.0.0.9"))
        waiting = asyncio.create_task(lookups.resolve("w.set", "127.0.0.9"))
        assert await lookups.resolve("w.set", "127.0.0.1") == {"127.0.0.1"}
        gone.cancel()
        assert resolver.asked == ["x1.set", "w.set"]
        resolver.released.set()
        assert await waiting == {"127.0.0.1"}

    asyncio.run(ask())
    assert resolver.asked == ["x1.set", "w.set", "w.set"]


def test_lookups_are_bounded_and_the_next_begins_when_one_ends(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names_side, "MAX_LOOKUPS", 2)
    lookups = Lookups()

    async def ask() -> None:
        strangers = [asyncio.create_task(lookups.resolve(f"x{n}.set", f"127.0.0.{n}")) for n in (7, 8)]
        waiting = asyncio.create_task(lookups.resolve("w.set", "127.0.0.1"))
        await asyncio.sleep(0.2)
        assert "w.set" not in resolver.asked
        resolver.released.set()
        assert await waiting == {"127.0.0.1"}
        await asyncio.wait(strangers)
        assert all(isinstance(task.exception(), socket.gaierror) for task in strangers)

    asyncio.run(ask())
    assert sorted(resolver.asked) == ["w.set", "x7.set", "x8.set"]


def test_without_a_further_thread_a_name_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def spawn(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(runtime, "spawn", spawn)
    for _ in range(2):
        with pytest.raises(OSError, match="new thread"):
            asyncio.run(Lookups().resolve("localhost", "127.0.0.1"))


# The command


class Command:
    """``dra-driver rank`` as a process."""

    def __init__(
        self, directory: Path, index: int, port: int, *extra: str, size: int = 2, leader: str = "127.0.0.1"
    ) -> None:
        self.output = directory / f"env-{index}"
        environment = {
            "LWS_LEADER_ADDRESS": leader,
            "LWS_GROUP_SIZE": str(size),
            "LWS_WORKER_INDEX": str(index),
            "NEURON_RT_ULTRASERVER_MODE": "3",
            "NEURON_RT_ULTRASERVER_SERVER_ID": SERVERS[0],
            "NEURON_RT_ULTRASERVER_NODE_ID": str(1 - index),
        }
        options = [
            "--env-file",
            str(self.output),
            "--port",
            str(port),
            "--timeout",
            "30",
            "--listen",
            "127.0.0.1",
            *extra,
        ]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dra_driver", "rank", *options],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def wait_for_line(self, text: str) -> None:
        assert self.process.stdout is not None
        seen = ""
        for line in self.process.stdout:
            seen += line
            if text in line:
                return
        raise AssertionError(f"{text!r} did not come: {seen}")

    def end(self) -> tuple[int, str]:
        """Exit status and the rest of the output."""
        output, _ = self.process.communicate(timeout=40)
        return self.process.returncode, output


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        number: int = probe.getsockname()[1]
    return number


def test_the_command_writes_a_file_for_the_shell_also_after_a_restart_of_the_leader(tmp_path: Path, port: int) -> None:
    leader = Command(tmp_path, 0, port)
    leader.wait_for_line("1 of 2 members: waiting for worker 1")
    leader.process.kill()
    leader.end()
    worker = Command(tmp_path, 1, port)
    worker.wait_for_line("cannot be reached yet")
    again = Command(tmp_path, 0, port)
    for command in (again, worker):
        assert command.end()[0] == 0
    show = "env | grep ^NEURON_GLOBAL_ | LC_ALL=C sort"
    script = f"set -a; . {worker.output}; {show}; . {again.output}; echo $NEURON_GLOBAL_TOPOID"
    printed = subprocess.run(["sh", "-ec", script], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == ["NEURON_GLOBAL_TOPOID0_HOST=127.0.0.1", "NEURON_GLOBAL_TOPOID=0", "1"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["env-0", "env-1"]


@pytest.mark.parametrize("extra", [(), ("--no-dns-check",)])
def test_a_leader_that_is_known_by_a_name_takes_nobody_whose_name_it_cannot_look_up(
    tmp_path: Path, port: int, extra: tuple[str, ...]
) -> None:
    leader = Command(tmp_path, 0, port, *extra, leader="vllm-0.vllm.invalid")
    leader.wait_for_line("waiting for worker 1")
    with socket.create_connection(("127.0.0.1", port), timeout=SOON) as peer:
        peer.sendall(line_of(Hello(Member(1, "vllm-0-1.vllm.invalid", SERVERS[0], 0), 2, 2)))
        leader.wait_for_line("2 of 2 members" if extra else "is not known to DNS yet")
    leader.process.kill()
    leader.end()


def test_the_command_ends_when_its_pod_is_deleted(tmp_path: Path, port: int) -> None:
    leader = Command(tmp_path, 0, port)
    leader.wait_for_line("waiting for worker 1")
    leader.process.send_signal(signal.SIGTERM)
    assert leader.end() == (143, "")


def test_a_leader_that_cannot_write_stops_the_group(tmp_path: Path, port: int) -> None:
    leader = Command(tmp_path / "missing", 0, port)
    worker = Command(tmp_path, 1, port)
    for status, output in (leader.end(), worker.end()):
        assert (status, output.count("Traceback")) == (1, 0)
        assert "error: [Errno 2]" in output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("variable", ["LWS_GROUP_SIZE", "NEURON_RT_ULTRASERVER_MODE"])
def test_outside_of_a_group_the_command_says_what_is_missing(variable: str) -> None:
    others = {"LWS_LEADER_ADDRESS": "a", "LWS_GROUP_SIZE": "1", "LWS_WORKER_INDEX": "0"}
    environment = {key: value for key, value in others.items() if key != variable}
    done = subprocess.run(
        [sys.executable, "-m", "dra_driver", "rank"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    golden(done.stderr)
