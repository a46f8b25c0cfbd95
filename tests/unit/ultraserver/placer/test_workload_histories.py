"""Random histories of workloads and gated groups on the same servers: the placer is killed between any two writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dra_driver.neuron.names import PLACE_OF, SERVER_2, SERVER_4, object_name
from dra_driver.ultraserver.placer.template import LABEL, TemplateRecord, digest_of, owner_of, spec_of
from dra_driver.ultraserver.placer.values import Action, LetGo, Report, Rules, ServerNode, SetGrants, WriteTemplate
from dra_driver.ultraserver.placer.workload import Extent, Grant, Workload
from tests.builders.placer import World, typed_ultraservers
from tests.generators.effort import examples

picks = st.integers(0, 10**6)
sizes = st.sampled_from([1, 2, 4])


class WorkloadHistories(RuleBasedStateMachine):
    """Workloads of all sizes, groups of two and four, nodes that break, strangers, kills, a leader that comes late."""

    @initialize(servers=st.integers(2, 4))
    def begin(self, servers: int) -> None:
        self.world = World(typed_ultraservers(servers), Rules(timeout=60.0, avoid=60.0, hold=30.0))
        self.elected = {node.name: node.labels for node in self.world.nodes}
        """The labels of the first election."""
        self.liars: dict[str, set[str]] = {}
        """By node: UIDs of all workloads that it ever said it was of and was not."""
        self.count = 0
        self.bound: dict[tuple[str, str], tuple[tuple[str, ...], int]] = {}
        """By UID and server: the nodes and the index of each grant of a workload that had all."""
        self.then: dict[tuple[str, tuple[str, ...]], dict[str, Mapping[str, str]]] = {}
        """By UID of a workload and nodes: the labels of these when it got them."""
        self.foreign: dict[str, TemplateRecord] = {}
        """Templates of others."""
        self.late: tuple[list[Action], dict[str, str]] | None = None
        """Decisions of a leader that sleeps, and the versions that they rest on."""

    def order(self) -> list[Workload]:
        return sorted(self.world.workloads.values(), key=lambda workload: workload.arrival)

    def grants(self) -> list[tuple[str, Grant]]:
        return [(name, grant) for name, item in self.world.objects.items() for grant in item.record.grants]

    @rule(name=st.sampled_from("xyz"), servers=st.integers(1, 3), nodes=st.sampled_from([1, 1, 2, 2, 3, 4, 4]))
    def workload(self, name: str, servers: int, nodes: int) -> None:
        """Also one of the name of another, which is gone by then."""
        self.world.ask(name, servers, nodes)
        self.world.now += 1.0

    @precondition(lambda self: self.world.workloads)
    @rule(pick=picks, at_once=st.booleans())
    def workload_ends(self, pick: int, at_once: bool) -> None:
        reference = sorted(self.world.workloads)[pick % len(self.world.workloads)]
        if at_once or self.world.workloads[reference].ending:
            del self.world.workloads[reference]
        else:
            self.world.workloads[reference] = replace(self.world.workloads[reference], ending=True)

    @rule(size=st.sampled_from([2, 4]))
    def group(self, size: int) -> None:
        if len(self.world.pods) < 8:
            self.count += 1
            self.world.arrive(f"g{self.count}", size)
            self.world.run_all()

    @precondition(lambda self: self.world.pods)
    @rule(pick=picks)
    def group_ends(self, pick: int) -> None:
        keys = sorted({pod.group for pod in self.world.pods.values()})
        self.world.end(keys[pick % len(keys)])
        self.world.sweep_all()

    @rule(pick=picks)
    def stranger(self, pick: int) -> None:
        name = self.world.nodes[pick % len(self.world.nodes)].name
        if not any(name in grant.nodes and grant.bound for _, grant in self.grants()):
            self.world.intrude(name)

    @precondition(lambda self: any(grant.bound for _, grant in self.grants()))
    @rule(pick=picks)
    def pods_of_a_workload_run(self, pick: int) -> None:
        of_bound = [grant for _, grant in self.grants() if grant.bound]
        for name in of_bound[pick % len(of_bound)].nodes:
            if name in self.world.free_nodes():
                self.world.strangers[name] = f"a/{name}"
        self.late = None  # a claim that comes after the decision to take the node back only keeps it from others

    @precondition(lambda self: self.world.strangers)
    @rule()
    def pods_end(self) -> None:
        self.world.strangers.clear()

    @rule(pick=picks, trouble=st.sampled_from(["", "is not Ready"]))
    def node_changes(self, pick: int, trouble: str) -> None:
        index = pick % len(self.world.nodes)
        self.world.nodes[index] = replace(self.world.nodes[index], trouble=trouble)

    @rule(pick=picks, makes=st.sampled_from(["pairs", "another order", "the same"]))
    def election_differs(self, pick: int, makes: str) -> None:
        """Of one server: its halves stay together."""
        server = self.world.nodes[pick % len(self.world.nodes)].name.partition("-")[0]
        for index, node in enumerate(self.world.nodes):
            if node.name.partition("-")[0] == server:
                labels = dict(self.elected[node.name])
                if makes == "pairs":
                    del labels[SERVER_4], labels[PLACE_OF[SERVER_4]]
                elif makes == "another order":
                    labels |= {key: str(size - 1 - int(labels[key])) for key, size in PLACES.items()}
                self.world.nodes[index] = replace(node, labels=labels)

    @precondition(lambda self: self.world.objects)
    @rule(pick=picks, remembered=st.booleans())
    def object_is_deleted(self, pick: int, remembered: bool) -> None:
        """Under a leader that remembers what it said, or under none."""
        name = sorted(self.world.objects)[pick % len(self.world.objects)]
        grants = self.world.objects.pop(name).record.grants
        if remembered and grants:
            self.world.lost.setdefault(name, grants)
        else:
            self.world.lost.pop(name, None)
            gone = {uid for uid, server in self.bound if server == name}
            self.bound = {key: value for key, value in self.bound.items() if key[0] not in gone}
        self.late = None  # its lease has ended before a new leader can have made the object again

    @precondition(lambda self: self.world.workloads)
    @rule(pick=picks, servers=st.lists(st.integers(0, 3), max_size=4), extent=st.tuples(st.integers(1, 4), sizes))
    def tenant_lies(self, pick: int, servers: list[int], extent: tuple[int, int]) -> None:
        """In what it may write of its own workload."""
        reference = sorted(self.world.workloads)[pick % len(self.world.workloads)]
        workload = self.world.workloads[reference]
        recorded = tuple(object_name(f"s{server}") for server in servers)
        accepted = workload.accepted
        if not self.world.lost and not any(grant.workload == reference for _, grant in self.grants()):
            accepted = Extent(workload.extent.instance_type, *extent)
        self.world.workloads[reference] = replace(workload, recorded=recorded, accepted=accepted)

    @rule(pick=picks)
    def driver_marks_its_node(self, pick: int) -> None:
        self.world.mark(self.world.nodes[pick % len(self.world.nodes)].name)

    @rule()
    def drivers_mark_their_nodes(self) -> None:
        self.world.mark_all()

    @rule(pick=picks, runs=st.booleans())
    def driver_is_away(self, pick: int, runs: bool) -> None:
        """Or back: an honest one says what the truth gave when it last heard of it."""
        name = self.world.nodes[pick % len(self.world.nodes)].name
        if runs:
            self.world.mute.discard(name)
        else:
            self.world.mute.add(name)

    @precondition(lambda self: self.world.workloads)
    @rule(pick=picks, whose=picks, mixed=st.booleans())
    def node_lies(self, pick: int, whose: int, mixed: bool) -> None:
        """It says that it is a workload's, in some of its devices or in all."""
        node = self.world.nodes[pick % len(self.world.nodes)]
        workload = self.order()[whose % len(self.world.workloads)]
        given = any(node.name in grant.nodes and grant.uid == workload.uid for _, grant in self.grants())
        if not given and not any(
            workload.uid in item.released.get(node.name, ()) for item in self.world.objects.values()
        ):
            self.liars.setdefault(node.name, set()).add(workload.uid)
            self.world.lies.setdefault(node.name, set()).add(workload.uid)

    @precondition(lambda self: self.world.lies)
    @rule(pick=picks)
    def node_is_put_in_order(self, pick: int) -> None:
        """And cleared, if it was left out."""
        name = sorted(self.world.lies)[pick % len(self.world.lies)]
        del self.world.lies[name]
        self.clear(name)

    def clear(self, node: str) -> None:
        for name, item in self.world.objects.items():
            notes = {key: value for key, value in item.left_out.items() if key != node}
            if notes != item.left_out:
                self.world.objects[name] = replace(item, left_out=notes, version=f"{item.version}c")

    @rule(name=st.sampled_from("xyz"), label=st.sampled_from([{}, {LABEL: "another"}]))
    def stranger_has_the_name_of_a_template(self, name: str, label: dict[str, str]) -> None:
        if f"a/{name}" not in self.world.templates:
            self.foreign[f"a/{name}"] = self.world.make_template(name, labels=label)

    @precondition(lambda self: self.foreign)
    @rule(pick=picks)
    def stranger_deletes_it(self, pick: int) -> None:
        key = sorted(self.foreign)[pick % len(self.foreign)]
        del self.foreign[key], self.world.templates[key]

    @precondition(lambda self: self.world.templates.keys() - self.foreign.keys())
    @rule(pick=picks, change=st.sampled_from(["label", "owners", "more owners", "spec", "gone"]))
    def tenant_spoils_a_template(self, pick: int, change: str) -> None:
        """A spec never changes on a real server; one of another release is other than what is wanted."""
        key = sorted(self.world.templates.keys() - self.foreign.keys())[pick % len(self.own_templates())]
        item = self.world.templates[key]
        meta, other = item.metadata, owner_of(Workload("a", "other", "u", 0.0, Extent("", 1, 1)))
        changes = {
            "label": {"labels": {LABEL: "another"}},
            "owners": {"owner_references": ()},
            "more owners": {"owner_references": (other, *meta.owner_references)},
        }
        if change == "gone":
            del self.world.templates[key]
        elif change == "spec":
            self.world.templates[key] = TemplateRecord(meta, "of another release")
            if not meta.owner_references:
                self.foreign[key] = self.world.templates[key]  # nothing says any more whose it is
        else:
            changed = msgspec.structs.replace(meta, resource_version=f"{meta.resource_version}x", **changes[change])  # type: ignore[arg-type] # fields of it
            self.world.templates[key] = TemplateRecord(changed, item.digest)

    def own_templates(self) -> set[str]:
        return self.world.templates.keys() - self.foreign.keys()

    @rule()
    def garbage_is_collected(self) -> None:
        self.world.collect_garbage()

    @rule(pick=picks)
    def object_cannot_be_written(self, pick: int) -> None:
        self.world.closed = {object_name(whole_of(self.world.nodes[pick % len(self.world.nodes)]))}

    @rule(writes=st.integers(1, 6))
    def placer_is_killed(self, writes: int) -> None:
        self.world.apply(self.decisions(), writes)

    @rule()
    def leader_falls_asleep(self) -> None:
        self.late = self.decisions(), {name: item.version for name, item in self.world.objects.items()}

    @precondition(lambda self: self.late is not None)
    @rule(writes=st.integers(1, 9))
    def leader_wakes_up(self, writes: int) -> None:
        if self.late is not None:
            self.world.apply(self.late[0], writes, self.late[1])
            self.late = None

    @rule(seconds=st.sampled_from([1.0, 40.0, 100.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds

    def decisions(self) -> list[Action]:
        """What the placer decides now, each new grant judged by itself."""
        world, before = self.world, {(grant.uid, name): grant for name, grant in self.grants()}
        actions = world.decide()
        troubled = {node.name for node in world.nodes if node.trouble} | self.left_out()
        grouped = {name for name, groups in world.given().items() if groups}
        owners = {name: grant for _, grant in self.grants() for name in grant.nodes if self.stands(grant)}
        self.judge_templates(actions)
        self.judge_farewells(actions)
        for action in actions:
            if not isinstance(action, SetGrants):
                continue
            for grant in action.grants:
                former = before.get((grant.uid, action.server))
                if former is None and not grant.bound:
                    taken = troubled | grouped | world.strangers.keys()
                    assert taken.isdisjoint(grant.nodes), "it gets nodes that it cannot use"
                    assert action.server not in world.closed, "its object cannot be written"
                    assert all(owners[name].uid == grant.uid for name in grant.nodes if name in owners)
                    self.judge_turn(grant, {uid for uid, _ in before}, actions)
                elif former is None:
                    held = all(world.strangers.get(name, "").startswith("a/") for name in grant.nodes)
                    lost = [(one.uid, one.nodes) for one in world.lost.get(action.server, ())]
                    assert held or (grant.uid, grant.nodes) in lost, "nobody knows that it had that"
                elif grant.bound and not former.bound:
                    assert (troubled | world.strangers.keys()).isdisjoint(grant.nodes), "bound where others are"
                    marks = {node.name: node.mark for node in world.nodes}
                    assert {marks[name] for name in grant.nodes} == {grant.uid}, "bound where others may come"
        return actions

    def judge_templates(self, actions: list[Action]) -> None:
        """Only who has its servers for good gets one, before its status says so; no stranger's is written."""
        said = [action.workload.uid for action in actions if isinstance(action, Report)]
        for action in actions:
            if isinstance(action, WriteTemplate) and action.step == "delete":
                assert action.workload.ending
                assert f"a/{action.workload.name}" not in self.foreign
            elif isinstance(action, WriteTemplate):
                grants = [grant for _, grant in self.grants()]
                grants += [grant for of_server in self.world.lost.values() for grant in of_server]
                own = [grant for grant in grants if grant.uid == action.workload.uid]
                restored = [grant for one in actions for grant in _grants(one) if grant.uid == action.workload.uid]
                own = own or restored  # from its claims
                assert own, "it has no server"
                assert all(grant.bound for grant in own)
                assert not action.workload.ending
                assert f"a/{action.workload.name}" not in self.foreign
                later = [one.workload.uid for one in actions[actions.index(action) :] if isinstance(one, Report)]
                assert said.count(action.workload.uid) == later.count(action.workload.uid) == 1
                right = action.record is not None and action.record.digest == self.digest(action.workload)
                assert (action.step == "patch") is right, "claims' template is only replaced for another spec"

    def judge_farewells(self, actions: list[Action]) -> None:
        """Nobody goes while pods may get claims of his."""
        for workload in (action.workload for action in actions if isinstance(action, LetGo)):
            assert f"a/{workload.name}" not in self.own_templates()

    @staticmethod
    def digest(workload: Workload) -> str:
        return digest_of(spec_of(workload, tolerations=True))

    def judge_template(self, workload: Workload) -> None:
        """Of a workload that has its servers, once the decisions have come to rest."""
        key, verdict = workload.reference, self.world.verdicts[workload.uid]
        if key in self.foreign:
            assert verdict.obstacle is not None
            assert verdict.obstacle[0] == "TemplateNameTaken"
            return
        assert verdict.obstacle is None
        item = self.world.templates[key]
        assert item.digest == self.digest(workload)
        assert item.metadata.labels == {LABEL: workload.uid}
        assert owner_of(workload) in item.metadata.owner_references

    def stands(self, grant: Grant) -> bool:
        """Whether nobody may take the grant away now."""
        workload = self.world.workloads.get(grant.workload)
        alive = workload is not None and workload.uid == grant.uid and not workload.ending
        return grant.bound and (alive or self.has_pods(grant.nodes))

    def has_pods(self, nodes: tuple[str, ...]) -> bool:
        """Whether a claim of the workloads' namespace is there."""
        return any(self.world.strangers.get(name, "").startswith("a/") for name in nodes)

    def left_out(self) -> set[str]:
        return {node for item in self.world.objects.values() for node in item.left_out}

    def judge_turn(self, grant: Grant, served: set[str], actions: list[Action]) -> None:
        """Nobody who came before and waits could use the nodes, but those that cannot be served anyway."""
        mine = self.world.workloads[grant.workload]
        if mine.uid in served:
            return
        said = [grant for _, grant in self.grants()] + [one for some in self.world.lost.values() for one in some]
        gets = {one.uid for action in actions for one in _grants(action)}
        for other in self.order():
            waits = not other.ending and other.uid not in served
            former = any(one.workload == other.reference and one.uid != other.uid for one in said)
            enough = len(self.usable(other, self.in_order())) >= other.extent.servers
            if other.arrival < mine.arrival and waits and enough and not former and other.uid not in gets:
                sets = [names for _, names in self.sets(other) if names <= self.in_order()]
                assert not any(names & set(grant.nodes) for names in sets), f"{mine.name} overtakes {other.name}"
                return

    @rule()
    def placer(self) -> None:
        """Nothing is half done once the decisions have come to rest, and nobody waits for what is free."""
        world = self.world
        world.closed.clear()
        world.mute.clear()
        self.decisions()
        world.collect_garbage()
        world.place()
        self.sets_are_those_of_hosts()
        granted = {name for _, grant in self.grants() for name in grant.nodes if grant.bound}
        for name, groups in world.given().items():
            assert name not in granted or all(map(world.complete, groups)), f"{groups} wait for {name} for ever"
        for name, item in world.objects.items():
            assert set(item.uids) == {grant.workload for grant in item.grants}, f"{name} names whom it does not serve"
        first = True
        for workload in self.order():
            own = [grant for _, grant in self.grants() if grant.uid == workload.uid]
            verdict = world.verdicts[workload.uid]
            if workload.ending:
                assert verdict.state == "Deallocating"
                assert own or not workload.finalizer, "nobody has anything for it, and it stays"
                assert workload.reference not in self.own_templates()
            elif workload.extent.nodes == 3:
                assert (verdict.state, own) == ("Failed", [])
            elif own and len(own) < workload.extent.servers:
                assert verdict.state == "PartiallyAllocated"
                assert all(self.has_pods(grant.nodes) for grant in own)
            elif own and any(not grant.bound and world.lies.keys() & set(grant.nodes) for grant in own):
                assert verdict.state == "Allocating"  # until it is noticed
            elif own:
                assert all(grant.bound for grant in own)
                assert sorted(grant.index for grant in own) == list(range(workload.extent.servers))
                assert verdict.state == "Allocated"
                assert {grant.leader for grant in own} == {next(one.nodes[0] for one in own if one.index == 0)}
                assert ("a later election" in verdict.trouble) == any(map(self.is_otherwise_elected, own))
                self.judge_template(workload)
            else:
                assert verdict.state == "Pending"
                if first and verdict.reason != "Releasing" and not world.waiting():
                    free = self.usable(workload, self.free())
                    assert len(free) < workload.extent.servers, f"{workload.reference} waits though {free} are free"
                first = first and len(self.usable(workload, self.in_order())) < workload.extent.servers

    def is_otherwise_elected(self, grant: Grant) -> bool:
        """Whether hosts say other ids of its nodes than when it was bound."""
        labels = {node.name: node.labels for node in self.world.nodes}
        keys = {1: (), 2: (SERVER_2, PLACE_OF[SERVER_2]), 4: (SERVER_4, PLACE_OF[SERVER_4])}[len(grant.nodes)]
        then = self.then[grant.uid, grant.nodes]
        return any(labels[name].get(key) != then[name].get(key) for name in grant.nodes for key in keys)

    def in_order(self) -> set[str]:
        return {node.name for node in self.world.nodes if not node.trouble} - self.left_out()

    def free(self) -> set[str]:
        """Nodes that nobody has, by what the objects, the pods and the claims say."""
        granted = {name for _, grant in self.grants() for name in grant.nodes}
        grouped = {name for name, groups in self.world.given().items() if groups}
        return self.in_order() & self.world.free_nodes() - granted - grouped

    def sets(self, workload: Workload) -> list[tuple[str, set[str]]]:
        """Each set of nodes that works together in its size, with its server."""
        by_key: dict[tuple[str, str], set[str]] = {}
        for node in self.world.nodes:
            key = {1: node.name, 2: node.labels[SERVER_2], 4: node.labels.get(SERVER_4)}[workload.extent.nodes]
            if key is not None:
                by_key.setdefault((whole_of(node), key), set()).add(node.name)
        return [(server, names) for (server, _), names in by_key.items()]

    def usable(self, workload: Workload, nodes: set[str]) -> set[str]:
        """Servers of which it could use some of these nodes."""
        if workload.extent.nodes == 3:
            return set()
        return {server for server, names in self.sets(workload) if names <= nodes}

    @invariant()
    def templates_of_others_stay(self) -> None:
        for key, item in self.foreign.items() if hasattr(self, "world") else ():
            assert self.world.templates.get(key) == item

    @invariant()
    def nobody_honest_is_left_out(self) -> None:
        for item in self.world.objects.values() if hasattr(self, "world") else ():
            for node, workload in item.left_out.items():
                assert workload.rpartition(" ")[2] in self.liars.get(node, ()), f"{node} is called a liar"

    @invariant()
    def no_node_is_given_twice(self) -> None:
        for item in self.world.objects.values() if hasattr(self, "world") else ():
            names = [name for grant in item.grants for name in grant.nodes]
            assert len(names) == len(set(names)), f"given twice: {names}"

    @invariant()
    def what_is_bound_stays(self) -> None:
        if not hasattr(self, "world"):
            return
        seen = {(grant.uid, name): (grant.nodes, grant.index) for name, grant in self.grants() if grant.bound}
        wants = {one.uid: one.extent.servers for one in self.world.workloads.values() if not one.ending}
        for (uid, name), value in self.bound.items():
            held = uid in wants or self.has_pods(value[0])
            assert not held or name in self.world.lost or seen.get((uid, name)) == value, f"{name} lost {value}"
        has = Counter(uid for uid, _ in seen)
        complete = {key: value for key, value in seen.items() if has[key[0]] == wants.get(key[0])}
        self.bound = {key: value for key, value in self.bound.items() if key[0] in wants} | complete

    @invariant()
    def sets_are_those_of_hosts(self) -> None:
        for name, item in self.world.objects.items() if hasattr(self, "world") else ():
            nodes = {node.name: node for node in self.world.nodes}
            for grant in item.record.grants:
                (server,) = {one.partition("-")[0] for one in grant.nodes}
                assert name.startswith(object_name(server))
                assert len(grant.nodes) in (1, 2, 4)
                assert len(grant.nodes) != 2 or len({nodes[one].labels[SERVER_2] for one in grant.nodes}) == 1
                if (grant.uid, grant.nodes) not in self.then:
                    self.then[grant.uid, grant.nodes] = {one: nodes[one].labels for one in grant.nodes}

    def teardown(self) -> None:
        """All that runs ends: everybody gets a turn, and nothing is left."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.strangers.clear()
        world.closed.clear()
        world.mute.clear()
        world.lies.clear()
        for name in self.left_out():
            self.clear(name)
        world.nodes = [replace(node, trouble="", labels=self.elected[node.name]) for node in world.nodes]
        most = len({node.name.partition("-")[0] for node in world.nodes})
        for _ in range(80):
            world.sweep_all()
            world.place()
            world.run_all()
            for key in {pod.group for pod in world.pods.values() if world.complete(pod.group)}:
                world.end(key)
            for reference, workload in list(world.workloads.items()):
                state = world.verdicts[workload.uid].state if workload.uid in world.verdicts else "Pending"
                hopeless = workload.extent.nodes == 3 or workload.extent.servers > most
                if (state in ("Allocated", "Deallocating") or hopeless) and not workload.finalizer:
                    del world.workloads[reference]
                elif state == "Allocated" or hopeless:
                    world.workloads[reference] = replace(workload, ending=True)
            world.now += 40.0
            if not world.pods and not world.workloads:
                break
        world.place()
        assert not world.workloads, f"never served: {[world.verdicts.get(one.uid) for one in self.order()]}"
        assert not world.pods
        world.collect_garbage()
        # Whose owners a tenant has removed stays where its workload was removed at once.
        left = {key for key, item in world.templates.items() if item.metadata.owner_references}
        assert left <= self.foreign.keys()
        assert all(not item.grants and not item.uids for item in world.objects.values())


PLACES = {PLACE_OF[SERVER_2]: 2, PLACE_OF[SERVER_4]: 4}


def whole_of(node: ServerNode) -> str:
    """Id of the largest server that the host says the node is part of."""
    return node.labels.get(SERVER_4) or node.labels[SERVER_2]


def _grants(action: Action) -> tuple[Grant, ...]:
    return action.grants if isinstance(action, SetGrants) else ()


WorkloadHistories.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40)
TestWorkloadHistories = WorkloadHistories.TestCase
