"""EFA devices of emulated nodes: there when a claim asks for them, and paired with the chips that a claim gets."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.cli.main import main
from dra_driver.neuron.emulation.efa import efa_devices
from dra_driver.neuron.topology.groups import device_group_ids
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES

NEURON, EFA = "neuron.aws.com", "efa.networking.k8s.aws"


def claim(name: str, neurons: int, efa: int = 0, group: int = 0) -> dict[str, Any]:
    requests = [
        {"name": kind, "exactly": {"deviceClassName": of, "count": count}}
        for kind, of, count in (("neurons", NEURON, neurons), ("efa", EFA, efa))
        if count
    ]
    devices: dict[str, Any] = {"requests": requests}
    if group:
        devices["constraints"] = [{"matchAttribute": f"resource.aws.com/devicegroup{group}_id"}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": devices},
    }


def holding(name: str, *chips: int, node: str = "node-1") -> dict[str, Any]:
    """A claim that has these chips."""
    made = claim(name, len(chips))
    results = [{"request": "neurons", "driver": NEURON, "pool": node, "device": f"neuron-device-{i}"} for i in chips]
    return made | {"status": {"allocation": {"devices": {"results": results}}}}


class Simulated:
    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
        self._path, self._capsys, self._kind = path, capsys, INSTANCE_TYPES[kind]

    def __call__(self, *claims: dict[str, Any], beside: list[dict[str, Any]] | None = None) -> list[list[str] | None]:
        """The devices of each claim; None: it has to wait. ``beside`` is there already."""
        wanted, objects = self._path / "claims.yaml", self._path / "objects.yaml"
        wanted.write_text(yaml.safe_dump_all(claims))
        objects.write_text(yaml.safe_dump_all(beside or []))
        arguments = ["simulate", str(wanted), "--instance-type", self._kind.name, "-o", "json"]
        main([*arguments, *(["--objects", str(objects)] if beside else [])])
        found = {item["name"]: item["allocation"] for item in json.loads(self._capsys.readouterr().out)["claims"]}
        allocated = [found[item["metadata"]["name"]] for item in claims]
        return [item and [result["device"] for result in item["devices"]["results"]] for item in allocated]

    def chips(self, devices: list[str]) -> set[int]:
        return {int(name.removeprefix("neuron-device-")) for name in devices if name.startswith("neuron")}

    def next_to(self, devices: list[str]) -> set[int]:
        """The chips next to the EFA devices."""
        return {chip for device in efa_devices(self._kind) if device.name in devices for chip in device.chips}


@pytest.fixture
def on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    return lambda kind: Simulated(tmp_path, capsys, kind)


@pytest.mark.parametrize(("kind", "efa"), [("trn2.48xlarge", 4), ("trn1n.32xlarge", 4), ("trn1.32xlarge", 2)])
def test_four_claims_of_four_chips_get_the_efa_devices_next_to_them(on: Any, kind: str, efa: int) -> None:
    simulated = on(kind)
    found = simulated(*(claim(f"c{i}", 4, efa, 4) for i in range(5)))
    assert found[4] is None
    assert [simulated.chips(devices) for devices in found[:4]] == [set(range(i, i + 4)) for i in (0, 4, 8, 12)]
    assert all(simulated.chips(devices) == simulated.next_to(devices) for devices in found[:4])


def test_a_chip_comes_with_its_own_efa_device(on: Any) -> None:
    simulated = on("trn2.48xlarge")
    found = simulated(*(claim(f"c{i:02}", 1, 1, 1) for i in range(17)))
    assert [simulated.chips(devices) for devices in found[:16]] == [{i} for i in range(16)]
    assert all(simulated.chips(devices) == simulated.next_to(devices) for devices in found[:16])
    assert found[16] is None


def test_of_two_chips_that_share_an_efa_device_one_gets_it(on: Any) -> None:
    simulated = on("trn1.32xlarge")
    found = simulated(*(claim(f"c{i}", 1, 1, 1) for i in range(9)))
    assert [simulated.chips(devices) for devices in found[:8]] == [{i} for i in range(0, 16, 2)]
    assert found[8] is None


@pytest.mark.parametrize("seed", range(6))
def test_where_other_claims_broke_the_groups_a_claim_gets_a_whole_pair_of_groups_or_waits(on: Any, seed: int) -> None:
    simulated = on("trn2.48xlarge")
    taken = random.Random(seed).sample(range(16), 1 + seed)
    whole = [range(i, i + 4) for i in (0, 4, 8, 12) if not set(range(i, i + 4)) & set(taken)]
    found = simulated(*(claim(f"c{i}", 4, 4, 4) for i in range(4)), beside=[holding("others", *taken)])
    assert [simulated.chips(devices) for devices in found if devices] == [set(block) for block in whole]
    assert all(simulated.chips(devices) == simulated.next_to(devices) for devices in found if devices)
    assert found[len(whole) :] == [None] * (4 - len(whole))


def test_efa_devices_that_the_constraint_does_not_name_belong_to_other_chips(on: Any) -> None:
    """Which is why docs/use/efa.md says to name both requests."""
    wanted = claim("c", 4, 4, 4)
    wanted["spec"]["devices"]["constraints"][0]["requests"] = ["neurons"]
    simulated = on("trn2.48xlarge")
    (found,) = simulated(wanted)
    assert (simulated.chips(found), simulated.next_to(found)) == ({0, 1, 2, 3}, {4, 5, 6, 7})


def test_nodes_have_none_when_no_claim_asks_for_them(
    on: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "claim.yaml"
    file.write_text(yaml.safe_dump(claim("c", 1)))
    assert main(["simulate", str(file), "--instance-type", "trn2.48xlarge"]) == 0
    assert "pci-" not in capsys.readouterr().out


def test_a_class_and_devices_that_are_given_are_used_instead(on: Any) -> None:
    group = device_group_ids(INSTANCE_TYPES["trn2.48xlarge"], 8)[4]
    given = [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": EFA},
            "spec": {"selectors": [{"cel": {"expression": "device.driver == 'dra.net'"}}]},
        },
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": "given"},
            "spec": {
                "driver": "dra.net",
                "nodeName": "node-1",
                "pool": {"name": "node-1", "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": "nic", "attributes": {"resource.aws.com/devicegroup4_id": {"string": group}}}],
            },
        },
    ]
    (found,) = on("trn2.48xlarge")(claim("c", 4, 1, 4), beside=given)
    assert found == ["neuron-device-8", "neuron-device-9", "neuron-device-10", "neuron-device-11", "nic"]
