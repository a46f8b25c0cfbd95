"""A journal file that cannot be read when the driver starts, as after a fault of the disk."""

from __future__ import annotations

import pytest

from tests.cluster.installation import Installation
from tests.cluster.kube import eventually
from tests.cluster.lifecycle import renew_driver, uid_of, unchanged, wait_unprepared
from tests.cluster.namespace import Namespace
from tests.cluster.nodefiles import NodeFiles
from tests.cluster.objects import pod, request, template

NODE = "node-1"


@pytest.mark.parametrize("also", ["with its CDI spec", "its CDI spec being lost too"])
def test_a_spoiled_file_is_set_aside_and_reported_and_its_devices_stay_with_their_pod_until_it_ends(
    also: str, driver: Installation, namespace: Namespace, node_files: dict[str, NodeFiles]
) -> None:
    files = node_files[NODE]
    namespace.apply(
        template("four", request(count=4)),
        template("eight", request(count=8)),
        pod("holder", templates={"neurons": "four"}, node=NODE),
    )
    (holder,) = namespace.wait_ready("holder")
    uid = uid_of(namespace.claim_of("holder"))
    (files.state / "claims" / f"{uid}.json").write_bytes(b"\0" * 512)
    if also != "with its CDI spec":
        (spec,) = files.cdi.glob(f"*{uid}*")
        spec.unlink()
    renew_driver(driver, NODE)
    assert (files.state / "quarantine" / f"{uid}.json").read_bytes() == b"\0" * 512
    assert uid not in files.journal()
    log = driver.logs(NODE)
    assert f"claims/{uid}.json cannot be read" in log
    assert f"the devices of claim {uid} are held back until" in log

    # The rest of the node can be used meanwhile.
    namespace.apply(*(pod(name, templates={"neurons": "eight"}, node=NODE) for name in ("first", "second")))
    eventually("one of two pods to run", lambda: "Running" in _phases(namespace))
    assert sorted(_phases(namespace)) == ["Pending", "Running"]
    now = namespace.pod("holder")
    assert now is not None
    assert unchanged(now, holder)
    assert namespace.numbers("holder") == [0, 1, 2, 3]

    namespace.delete_pod("holder")
    wait_unprepared(files, uid)
    assert not (files.state / "quarantine" / f"{uid}.json").exists()
    namespace.wait_ready("first", "second")


def _phases(namespace: Namespace) -> list[str]:
    return [namespace.phase("first"), namespace.phase("second")]
