"""Any history of calls, kills, restarts, reboots, spoiled files and second instances, against what kubelet was told."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dra_driver.kube.api.errors import Unreachable
from dra_driver.kube.objects.resource import DeviceRequestAllocationResult, ResourceClaim
from dra_driver.neuron.topology.partitions import NODE_DEVICE, HardwarePart, parts_of
from dra_driver.util.errors import DriverError
from tests.builders.claims import ApiServer, Node, claim, result, uid
from tests.generators.effort import examples
from tests.plugin.driver.claims.crashpoints import effects

CHIPS: list[list[int | DeviceRequestAllocationResult]] = [
    [0],
    [0, 1],
    [1, 2],
    [3],
    [2, 3, 4],
    [5],
    [result(0, admin_access=True), 4],
    [result(NODE_DEVICE)],
    [result("neuron-core-5-0"), result("neuron-core-5-1")],
    [result("neuron-core-5-3"), result("neuron-core-6-0")],
    [result("neuron-core-6-0"), result("neuron-core-6-1", admin_access=True)],
]
CLAIMS = {
    number: claim(number, chips, pods=[f"pod-{number % 3}"], template=number % 2 == 0)
    for number, chips in enumerate(CHIPS)
}


class Killed(BaseException):
    """The process ended here: nothing of its own runs any more."""


class Histories(RuleBasedStateMachine):
    """``promised`` are the claims that kubelet was told are ready, with the CDI ids it got."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="histories-"))
        self.api = ApiServer(*CLAIMS.values())
        self.instances = [Node(self.root, self.api), Node(self.root, self.api)]
        self.promised: dict[int, list[str]] = {}
        self.began: set[int] = set()
        self.visible: set[int] = set()
        self.major = 240

    def teardown(self) -> None:
        self.api.down = None
        for item in CLAIMS.values():
            self.instances[0].unprepare(item)
        node = self.instances[0]
        node.reconciler.reconcile()
        everything = self.api.put(claim(99, range(16), pods=["pod-99"]))
        assert len(node.prepare(everything)) == 16, "a chip was lost"
        node.unprepare(everything)
        left = [path.name for path in self.root.rglob("*") if path.is_file() and path.name != "journal.lock"]
        shutil.rmtree(self.root)
        assert left == []

    def survives(self, act: Callable[[], Any], kill_at: int | None, which: int) -> Any:
        """Do it, unless killed before it ends; a killed instance starts anew and repairs, as the driver does."""
        if kill_at is None:
            return act()
        passed = 0

        def reached(where: str) -> None:
            nonlocal passed
            passed += 1
            if passed > kill_at:
                raise Killed(where)

        try:
            with effects(reached):
                return act()
        except Killed:
            self.instances[which].restart()
            self.instances[which].reconciler.repair()
            raise

    @rule(
        number=st.sampled_from(sorted(CLAIMS)),
        which=st.integers(0, 1),
        kill_at=st.none() | st.integers(0, 45),
        away=st.booleans(),
    )
    def prepare(self, number: int, which: int, kill_at: int | None, away: bool) -> None:
        node = self.instances[which]
        self.began.add(number)
        remembered = number in self.visible or self.readable(number)
        self.api.down = Unreachable("away") if away else None
        try:
            ids = self.survives(lambda: node.prepare(CLAIMS[number]), kill_at, which)
        except (DriverError, Killed):
            return
        finally:
            self.api.down = None
        if remembered:  # else the checkpoint file is unreadable and a reboot took the spec, with all containers
            assert self.promised.setdefault(number, ids) == ids, "a retry must end in the same place"
        self.promised[number] = ids
        self.visible.add(number)

    @rule(number=st.sampled_from(sorted(CLAIMS)), which=st.integers(0, 1), kill_at=st.none() | st.integers(0, 25))
    def unprepare(self, number: int, which: int, kill_at: int | None) -> None:
        node = self.instances[which]
        # kubelet has ended the containers before it calls, so nothing is promised from here on.
        self.promised.pop(number, None)
        self.visible.discard(number)
        try:
            self.survives(lambda: node.unprepare(CLAIMS[number]), kill_at, which)
        except Killed:
            return
        self.began.discard(number)

    @rule(which=st.integers(0, 1), kill_at=st.none() | st.integers(0, 60))
    def repair(self, which: int, kill_at: int | None) -> None:
        node = self.instances[which]
        try:
            self.survives(node.reconciler.reconcile, kill_at, which)
        except Killed:
            return
        self.visible = {number for number in self.promised if number in self.visible or self.readable(number)}

    @rule(which=st.integers(0, 1))
    def restart(self, which: int) -> None:
        self.instances[which].restart()

    @rule(moves=st.booleans(), tmpfs=st.booleans())
    def reboot(self, moves: bool, tmpfs: bool) -> None:
        self.major += moves
        for node in self.instances:
            node.reboot(major=self.major, tmpfs=tmpfs)
        self.visible.clear()

    @rule(number=st.sampled_from(sorted(CLAIMS)), content=st.sampled_from([b"", b"{", b"\0" * 64]))
    def spoil_and_restart(self, number: int, content: bytes) -> None:
        path = self.instances[0].checkpoint_file(CLAIMS[number])
        if not path.exists():
            return
        path.write_bytes(content)
        for node in self.instances:
            node.restart()

    @rule(number=st.sampled_from(sorted(CLAIMS)))
    def spoil_under_a_running_driver(self, number: int) -> None:
        node = self.instances[0]
        with node.checkpoint.locked() as held:
            if uid(number) not in held.entries:
                return
        node.checkpoint_file(CLAIMS[number]).write_bytes(b"")
        node.reconciler.repair()

    @rule(number=st.sampled_from(sorted(CLAIMS)))
    def remove_a_file_under_a_running_driver(self, number: int) -> None:
        node = self.instances[0]
        with node.checkpoint.locked() as held:
            if uid(number) not in held.entries:
                return
        node.checkpoint_file(CLAIMS[number]).unlink()
        self.repair(which=0, kill_at=None)
        assert self.readable(number), "the API server has it"

    @rule()
    def remove_the_directory_under_a_running_driver(self) -> None:
        node = self.instances[0]
        with node.checkpoint.locked() as held:
            before = dict(held.entries)
        shutil.rmtree(self.root / "state" / "claims", ignore_errors=True)
        with node.checkpoint.locked() as held:
            assert held.entries == before
        node.restart()

    @rule(number=st.sampled_from(sorted(CLAIMS)))
    def lose_a_spec_and_prepare(self, number: int) -> None:
        self.instances[0].cdi.remove(uid(number))
        self.visible.discard(number)
        self.prepare(number=number, which=1, kill_at=None, away=False)

    def readable(self, number: int) -> bool:
        """Whether the claim's checkpoint file is there: only then can repair restore its spec."""
        return self.instances[0].checkpoint_file(CLAIMS[number]).exists()

    @invariant()
    def no_core_is_promised_twice(self) -> None:
        cores = [core for number in self.promised for part in _exclusive(CLAIMS[number]) for core in _cores(part)]
        assert len(cores) == len(set(cores))

    @invariant()
    def what_is_promised_is_held_or_held_back(self) -> None:
        for node in self.instances:
            with node.checkpoint.locked() as held:
                for number in self.promised:
                    for part in _exclusive(CLAIMS[number]):
                        holder = held.holder(part)
                        assert (holder is not None and holder.uid == uid(number)) or held.quarantined_holder(
                            part.chip, exclude=""
                        )

    @invariant()
    def nothing_is_held_that_kubelet_never_began(self) -> None:
        with self.instances[0].checkpoint.locked() as held:
            assert set(held.entries) | set(held.quarantined) <= {uid(number) for number in self.began}

    @invariant()
    def what_is_visible_shows_the_promised_names_and_the_right_chips(self) -> None:
        for number in self.visible:
            spec = self.instances[0].spec(CLAIMS[number])
            assert spec is not None
            names = {f"{spec.kind}={device.name}" for device in spec.devices}
            assert names == set(self.promised[number])
            minors = {node.minor for device in spec.devices for node in device.container_edits.device_nodes}
            majors = {node.major for device in spec.devices for node in device.container_edits.device_nodes}
            assert minors == {part.chip for one in _results(CLAIMS[number]) for part in _parts(one)}
            assert majors == {self.major}


def _results(item: ResourceClaim) -> Any:
    assert item.status.allocation is not None
    return item.status.allocation.devices.results


def _exclusive(item: ResourceClaim) -> list[HardwarePart]:
    return [part for one in _results(item) if not one.admin_access for part in _parts(one)]


def _parts(of: DeviceRequestAllocationResult) -> tuple[HardwarePart, ...]:
    """What a device is made of on this host of sixteen chips, whose logical cores are two physical ones."""
    return parts_of(of.device, range(16), lambda _: 2) or ()


def _cores(part: HardwarePart) -> list[tuple[int, int]]:
    """Physical cores, by chip."""
    return [(part.chip, core) for core in part.cores or range(8)]


Histories.TestCase.settings = settings(
    max_examples=examples(100), stateful_step_count=30, suppress_health_check=[HealthCheck.too_slow]
)
TestHistories = Histories.TestCase
