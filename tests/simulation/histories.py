"""Histories of a simulated node: what happens, by a seed, and the check of it. One that fails is made small."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from dra_driver.driver.settings import PARTITIONS_LABEL
from dra_driver.neuron.emulation.tree import DEFAULT_SERVER_ID
from tests.doubles.apiserver.store import Object
from tests.simulation.apiserver import Mood
from tests.simulation.kubelet import Pod
from tests.simulation.node import Node, simulated_node
from tests.simulation.oracle import LAYER_LABEL, remains, unrest, violations, watch_over

DIRECTORY: Final = Path("/dev/shm")
"""A tmpfs, as the state of a simulation is gone with it."""
TYPES: Final = ("inf1.6xlarge", "trn2.3xlarge", "inf1.6xlarge", "trn1.2xlarge")
"""Small ones; half of all nodes have four chips."""
ALL_TYPES: Final = ("inf1.24xlarge", "inf2.xlarge", "inf2.48xlarge", "trn1.32xlarge", "trn2.48xlarge", "trn2u.48xlarge")
"""Of larger nodes, and of those with one chip."""
PARTITIONS: Final = {"inf1.6xlarge": ("chip", "chip.node"), "trn2.3xlarge": ("chip", "core"), "trn1.2xlarge": ("chip",)}
WAITS: Final = (0.0, 0.0, 0.02, 0.3, 1.0, 4.0, 11.0)
"""Seconds between two events."""
QUIET_SECONDS: Final = 45.0
"""After the last event, where the API server has answered all the time. A fault that is over is told for 30 s more."""
UPDATE_SECONDS: Final = 75.0
"""The same after an update of the driver."""
PASS_SECONDS: Final = 90.0
"""After that, what is looked at once a minute is right, too."""
HOUR_SECONDS: Final = 3600.0
"""In so long a time, as many changes of health are published as there may be."""
LONG_SECONDS: Final = 330.0
"""The same where it has not: what is tried again waits for up to five minutes by then."""


@dataclass(frozen=True)
class Step:
    """Something that happens, if it can."""

    event: str
    pick: int
    """Which of several, whatever they are."""
    wait: float
    """Seconds until the next one."""


@dataclass(frozen=True)
class Story:
    """What a history is made of: the same ones are the same history, in one process."""

    seed: int
    kind: str
    steps: tuple[Step, ...]
    partitions: str | None = None
    """What the Node's label says at the start."""
    away: float = 0.0
    """Seconds after the driver's start from which on the API server answers."""
    before: int = 0
    """So many steps come before the driver's start."""
    has_workloads: bool = False
    """Whether the node can be allocated to UltraServer workloads."""


class BrokenRuleError(AssertionError):
    """A history broke a rule."""


@dataclass
class History:
    """A node and what has happened to it."""

    node: Node
    plugin: bool = False
    troubled: bool = False
    """Whether the API server was away, or refused, since the last quiet."""
    updates: int = 0
    """Under way."""
    updated: bool = False
    """Whether two instances ran at a time since the last quiet."""
    happened: list[str] = field(default_factory=list)

    # Pods and claims

    def pod(self, pick: int) -> bool:
        free = self.node.free_devices()
        if not free:
            return False
        self.node.allocate(free[pick % len(free)])
        return True

    def pod_with_several_devices(self, pick: int) -> bool:
        chosen: list[str] = []
        for _ in range(2 + pick % 2):
            taken = {part for device in chosen for part in self.node.parts(device)}
            free = [device for device in self.node.free_devices() if not self.node.parts(device) & taken]
            if free:
                chosen.append(free[pick % len(free)])
        if not chosen:
            return False
        self.node.allocate(*chosen)
        return True

    def pod_watches_devices(self, pick: int) -> bool:
        """With admin access: whether others have them or not."""
        offered = sorted(self.node.offered())
        if not offered:
            return False
        self.node.allocate(offered[pick % len(offered)], admin=True)
        return True

    def pod_with_former_claim(self, pick: int) -> bool:
        free = self.node.free_devices()
        idle = [
            claim
            for claim in self.node.claims()
            if not claim["status"].get("allocation") and claim["metadata"]["uid"] not in self.node.watching
        ]
        if not free or not idle:
            return False
        self.node.allocate(free[pick % len(free)], claim=idle[pick % len(idle)])
        return True

    def pod_joins(self, pick: int) -> bool:
        return self._join(pick, self.node.join)

    def pod_of_another_node_joins(self, pick: int) -> bool:
        return self._join(pick, self.node.join_elsewhere)

    def _join(self, pick: int, act: Callable[[Object], object]) -> bool:
        used = [claim for claim in self.node.claims() if claim["status"].get("reservedFor")]
        if not used:
            return False
        act(used[pick % len(used)])
        return True

    def pod_ends(self, pick: int) -> bool:
        return self._end(pick, force=False, keep_claim=False)

    def pod_ends_and_leaves_its_claim(self, pick: int) -> bool:
        return self._end(pick, force=False, keep_claim=True)

    def pod_deleted_by_force(self, pick: int) -> bool:
        return self._end(pick, force=True, keep_claim=bool(pick % 2))

    def _end(self, pick: int, *, force: bool, keep_claim: bool) -> bool:
        pods = self._living()
        if not pods:
            return False
        pod = pods[pick % len(pods)]
        pod.deleted = True
        self.node.end(pod, force=force, keep_claim=keep_claim)
        return True

    def _living(self) -> list[Pod]:
        return [pod for pod in self.node.kubelet.pods.values() if not pod.deleted]

    # UltraServer workloads

    def workload_gets_node(self, pick: int) -> bool:
        if self.node.workloads.holder is not None or not self.node.workloads.is_elected:
            return False
        self.node.workloads.reserve()
        self.node.pass_time((0.0, 3.0, 15.0)[pick % 3])
        return True

    def workload_goes(self, _: int) -> bool:
        if self.node.workloads.holder is None:
            return False
        self.node.workloads.release()
        return True

    def another_workload_comes(self, _: int) -> bool:
        """Before the driver may have heard that the former one has gone."""
        if self.node.workloads.holder is None or not self.node.workloads.is_elected:
            return False
        self.node.workloads.reserve()
        return True

    def server_object_is_deleted(self, _: int) -> bool:
        if self.node.workloads.server is None or not self.node.workloads.is_elected:
            return False
        self.node.workloads.delete()
        return True

    def server_object_is_back(self, _: int) -> bool:
        if self.node.workloads.server is not None or "server_object_is_deleted" not in self.happened:
            return False
        self.node.workloads.restore()
        return True

    def election_differs(self, pick: int) -> bool:
        """Or is the same again; while it runs, and after it, the object says what it said."""
        holder = self.node.workloads.holder
        # The operator gives back what is reserved there where hosts say something else by then.
        if self.node.workloads.server is None or (holder is not None and self.node.workloads.marked() != {holder[0]}):
            return False
        choices = (OTHER_SERVER, "", DEFAULT_SERVER_ID)
        if pick % 2:
            self.node.elect(None)
            self.node.pass_time((1.0, 15.0)[pick % 4 // 3])
        self.node.elect(choices[pick % 3])
        return True

    def reboot_while_server_is_away(self, pick: int) -> bool:
        """The object is read late, when the first slices may have been written, or the other way round."""
        self.node.server.mood.away = True
        self.troubled = True
        self._reboot()
        self.node.pass_time((1.0, 4.0, 12.0)[pick % 3])
        self.node.server.mood = Mood(slow=(0.0, 4.0, 8.0)[pick // 3 % 3])
        return True

    def pod_of_workload(self, pick: int) -> bool:
        marks = sorted(uid for uid in self.node.workloads.marked() if uid is not None)
        free = self.node.free_devices(marks[0]) if marks else []
        if not free:
            return False
        self.node.allocate(free[pick % len(free)], workload=marks[0])
        return True

    def pod_with_any_workload(self, pick: int) -> bool:
        """By a scheduler that has not seen yet whose the node is, or whose it is no more; or by a tenant's trick."""
        free = self.node.free_devices(late=True)
        if not free:
            return False
        known = [None, *sorted(set(self.node.workloads.of_claims.values())), FOREIGN]
        self.node.allocate(free[pick % len(free)], workload=known[pick % len(known)])
        return True

    # The host

    def chip_falls_ill(self, pick: int) -> bool:
        return self._chip(pick, lambda chip: not self.node.ails(chip), lambda chip: self.node.ail(chip, ill=True))

    def chip_is_well_again(self, pick: int) -> bool:
        return self._chip(pick, self.node.ails, lambda chip: self.node.ail(chip, ill=False))

    def chip_is_lost(self, pick: int) -> bool:
        return self._chip(pick, lambda _: True, self.node.lose)

    def chip_is_back(self, pick: int) -> bool:
        lost = sorted(self.node.chips - self.node.present)
        if not lost:
            return False
        self.node.bring_back(lost[pick % len(lost)])
        return True

    def _chip(self, pick: int, wanted: Callable[[int], bool], act: Callable[[int], None]) -> bool:
        chips = [chip for chip in sorted(self.node.present) if wanted(chip)]
        if not chips:
            return False
        act(chips[pick % len(chips)])
        return True

    def module_is_loaded_anew(self, pick: int) -> bool:
        self.node.renumber(240 + (self.node.major - 240 + 1 + pick % 3) % 5)
        return True

    def power_fails(self, _: int) -> bool:
        return self._reboot(power_fails=True)

    def reboot(self, _: int) -> bool:
        return self._reboot()

    def _reboot(self, *, power_fails: bool = False) -> bool:
        self.node.reboot(power_fails=power_fails)
        self.node.kubelet.start()
        self.node.start()
        return True

    # The node's programs

    def kubelet_restarts(self, pick: int) -> bool:
        self.node.kubelet.kill()
        if pick % 2:
            self.node.pass_time(self.node.random.choice((0.1, 3.0, 20.0)))
        self.node.kubelet.start()
        return True

    def kubelet_is_replaced(self, pick: int) -> bool:
        """By a version that stops calling drivers after a while, or by one that does not."""
        self.node.kubelet.kill()
        self.node.supported = not self.node.supported
        version = "v1.37.1" if self.node.supported else "v1.34.1"
        self.node.pass_time((0.1, 3.0, 20.0)[pick % 3])
        self.node.change_node(lambda node: node["status"].update(nodeInfo={"kubeletVersion": version}))
        self.node.kubelet.start()
        return True

    def settings_change(self, pick: int) -> bool:
        """Of all drivers: they are restarted."""
        choices = (*PARTITIONS.get(self.node.kind.name, ("chip", "chip.group", "chip.node")), None)
        self.node.partitions = choices[pick % len(choices)]
        return self.driver_restarts(pick)

    def disk_is_full(self, _: int) -> bool:
        self.node.disk.full = True
        self.troubled = True
        return True

    def disk_has_room(self, _: int) -> bool:
        if not self.node.disk.full:
            return False
        self.node.disk.full = False
        return True

    def checkpoint_file_is_spoiled(self, pick: int) -> bool:
        files = self.node.checkpoint_files()
        if not files:
            return False
        self.node.damaged.add(files[pick % len(files)].stem)
        files[pick % len(files)].write_bytes((b"", b"{", bytes(64))[pick % 3])
        return True

    def checkpoint_file_is_removed(self, pick: int) -> bool:
        files = self.node.checkpoint_files()
        if not files:
            return False
        self.node.damaged.add(files[pick % len(files)].stem)
        files[pick % len(files)].unlink()
        return True

    def checkpoint_directory_is_removed(self, _: int) -> bool:
        files = self.node.checkpoint_files()
        if not files:
            return False
        self.node.damaged |= {path.stem for path in files}
        shutil.rmtree(self.node.state / "claims")
        return True

    def cdi_spec_is_removed(self, pick: int) -> bool:
        specs = sorted(self.node.cdi.glob("*.json"))
        if not specs:
            return False
        specs[pick % len(specs)].unlink()
        self.node.spec_removed = self.node.scheduler.clock
        return True

    def driver_is_killed(self, pick: int) -> bool:
        instances = self.node.instances
        if not instances:
            return False
        self.node.kill(instances[pick % len(instances)])
        self.ensure_instance()
        return True

    def driver_restarts(self, pick: int) -> bool:
        if not self.node.instances:
            return False
        self.node.stop(self.node.instances[pick % len(self.node.instances)])
        self.updated = True
        self.node.pass_time(self.node.random.choice((0.0, 0.1, 2.0)))
        self.ensure_instance()
        return True

    def driver_is_updated(self, pick: int) -> bool:
        """The next instance starts, and when it is ready the former one stops."""
        if len(self.node.instances) != 1 or not self.node.instances[0].started:
            return False
        former = self.node.instances[0]
        following = self.node.start()

        def end() -> None:
            self.node.scheduler.wait(lambda: following.started, 60.0)
            self.node.scheduler.sleep((0.0, 0.5, 8.0)[pick % 3])
            if former in self.node.instances:
                self.node.stop(former)
            self.updates -= 1

        self.updates += 1
        self.updated = True
        self.node.scheduler.spawn(end, "update")
        return True

    def ensure_instance(self) -> None:
        if all(instance.stopping for instance in self.node.instances):
            self.node.start()

    def device_plugin_comes(self, pick: int) -> bool:
        if self.plugin:
            return False
        self.plugin = True
        self._allocatable("4")
        used = {chip for device in self._held() for chip, _ in self.node.parts(device)}
        free = sorted(self.node.present - used)
        if free and pick % 2:
            self.node.kubelet.plugin_pods["legacy"] = (free[pick % len(free)],)
        return True

    def device_plugin_goes(self, pick: int) -> bool:
        if not self.plugin:
            return False
        self.plugin = False
        self._allocatable("0")

        def end() -> None:
            self.node.scheduler.sleep((0.0, 5.0, 14.0)[pick % 3])
            self.node.kubelet.plugin_pods.clear()

        self.node.scheduler.spawn(end, "the device plugin's pods end")
        return True

    def _held(self) -> Iterator[str]:
        for devices in self.node.allocations().values():
            yield from devices

    def _allocatable(self, count: str) -> None:
        self.node.change_node(lambda node: node["status"].update(allocatable={"aws.amazon.com/neuron": count}))

    # Labels

    def partitions_are_set(self, pick: int) -> bool:
        choices = (*PARTITIONS.get(self.node.kind.name, ("chip", "chip.group", "chip.node")), None)
        self.node.label(**{PARTITIONS_LABEL: choices[pick % len(choices)]})
        return True

    def network_labels_change(self, pick: int) -> bool:
        self.node.label(**{LAYER_LABEL: (None, "nn-1", "nn-2")[pick % 3]})
        return True

    # The API server

    def server_is_away(self, _: int) -> bool:
        self.node.server.mood.away = True
        self.troubled = True
        return True

    def server_is_back(self, _: int) -> bool:
        if not self.node.server.mood.away:
            return False
        self.node.server.mood.away = False
        return True

    def server_is_troubled(self, pick: int) -> bool:
        self.node.server.mood = Mood(troubled=(0.1, 0.5)[pick % 2], slow=(0.0, 1.0, 15.0)[pick % 3], late=2.0)
        self.troubled = True
        return True

    def server_is_slow(self, pick: int) -> bool:
        self.node.server.mood = Mood(slow=(0.05, 0.5, 2.0)[pick % 3], late=(0.0, 0.5, 2.0)[pick // 3 % 3])
        return True

    def server_is_well(self, _: int) -> bool:
        self.node.server.mood = Mood()
        return True

    def watches_break(self, _: int) -> bool:
        self.node.server.break_watches()
        return True

    def changes_are_forgotten(self, _: int) -> bool:
        self.node.server.store.expire()
        return True

    # Quiet

    def quiet(self, _: int) -> bool:
        """All that the driver needs is there, and nothing happens for a while."""
        node = self.node
        node.server.mood = Mood()
        node.disk.full = False
        node.scheduler.fair = True
        if not node.kubelet.alive:
            node.kubelet.start()
        node.scheduler.wait(lambda: not self.updates)
        self.ensure_instance()
        node.scheduler.wait(lambda: len(node.instances) == 1 and node.instances[0].started, 90.0)
        # What the former instance wrote last, the next one compares in its next pass.
        prompt = UPDATE_SECONDS if self.updated else QUIET_SECONDS
        node.pass_time(LONG_SECONDS if self.troubled else prompt)
        self.troubled = self.updated = False
        self._check(unrest(node))
        node.pass_time(PASS_SECONDS)
        if any(remains(node, plugin=self.plugin or not node.supported)):
            node.pass_time(HOUR_SECONDS)
        self._check([*unrest(node), *remains(node, plugin=self.plugin or not node.supported)])
        before = len(node.server.writes)
        node.pass_time(15.0)
        self._check([f"nothing changes, and this is written: {row}" for row in node.server.writes[before:]])
        node.scheduler.fair = False
        return True

    def step(self, step: Step) -> None:
        """Let it happen, if it can, and check."""
        if getattr(self, step.event)(step.pick):
            self.happened.append(step.event)
            self.node.scheduler.events += 1
        self._check(violations(self.node))
        self.node.pass_time(step.wait)
        self._check(violations(self.node))

    def _check(self, problems: Sequence[str]) -> None:
        if problems:
            raise BrokenRuleError("\n".join(problems))


EVENTS: Final = {
    "pod": 8,
    "pod_with_several_devices": 2,
    "pod_watches_devices": 1,
    "pod_with_former_claim": 6,
    "pod_joins": 2,
    "pod_of_another_node_joins": 1,
    "pod_ends": 5,
    "pod_ends_and_leaves_its_claim": 4,
    "pod_deleted_by_force": 2,
    "chip_falls_ill": 3,
    "chip_is_well_again": 3,
    "chip_is_lost": 1,
    "chip_is_back": 2,
    "module_is_loaded_anew": 1,
    "reboot": 0.5,
    "power_fails": 0.5,
    "kubelet_restarts": 2,
    "kubelet_is_replaced": 0.5,
    "settings_change": 0.5,
    "disk_is_full": 0.7,
    "disk_has_room": 1.5,
    "checkpoint_file_is_spoiled": 0.3,
    "checkpoint_file_is_removed": 0.3,
    "checkpoint_directory_is_removed": 0.2,
    "cdi_spec_is_removed": 0.3,
    "driver_is_killed": 2,
    "driver_restarts": 1,
    "driver_is_updated": 2,
    "device_plugin_comes": 1,
    "device_plugin_goes": 2,
    "partitions_are_set": 2,
    "network_labels_change": 2,
    "server_is_away": 0.7,
    "server_is_back": 1.5,
    "server_is_troubled": 0.7,
    "server_is_slow": 2,
    "server_is_well": 2,
    "watches_break": 1,
    "changes_are_forgotten": 0.5,
    "quiet": 2,
}
"""How often each happens, beside the others."""


WORKLOAD_EVENTS: Final = {
    **EVENTS,
    "workload_gets_node": 6,
    "workload_goes": 3,
    "another_workload_comes": 2,
    "server_object_is_deleted": 1,
    "server_object_is_back": 2,
    "election_differs": 3,
    "reboot_while_server_is_away": 1,
    "pod_of_workload": 8,
    "pod_with_any_workload": 6,
}
"""The same of a node that can be allocated to workloads."""
FOREIGN: Final = "f0f0f0f0-0000-4000-8000-000000000000"
"""UID of a workload that never has the node."""
OTHER_SERVER: Final = "00000000000000f4"
SERVER_TYPE: Final = "trn2u.48xlarge"


def story_with_workloads(seed: int) -> Story:
    """The history of a seed on a node of an UltraServer."""
    choice = random.Random(f"workloads {seed}")
    weights = [weight * choice.choice((0, 0, 1, 1, 4)) for weight in WORKLOAD_EVENTS.values()]
    for event in ("workload_gets_node", "pod_of_workload", "pod_with_any_workload"):
        place = list(WORKLOAD_EVENTS).index(event)
        weights[place] = weights[place] or WORKLOAD_EVENTS[event]
    events = choice.choices(list(WORKLOAD_EVENTS), weights=weights, k=choice.choice((6, 12, 25)))
    if "server_object_is_deleted" in events:  # the next allocation makes it anew: by chance it would seldom come back
        place = events.index("server_object_is_deleted") + 1
        events.insert(choice.randint(place, place + 1), "server_object_is_back")
    return Story(
        seed,
        SERVER_TYPE,
        tuple(Step(event, choice.randrange(1000), choice.choice(WAITS)) for event in events),
        choice.choice((None, None, "chip.node", "chip")),
        choice.choice((0.0, 0.0, 3.1, 6.0, 9.0)),
        choice.choice((0, 0, 1, 3)),
        has_workloads=True,
    )


def story_of(seed: int, kinds: Sequence[str] = TYPES) -> Story:
    """The history of a seed, on one of these instance types."""
    choice = random.Random(seed)
    # Few kinds of events meet often, where many meet seldom.
    weights = [weight * choice.choice((0, 0, 1, 1, 4)) for weight in EVENTS.values()]
    weights[0] = weights[0] or EVENTS["pod"]
    events = choice.choices(list(EVENTS), weights=weights, k=choice.choice((3, 6, 12, 25)))
    kind = choice.choice(kinds)
    return Story(
        seed,
        kind,
        tuple(Step(event, choice.randrange(1000), choice.choice(WAITS)) for event in events),
        choice.choice((None, None, "core", "chip")) if "inf1" not in kind else choice.choice((None, "chip.node")),
        choice.choice((0.0, 0.0, 3.1, 6.0, 9.0)),
        choice.choice((0, 0, 1, 3)),
    )


BEFORE: Final = {
    "chip_is_back": ("chip_is_lost",),
    "chip_is_well_again": ("chip_falls_ill",),
    "device_plugin_goes": ("device_plugin_comes",),
    "disk_has_room": ("disk_is_full",),
    "server_is_back": ("server_is_away",),
    "pod_with_former_claim": ("pod_ends_and_leaves_its_claim",),
}
"""What has to have happened before an event can, beside a pod, which most of them take."""


def with_neighbours(story: Story, one: str, other: str) -> Story:
    """The same history, in which two events follow each other somewhere, if they can."""
    choice = random.Random(f"{story.seed} {one} {other}")
    place = choice.randrange(len(story.steps) + 1)
    events = ("pod", "pod", *BEFORE.get(one, ()), *BEFORE.get(other, ()), one, other)
    steps = tuple(Step(event, choice.randrange(1000), choice.choice(WAITS)) for event in events)
    return replace(story, steps=(*story.steps[:place], *steps, *story.steps[place:]))


def live(story: Story) -> list[str]:
    """Let a history happen; the events that did. Raises BrokenRuleError."""
    with _node(story) as node:
        history = History(node)
        watch_over(node)
        node.label(**{LAYER_LABEL: "nn-1", PARTITIONS_LABEL: story.partitions})
        node.kubelet.start()
        try:
            for step in story.steps[: story.before]:
                history.step(step)
            node.server.mood.away = bool(story.away)
            history.ensure_instance()
            if story.away:
                node.pass_time(story.away)
                node.server.mood.away = False
                node.scheduler.events += 1
                history.happened += ["server_is_away", "server_is_back"]
            for step in story.steps[story.before :]:
                history.step(step)
            history.quiet(0)
        except BaseException as error:
            # A test's limit in time says nothing of the history.
            if not isinstance(error, KeyboardInterrupt | pytest.fail.Exception):
                raise BrokenRuleError(f"{type(error).__name__}: {error}") from error
            raise
        return history.happened


@contextmanager
def _node(story: Story) -> Iterator[Node]:
    with (
        tempfile.TemporaryDirectory(dir=DIRECTORY, prefix="sim-", ignore_cleanup_errors=True) as name,
        simulated_node(Path(name), story.kind, story.seed, has_workloads=story.has_workloads) as node,
    ):
        yield node


def failure(story: Story) -> str:
    """Why the history fails; "" if it does not."""
    try:
        live(story)
    except BrokenRuleError as error:
        return str(error)
    return ""


def shrink(story: Story, tries: int = 400) -> Story:
    """A history that fails too, of as few events as can be found in so many tries."""
    size = max(1, len(story.steps) // 2)
    while size and tries:
        for start in range(0, len(story.steps), size):
            shorter = replace(story, steps=story.steps[:start] + story.steps[start + size :])
            tries -= 1
            if len(shorter.steps) < len(story.steps) and failure(shorter):
                story = shorter
                break
            if not tries:
                break
        else:
            size //= 2
    return story


def counts(histories: Iterable[Sequence[str]]) -> tuple[Counter[str], Counter[tuple[str, str]]]:
    """How often each event happened, and each pair of neighbours."""
    events: Counter[str] = Counter()
    pairs: Counter[tuple[str, str]] = Counter()
    for happened in histories:
        events.update(happened)
        pairs.update(pairwise(happened))
    return events, pairs
