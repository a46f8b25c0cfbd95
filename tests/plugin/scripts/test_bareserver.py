"""The bare servers that ``scripts/benchmark`` compares the driver with, as it starts them."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from bench import drivers

from dra_driver.kubelet.api import dra_v1_pb2 as api
from tests.doubles.apiserver.server import ApiServer
from tests.doubles.sample_driver import node_directory
from tests.eventually import eventually
from tests.paths import ROOT


@pytest.mark.parametrize("files", [False, True])
def test_a_claim_is_answered_with_its_devices_and_leaves_files_only_if_told(server: ApiServer, files: bool) -> None:
    with node_directory() as directory:
        made = drivers.bare(Path(sys.executable), server.kubeconfig(directory / "kubeconfig"), directory, files=files)
        bare = replace(made, environment={**made.environment, "PYTHONPATH": str(ROOT)})
        claim = server.add_claim("ns", "c", devices=[("r", "device-03")], node=bare.node, driver=bare.name)
        uid = claim["metadata"]["uid"]
        with drivers.Running(bare) as running, grpc.insecure_channel(f"unix:{bare.socket}") as channel:
            eventually(lambda: bare.socket.exists() or running.ended, within=20)
            service = f"/{api.DESCRIPTOR.services_by_name['DRAPlugin'].full_name}"
            named = [api.Claim(namespace="ns", name="c", uid=uid)]
            prepare = channel.unary_unary(
                f"{service}/NodePrepareResources",
                api.NodePrepareResourcesRequest.SerializeToString,
                api.NodePrepareResourcesResponse.FromString,
            )
            answer = prepare(api.NodePrepareResourcesRequest(claims=named), timeout=10, wait_for_ready=True)
            assert [device.device_name for device in answer.claims[uid].devices] == ["device-03"]
            assert kept(directory) == ({f"cdi/{uid}.json", f"checkpoints/{uid}"} if files else set())
            unprepare = channel.unary_unary(
                f"{service}/NodeUnprepareResources",
                api.NodeUnprepareResourcesRequest.SerializeToString,
                api.NodeUnprepareResourcesResponse.FromString,
            )
            answered = unprepare(api.NodeUnprepareResourcesRequest(claims=named), timeout=10)
            assert answered.claims[uid].error == ""
            assert kept(directory) == set()


def kept(directory: Path) -> set[str]:
    """Files of claims."""
    found = (path for folder in ("cdi", "checkpoints") for path in (directory / folder).glob("*"))
    return {str(path.relative_to(directory)) for path in found}
