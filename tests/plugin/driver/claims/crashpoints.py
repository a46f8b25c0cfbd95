"""Kill the driver at each of its effects, and look at what a new one makes of it.

Run as a program with a scenario's name and a directory. For every system call that changes something, before and after
it, the scenario's operation is done anew in a forked process that ends there at once, as with SIGKILL. Then a fresh
driver starts over the same files, and everything that must hold is checked. Exit status 0 and the number of crash
points on standard output, or an AssertionError.

A program of its own, because pytest has threads and forking with threads is unsafe.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from dra_driver.driver.claims.container_edits import cdi_spec
from dra_driver.driver.claims.model import PreparedClaims
from dra_driver.driver.claims.observe import GONE_CHECKS, GONE_SECONDS
from dra_driver.kube.cdi import encode
from dra_driver.kube.objects.resource import ResourceClaim
from tests.builders.claims import SETTINGS, ApiServer, Node, claim, host, plan, uid

EFFECTS = ("open", "write", "ftruncate", "fchmod", "chmod", "fsync", "replace", "rename", "unlink", "mkdir")
"""Everything in ``os`` that the driver changes files with. ``pathlib`` calls these too."""
KILLED = 42


@contextmanager
def effects(reached: Callable[[str], None]) -> Iterator[None]:
    """Call ``reached`` before and after each effect."""
    real = {name: getattr(os, name) for name in EFFECTS}

    def wrapped(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            reached(f"before {name}")
            answer = real[name](*args, **kwargs)
            if name != "open":  # the next effect comes right after it, and a descriptor would be lost here
                reached(f"after {name}")
            return answer

        return call

    for name in EFFECTS:
        setattr(os, name, wrapped(name))
    try:
        yield
    finally:
        for name, function in real.items():
            setattr(os, name, function)


@dataclass(frozen=True)
class Scenario:
    """``live`` are the claims that kubelet may know; ``tidy``: reading the directory before the act changes nothing."""

    live: tuple[ResourceClaim, ...]
    set_up: Callable[[Node], object]
    act: Callable[[Node], object]
    tidy: bool = True


STRAY = uid(9)
A, B, OTHER_B = claim(1, [4, 5]), claim(2, [6, 7]), claim(2, [7, 8])


def _both(node: Node) -> None:
    node.prepare(A)
    node.prepare(B)


def _spoiled(node: Node) -> None:
    _both(node)
    node.checkpoint_file(A).write_bytes(b"{")


def _untidy(node: Node) -> None:
    """After a reboot that took no specs, with A gone, a stray spec and leftovers of killed writers."""
    _both(node)
    node.cdi.file(STRAY).write_bytes(encode(cdi_spec(plan(claim(9, [15]), host(), PreparedClaims(), SETTINGS))))
    node.cdi.note_boots()
    node.reboot(major=251, tmpfs=False)
    node.api.delete(A)
    (node.cdi.path / f"spec.k8s.neuron.aws.com-claim_{uid(8)}.tmp").write_bytes(b"{")
    (node.root / "state" / "claims" / f"{uid(8)}.tmp").write_bytes(b"{")


def _rebooted(node: Node) -> None:
    _both(node)
    node.reboot(major=251)


def _reallocated(node: Node) -> None:
    _rebooted(node)
    node.api.put(OTHER_B)


def _nothing(_: Node) -> None:
    return


SCENARIOS = {
    "first-prepare": Scenario((A,), _nothing, lambda node: node.prepare(A)),
    "prepare": Scenario((A, B), lambda node: node.prepare(A), lambda node: node.prepare(B)),
    "prepare-again": Scenario((A, B), _both, lambda node: node.prepare(B)),
    "prepare-after-reboot": Scenario((A, B), _rebooted, lambda node: node.prepare(B)),
    "prepare-reallocated": Scenario((A, OTHER_B), _reallocated, lambda node: node.prepare(OTHER_B)),
    "unprepare": Scenario((A, B), _both, lambda node: node.unprepare(B)),
    "repair": Scenario((B,), _untidy, lambda node: node.reconciler.reconcile(), tidy=False),
    "quarantine": Scenario((A, B), _spoiled, lambda node: node.prepare(B), tidy=False),
    "prepare-quarantined": Scenario((A, B), _spoiled, lambda node: node.prepare(A), tidy=False),
    "unprepare-quarantined": Scenario((A, B), _spoiled, lambda node: node.unprepare(A), tidy=False),
}


def run(scenario: Scenario, root: Path) -> int:
    """Try every crash point; their number."""
    point = 0
    while True:
        directory = root / str(point)
        directory.mkdir()
        node = Node(directory, ApiServer(*scenario.live))
        for item in (A, B):
            if (item.metadata.namespace, item.metadata.name) not in node.api.claims:
                node.api.put(item)
        scenario.set_up(node)
        node.restart()
        bystander = _second_instance(node, warm=scenario.tidy)
        reached = _killed_at(partial(scenario.act, node), point)
        if reached is None:
            return point
        _check(scenario, node, bystander, f"{reached} (point {point})")
        point += 1


def _second_instance(node: Node, *, warm: bool) -> Node:
    """Another instance over the same files; ``warm``: it has read them already."""
    other = Node(node.root, node.api)
    other.boot, other.inventory = node.boot, node.inventory
    other.restart()
    if warm:
        with other.checkpoint.locked():
            pass
    return other


def _killed_at(act: Callable[[], object], point: int) -> str | None:
    """Do it in a child that ends at the given crash point; where that was, None when it came to its end before."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _child(act, point, writer)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        reached = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, KILLED), f"the operation failed at crash point {point}: status {status}"
    return reached if status == KILLED else None


def _child(act: Callable[[], object], point: int, writer: int) -> NoReturn:
    passed = 0
    real_write, leave = os.write, os._exit

    def reached(where: str) -> None:
        nonlocal passed
        if passed == point:
            real_write(writer, where.encode())
            leave(KILLED)
        passed += 1

    try:
        with effects(reached):
            act()
    except BaseException as error:  # noqa: BLE001 - whatever it is ends this child
        real_write(2, f"{type(error).__name__}: {error}\n".encode())
        leave(1)
    leave(0)


def _check(scenario: Scenario, node: Node, bystander: Node, where: str) -> None:
    kept = {path.stem for path in (node.root / "state").glob("*/*.json")}
    assert set(node.cdi.list()) - {STRAY} <= kept, f"{where}: a container could see a chip that no file accounts for"
    node.restart()
    views = []
    for instance in (bystander, node):
        with instance.checkpoint.locked() as found:
            views.append((dict(found.entries), set(found.quarantined)))
    assert views[0] == views[1], f"{where}: a running instance and a new one see different things"
    bystander.checkpoint.close()

    node.reconciler.reconcile()
    consistent(node, where)
    # The retry succeeds and ends in one place.
    scenario.act(node)
    scenario.act(node)
    node.reconciler.reconcile()
    consistent(node, where)
    for item in scenario.live:
        first = node.prepare(item)
        assert node.prepare(item) == first, where
    consistent(node, where)
    chips = [chip for held in node.checkpointed().values() for chip in held]
    assert len(chips) == len(set(chips)), f"{where}: a chip is held twice"
    # None is lost: when all claims end, one claim can have every chip.
    for item in (*scenario.live, A):
        node.unprepare(item)
    for _ in range(GONE_CHECKS):  # the stray spec's claim is gone
        node.reconciler.reconcile()
        node.now += GONE_SECONDS
    everything = node.api.put(claim(7, range(16), pods=["pod-7"]))
    assert len(node.prepare(everything)) == 16, where
    node.unprepare(everything)
    left = [path.name for path in node.root.rglob("*") if path.is_file() and path.name != "journal.lock"]
    assert left == [], where


def consistent(node: Node, where: str) -> None:
    """The CDI directory shows exactly what the checkpoint says, in the device numbers of now."""
    with node.checkpoint.locked() as held:
        wanted = {uid: encode(cdi_spec(entry.plan)) for uid, entry in held.entries.items()}
        shown = {uid: node.cdi.content(uid) for uid in node.cdi.list() if uid not in held.quarantined}
        majors = {n.major for entry in held.entries.values() for n in entry.plan.nodes.values()}
    assert shown == wanted, where
    assert majors <= {node.inventory.devices[0].major}, where


if __name__ == "__main__":
    print(run(SCENARIOS[sys.argv[1]], Path(sys.argv[2])))  # noqa: T201 - a program's answer
