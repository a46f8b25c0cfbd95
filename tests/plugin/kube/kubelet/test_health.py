from __future__ import annotations

import gc
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from h2.connection import H2Connection

from dra_driver.kube.kubelet.api import dra_v1_pb2, health_v1_pb2, pluginregistration_v1_pb2
from dra_driver.kube.kubelet.health import HealthServer
from dra_driver.util.errors import DriverError
from tests.builders.probes import CHECK, NOT_SERVING, SERVICE_UNKNOWN, SERVING, health_server, open_door, probe
from tests.doubles.sample_driver import rpc
from tests.eventually import eventually
from tests.golden import golden, golden_error


@contextmanager
def probed(check: Callable[[], list[str]], host: str = "127.0.0.1", **options: Any) -> Iterator[grpc.Channel]:
    with (
        health_server({"liveness": check, "": check}, host, **options) as address,
        grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel,
    ):
        yield channel


def status(channel: grpc.Channel, service: str = "liveness") -> Any:
    request = health_v1_pb2.HealthCheckRequest(service=service)
    return rpc(channel, health_v1_pb2, "Health", "Check", request).status


def watch(channel: grpc.Channel, service: str) -> Any:
    call: Callable[..., Any] = channel.unary_stream(
        "/grpc.health.v1.Health/Watch",
        lambda m: m.SerializeToString(),
        health_v1_pb2.HealthCheckResponse.FromString,
    )
    return call(health_v1_pb2.HealthCheckRequest(service=service), timeout=10)


@pytest.mark.parametrize("service", ["liveness", ""])
def test_serving_means_that_there_is_no_problem(service: str) -> None:
    problems: list[str] = []
    with probed(lambda: problems) as channel:
        assert status(channel, service) == SERVING
        problems.append("kubelet refused to register the driver: no")
        assert status(channel, service) == NOT_SERVING
        problems.clear()
        assert status(channel, service) == SERVING


def test_each_service_has_a_check_of_its_own() -> None:
    with health_server({"liveness": list, "readiness": lambda: ["slices are not published"]}) as address:
        assert probe(address, "liveness") == SERVING
        assert probe(address, "readiness") == NOT_SERVING


def test_problems_are_logged_when_they_change_and_not_at_every_probe(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    problems = ["the checkpoint cannot be\nwritten"]
    with probed(lambda: list(problems)) as channel:
        for _ in range(5):
            status(channel)
        problems.clear()
        for _ in range(5):
            status(channel)
    texts = [record.getMessage() for record in caplog.records]
    golden(texts)


def test_an_unknown_service_is_not_found() -> None:
    with probed(list) as channel:
        with pytest.raises(grpc.RpcError, match="NOT_FOUND"):
            status(channel, "readiness")
        assert next(watch(channel, "readiness")).status == SERVICE_UNKNOWN


def test_watch_sends_the_status_and_then_its_changes() -> None:
    problems: list[str] = []
    with probed(lambda: problems, watch_seconds=0.02) as channel:
        stream = watch(channel, "liveness")
        assert next(stream).status == SERVING
        problems.append("bad")
        assert next(stream).status == NOT_SERVING
        problems.clear()
        assert next(stream).status == SERVING
        stream.cancel()


def test_of_a_watch_whose_connection_is_closed_nothing_large_is_kept() -> None:
    def kept() -> int:
        gc.collect()
        return sum(isinstance(item, H2Connection) for item in gc.get_objects())

    before = kept()
    with health_server({"liveness": list}, watch_seconds=3600.0) as address:
        for _ in range(8):
            with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
                assert next(watch(channel, "liveness")).status == SERVING
        eventually(lambda: kept() == before)


def test_many_watches_are_told_and_keep_no_probe_out() -> None:
    problems: list[str] = []
    with probed(lambda: problems, watch_seconds=0.02) as channel:
        streams = [watch(channel, "liveness") for _ in range(10)]
        assert [next(stream).status for stream in streams] == [SERVING] * 10
        streams.pop().cancel()
        problems.append("bad")
        assert [next(stream).status for stream in streams] == [NOT_SERVING] * 9
        assert status(channel) == NOT_SERVING


def test_a_call_that_is_no_message_is_refused_and_the_next_one_answered() -> None:
    with probed(list) as channel:
        check: Callable[..., Any] = channel.unary_unary(CHECK)
        for message, code in ((b"\x0a\xff", "INVALID_ARGUMENT"), (b"\x0a" * 10_000, "RESOURCE_EXHAUSTED")):
            with pytest.raises(grpc.RpcError, match=code) as refusal:
                check(message, timeout=5)
            golden(str(refusal.value.details()), code)
        assert status(channel) == SERVING


def test_a_hanging_check_is_answered_in_time_and_begun_once() -> None:
    go = threading.Event()
    begun: list[int] = []

    def check() -> list[str]:
        begun.append(1)
        go.wait(20)
        return []

    with probed(check, check_seconds=0.3) as channel:
        for _ in range(3):
            started = time.monotonic()
            assert status(channel) == NOT_SERVING
            assert time.monotonic() - started < 1
        assert len(begun) == 1
        go.set()
        end = time.monotonic() + 5
        while status(channel) != SERVING:
            assert time.monotonic() < end


@pytest.mark.parametrize("error", [RuntimeError("no"), SystemExit(1)])
def test_a_check_that_fails_is_a_problem(error: BaseException) -> None:
    def check() -> list[str]:
        raise error

    with probed(check) as channel:
        assert status(channel) == NOT_SERVING


def test_the_network_reaches_health_only() -> None:
    with probed(list) as channel:
        for messages, service, method, request in (
            (dra_v1_pb2, "DRAPlugin", "NodePrepareResources", dra_v1_pb2.NodePrepareResourcesRequest()),
            (pluginregistration_v1_pb2, "Registration", "GetInfo", pluginregistration_v1_pb2.InfoRequest()),
        ):
            with pytest.raises(grpc.RpcError, match="UNIMPLEMENTED") as refusal:
                rpc(channel, messages, service, method, request)
            golden(str(refusal.value.details()), service)


def test_a_port_in_use_is_explained() -> None:
    with socket.socket() as taken, open_door() as door:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with golden_error(DriverError):
            HealthServer(port, "127.0.0.1", {}, door=door).start()


def test_two_servers_do_not_share_a_port() -> None:
    with open_door() as door:
        first = HealthServer(0, "127.0.0.1", {}, door=door)
        first.start()
        with pytest.raises(DriverError):
            HealthServer(first.port, "127.0.0.1", {}, door=door).start()


def test_a_server_of_a_program_that_serves_nothing_else_needs_no_door() -> None:
    server = HealthServer(0, "127.0.0.1", {"readiness": list})
    server.start()
    try:
        assert probe(f"127.0.0.1:{server.port}", "readiness") == SERVING
    finally:
        server.stop()


def test_ipv6_addresses_are_bound() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 here")
    with probed(list, host="::1") as channel:
        assert status(channel) == SERVING


def test_a_negative_port_means_no_server() -> None:
    server = HealthServer(-1, "127.0.0.1", {})
    server.start()
    assert server.port == -1
    server.stop()
