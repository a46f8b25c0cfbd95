"""What leader and workers say of connections that go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from dra_driver.ultraserver.rendezvous.leader import lead, listen
from dra_driver.ultraserver.rendezvous.members import GroupError, Member
from dra_driver.ultraserver.rendezvous.messages import Confirmed, Hello, Ranks, line_of
from dra_driver.ultraserver.rendezvous.worker import follow
from tests.golden import golden

SERVER = "8b6a1c0e5d2f4936"
LEADER, WORKER = Member(0, "h0", SERVER, 0), Member(1, "h1", SERVER, 1)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


def followed(answer: bytes, pool: ThreadPoolExecutor) -> list[str]:
    """What a worker says of a leader that gives one answer and closes, and how it ends."""
    said: list[str] = []
    listener = listen("127.0.0.1", 0)
    address = listener.getsockname()
    work = follow(Hello(WORKER, 2, 2), ("127.0.0.1", address[1]), 4.0, lambda _: None, said.append)
    with listener:
        future = pool.submit(asyncio.run, work)
        listener.setblocking(True)
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(answer)
    with pytest.raises(GroupError) as caught:
        future.result(30)
    return [*said[:1], str(caught.value).partition(":")[0]]


@pytest.mark.parametrize(
    "answer",
    [b"", b"{}\n", line_of(Ranks([LEADER])), b'{"kind":"refused","rank 0\\n":0}\n'],
    ids=["nothing", "no message", "ranks of others", "a line of its own"],
)
def test_what_a_worker_says_of_an_odd_leader(answer: bytes, pool: ThreadPoolExecutor) -> None:
    golden(followed(answer, pool))


def test_a_leader_that_is_never_reached_in_time(pool: ThreadPoolExecutor) -> None:
    with pytest.raises(GroupError) as caught:
        asyncio.run(follow(Hello(WORKER, 2, 2), ("127.0.0.1", 1), 0.0, lambda _: None, lambda _: None))
    golden(str(caught.value))


def leading(pool: ThreadPoolExecutor, said: list[str], within: float) -> tuple[int, Future[None]]:
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    work = lead(Hello(LEADER, 2, 2), listener, within, lambda _: None, said.append)
    return port, pool.submit(asyncio.run, work)


async def talk(port: int, *lines: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for line in lines:
        writer.write(line)
        await writer.drain()
    while await reader.readline():
        pass
    writer.close()


def test_what_a_leader_says_of_odd_workers(pool: ThreadPoolExecutor) -> None:
    said: list[str] = []
    port, leader = leading(pool, said, 6.0)
    asyncio.run(talk(port, line_of(Confirmed())))
    asyncio.run(talk(port, b"{}\n"))
    asyncio.run(talk(port, b'{"kind":"hello","\\nrank 0: the leader (evil)":0}\n'))
    asyncio.run(talk(port, line_of(Hello(WORKER, 2, 2))))
    with pytest.raises(GroupError) as caught:
        leader.result(30)
    golden(str(caught.value), "in the end")
    golden(sorted({text for text in said if "was ended" in text}), "of connections")
