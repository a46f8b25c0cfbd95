from __future__ import annotations

import subprocess
import sys
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.kube.api.codec import (
    REPORTED_CLAIMS,
    decode,
    decode_slice,
    encode_slice,
    missing_fields,
    unrecognised,
)
from dra_driver.kube.api.errors import DecodeError
from dra_driver.kube.objects.meta import ObjectMeta, OwnerReference
from dra_driver.kube.objects.resource import (
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceTaint,
    DeviceToleration,
    ReportedClaim,
    ResourceClaim,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
    json_value,
)

SLICE = ResourceSlice(
    ObjectMeta(generate_name="00000-x-", owner_references=(OwnerReference("v1", "Node", "n", "u", True),)),
    ResourceSliceSpec(
        "neuron.aws.com",
        ResourcePool("n", 3, 1),
        "n",
        devices=(
            Device(
                "neuron-device-0",
                {"deviceId": DeviceAttribute(int_=0), "draDriverVersion": DeviceAttribute(version="1.2.3")},
                {"memory": DeviceCapacity("96Gi")},
                taints=(DeviceTaint("k/f", "unhealthy", "NoSchedule", "2026-01-01T00:00:00Z"),),
            ),
        ),
    ),
)


def decode_claim(body: bytes) -> ResourceClaim:
    claim: ResourceClaim = decode(body, ResourceClaim, "a ResourceClaim")
    return claim


def through_json(document: dict[str, Any]) -> Any:
    return msgspec.json.decode(msgspec.json.encode(document))


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
def test_a_slice_without_devices_is_read_as_servers_before_1_35_send_it(version: str) -> None:
    empty = msgspec.structs.replace(SLICE, spec=msgspec.structs.replace(SLICE.spec, devices=()))
    document = through_json(encode_slice(empty, version))
    document["spec"]["devices"] = None
    assert decode_slice(document, version) == empty


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
def test_a_slice_survives_the_way_to_the_server_and_back(version: str) -> None:
    assert decode_slice(through_json(encode_slice(SLICE, version)), version) == SLICE


def test_v1beta1_wraps_what_a_device_has_in_basic() -> None:
    document = through_json(encode_slice(SLICE, "v1beta1"))
    assert document["apiVersion"] == "resource.k8s.io/v1beta1"
    (device,) = document["spec"]["devices"]
    assert set(device) == {"name", "basic"}
    assert device["basic"]["attributes"]["deviceId"] == {"int": 0}
    assert device["basic"]["capacity"]["memory"] == {"value": "96Gi"}


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_fields_that_this_version_does_not_know_are_named(version: str) -> None:
    document = through_json(encode_slice(SLICE, version))
    device = document["spec"]["devices"][0]
    device.get("basic", device)["nodeAllocatableResources"] = {"a": 1}
    document["spec"]["someday"] = 1
    assert unrecognised(decode_slice(document, version)) == ("devices[].nodeAllocatableResources", "someday")


def test_a_field_of_the_wrong_type_is_named_by_its_path() -> None:
    document = through_json(encode_slice(SLICE, "v1"))
    document["spec"]["pool"]["generation"] = "three"
    with pytest.raises(DecodeError, match=r"\$\.spec\.pool\.generation"):
        decode_slice(document, "v1")


@pytest.mark.parametrize("devices", [7, "x", [1], [{"name": "d", "basic": 1}], {"a": "b"}])
def test_odd_v1beta1_slices_are_decode_errors(devices: Any) -> None:
    document = through_json(encode_slice(SLICE, "v1beta1"))
    document["spec"]["devices"] = devices
    try:
        decoded = decode_slice(document, "v1beta1")
    except DecodeError:
        return
    assert unrecognised(decoded) == ("devices[].basic",)


def test_a_claim_reads_the_same_in_all_versions_and_ignores_what_it_does_not_need() -> None:
    claim = decode_claim(
        b'{"apiVersion":"resource.k8s.io/v1beta1","kind":"ResourceClaim","spec":{"devices":{"requests":[{"name":"r"}]}},'
        b'"metadata":{"namespace":"ns","name":"c","uid":"u","managedFields":[{}]},"status":{"allocation":{"devices":'
        b'{"results":[{"request":"r/s","driver":"d","pool":"p","device":"x","adminAccess":true,"shareID":"9",'
        b'"tolerations":[{"key":"k","operator":"Exists","tolerationSeconds":3}]}],"config":[{"source":"FromClass","requests":[],"opaque":{"driver":"d","parameters":{"a":1}}}]},'
        b'"nodeSelector":{}},"reservedFor":[{"resource":"pods","name":"pod","uid":"pu"}]}}'
    )
    assert claim.status.allocation is not None
    (result,) = claim.status.allocation.devices.results
    assert (result.request, result.admin_access, result.share_id) == ("r/s", True, "9")
    assert result.tolerations == (DeviceToleration("k", "Exists", toleration_seconds=3),)
    assert claim.status.allocation.devices.config[0].opaque is not None
    assert claim.status.reserved_for[0].uid == "pu"


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b"{", b'{"metadata":{"name":1}}', b"\xff", b'{"metadata":{},"status":{"allocation":[]}}'],
)
def test_bodies_that_are_no_claim_are_decode_errors(body: bytes) -> None:
    with pytest.raises(DecodeError, match="ResourceClaim"):
        decode_claim(body)


@given(st.binary(max_size=200))
def test_no_body_makes_a_traceback(body: bytes) -> None:
    try:
        decode_claim(body)
    except DecodeError as error:
        assert "ResourceClaim" in str(error)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@given(JSON)
def test_nothing_is_missing_from_an_equal_value(value: Any) -> None:
    assert missing_fields(value, value) == ()


@given(JSON, st.text(min_size=1, max_size=3))
def test_a_removed_field_is_named(value: Any, name: str) -> None:
    assert missing_fields({name: 1, "rest" + name: value}, {"rest" + name: value}) == (name,)


def test_missing_fields_are_named_once_for_all_devices() -> None:
    sent = {"devices": [{"name": "a", "taints": [1]}, {"name": "b", "taints": [2]}], "pool": {"generation": 2}}
    kept = {"devices": [{"name": "a"}, {"name": "b"}], "pool": {"generation": 1}}
    assert missing_fields(sent, kept) == ("devices[].taints", "pool.generation")
    assert missing_fields({"devices": []}, {}) == ()
    assert missing_fields({"devices": [1, 2]}, {"devices": [1]}) == ("devices",)


TWO_THREADS = """
import threading
import msgspec
from dra_driver.kube.api.codec import decode

looked, go_on = threading.Event(), threading.Event()

def number():
    looked.set()
    go_on.wait(60)
    return int

class Owner(msgspec.Struct):
    number: "number()"  # evaluated when a decoder looks at the struct

class Meta(msgspec.Struct):
    owner: Owner
    name: str

class Pod(msgspec.Struct):
    metadata: Meta

class Node(msgspec.Struct):
    metadata: Meta

body = b'{"metadata": {"owner": {"number": 1}, "name": "a"}}'
threads = [threading.Thread(target=decode, args=(body, kind, "it")) for kind in (Pod, Node)]
threads[0].start()
looked.wait(30)
threads[1].start()
threads[1].join(0.3)
go_on.set()
for thread in threads:
    thread.join(30)
print(decode(body, Pod, "it").metadata == decode(body, Node, "it").metadata)
"""


def test_two_threads_may_decode_the_same_struct_for_the_first_time_at_once() -> None:
    # In a process of its own: msgspec crashes it where it meets a struct that another thread is still looking at.
    done = subprocess.run([sys.executable, "-c", TWO_THREADS], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr[-2000:]


def reported(body: bytes) -> ReportedClaim:
    assert REPORTED_CLAIMS.from_version is not None
    return REPORTED_CLAIMS.from_version(decode(body, REPORTED_CLAIMS.wire, "it"), "v1")


def claim_with(values: list[Any]) -> bytes:
    """A claim that has each of the values as parameters and as data of a device."""
    entry = {"driver": "d", "pool": "p", "device": "n"}
    config = [{"source": "FromClaim", "opaque": {"driver": "d", "parameters": value}} for value in values]
    devices = {"results": [{"request": "r", **entry}], "config": config}
    status = {"allocation": {"devices": devices}, "devices": [{**entry, "data": value} for value in values]}
    return msgspec.json.encode({"metadata": {"name": "c"}, "status": status})


@given(st.lists(JSON, max_size=3))
def test_what_people_write_as_they_like_into_a_claim_is_kept_as_text_and_means_the_same(values: list[Any]) -> None:
    claim = reported(claim_with(values))
    assert claim.status.allocation is not None
    config = claim.status.allocation.devices.config
    assert [json_value(entry.opaque.parameters) for entry in config if entry.opaque] == values
    assert [json_value(entry.data) for entry in claim.status.devices] == values


@pytest.mark.parametrize("text", [b'"\xff"', b'{"a":1e400}', b"1" * 5000, b"[" * 2000 + b"]" * 2000, b'"\\ud800"'])
def test_a_value_that_cannot_be_read_is_its_text(text: bytes) -> None:
    assert json_value(msgspec.Raw(text)) == text.decode(errors="replace")


@pytest.mark.parametrize("nested", ["[" + ",".join(["[]"] * 3400) + "]", "[" * 100 + "]" * 100])
def test_text_that_is_short_takes_little_memory_whatever_it_stands_for(nested: str) -> None:
    value = msgspec.json.decode(f'{{"a": [{",".join([nested] * (10_000 // len(nested) or 1))}]}}')
    body = claim_with([value] * 32)
    reported(body)
    tracemalloc.start()
    try:
        claim = reported(body)
        assert tracemalloc.get_traced_memory()[1] < 3 * len(body)
        del claim
    finally:
        tracemalloc.stop()
