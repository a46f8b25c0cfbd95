"""A node loses power: its CDI directory is empty afterwards, and nothing that ran before runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from lab.cluster import Cluster

from tests.cluster.lib.installation import EMULATED, Installation
from tests.cluster.lib.kube import Kube, Object, eventually
from tests.cluster.lib.lifecycle import (
    Stopwatch,
    is_ready,
    keep_emulated_host,
    kept_host,
    kill_driver,
    nudge,
    own_namespace,
    restart_count,
    set_boot_id,
    uid_of,
    wait_driver_ready,
)
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.nodefiles import NodeFiles
from tests.cluster.lib.objects import pod, request, template

NODE = "node-1"
FIRST_BOOT = "11111111-1111-4111-8111-111111111111"
SECOND_BOOT = "22222222-2222-4222-8222-222222222222"


@dataclass
class Reboot:
    """What was there before it."""

    namespace: Namespace
    files: NodeFiles
    stays_uid: str
    forgotten_uid: str
    spec: Object
    entry: Object
    shown: dict[int, int]
    specs_at_start: int


@pytest.fixture(scope="module")
def reboot(kube: Kube, lab: Cluster, installation: Installation) -> Iterator[Reboot]:
    """Two pods run; the power goes; one is deleted with its claim, and kubelet's record is lost; the node starts."""
    installation.ensure("--emulate", EMULATED)
    installation.vary("emulated host that stays", keep_emulated_host)
    files, node = NodeFiles(lab.node(NODE)), lab.node(NODE)
    driver = wait_driver_ready(installation, NODE)
    set_boot_id(kept_host(lab, NODE, driver), FIRST_BOOT)
    kill_driver(installation, NODE)
    wait_driver_ready(installation, NODE, restarts=restart_count(driver) + 1)
    with own_namespace(kube, "reboot") as namespace:
        stays = pod("stays", templates={"neurons": "four"}, node=NODE)
        stays["spec"]["restartPolicy"] = "Always"
        forgotten = pod("forgotten", templates={"neurons": "four"}, node=NODE)
        namespace.apply(template("four", request(count=4)), stays, forgotten)
        namespace.wait_ready("stays", "forgotten")
        stays_uid, forgotten_uid = (uid_of(namespace.claim_of(name)) for name in ("stays", "forgotten"))
        seen = Reboot(
            namespace,
            files,
            stays_uid,
            forgotten_uid,
            files.specs()[stays_uid],
            files.checkpoint()[stays_uid],
            files.shown(stays_uid),
            specs_at_start=-1,
        )
        clock = Stopwatch()
        node.stop()
        namespace.kubectl("delete", "pod", "forgotten", "--force", "--grace-period=0")
        eventually("one claim to be left", lambda: len(namespace.claims()) == 1)
        set_boot_id(kept_host(lab, NODE, driver), SECOND_BOOT)
        (node.layout.kubelet / "dra_manager_state").unlink()
        node.reboot()
        seen.specs_at_start = len(files.specs())
        clock.lap("kubelet is healthy again")
        wait_driver_ready(installation, NODE, restarts=restart_count(driver) + 2, within=90)
        clock.lap("the driver is ready")
        nudge(namespace, "stays")
        eventually("the pod to run again", lambda: _runs_again(namespace), 90)
        clock.lap("the pod runs again")
        yield seen


def _runs_again(namespace: Namespace) -> bool:
    found = namespace.pod("stays")
    return found is not None and restart_count(found) == 1 and is_ready(found)


def test_a_pod_comes_back_with_the_same_devices(reboot: Reboot) -> None:
    assert reboot.namespace.numbers("stays") == [0, 1, 2, 3]
    assert reboot.files.shown(reboot.stays_uid) == reboot.shown


def test_its_cdi_spec_is_written_again_and_its_checkpoint_entry_is_of_this_boot(reboot: Reboot) -> None:
    assert reboot.specs_at_start == 0
    assert reboot.files.specs()[reboot.stays_uid] == reboot.spec
    now = reboot.files.checkpoint()[reboot.stays_uid]
    assert (reboot.entry["bootId"], now["bootId"]) == (FIRST_BOOT, SECOND_BOOT)
    assert now["plan"] == reboot.entry["plan"]


def test_slices_are_published_again(reboot: Reboot, kube: Kube) -> None:
    (found,) = kube.slices(NODE)
    assert len(found["spec"]["devices"]) == 16


def test_devices_of_a_claim_that_is_gone_and_that_kubelet_forgot_are_free_again(
    reboot: Reboot, installation: Installation
) -> None:
    """All twelve devices that the other pod does not have."""
    eventually("the forgotten claim to be released", lambda: reboot.forgotten_uid not in reboot.files.checkpoint(), 10)
    said = f"claim {reboot.forgotten_uid}: release:"
    eventually("the log to say so", lambda: said in installation.logs(NODE), 10)
    rest = pod("rest", templates={"neurons": "twelve"}, node=NODE)
    reboot.namespace.apply(template("twelve", request(count=12)), rest)
    reboot.namespace.wait_ready("rest")
    assert reboot.namespace.numbers("rest") == list(range(12))
