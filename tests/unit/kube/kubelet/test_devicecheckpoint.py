"""kubelet's file of device allocations, as Go writes it and as it should not be."""

from __future__ import annotations

import base64
import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.kube.kubelet.api import deviceplugin_v1beta1_pb2 as api
from dra_driver.kube.kubelet.devicecheckpoint import FILE, MAX_BYTES, AllocatedContainer, DeviceCheckpoint
from dra_driver.kube.kubelet.deviceplugin import ContainerDevices, PluginDeviceNode
from dra_driver.util.errors import DriverError
from tests.golden import golden, golden_error

RESOURCE = "aws.amazon.com/neuron"


def allocated(directory: Path) -> tuple[AllocatedContainer, ...]:
    return DeviceCheckpoint(directory, [RESOURCE]).containers()


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["Data", "PodDeviceEntries", "PodUID"]), inner),
)


def test_each_container_with_its_ids_and_the_plugins_answer(tmp_path: Path) -> None:
    answer = api.ContainerAllocateResponse(envs={"A": "b"})
    answer.devices.add(container_path="/dev/neuron0", host_path="/dev/neuron3", permissions="rw")
    answer.cdi_devices.add(name="vendor/class=name")
    entry = {
        "PodUID": "u",
        "ContainerName": "c",
        "ResourceName": RESOURCE,
        "DeviceIDs": {"-1": ["3"], "0": None, "1": ["4", "5"]},
        "AllocResp": base64.b64encode(answer.SerializeToString()).decode(),
    }
    others = [{**entry, "ResourceName": "example.com/other"}, {**entry, "ContainerName": "d", "AllocResp": None}]
    document = {"Data": {"PodDeviceEntries": [entry, *others], "RegisteredDevices": {RESOURCE: ["3"]}}, "Checksum": 1}
    (tmp_path / FILE).write_text(json.dumps(document))
    one, bare = allocated(tmp_path)
    assert (one.pod, one.container, one.resource, sorted(one.ids)) == ("u", "c", RESOURCE, ["3", "4", "5"])
    node = PluginDeviceNode("/dev/neuron0", "/dev/neuron3")
    assert one.answer == ContainerDevices({"A": "b"}, (node,), ("vendor/class=name",))
    assert bare.answer == ContainerDevices()


def test_a_kubelet_that_has_allocated_nothing_remembers_nothing(tmp_path: Path) -> None:
    assert allocated(tmp_path) == ()
    (tmp_path / FILE).write_text('{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":2}')
    assert allocated(tmp_path) == ()


@given(st.binary(max_size=30) | JSON.map(lambda value: json.dumps(value).encode()))
def test_a_file_of_any_content_is_no_end(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    directory = tmp_path_factory.mktemp("checkpoint")
    (directory / FILE).write_bytes(content)
    for entry in allocated(directory):
        entry.answer  # noqa: B018 - it raises nothing


def test_what_cannot_be_understood_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FILE).write_text('{"Data": []}')
    checkpoint = DeviceCheckpoint(tmp_path, [RESOURCE])
    assert (checkpoint.containers(), checkpoint.containers()) == ((), ())
    golden(record.getMessage().replace(str(tmp_path), "device-plugins") for record in caplog.records)


@pytest.mark.parametrize("response", ["*", "AAAA", "/////w=="])
def test_an_answer_that_cannot_be_read_is_none(tmp_path: Path, response: str) -> None:
    entry = {"PodUID": "u", "ContainerName": "c", "ResourceName": RESOURCE, "AllocResp": response}
    (tmp_path / FILE).write_text(json.dumps({"Data": {"PodDeviceEntries": [entry]}}))
    (found,) = allocated(tmp_path)
    assert found.answer is None


def test_a_file_that_is_too_long_is_refused_and_read_when_it_is_shorter(tmp_path: Path) -> None:
    checkpoint = DeviceCheckpoint(tmp_path, [RESOURCE])
    with (tmp_path / FILE).open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with golden_error(DriverError):
        checkpoint.containers()
    entry = {"PodUID": "u", "ContainerName": "c", "ResourceName": RESOURCE}
    (tmp_path / FILE).write_text(json.dumps({"Data": {"PodDeviceEntries": [entry]}}))
    assert [one.pod for one in checkpoint.containers()] == ["u"]


def test_entries_of_other_plugins_take_no_memory(tmp_path: Path) -> None:
    other = {"PodUID": "u", "ContainerName": "c", "ResourceName": "example.com/other"}
    entries = [{**other, "DeviceIDs": {"0": [str(number) for number in range(1000)]}}] * 300
    text = json.dumps({"Data": {"PodDeviceEntries": entries}})
    (tmp_path / FILE).write_text(text)
    checkpoint = DeviceCheckpoint(tmp_path, [RESOURCE])
    tracemalloc.start()
    try:
        assert checkpoint.containers() == ()
        assert tracemalloc.get_traced_memory()[1] < 2.5 * len(text)
    finally:
        tracemalloc.stop()
