"""Random histories of a cluster: the placer is killed between any two actions, and keeps its promises."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dra_driver.ultraserver.placer.values import Rules
from tests.builders.placer import World, ultraservers
from tests.generators.effort import examples

TIMEOUT = 60.0
picks = st.integers(0, 10**6)


class Histories(RuleBasedStateMachine):
    """Groups of two and four in three namespaces, strangers, endings, restarts, kills."""

    @initialize(servers=st.integers(1, 3))
    def begin(self, servers: int) -> None:
        self.world = World(ultraservers(servers), Rules(timeout=TIMEOUT, avoid=TIMEOUT, hold=30.0))
        self.count = 0
        self.incomplete: dict[str, float] = {}
        """By leader's UID: since when the group is placed without having all nodes."""

    def groups(self) -> list[str]:
        return sorted({pod.group for pod in self.world.pods.values()})

    @rule(size=st.sampled_from([2, 4]), namespace=st.sampled_from("abc"))
    def arrival(self, size: int, namespace: str) -> None:
        if len(self.groups()) < 9:
            self.count += 1
            self.world.arrive(f"g{self.count}", size, namespace)

    @precondition(lambda self: self.groups())
    @rule(pick=picks, for_good=st.booleans())
    def ending(self, pick: int, for_good: bool) -> None:
        key = self.groups()[pick % len(self.groups())]
        if for_good:
            self.world.end(key)
        else:
            self.world.restart(key)

    @rule(pick=picks)
    def a_pod_is_gone(self, pick: int) -> None:
        ending = sorted(pod.uid for pod in self.world.pods.values() if pod.ending)
        if ending:
            self.world.sweep(ending[pick % len(ending)])

    @rule(pick=picks)
    def scheduler(self, pick: int) -> None:
        self.world.make_workers()
        todo = [(pod, node) for pod in self.world.unbound() for node in self.world.fitting(pod)]
        if todo:
            self.world.bind(*todo[pick % len(todo)])
        for pod in self.world.unbound():
            if not self.world.fitting(pod):
                self.world.give_up(pod)

    @rule()
    def everybody_is_fast(self) -> None:
        self.world.run_all()

    @rule(pick=picks)
    def stranger(self, pick: int) -> None:
        self.world.intrude(self.world.nodes[pick % len(self.world.nodes)].name)

    @rule()
    def strangers_leave(self) -> None:
        self.world.strangers.clear()

    @rule(seconds=st.sampled_from([0.5, 5.0, 40.0, 100.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds

    @rule(kill_after=st.integers(0, 4))
    def placer_is_killed(self, kill_after: int) -> None:
        self.world.apply(self.world.decide()[:kill_after])

    @rule()
    def placer(self) -> None:
        world = self.world
        world.place()
        for key in self.groups():
            leaders = [pod for pod in world.members(key) if pod.leader and pod.placed and not pod.ending]
            late = [pod for pod in leaders if world.now - self.incomplete.get(pod.uid, world.now) >= TIMEOUT]
            assert not late or world.complete(key), "half-placed beyond the timeout"
        free = world.free_nodes() - {node for node, groups in world.given().items() if groups}
        whole = {
            server
            for server in {name.partition("-")[0] for name in free}
            if sum(name.startswith(f"{server}-") for name in free) == 4
        }
        for pod in world.waiting():
            avoided = {
                item.server.partition("-")[0]
                for item in world.released
                if (item.namespace, item.group) == (pod.namespace, pod.group) and item.until > world.now
            }
            leftovers = any(other.ending for other in world.members(pod.group))
            assert leftovers or not whole - avoided, f"{pod.group} waits though {whole} is free"

    @invariant()
    def no_server_is_given_twice(self) -> None:
        if not hasattr(self, "world"):
            return
        for node, groups in self.world.given().items():
            assert len(set(groups)) <= 1, f"{node} was given to {groups}"

    @invariant()
    def remember_who_is_incomplete(self) -> None:
        if not hasattr(self, "world"):
            return
        for key in self.groups():
            for pod in self.world.members(key):
                if pod.leader and pod.placed and not self.world.complete(key):
                    # From the placer's point of view at the earliest when it could know.
                    self.incomplete.setdefault(pod.uid, self.world.now)
                else:
                    self.incomplete.pop(pod.uid, None)

    def teardown(self) -> None:
        """No strangers any more, and each group that runs ends: all the others get their turn."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.strangers.clear()
        served: set[str] = {pod.group for pod in world.pods.values() if world.complete(pod.group)}
        for _ in range(80):
            world.sweep_all()
            world.place()
            world.run_all()
            for key in self.groups():
                if world.complete(key):
                    served.add(key)
                    world.end(key)
            world.now += 40.0
            if not world.pods:
                break
        assert not world.pods, f"never served: {[pod.group for pod in world.waiting()]}"


Histories.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40)
TestHistories = Histories.TestCase
