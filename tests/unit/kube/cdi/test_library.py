"""Specs in the library that containerd and CRI-O load them with (``tools/lab/gomodules/cdi-loader``)."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from dra_driver.driver.claims.container_edits import cdi_spec
from dra_driver.kube.cdi import ContainerEdits, DeviceNode, Spec, encode
from dra_driver.legacy.device_plugin import devices as device_plugin
from tests.builders.claims import container, host
from tests.builders.device_metadata import CASES, planned
from tests.builders.programs import needing
from tests.unit.kube.cdi.test_spec import BROKEN, NODE, spec

LOADER = os.environ.get("CDI_LOADER")
needs_loader = needing(
    LOADER, "there is no loader of CDI specs here; CDI_LOADER=$(scripts/cluster build --cdi-loader | cut -f2) names it"
)


def loaded(specs: Sequence[Spec]) -> list[dict[str, Any]]:
    """What the library says of each: ``refused``, or the OCI ``spec`` of a container with all of its devices."""
    assert LOADER is not None
    questions = "".join(json.dumps(encode(one).decode()) + "\n" for one in specs)
    done = subprocess.run([LOADER], input=questions, capture_output=True, text=True, timeout=120, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(specs)
    return answers


def of_device_plugin(numbering: Any) -> Spec:
    offer = device_plugin.offer(host(), None)
    assert offer is not None
    return device_plugin.cdi_spec(offer, device_plugin.AnswerSettings(injection="cdi", numbering=numbering))


SPECS = {
    **{case: cdi_spec(planned(item)) for case, item in CASES.items()},
    "a node's chips for the device plugin": of_device_plugin("host"),
    "a node's chips under all numbers": of_device_plugin("renumber"),
}


@needs_loader
def test_the_library_of_runtimes_takes_specs_of_every_kind_of_claim_and_does_what_is_meant() -> None:
    for case, value, answer in zip(SPECS, SPECS.values(), loaded(list(SPECS.values())), strict=True):
        assert "refused" not in answer, f"{case}: {answer}"
        # In the order of the library, which sorts devices by name: later ones win.
        nodes, env = container([value], sorted(f"{value.kind}={device.name}" for device in value.devices))
        made = answer["spec"]
        shown = {node["path"]: (node["major"], node["minor"]) for node in made["linux"]["devices"]}
        assert shown == nodes, case
        assert dict(entry.split("=", 1) for entry in made.get("process", {}).get("env", ())) == env, case
        mounts = {mount for device in value.devices for mount in device.container_edits.mounts}
        assert {(mount["source"], mount["destination"]) for mount in made.get("mounts", ())} == {
            (mount.host_path, mount.container_path) for mount in mounts
        }, case


@needs_loader
@pytest.mark.parametrize(
    "broken",
    [
        *BROKEN,
        spec(ContainerEdits(device_nodes=(NODE,)), ContainerEdits(device_nodes=(NODE,))),  # of one name
        replace(spec(ContainerEdits(device_nodes=(DeviceNode("/dev/null", "/dev/zero"),))), cdi_version="0.4.0"),
    ],
)
def test_the_library_of_runtimes_refuses_what_the_schema_of_these_tests_does_and_more(broken: Spec) -> None:
    [answer] = loaded([broken])
    assert answer.get("refused"), answer
