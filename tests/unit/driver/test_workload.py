"""Whose workload a node is allocated to: what its server's object says, what it offers then, and whose claims it takes.

What is published, and whom the node serves, is told by hand from the object's text; nothing of it goes by the driver's
own values.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.cli import kubelet_plugin
from dra_driver.driver.claims import planner
from dra_driver.driver.claims.files import seal
from dra_driver.driver.claims.model import Plan, PreparedClaims, PrepareError
from dra_driver.driver.claims.situation import NodeFacts, Situation, claim_facts
from dra_driver.driver.node.decide import HEALTH_PATIENCE, Memory, NodeSnapshot, Wanted, decide
from dra_driver.driver.node.review import desired
from dra_driver.driver.resourceslices.kept import PublishedPool
from dra_driver.driver.resourceslices.pool import pool
from dra_driver.driver.resourceslices.taints import without_unhealthy
from dra_driver.driver.settings import DriverSettings
from dra_driver.driver.tenure_file import NAME, TenureFile
from dra_driver.driver.ultraserver_watch import seen_server
from dra_driver.driver.workload import (
    ABSENT_SECONDS,
    NodeWorkload,
    Seat,
    SeenServer,
    Tenancy,
    Tenure,
)
from dra_driver.kube.api.codec import encode_slice
from dra_driver.kube.objects.resource import Device, ResourceClaim
from dra_driver.neuron.health.faults import FAULTS, ActiveFault, ChipHealth, NodeHealth
from dra_driver.neuron.host.inventory import Membership, NodeInventory, ServerSet
from dra_driver.neuron.topology.partitions import NODE_DEVICE
from dra_driver.neuron.topology.ultraserver import Mode
from dra_driver.neuron.ultraserver_objects import NeuronUltraServer
from dra_driver.util.errors import DriverError
from tests.builders.claims import NODE, SETTINGS, claim, config, host, result
from tests.builders.ultraserver_objects import allocation, ultraserver
from tests.doubles.apiserver.slice_validation import validate_slice
from tests.golden import golden

TRAIN, OTHER, AGAIN = (f"b2b1e5a0-0000-4000-8000-00000000000{digit}" for digit in "abc")
FOUR, PAIR = "00000000000000f4", "00000000000000f2"
SERVER, HALF = f"ultraserver-{FOUR}", f"ultraserver-{PAIR}"
TAINT = "neuron.aws.com/ultraserver-workload"


def membership(*sets: ServerSet, electing: bool = False) -> Membership:
    return Membership((Mode.X1,), sets, elected=True, electing=electing)


OF_FOUR = membership(ServerSet(2, PAIR, 1), ServerSet(4, FOUR, 3))
OF_TWO = membership(ServerSet(2, PAIR, 1))
ALONE = membership()
ELECTING = membership(electing=True)


def node(member: Membership | None = OF_FOUR, block: str | None = "cb-1") -> NodeInventory:
    return host(instance_type="trn2u.48xlarge", ultraserver=member, capacity_block_id=block)


def settings(namespace: str = "neuron-dra-driver", **options: str) -> DriverSettings:
    return kubelet_plugin.read_settings({"node_name": NODE, "ultraserver_namespace": namespace, **options}, {})[0]


def read(document: dict[str, Any]) -> NeuronUltraServer:
    return msgspec.convert(document, NeuronUltraServer).in_short


def seen(uid: str | None, name: str = SERVER, workload: str = "ml/train", *, bound: bool = True) -> SeenServer:
    """The node's server, which is allocated to the workload with this UID, or ("") one without, or (None) to nobody."""
    if uid is None:
        return seen_server(name, read(ultraserver(name)), NODE)
    document = ultraserver(name, allocation(workload, ["a", NODE], bound=bound), uids={workload: uid} if uid else {})
    return seen_server(name, read(document), NODE)


def gone(name: str = SERVER) -> SeenServer:
    return seen_server(name, None, NODE)


READY = NodeSnapshot(
    node(), {}, health_decided=True, labels={}, kubelet_problem="", plugin_pods=(), server=SeenServer(SERVER, True)
)
"""All is known that an offer needs."""


def decided(*snapshots: NodeSnapshot, by: DriverSettings | None = None) -> Wanted:
    memory = Memory()
    for number, snapshot in enumerate(snapshots):
        memory = decide(replace(snapshot, moment=float(number)), memory, by or settings())[1]
    assert not memory.wanted.failures
    return memory.wanted


def published(wanted: Wanted, node_uid: str = "uid") -> list[dict[str, Any]]:
    """The devices as the API server stores them."""
    slices = pool(wanted.offer.devices, NODE, node_uid, counters=wanted.offer.counters)
    documents = [encode_slice(item, "v1") for item in slices]
    for document in documents:
        validate_slice(document, None)
    return [device for document in documents for device in document["spec"].get("devices") or ()]


def mark(device: dict[str, Any]) -> tuple[str | None, str | None, list[tuple[str, str, str]]]:
    """UID and name of a workload, and taints."""
    texts = [device["attributes"].get(key, {}).get("string") for key in ("workloadUID", "workloadId")]
    taints = [(taint["key"], taint["value"], taint["effect"]) for taint in device.get("taints") or ()]
    return texts[0], texts[1], taints


# What is offered


@pytest.mark.parametrize("partitions", ["node", "chip", "core", "group", "chip.core.group.node"])
@pytest.mark.parametrize("bound", [True, False])
def test_each_device_of_a_node_says_whose_it_is_and_keeps_others_away(partitions: str, bound: bool) -> None:
    by = settings(partitions=partitions)
    devices = published(decided(replace(READY, server=seen(TRAIN, bound=bound)), by=by))
    assert devices
    assert {repr(mark(device)) for device in devices} == {repr((TRAIN, "train", [(TAINT, TRAIN, "NoSchedule")]))}
    assert {device["taints"][0]["timeAdded"] for device in devices} == {"2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(("name", "shown"), [("n" * 64, True), ("n" * 65, False), ("ü" * 32, True), ("ü" * 33, False)])
def test_a_name_that_is_no_attribute_is_left_out_and_the_slice_stays_valid(name: str, shown: bool) -> None:
    devices = published(decided(replace(READY, server=seen(TRAIN, workload=f"ml/{name}"))))
    assert {mark(device)[:2] for device in devices} == {(TRAIN, name if shown else None)}


def test_nobodys_node_differs_by_the_capacity_block_alone() -> None:
    devices, plain = published(decided(READY)), published(decided(READY, by=settings("")))
    for device in devices:
        assert device["attributes"].pop("ultraserverId") == {"string": "cb-1"}
    assert devices == plain
    assert published(decided(replace(READY, inventory=node(block=None)))) == published(
        decided(replace(READY, inventory=node(block=None)), by=settings(""))
    )


SOURCES = st.sampled_from([None, gone(), seen(None), seen(TRAIN), seen(TRAIN, bound=False), seen(OTHER, HALF)])
MEMBERS = st.sampled_from([OF_FOUR, OF_TWO, ALONE, ELECTING, None])
NEWS = st.lists(st.tuples(SOURCES, MEMBERS), min_size=1, max_size=6)


@given(NEWS)
def test_where_ultraservers_are_not_allocated_to_workloads_nothing_goes_by_them(
    news: Sequence[tuple[SeenServer | None, Membership | None]],
) -> None:
    by = settings("")
    with_them = [replace(READY, inventory=node(member), server=server) for server, member in news]
    without = [replace(snapshot, server=None) for snapshot in with_them]
    assert decided(*with_them, by=by) == decided(*without, by=by)
    assert decided(*with_them, by=by).facts.tenancy is None


@given(NEWS, st.sampled_from([None, AGAIN]), st.integers(0, 5))
def test_the_last_object_of_its_server_counts_and_before_there_is_one_the_slices(
    news: Sequence[tuple[SeenServer | None, Membership | None]], before: str | None, look: int
) -> None:
    """A node that is of no server any more stays that of its last one; one that never was is nobody's.

    Nor does one that a workload has become another server's, whatever is elected.

    ``look``: what comes before it is decided without knowledge of the slices, as before the first comparison.
    """
    slices = decided(replace(READY, server=seen(before))).offer.devices
    looked = PublishedPool(1, slices)
    snapshots = [
        replace(
            READY, inventory=node(member), server=server, pool=looked if number >= min(look, len(news) - 1) else None
        )
        for number, (server, member) in enumerate(news)
    ]
    own, holder, is_given = "", before, False
    for server, member in news:
        if member in (OF_FOUR, OF_TWO) and not is_given:
            own = SERVER if member is OF_FOUR else HALF
        elif not own and member is not ELECTING:
            holder = None
        if own and server is not None and server.name == own and server.exists:
            holder = server.workload.uid if server.workload else None
            is_given = holder is not None
    wanted = decided(*snapshots)
    assert {mark(device)[0] for device in published(wanted)} == {holder}
    assert (wanted.server or "") == own


def test_an_allocation_without_a_uid_is_none_and_of_two_the_bound_one_counts() -> None:
    assert seen("").workload is None
    assert seen("no-uid").workload is None
    uids = {"ml/a": TRAIN, "ml/b": OTHER}
    both = ultraserver(SERVER, allocation("ml/a", [NODE], bound=False), allocation("ml/b", [NODE]), uids=uids)
    workload = seen_server(SERVER, read(both), NODE).workload
    assert workload is not None
    assert workload.uid == OTHER
    assert seen_server(SERVER, read(both), "another").workload is None


def test_a_mark_is_written_at_once_and_with_all_that_waits_for_its_turn() -> None:
    """What health alone changes has few turns an hour."""
    free, taken = (desired(decided(replace(READY, server=seen(uid)))) for uid in (None, TRAIN))
    assert not taken.differs_by_taints_only(free)
    assert not free.differs_by_taints_only(taken)
    again = desired(decided(replace(READY, server=seen(OTHER))))
    assert not again.differs_by_taints_only(taken)


def test_the_first_slices_wait_for_the_object_but_not_for_ever() -> None:
    unknown = replace(READY, server=None)
    assert not decided(unknown).published
    assert decided(unknown, by=settings("")).published
    assert decided(unknown, replace(unknown, server=gone())).published
    late = decide(replace(unknown, moment=1.0), Memory(), settings())
    assert late[0].until == 1.0 + HEALTH_PATIENCE
    assert decide(replace(unknown, moment=1.0 + HEALTH_PATIENCE), late[1], settings())[0].published


LABELS = {f"neuron.amazonaws.com/ultraserver-server-id-{nodes}": name for nodes, name in ((2, PAIR), (4, FOUR))}


def test_after_a_boot_a_node_is_still_of_the_server_that_its_labels_name() -> None:
    """Its slices are gone by then: kubelet deletes them. The election takes minutes."""
    booted = replace(READY, inventory=node(ELECTING), labels=LABELS, server=None)
    assert decided(booted).server == SERVER
    assert not decided(booted).published
    marked = decided(booted, replace(booted, server=seen(TRAIN)))
    assert {mark(device)[0] for device in published(marked)} == {TRAIN}
    assert not decided(booted, replace(booted, server=seen(None))).offer.devices[0].taints
    assert decided(booted, replace(booted, inventory=node(OF_TWO))).server == HALF


@pytest.mark.parametrize(
    ("labels", "member", "server"),
    [
        ({}, ELECTING, None),
        (dict.fromkeys(LABELS, "UPPER"), ELECTING, None),
        (dict(list(LABELS.items())[:1]), ELECTING, HALF),
        (LABELS, OF_TWO, HALF),
        (LABELS, None, ""),
    ],
)
def test_labels_count_where_the_host_is_of_a_server_and_does_not_say_which(
    labels: dict[str, str], member: Membership | None, server: str | None
) -> None:
    assert decided(replace(READY, inventory=node(member), labels=labels, server=None)).server == server


# What outlives a run of the driver


def kept(*snapshots: NodeSnapshot) -> Tenure | None:
    return decided(*snapshots).tenure


def booted(tenure: Tenure | None, member: Membership | None = ELECTING, server: SeenServer | None = None) -> Wanted:
    """The next run, from three seconds after its first scan on: kubelet has deleted the slices."""
    first = replace(
        READY, inventory=node(member), labels={}, server=server, pool=PublishedPool(1, ()), tenure=tenure, moment=1.0
    )
    memory = decide(first, Memory(), settings())[1]
    return decide(replace(first, moment=1.0 + HEALTH_PATIENCE), memory, settings())[0]


@pytest.mark.parametrize("member", [OF_FOUR, OF_TWO, ALONE, ELECTING, None])
@pytest.mark.parametrize("bound", [True, False])
def test_a_node_whose_server_cannot_be_read_is_still_whose_it_was(member: Membership | None, bound: bool) -> None:
    wanted = booted(kept(replace(READY, server=seen(TRAIN, bound=bound))), member)
    assert wanted.published
    assert wanted.server == SERVER
    assert {mark(device)[:2] for device in published(wanted)} == {(TRAIN, "train")}
    assert wanted.tenure == kept(replace(READY, server=seen(TRAIN, bound=bound))), "nothing is forgotten"


def test_what_is_kept_gives_way_to_the_object_and_goes_with_what_it_says() -> None:
    former = kept(replace(READY, server=seen(TRAIN)))
    assert booted(former, server=seen(None)).facts.tenancy == Tenancy(certain=True)
    assert booted(former, OF_FOUR, seen(OTHER)).tenure == kept(replace(READY, server=seen(OTHER)))
    assert kept(replace(READY, server=seen(TRAIN)), replace(READY, server=seen(None))) == Tenure(SERVER)
    assert booted(Tenure(SERVER)).server == SERVER, "nobody's, and known where to ask"
    assert kept(replace(READY, inventory=node(ALONE))) is None
    off = decide(replace(READY, tenure=former), Memory(), settings(""))[0]
    assert (off.tenure, off.facts.tenancy) == (None, None)


@pytest.mark.parametrize(("member", "server"), [(OF_TWO, HALF), (ALONE, ""), (OF_FOUR, SERVER), (ELECTING, SERVER)])
def test_a_server_whose_object_is_gone_for_good_is_followed_no_longer_than_there_is_another(
    member: Membership, server: str
) -> None:
    memory = decide(replace(READY, server=seen(TRAIN)), Memory(), settings())[1]
    later = replace(READY, inventory=node(member), server=gone())
    for moment in (10.0, 10.0 + ABSENT_SECONDS - 1.0):
        wanted, memory = decide(replace(later, moment=moment), memory, settings())
        assert wanted.server == SERVER
        assert wanted.until == 10.0 + ABSENT_SECONDS
    wanted, memory = decide(replace(later, moment=10.0 + ABSENT_SECONDS), memory, settings())
    assert wanted.server == server
    is_over = server == ""
    assert {mark(device)[0] for device in published(wanted)} == {None if is_over else TRAIN}
    if server == HALF:
        wanted, memory = decide(replace(later, moment=99.0, server=gone(HALF)), memory, settings())
        assert wanted.server == HALF
        assert {mark(device)[0] for device in published(wanted)} == {TRAIN}
        wanted, memory = decide(replace(later, moment=99.0, server=seen(None, HALF)), memory, settings())
        assert {mark(device)[0] for device in published(wanted)} == {None}
        assert wanted.tenure == Tenure(HALF)


TENURES = st.builds(
    Tenure,
    st.just(SERVER),
    st.none()
    | st.builds(
        NodeWorkload,
        st.just(TRAIN),
        st.text(max_size=8),
        st.text(max_size=8),
        st.booleans(),
        st.floats(0, 2e9),
        st.none() | st.builds(Seat, st.integers(0, 99), st.integers(0, 3), st.integers(1, 4), st.text(max_size=8)),
    ),
    st.sampled_from(["", PAIR]),
)


@given(TENURES)
def test_what_is_kept_is_read_by_the_next_run(tenure: Tenure) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        file = TenureFile(directory, NODE)
        assert file.read() is None
        file.keep(tenure)
        assert TenureFile(directory, NODE).read() == tenure
        assert TenureFile(directory, "another").read() is None
        file.keep(None)
        assert list(directory.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"{", b'{"version":1,"checksum":"0","entry":{}}', bytes(64)])
def test_a_file_that_cannot_be_read_counts_as_none_and_is_written_again(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / NAME).write_bytes(content)
    file = TenureFile(tmp_path, NODE)
    assert file.read() is None
    if content == b"":
        golden(caplog.messages[0].replace(str(tmp_path), "DIRECTORY"))
    file.keep(Tenure(SERVER))
    assert TenureFile(tmp_path, NODE).read() == Tenure(SERVER)


def test_what_of_the_file_people_hear(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    TenureFile(tmp_path, "another").keep(Tenure(SERVER))
    TenureFile(tmp_path, NODE).read()
    with pytest.raises(DriverError) as raised:
        TenureFile(tmp_path / "missing", NODE).keep(Tenure(SERVER))
    golden("\n".join([*caplog.messages, str(raised.value)]).replace(str(tmp_path), "DIRECTORY"))


def test_a_later_version_may_add_to_what_is_kept(tmp_path: Path) -> None:
    entry = {"node": NODE, "later": 1, "tenure": {"server": SERVER, "later": [1]}}
    (tmp_path / NAME).write_bytes(seal(msgspec.json.encode(entry)))
    assert TenureFile(tmp_path, NODE).read() == Tenure(SERVER)


def test_with_every_fault_there_is_the_slices_stay_valid_and_marked() -> None:
    ill = NodeHealth((ChipHealth(0, tuple(ActiveFault(code, 100) for code in FAULTS)),))
    devices = published(decided(replace(READY, server=seen(TRAIN), health=ill)))
    assert {device["taints"][0]["value"] for device in devices} == {TRAIN}


def test_servers_without_taints_have_the_devices_of_a_workload_all_the_same() -> None:
    ill = NodeHealth((ChipHealth(2, (ActiveFault("hbm-uncorrectable", 100),)),))
    devices = decided(replace(READY, server=seen(TRAIN), health=ill), by=settings(partitions="chip")).offer.devices
    publication = without_unhealthy(devices, frozenset())
    assert publication.withdrawn == {"neuron-device-2"}
    assert len(publication.devices) == len(devices) - 1
    assert not any(device.taints for device in publication.devices)


# Who is served


def tenancy(server: SeenServer | None, member: Membership | None = OF_FOUR, *, there: Sequence[Device] = ()) -> Any:
    snapshot = replace(READY, inventory=node(member), server=server, pool=PublishedPool(1, tuple(there)))
    return decided(snapshot).facts.tenancy


def former_tenancy(member: Membership | None = OF_FOUR) -> Any:
    """Of a node whose object is not known yet, and which is kept as the workload's."""
    return booted(kept(replace(READY, server=seen(TRAIN))), member).facts.tenancy


def of(
    uid: str | None, *, admin: bool = False, kind: str = "UltraServerConfig", namespace: str = "ml"
) -> ResourceClaim:
    """A claim of a workload, or (None) of none."""
    fields: dict[str, Any] = {"ultraserverMode": 1} if kind == "UltraServerConfig" else {}
    fields |= {"workload": uid} if uid is not None else {}
    parameters = {"apiVersion": "neuron.aws.com/v1", "kind": kind, **fields}
    devices = [result(NODE_DEVICE, admin_access=admin or None)]
    return claim(1, devices, configs=[config(parameters)], namespace=namespace)


def answer(item: ResourceClaim, facts: NodeFacts, member: Membership | None = OF_FOUR) -> Plan | PrepareError:
    situation = Situation(claim_facts(item), node(member), facts)
    try:
        outcome = planner.plan(situation, PreparedClaims(), SETTINGS)
    except PrepareError as refusal:
        return refusal
    assert isinstance(outcome, Plan)
    return outcome


FORMER = decided(replace(READY, server=seen(TRAIN))).offer.devices
NODES: dict[str, tuple[Any, set[str | None]]] = {
    "a node of the workload": (tenancy(seen(TRAIN)), {TRAIN}),
    # Claims that were allocated before schedulers heard of the workload are served until it is bound.
    "a node that is reserved for it": (tenancy(seen(TRAIN, bound=False)), {TRAIN, None}),
    "a node of another one": (tenancy(seen(OTHER)), {OTHER}),
    "nobody's": (tenancy(seen(None)), {None}),
    "one without a server": (tenancy(None, ALONE), {None}),
    "one whose server has no object": (tenancy(gone()), {None}),
    "one whose object is not known yet": (tenancy(None), {None}),
    # Slices do not say the rank.
    "one whose object is deleted, by its slices": (tenancy(gone(), there=FORMER), {None}),
    "one whose object is not known yet, by its slices": (tenancy(None, there=FORMER), {None}),
    "one whose object is not known yet, by what is kept": (former_tenancy(), {TRAIN, None}),
    "one where nobody asks": (None, {TRAIN, OTHER, None}),
}
"""What is known of a node, and workloads whose claims it takes; None: those of none."""


@pytest.mark.parametrize("case", NODES)
@pytest.mark.parametrize("kind", ["NeuronConfig", "UltraServerConfig"])
def test_a_node_takes_the_claims_of_its_workload_alone(case: str, kind: str) -> None:
    here, welcome = NODES[case]
    for uid in (TRAIN, OTHER, None):
        outcome = answer(of(uid, kind=kind), NodeFacts(tenancy=here))
        assert isinstance(outcome, Plan) == (uid in welcome), (case, uid, str(outcome))
        assert isinstance(answer(of(uid, kind=kind, admin=True), NodeFacts(tenancy=here)), Plan)
        if isinstance(outcome, PrepareError):
            assert outcome.reason == "UltraServerWorkload"
            assert outcome.for_now == ("not known" in case or (uid == TRAIN and "by its slices" in case))


def test_every_request_of_a_claim_is_of_the_workload() -> None:
    named = {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig", "workload": TRAIN}
    chips = [result("neuron-device-0", "a"), result("neuron-device-1", "b")]
    both, one = (claim(1, chips, configs=[config(named, *requests)], namespace="ml") for requests in ((), ("a",)))
    facts = NodeFacts(tenancy=tenancy(seen(TRAIN)))
    assert isinstance(answer(both, facts), Plan)
    assert isinstance(answer(one, facts), PrepareError)


def test_a_claim_that_names_the_workload_of_another_namespace_is_a_strangers() -> None:
    for case, (here, welcome) in NODES.items():
        for uid in (TRAIN, None):
            outcome = answer(of(uid, namespace="other"), NodeFacts(tenancy=here))
            is_known = here is not None and here.workload is not None and here.workload.namespace
            assert "ml/train" not in str(outcome), "what runs in other namespaces is nobody's business here"
            assert isinstance(outcome, Plan) == (uid in welcome and (None in welcome or not is_known)), (case, uid)
        assert isinstance(answer(of(TRAIN, admin=True, namespace="other"), NodeFacts(tenancy=here)), Plan)


@pytest.mark.parametrize("case", ["a node of another one", "nobody's", "one whose object is not known yet"])
def test_a_refusal_says_whose_the_node_is_and_what_to_do(case: str) -> None:
    here, welcome = NODES[case]
    golden("\n".join(str(answer(of(uid), NodeFacts(tenancy=here))) for uid in (TRAIN, None) if uid not in welcome))


# Ranks

RANK, LEADER = "NEURON_GLOBAL_TOPOID", "NEURON_ULTRASERVER_LEADER_NODE"
ORDERS = {1: [NODE], 2: ["a", NODE], 4: ["d", "c", "b", NODE]}
"""The nodes of a workload by their number, in the order of the host's ids."""


def ranked(nodes: int, index: int, leader: str = "first", member: Membership | None = OF_FOUR) -> NodeFacts:
    """What is known of the node where a workload has it as one of so many of a server."""
    item = {**allocation("ml/train", ORDERS[nodes]), "ultraserverIndex": index, "leaderNodeName": leader}
    server = seen_server(SERVER, read(ultraserver(SERVER, item, uids={"ml/train": TRAIN})), NODE)
    facts = decided(replace(READY, server=server), replace(READY, server=server, inventory=node(member))).facts
    assert facts.tenancy is not None
    return NodeFacts(tenancy=facts.tenancy)


@given(st.sampled_from([1, 2, 4]), st.integers(0, 9))
def test_the_containers_of_a_workload_s_claim_get_its_rank_and_no_others(nodes: int, index: int) -> None:
    facts = ranked(nodes, index)
    plan = answer(of(TRAIN), facts)
    assert isinstance(plan, Plan)
    assert (plan.env[RANK], plan.env[LEADER]) == (str(index * nodes + ORDERS[nodes].index(NODE)), "first")
    assert "NEURON_GLOBAL_TOPOID0_HOST" not in plan.env
    watcher = answer(of(TRAIN, admin=True), facts)
    assert isinstance(watcher, Plan)
    assert RANK not in watcher.env
    for plain in (answer(of(None), NodeFacts(tenancy=tenancy(seen(None)))), answer(of(TRAIN), NodeFacts())):
        assert isinstance(plain, Plan)
        assert not {RANK, LEADER} & plain.env.keys()


LATER: dict[str, tuple[Membership | None, set[int]]] = {
    "the same": (OF_FOUR, {1, 2, 4}),
    "the pair alone": (OF_TWO, {1, 2}),
    "nobody else": (ALONE, {1}),
    "no server": (None, {1}),
    "another place": (membership(ServerSet(2, PAIR, 0), ServerSet(4, FOUR, 2)), {1}),
    "another pair": (membership(ServerSet(2, FOUR, 1), ServerSet(4, FOUR, 3)), {1, 4}),
    "another server": (membership(ServerSet(2, PAIR, 1), ServerSet(4, PAIR, 3)), {1, 2}),
    "an election": (ELECTING, {1, 2, 4}),
}
"""What a later election makes of the node, and how many nodes of a server can still work together."""


@pytest.mark.parametrize("case", LATER)
@pytest.mark.parametrize("nodes", [1, 2, 4])
@pytest.mark.parametrize("known", ["by the object", "by what is kept"])
def test_where_an_election_has_made_something_else_of_the_node_its_claims_are_refused(
    case: str, nodes: int, known: str
) -> None:
    member, possible = LATER[case]
    facts = ranked(nodes, 0, member=member)
    if known == "by what is kept":
        item = allocation("ml/train", ORDERS[nodes])
        server = seen_server(SERVER, read(ultraserver(SERVER, item, uids={"ml/train": TRAIN})), NODE)
        facts = booted(kept(replace(READY, server=server)), member).facts
    outcome = answer(of(TRAIN, kind="NeuronConfig"), NodeFacts(tenancy=facts.tenancy), member)
    assert isinstance(outcome, Plan) == (nodes in possible), str(outcome)
    if isinstance(outcome, PrepareError) and known == "by the object":
        golden(str(outcome))


def test_after_a_boot_containers_get_the_rank_of_now_or_keep_the_one_that_nobody_can_tell() -> None:
    item = of(TRAIN, kind="NeuronConfig")
    former = answer(item, ranked(2, 3))
    assert isinstance(former, Plan)

    def again(facts: NodeFacts, plan: Plan = former) -> dict[str, str]:
        outcome = planner.after_reboot(plan, Situation(claim_facts(item), node(), facts), PreparedClaims())
        assert isinstance(outcome, Plan)
        return {name: outcome.env[name] for name in (RANK, LEADER) if name in outcome.env}

    assert again(ranked(2, 0, "moved")) == {RANK: "1", LEADER: "moved"}
    own = {RANK: "7", LEADER: "first"}
    assert again(NodeFacts(tenancy=tenancy(seen(None)))) == own, "its workload is gone, and it goes on being served"
    assert again(NodeFacts(tenancy=tenancy(gone(), there=FORMER))) == own
    without = msgspec.structs.replace(former, env={})
    golden(str(answer(item, NodeFacts(tenancy=tenancy(gone(), there=FORMER)))))
    assert again(NodeFacts(tenancy=tenancy(gone(), there=FORMER)), without) == {}, "of a driver that knew no ranks"
