"""Moments of a simulated node that histories come upon seldom, arranged.

Somebody stands still at one of its seams while something happens. Where that seam is not known beforehand, each of the
next ones is tried.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dra_driver.driver.claims.prepare import PATIENCE_SECONDS
from dra_driver.driver.claims.status_writer import FORMER_SECONDS
from dra_driver.driver.settings import PARTITIONS_LABEL
from dra_driver.util.worker import Backoff
from tests.simulation.histories import DIRECTORY, SERVER_TYPE
from tests.simulation.node import Node, simulated_node
from tests.simulation.oracle import LAYER_LABEL, remains, unrest, violations, watch_over

CHIPS = "inf1.6xlarge"
"""Of four chips."""
CORES = "trn2.3xlarge"
"""Of one chip, whose cores can be had one by one."""
PREPARE, SLICES, CLAIMS = "NodePrepareResources", "publishing slices", "writing to its claims"
REPAIR, HEALTH, HOST, LABELS = "repairing what claims left", "health stream", "reading the host", "watching own node"
READING, WATCHING = "reading the chips' health", "watching the chips' health"
PODS = "asking kubelet which containers have devices"
"""Names of threads."""


@contextmanager
def node_of(kind: str, partitions: str | None = None, *, has_workloads: bool = False) -> Iterator[Node]:
    with (
        tempfile.TemporaryDirectory(dir=DIRECTORY, prefix="sim-") as name,
        simulated_node(Path(name), kind, seed=1, has_workloads=has_workloads) as simulated,
    ):
        watch_over(simulated)
        simulated.label(**{LAYER_LABEL: "nn-1", PARTITIONS_LABEL: partitions})
        yield simulated


@pytest.fixture
def node() -> Iterator[Node]:
    with node_of(CHIPS) as simulated:
        yield simulated


def begin(node: Node) -> None:
    node.kubelet.start()
    node.start()
    node.pass_time(12.0)


def stops_at_request(node: Node, thread: str, method: str, path: str, *, answered: bool) -> None:
    """The thread stands still from its next such request on: before or after the server has answered."""
    following = node.server.on_request

    def hold(asked_method: str, asked_path: str) -> None:
        following(asked_method, asked_path)
        if (asked_method, node.scheduler.name) == (method, thread) and path in asked_path and hold in waiting:
            waiting.remove(hold)
            node.scheduler.held[thread] = int(answered)

    waiting = [hold]
    node.server.on_request = hold


def goes_on(node: Node, thread: str) -> None:
    del node.scheduler.held[thread]


def test_a_driver_that_kubelet_registers_before_it_knows_its_node_waits(node: Node) -> None:
    node.server.mood.away = True
    node.kubelet.start()
    node.start()
    node.pass_time(30.0)
    assert node.kubelet.health, "it is registered"
    before = node.scheduler.steps
    node.pass_time(10.0)
    assert node.scheduler.steps - before < 150, "nobody waits without a wait"
    node.server.mood.away = False
    node.pass_time(Backoff().cap + 10.0)  # the list of its node may have failed a moment ago
    assert len(node.offered()) == 4


def test_what_the_former_instance_wrote_last_of_a_claim_does_not_stay(node: Node) -> None:
    begin(node)
    node.allocate("neuron-device-0")
    node.pass_time(20.0)
    (claim,) = node.claims()
    healthy = claim["status"]["devices"][0]["conditions"][1]
    assert (healthy["type"], healthy["status"]) == ("Healthy", "True")
    healthy["status"] = "False"
    node.server.store.update("resourceclaims", f"default/{claim['metadata']['name']}", claim)
    node.pass_time(60.0)
    (claim,) = node.claims()
    assert claim["status"]["devices"][0]["conditions"][1]["status"] == "True"


def test_a_claim_is_prepared_with_what_the_host_is_like_when_its_pods_are_known() -> None:
    with node_of(CORES, "core") as node:
        begin(node)
        node.allocate(node.free_devices()[0])
        node.pass_time(5.0)
        stops_at_request(node, PREPARE, "GET", "/pods/", answered=True)
        pod = node.allocate(node.free_devices()[0])
        node.pass_time(5.0)
        assert PREPARE in node.scheduler.held
        node.renumber(241)
        node.pass_time(12.0)
        goes_on(node, PREPARE)
        node.pass_time(3.0)
        assert pod.running
        assert {major for numbers in pod.numbers.values() for major, _ in numbers} == {241}


def test_repair_leaves_alone_what_was_prepared_since_it_looked_at_the_host(node: Node) -> None:
    begin(node)

    def hold(thread: str, path: str) -> None:
        if thread == REPAIR and path.endswith("neuron3/dev"):
            node.scheduler.held.setdefault(REPAIR, 0)

    node.disk.on_read = hold
    node.pass_time(61.0)
    node.disk.on_read = lambda _, __: None
    node.renumber(241)
    node.pass_time(12.0)
    pod = node.allocate("neuron-device-1")
    node.pass_time(3.0)
    assert pod.running
    assert REPAIR in node.scheduler.held
    goes_on(node, REPAIR)
    node.pass_time(3.0)
    assert {major for numbers in node.kubelet.specs().values() for major, _ in numbers} == {241}


def test_what_is_prepared_while_claims_are_listed_stays_on_offer() -> None:
    with node_of(CORES, "chip") as node:
        begin(node)
        stops_at_request(node, SLICES, "GET", "/resourceclaims", answered=False)
        stops_at_request(node, PREPARE, "GET", "/resourceclaims/", answered=True)
        (device,) = node.free_devices()
        pod = node.allocate(device)
        node.label(**{PARTITIONS_LABEL: "core"})
        node.pass_time(12.0)
        assert {SLICES, PREPARE} <= node.scheduler.held.keys()
        goes_on(node, PREPARE)
        node.pass_time(6.0)
        assert pod.running
        node.server.store.delete("resourceclaims", f"default/{pod.claims[0].name}")
        goes_on(node, SLICES)
        node.pass_time(12.0)
        assert pod.running
        assert device in node.offered()


def test_an_instance_that_serves_again_knows_what_the_next_one_prepared_before_its_end(node: Node) -> None:
    begin(node)
    following = node.start()
    node.pass_time(12.0)
    pod = node.allocate("neuron-device-0")
    node.pass_time(3.0)
    assert pod.running
    # Deleted by force: the scheduler gives the chip to another claim.
    node.server.store.delete("pods", f"default/{pod.name}")
    node.server.store.delete("resourceclaims", f"default/{pod.claims[0].name}")
    node.kill(following)
    other = node.allocate("neuron-device-0")
    node.pass_time(5.0)
    assert (pod.running, other.running) == (True, False)
    pod.ending = True
    node.pass_time(60.0)
    assert other.running


def test_a_chip_is_given_to_no_claim_while_another_has_a_core_of_it() -> None:
    with node_of(CORES, "core") as node:
        begin(node)
        pod = node.allocate("neuron-core-0-0")
        node.pass_time(3.0)
        other = node.allocate("neuron-device-0")  # as a scheduler does that has not seen the setting yet
        node.pass_time(10.0)
        assert (pod.running, other.running) == (True, False)
        pod.ending = True
        node.pass_time(60.0)
        assert other.running


def test_a_claim_whose_files_are_removed_keeps_its_chips(node: Node) -> None:
    begin(node)
    pod = node.allocate("neuron-device-0")
    node.pass_time(3.0)
    for file in (*node.checkpoint_files(), *node.cdi.glob("*.json")):
        file.unlink()
    stops_at_request(node, REPAIR, "GET", "/resourceclaims", answered=False)
    node.pass_time(65.0)
    assert REPAIR in node.scheduler.held, "it asks whether there is still such a claim"
    other = node.allocate("neuron-device-0")
    node.pass_time(10.0)
    assert (pod.running, other.running) == (True, False)


def test_schedulers_have_time_to_see_a_taint_however_long_its_write_takes() -> None:
    with node_of(CORES, "chip") as node:
        begin(node)
        (device,) = node.free_devices()
        stops_at_request(node, SLICES, "PUT", "/resourceslices", answered=False)
        node.label(**{PARTITIONS_LABEL: "core"})
        node.pass_time(8.0)
        assert SLICES in node.scheduler.held
        goes_on(node, SLICES)
        node.pass_time(1.0)
        assert device in node.offered()
        node.allocate(device)  # by a scheduler that has not seen it yet
        node.pass_time(12.0)
        assert device in node.offered()


def test_a_device_that_no_claim_holds_goes_as_soon_as_schedulers_have_seen_its_taint() -> None:
    with node_of(CORES, "chip") as node:
        begin(node)
        (device,) = node.free_devices()
        node.label(**{PARTITIONS_LABEL: "core"})
        node.pass_time(4.0)
        assert device in node.offered()
        node.pass_time(4.0)
        assert device not in node.offered()


@pytest.mark.parametrize("seam", range(8))
def test_a_chip_that_falls_ill_while_its_health_is_repeated_is_called_ill_at_once(node: Node, seam: int) -> None:
    begin(node)
    node.scheduler.held[HEALTH] = seam
    node.pass_time(8.0)
    node.ail(0, ill=True)
    node.pass_time(12.0)
    goes_on(node, HEALTH)
    node.pass_time(2.0)
    assert node.kubelet.health["neuron-device-0"] == "UNHEALTHY"


@pytest.mark.parametrize("thread", [READING, WATCHING])
@pytest.mark.parametrize("seconds", [30.0, 36.0, 42.0])
def test_a_claim_that_is_prepared_while_the_chips_take_long_to_read_says_in_the_end_how_they_are(
    node: Node, thread: str, seconds: float
) -> None:
    begin(node)
    node.pass_time(FORMER_SECONDS)  # what claims say is not read once more after that
    node.scheduler.held[thread] = 0
    node.pass_time(seconds)
    node.allocate("neuron-device-0")
    node.pass_time(0.6)
    goes_on(node, thread)
    node.pass_time(30.0)
    (claim,) = node.claims()
    healthy = claim["status"]["devices"][0]["conditions"][1]
    assert (healthy["type"], healthy["status"]) == ("Healthy", "True")


def test_an_unprepared_claim_that_stays_allocated_loses_its_entries(node: Node) -> None:
    begin(node)
    pod = node.allocate("neuron-device-0")
    node.pass_time(180.0)
    (claim,) = node.claims()
    assert claim["status"]["devices"]
    node.join_elsewhere(claim)
    node.end(pod, force=False, keep_claim=True)
    node.pass_time(420.0)
    (claim,) = node.claims()
    assert not claim["status"].get("devices")


@pytest.mark.parametrize("known_before", [False, True])
def test_a_claim_that_is_prepared_around_the_write_of_its_refusal_is_called_ready(
    node: Node, *, known_before: bool
) -> None:
    """The claim says still, of a pod before, what it is to say, and its chip is held back in between.

    The call has read the claim when the refusal is written (``known_before``), or while it is on its way.
    """

    def offer(count: str) -> None:
        node.change_node(lambda item: item["status"].update(allocatable={"aws.amazon.com/neuron": count}))

    begin(node)
    former = node.allocate("neuron-device-0")
    node.pass_time(120.0)
    node.join_elsewhere(node.claims()[0])
    node.end(former, force=False, keep_claim=True)
    node.pass_time(5.0)
    assert former.gone
    node.kill(node.instances[0])  # the next one knows nothing of the claim
    node.start()
    node.pass_time(130.0)
    offer("4")
    node.pass_time(5.0)
    stops_at_request(node, CLAIMS, "PATCH", "/status", answered=False)
    pod = node.join(node.claims()[0])
    node.pass_time(PATIENCE_SECONDS + 8.0)
    assert CLAIMS in node.scheduler.held
    if known_before:
        node.kubelet.kill()
        offer("0")
        node.pass_time(15.0)
        stops_at_request(node, PREPARE, "GET", "/resourceclaims/", answered=True)
        node.kubelet.start()
        node.pass_time(15.0)
        goes_on(node, CLAIMS)
        node.pass_time(2.0)
        goes_on(node, PREPARE)
    else:
        offer("0")
        node.pass_time(20.0)
        goes_on(node, CLAIMS)
    node.pass_time(20.0)
    assert pod.running
    assert not unrest(node)


@pytest.mark.parametrize("seam", range(24))
def test_a_claim_that_is_prepared_while_a_pass_of_repair_ends_says_so(node: Node, seam: int) -> None:
    begin(node)
    node.pass_time(44.0)
    node.scheduler.held |= {REPAIR: seam, CLAIMS: 0}
    node.pass_time(10.0)
    pod = node.allocate("neuron-device-1")
    node.pass_time(5.0)
    goes_on(node, REPAIR)
    node.pass_time(5.0)
    goes_on(node, CLAIMS)
    node.pass_time(5.0)
    assert pod.running
    assert not unrest(node)


def test_a_claim_that_is_allocated_again_during_a_call_keeps_what_the_call_has_read(node: Node) -> None:
    """It is prepared then, and kubelet does not call again: its next pod has what was allocated to the one before."""
    begin(node)
    stops_at_request(node, PREPARE, "GET", "/resourceclaims/", answered=True)
    former = node.allocate("neuron-device-0")
    node.pass_time(1.0)
    assert PREPARE in node.scheduler.held
    # Deleted by force: kubelet has not heard of it yet.
    node.server.store.delete("pods", f"default/{former.name}")
    (claim,) = node.claims()
    claim["status"] = {}
    following = node.allocate("neuron-device-3", claim=claim)
    goes_on(node, PREPARE)
    node.pass_time(130.0)
    assert following.running
    assert {minor for numbers in following.numbers.values() for _, minor in numbers} == {0}
    assert not [*violations(node), *unrest(node), *remains(node, plugin=False)]
    before = len(node.server.writes)
    node.pass_time(15.0)
    assert not node.server.writes[before:], "what is refused once is not tried again and again"
    other = node.allocate("neuron-device-0")
    node.pass_time(10.0)
    assert (following.running, other.running) == (True, False)
    former.ending = True
    node.end(following, force=False, keep_claim=True)
    node.pass_time(130.0)
    assert other.running
    assert not [*violations(node), *unrest(node), *remains(node, plugin=False)]


@contextmanager
def node_without_server(kind: str, partitions: str) -> Iterator[Node]:
    """Its driver has started before the API server answers."""
    with node_of(kind, partitions) as node:
        node.server.mood.away = True
        node.kubelet.start()
        yield node
        node.pass_time(40.0)
        assert not violations(node)
        assert not list(remains(node, plugin=False))


@pytest.mark.parametrize("then", range(1, 40, 2))
@pytest.mark.parametrize("seam", range(6))
def test_a_scan_that_began_before_the_labels_were_known_is_not_published(seam: int, then: int) -> None:
    with node_without_server(CHIPS, "chip") as node:
        node.scheduler.held[HOST] = seam
        node.start()
        node.pass_time(14.0)
        node.server.mood.away = False
        node.pass_time(25.0)
        node.scheduler.held[HOST] = then
        node.pass_time(5.0)
        goes_on(node, HOST)


def test_labels_that_come_while_the_host_is_read_are_those_of_the_next_scan() -> None:
    """Which shows nothing else."""
    with node_without_server(CHIPS, "chip") as node:
        node.label(**{LAYER_LABEL: None})
        node.start()
        node.pass_time(14.0)

        def hold(thread: str, path: str) -> None:
            if thread == HOST and path.endswith("neuron3/dev"):
                node.scheduler.held.setdefault(HOST, 0)

        node.disk.on_read = hold
        node.pass_time(12.0)
        node.disk.on_read = lambda _, __: None
        assert HOST in node.scheduler.held
        node.server.mood.away = False
        node.pass_time(25.0)
        goes_on(node, HOST)


@pytest.mark.parametrize("seam", range(30))
def test_a_scan_is_published_as_the_label_says_as_soon_as_it_is_published(seam: int) -> None:
    with node_without_server(CORES, "core") as node:
        node.start()
        node.pass_time(14.0)
        node.scheduler.held[LABELS] = seam
        node.server.mood.away = False
        node.pass_time(25.0)
        goes_on(node, LABELS)


@pytest.mark.parametrize("seam", range(12))
def test_news_while_another_label_changes_publishes_nothing_that_the_label_does_not_say(seam: int) -> None:
    with node_of(CORES, "core") as node:
        begin(node)
        node.ail(0, ill=True)
        node.pass_time(20.0)
        node.scheduler.held[LABELS] = seam
        node.label(**{LAYER_LABEL: "nn-2"})
        node.ail(0, ill=False)
        node.pass_time(60.0)
        goes_on(node, LABELS)
        node.pass_time(60.0)
        assert not violations(node)
        assert not list(remains(node, plugin=False))


@pytest.mark.parametrize("seam", range(12))
def test_a_device_plugin_that_comes_while_its_pods_are_read_is_known_at_once(node: Node, seam: int) -> None:
    begin(node)

    class Listed(dict[str, tuple[int, ...]]):
        def items(self) -> Any:
            node.scheduler.held[PODS] = seam
            return super().items()

    node.kubelet.plugin_pods = Listed({"legacy": (3,)})
    node.pass_time(70.0)
    node.kubelet.plugin_pods = {"legacy": (3,)}
    assert node.scheduler.held
    node.change_node(lambda item: item["status"].update(allocatable={"aws.amazon.com/neuron": "4"}))
    node.pass_time(5.0)
    node.scheduler.held[LABELS] = 0  # the Node, which the driver writes to, would say it once more
    goes_on(node, PODS)
    node.pass_time(10.0)
    assert not node.free_devices()


@pytest.mark.parametrize("seam", range(8))
def test_what_the_host_shows_while_claims_are_listed_is_published(node: Node, seam: int) -> None:
    """The labels of the Node are a part of that."""
    node.label(**{PARTITIONS_LABEL: "chip.node"})
    begin(node)
    node.allocate("neuron-device-1")
    node.pass_time(5.0)
    stops_at_request(node, SLICES, "GET", "/resourceclaims", answered=bool(seam))
    node.label(**{PARTITIONS_LABEL: "chip"})
    node.pass_time(12.0)
    assert SLICES in node.scheduler.held
    node.scheduler.held[SLICES] += seam
    node.label(**{LAYER_LABEL: "nn-2"})
    node.pass_time(14.0)
    goes_on(node, SLICES)
    node.pass_time(60.0)
    assert not violations(node)
    assert not list(remains(node, plugin=False))


def test_a_device_is_on_offer_that_was_allocated_before_the_slices_were_deleted_and_prepared_long_after() -> None:
    with node_of(CORES, "chip") as node:
        begin(node)
        node.kubelet.kill()
        pod = node.allocate("neuron-device-0")
        node.kill(node.instances[0])
        node.label(**{PARTITIONS_LABEL: "core"})
        node.scheduler.held[f"pod {pod.name}"] = 0
        node.kubelet.start()
        node.start()
        node.pass_time(15.0)
        assert "neuron-device-0" not in node.offered(), "nobody has told the driver of the claim"
        goes_on(node, f"pod {pod.name}")
        node.pass_time(70.0)
        assert pod.running
        assert "neuron-device-0" in node.offered()
        assert not list(remains(node, plugin=False))


def test_no_checkpoint_file_is_unreadable_after_a_loss_of_power(node: Node) -> None:
    begin(node)
    pods = [node.allocate(f"neuron-device-{chip}") for chip in range(4)]
    for _ in range(3):
        node.pass_time(20.0)
        assert all(pod.running for pod in pods)
        node.reboot(power_fails=True)
        node.start()
        node.pass_time(5.0)
        assert not violations(node)
        node.kubelet.start()
    node.pass_time(90.0)
    assert not unrest(node)


@pytest.mark.parametrize("seam", range(60))
@pytest.mark.parametrize("news", ["label", "plugin", "ill"])
def test_news_that_comes_while_the_first_offer_is_made_is_in_it(news: str, seam: int) -> None:
    with node_of(CORES, "chip") as node:
        node.kubelet.start()
        node.scheduler.held[HOST] = seam
        node.start()
        node.pass_time(5.0)
        if news == "label":
            node.label(**{PARTITIONS_LABEL: "core"})
        elif news == "ill":
            node.ail(0, ill=True)
        else:
            node.change_node(lambda item: item["status"].update(allocatable={"aws.amazon.com/neuron": "1"}))
        node.pass_time(8.0)
        goes_on(node, HOST)
        node.pass_time(60.0)
        assert not violations(node)
        assert not list(remains(node, plugin=news == "plugin"))
        if news == "label":
            assert {name.split("-")[1] for name in node.offered()} == {"core"}


# UltraServer workloads


@pytest.fixture
def of_server() -> Iterator[Node]:
    """A node of an UltraServer, which offers its chips."""
    with node_of(SERVER_TYPE, "chip", has_workloads=True) as simulated:
        yield simulated
        assert not violations(simulated)


def bound(node: Node) -> str:
    """The node is allocated to a workload, and all know it; its UID."""
    node.workloads.reserve()
    node.pass_time(5.0)
    holder = node.workloads.holder
    assert holder is not None
    assert holder[1]
    return holder[0]


@pytest.mark.parametrize("seam", range(0, 24, 2))
def test_a_claim_is_refused_for_whom_the_node_is_bound_to_while_it_is_prepared(of_server: Node, seam: int) -> None:
    """Wherever its call stands then, unless it is prepared already."""
    node = of_server
    begin(node)
    node.workloads.reserve()
    node.scheduler.held[PREPARE] = seam
    pod = node.allocate("neuron-device-0")  # by a scheduler that has not seen it
    node.pass_time(3.0)
    was_prepared, has_turn = bool(node.checkpoint_files()), node.disk.has_locks
    holder = node.workloads.holder
    assert holder is not None
    node.workloads.bind(holder[0])
    node.pass_time(3.0)
    goes_on(node, PREPARE)
    node.pass_time(20.0)
    assert pod.running == was_prepared or has_turn, "it is decided, and written at once, by whoever has the lock"


def test_what_is_prepared_stays_so_whomever_the_node_is_allocated_to(of_server: Node) -> None:
    node = of_server
    begin(node)
    pod = node.allocate("neuron-device-0")
    node.pass_time(5.0)
    node.workloads.reserve()
    node.pass_time(5.0)
    holder = node.workloads.holder
    assert holder is not None
    assert not holder[1], "the pod has to end first"
    node.workloads.bind(holder[0])
    node.pass_time(5.0)
    node.kubelet.kill()
    node.kubelet.start()
    node.kill(node.instances[0])
    node.start()
    node.pass_time(30.0)
    assert pod.running
    assert pod.claims[0].uid in node.kubelet.prepared, "the next kubelet has had it prepared again"


def test_a_workloads_pods_run_on_its_node_and_others_do_not(of_server: Node) -> None:
    node = of_server
    begin(node)
    uid = bound(node)
    own = node.allocate("neuron-device-0", workload=uid)
    strangers = [
        node.allocate("neuron-device-1"),
        node.allocate("neuron-device-2", workload="f0f0f0f0-0000-4000-8000-000000000000"),
    ]
    watching = node.allocate("neuron-device-3", admin=True)
    node.pass_time(20.0)
    assert (own.running, watching.running) == (True, True)
    assert [pod.running for pod in strangers] == [False, False]
    node.workloads.release()
    node.pass_time(20.0)
    assert own.running, "it goes on being served"
    assert [pod.running for pod in strangers] == [True, False]


def test_a_node_whose_servers_object_is_deleted_stays_its_workloads_through_a_restart(of_server: Node) -> None:
    node = of_server
    begin(node)
    uid = bound(node)
    node.workloads.delete()
    node.pass_time(5.0)
    assert node.workloads.marked() == {uid}
    node.kill(node.instances[0])
    node.start()
    node.pass_time(20.0)
    assert node.workloads.marked() == {uid}
    own = node.allocate("neuron-device-0", workload=uid)
    node.pass_time(5.0)
    assert own.running
    node.workloads.release()
    node.pass_time(5.0)
    assert node.workloads.marked() == {None}


def test_a_kubelet_and_a_driver_that_start_together_never_offer_a_workloads_node_to_all(of_server: Node) -> None:
    """The slices are deleted by kubelet, and nobody remembers but the object."""
    node = of_server
    begin(node)
    uid = bound(node)
    node.reboot()
    marks: list[set[str | None]] = []
    following = node.server.on_slice

    def look(item: Any) -> None:
        following(item)
        marks.append(node.workloads.marked())

    node.server.on_slice = look
    node.kubelet.start()
    node.start()
    node.pass_time(30.0)
    assert set().union(*marks) == {uid}


def test_a_mark_does_not_wait_for_its_turn_where_many_chips_have_fallen_ill(of_server: Node) -> None:
    node = of_server
    begin(node)
    for chip in range(8):
        node.ail(chip, ill=True)
        node.pass_time(40.0)
        node.ail(chip, ill=False)
        node.pass_time(40.0)
    node.workloads.reserve()
    node.pass_time(3.0)
    assert len(node.workloads.marked() - {None}) == 1


def test_without_the_setting_nobody_asks_whose_a_node_is() -> None:
    with node_of(SERVER_TYPE, "chip") as node:
        paths: list[str] = []
        node.server.on_request = lambda _, path: paths.append(path)
        node.workloads.reserve()
        begin(node)
        pod = node.allocate("neuron-device-0", workload="f0f0f0f0-0000-4000-8000-000000000000")
        node.pass_time(20.0)
        assert pod.running
        assert paths
        assert not [path for path in paths if "ultraserver" in path]
        assert node.workloads.marked() == {None}
        assert not node.server.heard.last
