"""The device plugin library over real sockets: what kubelet does to any device plugin."""

from __future__ import annotations

import logging
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from dra_driver.kube.kubelet import client
from dra_driver.kube.kubelet.api import deviceplugin_v1beta1_pb2 as api
from dra_driver.kube.kubelet.api import podresources_v1_pb2
from dra_driver.kube.kubelet.client import CallError, call
from dra_driver.kube.kubelet.deviceplugin import ContainerDevices, DevicePlugin, PluginDevice, PluginDeviceNode
from dra_driver.util.errors import DriverError
from tests.doubles.device_manager import (
    PLUGIN,
    Connection,
    Container,
    DeviceManager,
    KnownPod,
    plugin_call,
    sockets,
)
from tests.doubles.kubelet_connection import OPTIONS, KubeletError
from tests.doubles.sample_driver import node_directory
from tests.eventually import eventually
from tests.golden import golden, golden_error
from tests.paths import ROOT

GPU = "example.com/gpu"
DEVICES = tuple(PluginDevice(str(n), numa_nodes=(n // 2,)) for n in range(4))
INTERVAL = 0.05


class SamplePlugin:
    """Prefers the highest ids, and gives what it is asked for."""

    def __init__(self) -> None:
        self.allocated: list[frozenset[str]] = []
        self.error: Exception | None = None

    def prefer(self, available: frozenset[str], must_include: frozenset[str], size: int) -> Sequence[str]:
        if self.error is not None:
            raise self.error
        return [*must_include, *sorted(available - must_include, reverse=True)][:size]

    def allocate(self, ids: frozenset[str]) -> ContainerDevices:
        if self.error is not None:
            raise self.error
        self.allocated.append(ids)
        nodes = tuple(PluginDeviceNode(f"/dev/gpu{n}", f"/host/gpu{n}") for n in sorted(ids))
        return ContainerDevices({"GPUS": ",".join(sorted(ids))}, nodes, ("example.com/gpu=all",))


@pytest.fixture
def root() -> Iterator[Path]:
    with node_directory() as directory:
        yield directory


@pytest.fixture(params=[33, 37], ids=["kubelet-1.33", "kubelet-1.37"])
def kubelet(root: Path, request: pytest.FixtureRequest) -> Iterator[DeviceManager]:
    with DeviceManager(root, release=request.param) as manager:
        yield manager


@contextmanager
def served(
    root: Path, plugin: Any = None, devices: Sequence[PluginDevice] = DEVICES, interval: float = INTERVAL
) -> Iterator[DevicePlugin]:
    running = DevicePlugin(GPU, plugin or SamplePlugin(), kubelet_directory=root, name="gpu", interval=interval)
    running.start()
    running.update(devices)
    try:
        yield running
    finally:
        running.stop(1)


def pod(uid: str = "u", count: int = 1, **options: Any) -> KnownPod:
    return KnownPod("default", f"pod-{uid}", uid, (Container("main", {GPU: count}, **options),))


def test_registers_lists_prefers_and_allocates(kubelet: DeviceManager, root: Path) -> None:
    with served(root) as plugin:
        kubelet.wait_for(GPU, 4)
        assert kubelet.connections[GPU].numa == {"0": (0,), "1": (0,), "2": (1,), "3": (1,)}
        answer = kubelet.admit(pod(count=2))["main", GPU]
        assert kubelet.counted("u", GPU) == {"2", "3"}
        assert dict(answer.envs) == {"GPUS": "2,3"}
        assert [(d.container_path, d.host_path, d.permissions) for d in answer.devices] == [
            ("/dev/gpu2", "/host/gpu2", "rw"),
            ("/dev/gpu3", "/host/gpu3", "rw"),
        ]
        assert [device.name for device in answer.cdi_devices] == ["example.com/gpu=all"]
        assert plugin.problem() == ""


def test_a_device_that_fails_and_comes_back_is_told_at_once(kubelet: DeviceManager, root: Path) -> None:
    with served(root) as plugin:
        kubelet.wait_for(GPU, 4)
        sick = (PluginDevice("0", healthy=False), *DEVICES[1:])
        assert plugin.update(sick)
        kubelet.wait_for(GPU, 3)
        assert kubelet.capacity(GPU) == 4
        assert not plugin.update(sick), "the same again is no change"
        plugin.update(DEVICES)
        kubelet.wait_for(GPU, 4)
        assert kubelet.registrations == [GPU], "no registration is needed for it"


def test_nothing_is_served_before_there_are_devices(kubelet: DeviceManager, root: Path) -> None:
    with served(root, devices=()) as plugin:
        time.sleep(0.3)
        assert (sockets(kubelet.directory), kubelet.registrations, plugin.problem()) == ([], [], "")
        plugin.update(DEVICES)
        kubelet.wait_for(GPU, 4)


def test_registers_again_after_each_restart_of_kubelet(kubelet: DeviceManager, root: Path) -> None:
    with served(root) as plugin:

        def use(registration: int) -> None:
            kubelet.wait_for(GPU, 4)
            # kubelet follows the devices before it answers. It may be asked, too, while it ends, and not answer that.
            eventually(lambda: plugin.registrations == registration, what="kubelet to answer")
            assert len(sockets(kubelet.directory)) == 1
            kubelet.admit(pod(f"u{registration}"))

        use(1)
        for registration in range(2, 5):
            kubelet.restart()
            use(registration)
        assert len(kubelet.allocations) == 4, "the checkpoint"


def test_waits_for_a_kubelet_that_starts_later(root: Path) -> None:
    manager = DeviceManager(root)
    with served(root) as plugin:
        eventually(lambda: "kubelet.sock does not exist" in plugin.problem(), what="the reason")
        with manager:
            manager.wait_for(GPU, 4)


def test_registers_with_a_kubelet_that_left_a_dead_socket_behind(kubelet: DeviceManager, root: Path) -> None:
    with served(root) as plugin:
        kubelet.wait_for(GPU, 4)
        kubelet.stop()  # the file kubelet.sock may stay
        eventually(lambda: not plugin.in_use, what="the end of the stream")
        time.sleep(0.5)
        kubelet.start()
        kubelet.wait_for(GPU, 4)


def test_a_wiped_directory_is_no_end(kubelet: DeviceManager, root: Path) -> None:
    with served(root):
        kubelet.wait_for(GPU, 4)
        for path in sockets(kubelet.directory):
            path.unlink()
        eventually(lambda: len(kubelet.registrations) >= 2, what="the registration of a new socket")
        (present,) = sockets(kubelet.directory)

        def connected() -> bool:
            found = kubelet.connections.get(GPU)
            return found is not None and found.path == present

        eventually(connected, what="kubelet's connection to it")
        kubelet.wait_for(GPU, 4)
        kubelet.admit(pod())


def test_a_directory_that_is_taken_away_is_waited_for(kubelet: DeviceManager, root: Path) -> None:
    with served(root) as plugin:
        kubelet.wait_for(GPU, 4)
        kubelet.stop()
        shutil.rmtree(kubelet.directory)
        eventually(lambda: "No such file" in plugin.problem(), what="the reason")
        kubelet.directory.mkdir()
        kubelet.start()
        kubelet.wait_for(GPU, 4)


def test_a_stream_that_ends_for_no_reason_is_followed_by_a_registration(kubelet: DeviceManager, root: Path) -> None:
    with served(root):
        kubelet.wait_for(GPU, 4)
        for _ in range(3):
            kubelet.connections[GPU].stream.cancel()
            eventually(lambda: kubelet.allocatable(GPU) == 0, what="its end")
            kubelet.wait_for(GPU, 4)


def test_a_refusal_is_told_and_tried_again(root: Path) -> None:
    with DeviceManager(root) as kubelet:
        kubelet.refuse_registration = "this kubelet does not want you"
        began = time.monotonic()
        with served(root) as plugin:
            eventually(lambda: len(kubelet.registrations) > 2, what="tries")
            golden(plugin.problem())
            time.sleep(1.0)
            tries = len(kubelet.registrations)
            # Each wait is at least half of its bound, which begins with INTERVAL and doubles.
            most = 2 + math.log2(1 + (time.monotonic() - began) / (INTERVAL / 2))
            assert tries <= most, "it is asked ever more slowly"
            kubelet.refuse_registration = ""
            kubelet.wait_for(GPU, 4)
            eventually(lambda: plugin.problem() == "", what="health")


def test_a_second_process_takes_over_and_the_first_leaves_nothing(kubelet: DeviceManager, root: Path) -> None:
    with served(root):
        kubelet.wait_for(GPU, 4)
        with served(root, devices=DEVICES[:3]):
            eventually(lambda: len(kubelet.registrations) >= 2, what="the second's registration")
            assert len(sockets(kubelet.directory)) == 2
    kubelet.stop()
    assert sockets(kubelet.directory) == []


def test_the_first_of_two_may_end_and_the_resource_stays(kubelet: DeviceManager, root: Path) -> None:
    first = served(root)
    first.__enter__()
    kubelet.wait_for(GPU, 4)
    with served(root, devices=DEVICES[:3]):
        eventually(lambda: len(kubelet.registrations) >= 2, what="the second's registration")
        first.__exit__(None, None, None)
        kubelet.wait_for(GPU, 3)  # kubelet before 1.37 drops the second's stream together with the first's
        time.sleep(0.3)
        kubelet.wait_for(GPU, 3)


def test_a_killed_process_leaves_a_socket_that_the_next_one_removes(kubelet: DeviceManager, root: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from tests.plugin.kube.kubelet.test_deviceplugin import *\n"
        "plugin = DevicePlugin(GPU, SamplePlugin(), kubelet_directory=Path(sys.argv[1]), name='gpu')\n"
        "plugin.start(); plugin.update(DEVICES); time.sleep(60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", code, str(root)], env=environment)
    try:
        kubelet.wait_for(GPU, 4, seconds=30)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    eventually(lambda: kubelet.allocatable(GPU) == 0, what="kubelet notices")
    (dead,) = sockets(kubelet.directory)
    with served(root):
        kubelet.wait_for(GPU, 4)
        assert len(sockets(kubelet.directory)) == 1
        assert not dead.exists()


def test_stop_ends_the_stream_and_removes_the_socket(kubelet: DeviceManager, root: Path) -> None:
    with served(root):
        kubelet.wait_for(GPU, 4)
        started = time.monotonic()
    assert time.monotonic() - started < 30
    assert sockets(kubelet.directory) == []
    eventually(lambda: kubelet.allocatable(GPU) == 0, what="no device can be given")


def test_a_plugin_that_stops_neither_registers_again_nor_complains(
    kubelet: DeviceManager, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its end closes the stream, and a look at the sockets that has begun before must not take that for kubelet's."""
    for count in range(1, 61):
        with served(root, interval=0.0005) as plugin:
            eventually(lambda: plugin.in_use, what="kubelet's stream")
        eventually(lambda: GPU not in kubelet.connections, what="kubelet to see its end")
        assert len(kubelet.registrations) == count
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


# -- what anybody may send


@pytest.mark.parametrize(
    "ids",
    [["9"], [], ["1", "1"], ["../../etc"], ["x" * 100_000], ["\x1b[31m\n"], [str(n) for n in range(50_000)]],
    ids=["unknown", "none", "twice", "path", "long", "control", "many"],
)
def test_ids_that_do_not_exist_are_refused_in_one_line(kubelet: DeviceManager, root: Path, ids: list[str]) -> None:
    plugin = SamplePlugin()
    with served(root, plugin):
        kubelet.wait_for(GPU, 4)
        request = api.AllocateRequest(container_requests=[api.ContainerAllocateRequest(devices_ids=ids)])
        (path,) = sockets(kubelet.directory)
        with pytest.raises(KubeletError, match="FAILED_PRECONDITION") as refusal:
            plugin_call(path, "Allocate", request, api.AllocateResponse)
        assert plugin.allocated == []
        assert len(str(refusal.value)) < 1500
        assert str(refusal.value).isprintable()


def test_one_bad_container_of_a_request_refuses_all_of_it(kubelet: DeviceManager, root: Path) -> None:
    plugin = SamplePlugin()
    with served(root, plugin):
        kubelet.wait_for(GPU, 4)
        (path,) = sockets(kubelet.directory)
        for ids in (["1"], ["7"]), (["1"],) * 1000:
            request = api.AllocateRequest(
                container_requests=[api.ContainerAllocateRequest(devices_ids=some) for some in ids]
            )
            with pytest.raises(KubeletError, match="FAILED_PRECONDITION"):
                plugin_call(path, "Allocate", request, api.AllocateResponse)
        assert plugin.allocated == []


@pytest.mark.parametrize(
    ("available", "must", "size"),
    [
        (["0", "1"], [], 3),
        (["0", "1"], ["2"], 1),
        (["0", "1"], ["0", "1"], 1),
        (["0"], [], 0),
        (["0"], [], -5),
        ([], [], 2**31 - 1),
        (["nine"], [], 1),
    ],
)
def test_a_preference_that_cannot_be_is_no_error(
    kubelet: DeviceManager, root: Path, available: list[str], must: list[str], size: int
) -> None:
    with served(root):
        kubelet.wait_for(GPU, 4)
        (path,) = sockets(kubelet.directory)
        request = api.PreferredAllocationRequest()
        request.container_requests.add(available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size)
        answer = plugin_call(path, "GetPreferredAllocation", request, api.PreferredAllocationResponse)
        assert [list(response.deviceIDs) for response in answer.container_responses] == [[]]


@pytest.mark.parametrize("error", [DriverError("not now"), RuntimeError("a defect")])
def test_a_preference_that_fails_leaves_the_choice_to_kubelet(root: Path, error: Exception) -> None:
    plugin = SamplePlugin()
    with DeviceManager(root) as kubelet, served(root, plugin):
        kubelet.wait_for(GPU, 4)
        plugin.error = error
        with pytest.raises(KubeletError, match=str(error)):  # by Allocate: the preference did not fail the pod
            kubelet.admit(pod())


def test_a_refusal_reaches_the_pod_as_it_is_and_a_defect_as_one_line(root: Path) -> None:
    plugin = SamplePlugin()
    with DeviceManager(root) as kubelet, served(root, plugin):
        kubelet.wait_for(GPU, 4)
        plugin.error = DriverError("no", consequence="the pod fails", remedy="ask for less")
        with golden_error(KubeletError):
            kubelet.admit(pod())
        plugin.error = RuntimeError("two\nlines")
        with golden_error(KubeletError):
            kubelet.admit(pod())
        plugin.error = None
        kubelet.admit(pod())


def test_bytes_that_are_no_request_are_refused(kubelet: DeviceManager, root: Path) -> None:
    with served(root):
        kubelet.wait_for(GPU, 4)
        (path,) = sockets(kubelet.directory)
        with grpc.insecure_channel(f"unix:{path}", options=OPTIONS) as channel:
            for method in ("Allocate", "GetPreferredAllocation", "PreStartContainer"):
                send: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"{PLUGIN}/{method}")
                with pytest.raises(grpc.RpcError, match="INVALID_ARGUMENT"):
                    send(b"\xff\xff\xff", timeout=5)
        kubelet.admit(pod())


def test_the_newest_stream_counts_and_many_take_no_worker_away(kubelet: DeviceManager, root: Path) -> None:
    with served(root):
        kubelet.wait_for(GPU, 4)
        (path,) = sockets(kubelet.directory)
        own = kubelet.connections[GPU]
        with grpc.insecure_channel(f"unix:{path}", options=OPTIONS) as channel:
            listen = channel.unary_stream(
                f"{PLUGIN}/ListAndWatch", api.Empty.SerializeToString, api.ListAndWatchResponse.FromString
            )
            others = [listen(api.Empty(), timeout=60) for _ in range(40)]
            # Its first answer, or its end: the plugin has met them all. A stream that is cancelled while its connection
            # is still being made has never begun, and none would have to give way.
            next(others[-1], None)
            request = api.AllocateRequest(container_requests=[api.ContainerAllocateRequest(devices_ids=["1"])])
            plugin_call(path, "Allocate", request, api.AllocateResponse)
            for other in others:
                other.cancel()
        back = "kubelet's own stream, which had to give way,"
        eventually(lambda: kubelet.connections.get(GPU) not in {None, own}, what=back)
        kubelet.wait_for(GPU, 4)
        kubelet.admit(pod())


def test_only_its_owner_may_open_the_socket(kubelet: DeviceManager, root: Path) -> None:
    with served(root):
        kubelet.wait_for(GPU, 4)
        (path,) = sockets(kubelet.directory)
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_directory_that_is_too_long_for_sockets_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(DriverError, match="but a unix socket path"):
        DevicePlugin(GPU, SamplePlugin(), kubelet_directory=tmp_path / ("x" * 100), name="gpu")


def test_a_silent_server_is_given_up_and_nonsense_is_no_answer(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    answers = {"/x/Silent": lambda r, c: bytes(release.wait(30)), "/x/Nonsense": lambda r, c: b"\xff\xff"}

    class Handler(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(answers[details.method])

    from concurrent.futures import ThreadPoolExecutor

    server = grpc.server(ThreadPoolExecutor(2), handlers=[Handler()])
    server.add_insecure_port(f"unix:{root / 's'}")
    server.start()
    try:
        for method, text in (("/x/Silent", "DEADLINE_EXCEEDED"), ("/x/Nonsense", "not a v1.ListPodResourcesResponse")):
            with pytest.raises(CallError, match=text):
                call(root / "s", method, api.Empty(), podresources_v1_pb2.ListPodResourcesResponse, 0.3)
    finally:
        release.set()
        server.stop(0).wait()
    with golden_error(CallError):
        client.call(root / ("x" * 120), "/x/Y", api.Empty(), api.Empty, 1)


def test_connections_of_the_test_kubelet_are_its_own(kubelet: DeviceManager, root: Path) -> None:
    with served(root):
        kubelet.wait_for(GPU, 4)
        assert isinstance(kubelet.connections[GPU], Connection)
        with golden_error(KubeletError):
            kubelet.admit(pod(count=9))
