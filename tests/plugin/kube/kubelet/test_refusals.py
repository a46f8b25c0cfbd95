"""What kubelet, the log and health reports are told when the driver, kubelet or their sockets do not behave."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from dra_driver.kube.kubelet.api import deviceplugin_v1beta1_pb2 as api
from dra_driver.kube.kubelet.api import dra_v1_pb2, podresources_v1_pb2
from dra_driver.kube.kubelet.client import CallError, call
from dra_driver.kube.kubelet.devicehealth import DeviceHealth, HealthStream
from dra_driver.kube.kubelet.deviceplugin import ContainerDevices, DevicePlugin, PluginDevice
from dra_driver.kube.kubelet.dra import PreparedDevice
from dra_driver.kube.kubelet.grpcserver import Activity, SocketServer
from dra_driver.kube.kubelet.health import HealthServer
from dra_driver.kube.kubelet.server import KubeletPlugin
from dra_driver.util.errors import DriverError
from tests.builders.probes import health_server, probe
from tests.builders.threads import no_further_threads
from tests.doubles.device_manager import DeviceManager, plugin_call, sockets
from tests.doubles.kubelet import Kubelet
from tests.doubles.kubelet_health import MESSAGES, watch
from tests.doubles.sample_driver import DRIVER, SampleDriver, client, node_directory, rpc, served
from tests.eventually import eventually
from tests.golden import golden, golden_error

UID = "11111111-2222-3333-8444-555555555555"


@pytest.fixture
def root() -> Iterator[Path]:
    with node_directory() as directory:
        yield directory


def plugin(root: Path, name: str = DRIVER, **options: Any) -> KubeletPlugin:
    return KubeletPlugin(SampleDriver(), name, plugin_dir=root / "plugin", registrar_dir=root / "registry", **options)


@pytest.mark.parametrize(
    ("name", "options"),
    [("GPU!", {}), (DRIVER, {"pod_uid": "../uid"}), (DRIVER, {"versions": ("v0",)})],
    ids=["name", "pod UID", "versions"],
)
def test_settings_that_cannot_be_used_are_refused(root: Path, name: str, options: dict[str, Any]) -> None:
    with golden_error(DriverError):
        plugin(root, name, **options)


def test_a_directory_that_cannot_be_made_is_explained(root: Path) -> None:
    (root / "plugin").write_text("a file in its place")
    with golden_error(DriverError):
        plugin(root).start()


def test_a_socket_that_cannot_be_made_is_explained(root: Path) -> None:
    with pytest.raises(DriverError) as caught:
        SocketServer(root / "missing" / "dra.sock", [], 1, Activity()).start()
    golden(re.sub(r"/\.[0-9a-f]+", "/HIDDEN", str(caught.value)))


def test_a_server_for_which_no_thread_can_be_had_says_so_and_can_be_stopped(root: Path) -> None:
    server = SocketServer(root / "dra.sock", [], 1, Activity())
    with no_further_threads():
        with pytest.raises(DriverError, match="can't start new thread"):
            server.start()
        assert server.stop(0).is_set()


def test_what_becomes_of_the_own_sockets_is_logged_and_reported(root: Path, log: pytest.LogCaptureFixture) -> None:
    running = plugin(root, check_interval=0.02)
    (root / "plugin").mkdir()
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(root / "plugin" / "dra.sock"))
    left.close()
    running.start()
    try:
        running.endpoint.unlink()
        eventually(running.endpoint.exists)
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(root / "other"))
            (root / "other").rename(running.endpoint)
            eventually(lambda: any("another process" in problem for problem in running.problems()))
            golden(running.problems(), "health report")
    finally:
        running.stop(1)
    golden([text for text in log.messages if "socket" in text or "serves" in text], "log")


def test_a_driver_that_cannot_be_reached_any_more_says_so(root: Path, log: pytest.LogCaptureFixture) -> None:
    running = plugin(root, check_interval=0.02)
    running.start()
    try:
        running.endpoint.unlink()
        running.endpoint.parent.rmdir()
        eventually(lambda: any("broken" in problem for problem in running.problems()))
        golden([problem.partition(str(root))[0] for problem in running.problems()], "health report")
    finally:
        running.stop(1)
    golden(text.partition(" in /")[0] for text in log.messages if "any more" in text)


def test_a_reaction_to_the_registration_that_fails_is_logged(root: Path, log: pytest.LogCaptureFixture) -> None:
    def fail(*_: object) -> None:
        raise KeyError("slices")

    with Kubelet(root) as kubelet, served(kubelet, SampleDriver(), on_registered=fail):
        kubelet.wait_registered(DRIVER)
        eventually(lambda: "reaction" in log.text)
    golden(text for text in log.messages if "reaction" in text)


def test_claims_are_refused_without_a_reason_or_with_devices_that_cannot_be_sent(
    root: Path, log: pytest.LogCaptureFixture
) -> None:
    driver = SampleDriver()

    def fail(claim: Any) -> Any:
        if claim.name == "silent":
            raise DriverError("")
        return [PreparedDevice(("gpu",), "node-1", 7, ())]  # type: ignore[arg-type]

    driver.on_prepare = fail
    claims = [dra_v1_pb2.Claim(namespace="ns", name=name, uid=f"uid-{name}") for name in ("silent", "odd")]
    with Kubelet(root) as kubelet, served(kubelet, driver) as running, client(running.endpoint) as channel:
        request = dra_v1_pb2.NodePrepareResourcesRequest(claims=claims)
        answer = rpc(channel, dra_v1_pb2, "DRAPlugin", "NodePrepareResources", request).claims
    golden(answer["uid-silent"].error)
    golden(text for text in log.messages if "cannot be sent" in text)


def test_an_answer_that_is_no_message_is_an_error(root: Path) -> None:
    with served_bytes(root / "x.sock", b"\xff\xff"), golden_error(CallError):
        call(
            root / "x.sock",
            "/v1.PodResourcesLister/List",
            podresources_v1_pb2.ListPodResourcesRequest(),
            podresources_v1_pb2.ListPodResourcesResponse,
            5.0,
        )


@contextmanager
def served_bytes(path: Path, answer: bytes) -> Iterator[None]:
    """A server that answers with the same bytes always."""
    server = grpc.server(ThreadPoolExecutor(1))
    handler: Any = grpc.unary_unary_rpc_method_handler(lambda _request, _context: answer)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": handler}),))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        yield
    finally:
        server.stop(0)


def test_loops_that_hang_are_named_in_health_reports(root: Path) -> None:
    for made in (plugin(root), DevicePlugin("example.com/gpu", Plugin(), kubelet_directory=root, name="gpu")):
        made.worker.beat(-1.0)
        golden(made.worker.problem())


# Health


def test_a_check_that_fails_or_hangs_is_a_problem(log: pytest.LogCaptureFixture) -> None:
    def fail() -> list[str]:
        raise KeyError("worker")

    never = threading.Event()
    for check, seconds in ((fail, 10.0), (lambda: [str(never.wait(20))], 0.2)):
        with health_server({"liveness": check}, check_seconds=seconds) as address:
            probe(address)
    never.set()
    golden(log.messages)


def test_a_health_service_that_is_off_says_so(log: pytest.LogCaptureFixture) -> None:
    HealthServer(-1, "127.0.0.1", {}).start()
    golden(log.messages)


def test_a_stream_too_many_and_a_look_that_fails_are_logged(root: Path, log: pytest.LogCaptureFixture) -> None:
    def fail() -> list[DeviceHealth]:
        raise OSError("no word from the cards")

    health = HealthStream(fail, period=0.05, timeout_seconds=1, streams=1)
    health.set([DeviceHealth("node-1", "gpu-0", "healthy")])
    version = next(iter(MESSAGES))
    with (
        Kubelet(root) as kubelet,
        served(kubelet, SampleDriver(), health=health) as running,
        client(running.endpoint) as channel,
    ):
        stream = watch(channel, version, 120)
        next(stream)
        golden([device.message for device in next(stream).devices], "told to kubelet")
        with pytest.raises(grpc.RpcError):
            next(watch(channel, version, 120))
        stream.cancel()
    golden([text for text in log.messages if "stream was refused" in text or "cannot be determined" in text], "log")


# The device plugin


class Plugin:
    def prefer(self, available: frozenset[str], must_include: frozenset[str], size: int) -> list[str]:
        raise KeyError("topology")

    def allocate(self, ids: frozenset[str]) -> ContainerDevices:
        return ContainerDevices()


def test_what_becomes_of_a_resource_is_logged(root: Path, log: pytest.LogCaptureFixture) -> None:
    directory = root / "device-plugins"
    directory.mkdir(exist_ok=True)
    running = DevicePlugin("example.com/gpu", Plugin(), kubelet_directory=root, name="gpu", interval=0.02)
    running.start()
    running.update((PluginDevice("0"), PluginDevice("1")))
    try:
        eventually(lambda: "does not exist" in running.trouble)
        with DeviceManager(root) as kubelet:
            kubelet.wait_for("example.com/gpu", 2)
            (path,) = sockets(directory)
            path.unlink()
            eventually(lambda: "created again" in log.text)
    finally:
        running.stop(1)
    eventually(lambda: "no longer follows" in log.text)
    known = ("does not exist", "stream 1", "is gone")
    golden(sorted({text for text in log.messages if any(part in text for part in known)}))


def test_a_preference_that_fails_is_left_to_kubelet(root: Path, log: pytest.LogCaptureFixture) -> None:
    running = DevicePlugin("example.com/gpu", Plugin(), kubelet_directory=root, name="gpu", interval=0.02)
    with DeviceManager(root) as kubelet:
        running.start()
        running.update((PluginDevice("0"), PluginDevice("1")))
        kubelet.wait_for("example.com/gpu", 2)
        (path,) = sockets(root / "device-plugins")
        request = api.PreferredAllocationRequest()
        request.container_requests.add(available_deviceIDs=["0", "1"], allocation_size=1)
        plugin_call(path, "GetPreferredAllocation", request, api.PreferredAllocationResponse)
        running.stop(1)
    golden(text for text in log.messages if "preference" in text)
