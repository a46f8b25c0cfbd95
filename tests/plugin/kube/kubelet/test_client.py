from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent import futures
from types import ModuleType
from typing import Any

import grpc
import pytest

from dra_driver.kube.kubelet.api import dra_v1_pb2, dra_v1beta1_pb2, health_v1_pb2, pluginregistration_v1_pb2
from dra_driver.kube.kubelet.dra import ClaimRef, PreparedDevice
from dra_driver.kube.kubelet.server import KubeletPlugin
from dra_driver.util.errors import DriverError
from dra_driver.util.logs import operation_id
from tests.doubles.kubelet import Kubelet, KubeletError
from tests.doubles.sample_driver import DRIVER, SampleDriver, claim, client, node_directory, rpc, served
from tests.golden import golden, golden_error

UID = "0a1b2c3d-1111-2222-3333-444455556666"


class Node:
    """A kubelet, a driver, and a connection beside kubelet's."""

    def __init__(self, kubelet: Kubelet, driver: SampleDriver, plugin: KubeletPlugin, channel: grpc.Channel) -> None:
        self.kubelet, self.driver, self.plugin, self.channel = kubelet, driver, plugin, channel

    def prepare(self, *claims: tuple[str, str, str], messages: ModuleType = dra_v1_pb2, timeout: float = 60) -> Any:
        """(namespace, name, uid) each."""
        return self._call("Prepare", claims, messages)

    def unprepare(self, *claims: tuple[str, str, str], messages: ModuleType = dra_v1_pb2) -> Any:
        return self._call("Unprepare", claims, messages)

    def _call(self, verb: str, claims: tuple[tuple[str, str, str], ...], messages: ModuleType) -> Any:
        request = getattr(messages, f"Node{verb}ResourcesRequest")(
            claims=[messages.Claim(namespace=ns, name=name, uid=uid) for ns, name, uid in claims]
        )
        return rpc(self.channel, messages, "DRAPlugin", f"Node{verb}Resources", request).claims


@pytest.fixture
def node() -> Iterator[Node]:
    driver = SampleDriver()
    with (
        node_directory() as root,
        Kubelet(root) as kubelet,
        served(kubelet, driver) as plugin,
        client(plugin.endpoint) as channel,
    ):
        kubelet.wait_registered(DRIVER)
        yield Node(kubelet, driver, plugin, channel)


def raising(error: BaseException) -> Any:
    def fail(claim: ClaimRef) -> None:
        raise error

    return fail


# -- claims of one call are independent


def test_every_claim_of_a_call_has_its_own_result(node: Node) -> None:
    def choose(claim: ClaimRef) -> None:
        if claim.name == "refused":
            raise DriverError("the device is gone", remedy="delete the claim")
        if claim.name == "broken":
            raise KeyError("topology")

    node.driver.on_prepare = choose
    reply = node.prepare(("ns", "refused", "u1"), ("ns", "fine", "u2"), ("ns", "broken", "u3"), ("NS", "bad", "u4"))
    assert set(reply) == {"u1", "u2", "u3", "u4"}
    golden(reply["u1"].error)
    assert reply["u2"].error == ""
    assert reply["u2"].devices[0].device_name == "fine"
    golden(reply["u3"].error)
    golden(reply["u4"].error)
    assert not any(reply[uid].devices for uid in ("u1", "u3", "u4"))


def test_an_empty_request_answers_at_once_while_others_prepare(node: Node) -> None:
    go = threading.Event()
    node.driver.on_prepare = lambda c: go.wait(60) and None
    with futures.ThreadPoolExecutor(8) as pool:
        pods = [pool.submit(node.kubelet.prepare, f"pod-{n}", [claim(f"c{n}")]) for n in range(8)]
        node.kubelet.wait(lambda: node.driver.running == 8, "8 prepares at once")
        started = time.monotonic()
        assert dict(node.prepare()) == {}
        assert time.monotonic() - started < 30, "half of what the others would take"
        go.set()
        assert all(pod.result(30) for pod in pods)
    assert node.driver.most_running == 8


def test_a_claim_named_twice_is_prepared_once(node: Node) -> None:
    reply = node.prepare(("ns", "c", UID), ("ns", "c", UID))
    assert list(reply) == [UID]
    assert reply[UID].error == ""
    assert node.driver.calls == [("prepare", UID)]


def test_one_uid_with_two_names_is_refused_without_touching_either(node: Node) -> None:
    reply = node.prepare(("ns", "c", UID), ("ns", "d", UID), ("ns", "e", "other"))
    golden(reply[UID].error)
    assert reply["other"].error == ""
    assert node.driver.calls == [("prepare", "other")]


# -- what a driver may throw or return


@pytest.mark.parametrize(
    "error",
    [
        ValueError("odd"),
        KeyError(),
        MemoryError(),
        RecursionError("deep"),
        asyncio.CancelledError(),
        GeneratorExit(),
        StopIteration(),
        BaseExceptionGroup("many", [ValueError("a"), ValueError("b")]),
        grpc.RpcError("not ours"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_any_exception_becomes_the_claims_error_and_is_logged_once(
    node: Node, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    node.driver.on_prepare = node.driver.on_unprepare = raising(error)
    for call in (node.prepare, node.unprepare):
        caplog.clear()
        text = call(("ns", "c", UID))[UID].error
        assert type(error).__name__ in text
        assert "\n" not in text
        (record,) = [r for r in caplog.records if r.exc_info]
        golden(record.getMessage())
    node.driver.on_prepare = lambda c: None
    assert node.prepare(("ns", "c", UID))[UID].error == "", "the driver lives on"


def test_an_exit_asked_by_the_driver_reaches_the_error_handler() -> None:
    errors: list[BaseException] = []
    driver = SampleDriver()
    driver.on_prepare = raising(SystemExit(3))
    with node_directory() as root, Kubelet(root) as kubelet, served(kubelet, driver, on_error=errors.append):
        kubelet.wait_registered(DRIVER)
        with pytest.raises(KubeletError, match="SystemExit: 3"):
            kubelet.prepare("pod", [claim()])
        kubelet.wait(lambda: bool(errors), "told")
        assert isinstance(errors[0], SystemExit)


def test_error_texts_are_one_bounded_line(node: Node) -> None:
    node.driver.on_prepare = raising(DriverError("first\nsecond\x1b[31m\t" + "ä" * 5000 + "\udcff"))
    text = node.prepare(("ns", "c", UID))[UID].error
    assert text.startswith("first second [31m ä")
    assert text.endswith("...")
    assert len(text.encode()) <= 1024
    assert text.isprintable()


@pytest.mark.parametrize(
    "returned",
    [
        "text",
        7,
        [None],
        [PreparedDevice((), "pool", "device", (1,))],  # type: ignore[arg-type]  # what a driver must not return
        [PreparedDevice((), "pool", "\udcff", ())],
        [PreparedDevice((), "good", "device", ()), PreparedDevice((), None, "device", ()), object()],  # type: ignore[arg-type]  # as above
    ],
    ids=["text", "number", "none", "cdi id", "surrogate", "second of three"],
)
def test_devices_that_cannot_be_sent_become_the_claims_error(node: Node, returned: Any) -> None:
    node.driver.on_prepare = lambda c: returned if c.uid == UID else None
    reply = node.prepare(("ns", "c", UID), ("ns", "d", "other"))
    golden(reply[UID].error)
    assert not reply[UID].devices
    assert reply["other"].error == ""


def test_a_claim_without_devices_is_no_error(node: Node) -> None:
    node.driver.on_prepare = lambda c: []
    reply = node.prepare(("ns", "c", UID))
    assert reply[UID].error == ""
    assert not reply[UID].devices


# -- versions


@pytest.mark.parametrize(("messages", "share_ids"), [(dra_v1_pb2, True), (dra_v1beta1_pb2, False)])
def test_requests_are_base_names_and_share_ids_are_for_v1(node: Node, messages: ModuleType, share_ids: bool) -> None:
    node.driver.on_prepare = lambda c: [
        PreparedDevice(("a/x", "a/y", "b"), "pool", "dev", ("v/c=1", "v/c=2"), share_id="share"),
        PreparedDevice((), "pool", "dev2", ()),
    ]
    first, second = node.prepare(("ns", "c", UID), messages=messages)[UID].devices
    assert list(first.request_names) == ["a", "b"]
    assert list(first.cdi_device_ids) == ["v/c=1", "v/c=2"]
    assert list(second.request_names) == []
    if share_ids:
        assert (first.share_id, second.HasField("share_id")) == ("share", False)
    else:
        assert "share_id" not in first.DESCRIPTOR.fields_by_name
    assert node.unprepare(("ns", "c", UID), messages=messages)[UID].error == ""


# -- the orders in which kubelet calls: again while the first call runs, and for claims never prepared


def test_unprepare_of_an_unknown_claim_succeeds(node: Node) -> None:
    assert node.unprepare(("ns", "never", UID))[UID].error == ""


def test_a_repeated_request_waits_for_the_first_one(node: Node) -> None:
    go = threading.Event()
    node.driver.on_prepare = lambda c: go.wait(60) and None
    node.kubelet.call_seconds = 2.0
    wanted = claim()
    with pytest.raises(KubeletError, match="DEADLINE_EXCEEDED"):
        node.kubelet.prepare("pod", [wanted])
    assert node.driver.running == 1
    node.kubelet.call_seconds = 30
    with futures.ThreadPoolExecutor(1) as pool:
        retry = pool.submit(node.kubelet.prepare, "pod", [wanted])
        time.sleep(0.3)
        assert node.driver.calls == [("prepare", wanted.uid)], "the repetition waits"
        go.set()
        assert retry.result(30)[wanted.uid]
    assert node.driver.most_running == 1
    assert node.driver.calls == [("prepare", wanted.uid)] * 2


def test_an_unprepare_waits_for_a_prepare_of_the_same_claim(node: Node) -> None:
    go = threading.Event()
    node.driver.on_prepare = lambda c: go.wait(60) and None
    with futures.ThreadPoolExecutor(2) as pool:
        preparing = pool.submit(node.prepare, ("ns", "c", UID))
        node.kubelet.wait(lambda: node.driver.running == 1, "prepare runs")
        unpreparing = pool.submit(node.unprepare, ("ns", "c", UID))
        time.sleep(0.2)
        assert not unpreparing.done()
        go.set()
        assert preparing.result(30)[UID].error == unpreparing.result(30)[UID].error == ""
    assert [verb for verb, _ in node.driver.calls] == ["prepare", "unprepare"]
    assert node.driver.prepared == set()


def test_a_claim_that_stays_busy_is_explained_before_kubelets_deadline(node: Node) -> None:
    go = threading.Event()
    node.driver.on_prepare = lambda c: go.wait(60) and None
    node.kubelet.call_seconds = 3
    wanted = claim()
    with futures.ThreadPoolExecutor(1) as pool:
        first = pool.submit(node.kubelet.prepare, "pod", [wanted])
        node.kubelet.wait(lambda: node.driver.running == 1, "prepare runs")
        with golden_error(KubeletError):
            node.kubelet.prepare("pod", [wanted])
        with pytest.raises(KubeletError, match="DEADLINE_EXCEEDED"):
            first.result(30)
    go.set()


def test_claims_are_not_begun_after_kubelet_has_given_up(node: Node) -> None:
    go = threading.Event()
    node.driver.on_prepare = lambda c: go.wait(60) and None
    node.kubelet.call_seconds = 2.0
    first, second = claim("a"), claim("b")
    with pytest.raises(KubeletError, match="DEADLINE_EXCEEDED"):
        node.kubelet.prepare("pod", [first, second])
    time.sleep(0.2)
    go.set()
    node.kubelet.wait(lambda: not node.driver.running, "first prepare ended")
    time.sleep(0.2)
    assert node.driver.calls == [("prepare", first.uid)]


def test_each_claim_is_told_when_its_part_of_the_call_is_over(node: Node) -> None:
    node.kubelet.call_seconds = 42
    wanted = [claim(name) for name in ("a", "b", "c", "d")]
    began = time.monotonic()
    node.kubelet.prepare("pod", wanted)
    ends = [node.driver.deadlines[item.uid] - began for item in wanted]
    # Nobody used any, so each has an equal part of all that is left but for the time that the answer needs.
    assert ends == [pytest.approx(40 / left, abs=3.0) for left in (4, 3, 2, 1)]
    node.kubelet.unprepare("pod")
    assert node.driver.deadlines[wanted[-1].uid] > began + 40


def test_prepare_fails_then_succeeds_and_so_does_unprepare(node: Node) -> None:
    wanted = claim()
    node.driver.on_prepare = node.driver.on_unprepare = raising(DriverError("not yet"))
    with golden_error(KubeletError):
        node.kubelet.prepare("pod", [wanted])
    node.driver.on_prepare = lambda c: None
    assert node.kubelet.prepare("pod", [wanted])[wanted.uid]
    with golden_error(KubeletError):
        node.kubelet.unprepare("pod")
    node.driver.on_unprepare = lambda c: None
    node.kubelet.unprepare("pod")
    assert node.driver.prepared == set()


def test_a_claim_shared_by_pods_is_unprepared_after_the_last(node: Node) -> None:
    shared = claim()
    node.kubelet.prepare("one", [shared])
    node.kubelet.prepare("two", [shared])
    node.kubelet.unprepare("one")
    assert node.driver.calls == [("prepare", shared.uid)]
    node.kubelet.unprepare("two")
    assert node.driver.calls == [("prepare", shared.uid), ("unprepare", shared.uid)]


def test_random_orders_of_calls_never_overlap_for_one_claim(node: Node) -> None:
    busy: set[str] = set()
    lock = threading.Lock()
    overlaps: list[str] = []

    def work(claim: ClaimRef) -> None:
        with lock:
            if claim.uid in busy:
                overlaps.append(claim.uid)
            busy.add(claim.uid)
        time.sleep(0.002)
        with lock:
            busy.discard(claim.uid)

    node.driver.on_prepare = node.driver.on_unprepare = work
    chance = random.Random(7)
    uids = [str(uuid.UUID(int=chance.getrandbits(128))) for _ in range(4)]
    jobs = [(chance.choice((node.prepare, node.unprepare)), chance.choice(uids)) for _ in range(200)]
    with futures.ThreadPoolExecutor(12) as pool:
        replies = list(pool.map(lambda job: job[0](("ns", "c", job[1]))[job[1]].error, jobs))
    assert overlaps == []
    assert set(replies) == {""}
    assert len(node.driver.calls) == 200
    assert node.driver.most_running > 1


# -- hostile input


@pytest.mark.parametrize(
    "uid",
    [
        "",
        ".",
        "..",
        "../../etc/passwd",
        ".hidden",
        "a/b",
        "a\\b",
        "a b",
        "a\nb",
        "x" * 65,
        "é",
        "\x00",
        "x" * 1_000_000,
    ],
    ids=lambda uid: ascii(uid[:20]),
)
def test_a_malformed_uid_is_refused_with_an_entry_of_its_own(
    node: Node, uid: str, caplog: pytest.LogCaptureFixture
) -> None:
    reply = node.prepare(("ns", "c", uid), ("ns", "d", UID))
    assert set(reply) == {uid, UID}
    golden(reply[uid].error)
    assert len(reply[uid].error) < 300
    assert reply[UID].error == ""
    golden(node.unprepare(("ns", "c", uid))[uid].error)
    assert node.driver.calls == [("prepare", UID)]
    assert all(len(record.getMessage()) < 1000 and "\n" not in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    ("namespace", "name"),
    [
        ("", "c"),
        ("a/b", "c"),
        ("../x", "c"),
        ("n" * 64, "c"),
        ("ns", ""),
        ("ns", "../x"),
        ("ns", "A"),
        ("ns", "n" * 254),
    ],
)
def test_malformed_names_are_refused(node: Node, namespace: str, name: str) -> None:
    golden(node.prepare((namespace, name, UID))[UID].error)
    assert node.driver.calls == []


@pytest.mark.parametrize("data", [b"\xff\xff\xff", b"\n\x02\x12", b"\n\x04\x12\x02\xff\xfe"])
def test_bytes_that_are_no_request_are_refused_without_a_traceback(
    node: Node, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    call: Callable[..., bytes] = node.channel.unary_unary(
        "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"
    )
    with pytest.raises(grpc.RpcError, match="INVALID_ARGUMENT"):
        call(data, timeout=5)
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]
    assert node.prepare(("ns", "c", UID))[UID].error == ""


def test_more_than_a_message_may_hold_is_refused(node: Node) -> None:
    with pytest.raises(grpc.RpcError, match="RESOURCE_EXHAUSTED"):
        node.prepare(("ns", "c", "x" * 5_000_000))
    assert node.prepare(("ns", "c", UID))[UID].error == ""


def test_many_claims_in_one_call_all_get_an_entry(node: Node) -> None:
    claims = [("ns", f"c{number}", f"u{number}") for number in range(1000)]
    reply = node.prepare(*claims)
    assert len(reply) == 1000
    assert not any(entry.error for entry in reply.values())


def test_no_other_service_is_to_be_had_on_the_sockets(node: Node) -> None:
    health = health_v1_pb2.HealthCheckRequest()
    info = pluginregistration_v1_pb2.InfoRequest()
    with client(node.plugin.registration_socket) as registrar:
        for channel, messages, service, method, request in (
            (node.channel, health_v1_pb2, "Health", "Check", health),
            (
                node.channel,
                pluginregistration_v1_pb2,
                "Registration",
                "GetInfo",
                info,
            ),
            (registrar, dra_v1_pb2, "DRAPlugin", "NodePrepareResources", dra_v1_pb2.NodePrepareResourcesRequest()),
        ):
            with pytest.raises(grpc.RpcError, match="UNIMPLEMENTED"):
                rpc(channel, messages, service, method, request)


# -- logs


def test_all_lines_of_a_call_share_an_operation_id(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    seen: dict[str, str] = {}
    node.driver.on_prepare = lambda c: seen.update({c.uid: operation_id()})
    lines: list[tuple[str, str]] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append((operation_id(), record.getMessage()))

    handler = Collect()
    logger = logging.getLogger("dra_driver.kube.kubelet")
    logger.addHandler(handler)
    try:
        node.prepare(("ns", "a", "u1"), ("ns", "b", "u2"))
        node.prepare(("ns", "c", "u3"))
    finally:
        logger.removeHandler(handler)
    assert seen["u1"] == seen["u2"] != seen["u3"]
    for uid, expected in seen.items():
        (line,) = [(op, text) for op, text in lines if f"({uid})" in text]
        assert line[0] == expected
        golden(line[1])
    assert operation_id() == ""
