from __future__ import annotations

import json

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.kube.cdi import CdiDevice, ContainerEdits, DeviceNode, Mount, Spec, decode, encode, minimum_version
from tests.oracles.cdi_schema import SCHEMA

NODE = DeviceNode("/dev/null", type="c", major=1, minor=3)


def spec(*edits: ContainerEdits, name: str = "a", kind: str = "vendor.com/class", common: bool = False) -> Spec:
    return Spec(
        "1.1.0", kind, tuple(CdiDevice(name, edit) for edit in edits), ContainerEdits(("A=1",)) if common else None
    )


BROKEN = [
    spec(),
    spec(ContainerEdits()),
    spec(ContainerEdits(env=("=1",))),
    spec(ContainerEdits(env=("A=1",)), name="-a"),
    spec(ContainerEdits(env=("A=1",)), kind="vendor"),
    spec(ContainerEdits(device_nodes=(DeviceNode("dev/null"),))),
    spec(ContainerEdits(device_nodes=(DeviceNode("/dev/null", permissions="rx"),))),
]


@pytest.mark.parametrize(
    ("value", "version"),
    [
        (spec(ContainerEdits(device_nodes=(NODE,))), "0.3.0"),
        (spec(ContainerEdits(env=("A=1",)), common=True), "0.3.0"),
        (spec(ContainerEdits(mounts=(Mount("/a", "/b"),))), "0.3.0"),
        (spec(ContainerEdits(mounts=(Mount("/a", "/b", type="tmpfs"),))), "0.4.0"),
        (spec(ContainerEdits(device_nodes=(NODE,)), name="0a"), "0.5.0"),
        (spec(ContainerEdits(device_nodes=(DeviceNode("/dev/a", host_path="/dev/b"),))), "0.5.0"),
        (spec(ContainerEdits(env=("A=1",)), kind="vendor.com/my.class"), "0.6.0"),
    ],
)
def test_the_version_is_the_lowest_that_has_all_that_is_used(value: Spec, version: str) -> None:
    assert minimum_version(value) == version


def test_edits_for_all_devices_count_for_the_version_too() -> None:
    common = ContainerEdits(mounts=(Mount("/a", "/b", type="tmpfs"),))
    assert (
        minimum_version(Spec("1.1.0", "vendor.com/class", (CdiDevice("a", ContainerEdits(("A=1",))),), common))
        == "0.4.0"
    )


def test_a_file_has_the_names_of_the_specification_and_nothing_empty() -> None:
    node = DeviceNode("/dev/neuron0", "/dev/neuron4", "c", 240, 0, 0o666, "rw")
    data = encode(spec(ContainerEdits(env=("A=1",), device_nodes=(node,))))
    document = json.loads(data)
    assert document["devices"][0]["containerEdits"]["deviceNodes"] == [
        {
            "path": "/dev/neuron0",
            "hostPath": "/dev/neuron4",
            "type": "c",
            "major": 240,
            "minor": 0,
            "fileMode": 438,
            "permissions": "rw",
        }
    ]
    assert "mounts" not in document["devices"][0]["containerEdits"]
    jsonschema.validate(document, SCHEMA)


@pytest.mark.parametrize("broken", BROKEN)
def test_the_schema_of_these_tests_refuses_what_runtimes_refuse(broken: Spec) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(json.loads(encode(broken)), SCHEMA)


TEXT = st.text(min_size=1, max_size=20)
NUMBER = st.none() | st.integers(0, 2**31)
NODES = st.builds(DeviceNode, TEXT, st.none() | TEXT, st.none() | TEXT, NUMBER, NUMBER, NUMBER, st.none() | TEXT)
EDITS = st.builds(ContainerEdits, st.lists(TEXT, max_size=3).map(tuple), st.lists(NODES, max_size=3).map(tuple))


@given(
    st.builds(Spec, TEXT, TEXT, st.lists(st.builds(CdiDevice, TEXT, EDITS), max_size=3).map(tuple), st.none() | EDITS)
)
def test_what_was_written_is_read_back(value: Spec) -> None:
    assert decode(encode(value)) == value
    assert encode(decode(encode(value))) == encode(value)
