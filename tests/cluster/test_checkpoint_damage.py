"""Checkpoint files that cannot be read when the driver starts, as after a fault of the disk, or that were removed."""

from __future__ import annotations

import shutil

import pytest

from tests.cluster.lib.installation import Installation
from tests.cluster.lib.kube import eventually
from tests.cluster.lib.lifecycle import is_ready, renew_driver, restart_count, uid_of, unchanged, wait_unprepared
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.nodefiles import NodeFiles
from tests.cluster.lib.objects import container, pod, request, template

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
    assert uid not in files.checkpoint()
    log = driver.logs(NODE)
    assert f"claims/{uid}.json cannot" in log
    assert f"of claim {uid} are held" in log

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


@pytest.mark.parametrize("then", ["the driver goes on", "the driver starts again"])
def test_a_removed_directory_takes_no_device_from_a_pod_whose_container_starts_again(
    then: str, driver: Installation, namespace: Namespace, node_files: dict[str, NodeFiles]
) -> None:
    files = node_files[NODE]
    until_told = ["sh", "-c", "until test -e /keep/end; do sleep 0.2; done; rm /keep/end; exit 1"]
    main = container("main", "neurons", command=until_told)
    holder = pod("holder", templates={"neurons": "four"}, containers=[main], node=NODE)
    holder["spec"] |= {"restartPolicy": "Always", "volumes": [{"name": "keep", "emptyDir": {}}]}
    main["volumeMounts"] = [{"name": "keep", "mountPath": "/keep"}]
    namespace.apply(template("four", request(count=4)), holder)
    namespace.wait_ready("holder")
    uid = uid_of(namespace.claim_of("holder"))
    shutil.rmtree(files.state / "claims")
    if then == "the driver goes on":
        namespace.apply(pod("other", templates={"neurons": "four"}, node=NODE))
        namespace.wait_ready("other")
        assert set(files.checkpoint()) == {uid, uid_of(namespace.claim_of("other"))}
    else:
        renew_driver(driver, NODE)
        assert f"of claim {uid} cannot" in driver.logs(NODE)

    namespace.exec("holder", "touch /keep/end")
    eventually("the container to be started again", lambda: _restarted(namespace), 60)
    assert namespace.numbers("holder") == [0, 1, 2, 3]
    namespace.delete_pod("holder")
    wait_unprepared(files, uid)


def _restarted(namespace: Namespace) -> bool:
    found = namespace.pod("holder")
    return found is not None and restart_count(found) == 1 and is_ready(found)


def _phases(namespace: Namespace) -> list[str]:
    return [namespace.phase("first"), namespace.phase("second")]
