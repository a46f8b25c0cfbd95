"""A node of an UltraServer is booted anew, and the election gives it another place than its pods were told."""

from __future__ import annotations

from pathlib import Path

from lab.cluster import Cluster

from tests.cluster.lib.installation import EMULATED_ULTRASERVER, ULTRASERVERS, Installation
from tests.cluster.lib.kube import Kube, Object, eventually
from tests.cluster.lib.lifecycle import (
    is_ready,
    keep_emulated_host,
    kept_host,
    nudge,
    restart_count,
    set_boot_id,
    uid_of,
    wait_driver_ready,
)
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.nodefiles import NodeFiles
from tests.cluster.lib.objects import DRIVER, config, pod, request, template

NODE = "node-1"
NEXT_BOOT = "22222222-2222-4222-8222-222222222222"
LABEL = "neuron.amazonaws.com/ultraserver-server-id-4"
FORMER_SERVER, FORMER_PLACE = "1a2b3c4d5e6f70f1", "3"
SERVER, PLACE = "1a2b3c4d5e6f7081", "0"
"""What the emulator gives the first node."""
FOUR_NODES = {"apiVersion": f"{DRIVER}/v1", "kind": "UltraServerConfig", "ultraserverMode": 4}


def _ultraserver_that_stays(daemonset: Object) -> None:
    keep_emulated_host(daemonset)
    env = daemonset["spec"]["template"]["spec"]["containers"][0]["env"]
    next(entry for entry in env if entry["name"] == "NEURON_DRA_DRIVER_EMULATION_MODE")["value"] = EMULATED_ULTRASERVER
    env.append({"name": "EMULATED_ULTRASERVERS", "value": ULTRASERVERS})


def _tell(host: Path, server: str, place: str) -> None:
    """Have the emulated kernel driver tell this server of four nodes, and this node's place in it."""
    (host / "sys/class/neuron_device/server_id_4").write_text(f"{server}\n")
    (host / "sys/class/neuron_device/node_id_4").write_text(f"{place}\n")


def _labelled(kube: Kube, server: str) -> bool:
    found = kube.get("nodes", NODE)
    return found is not None and found["metadata"]["labels"].get(LABEL) == server


def _place(namespace: Namespace) -> tuple[str, str]:
    """What the pod's container is told: server, and place in it."""
    variables = namespace.environment("stays")
    return variables["NEURON_RT_ULTRASERVER_SERVER_ID"], variables["NEURON_RT_ULTRASERVER_NODE_ID"]


def test_a_pod_that_survives_a_reboot_is_told_the_place_that_its_node_has_now(
    kube: Kube, lab: Cluster, installation: Installation, namespace: Namespace
) -> None:
    """The record of kubelet stays too, and with it the names of CDI devices that it got before the reboot."""
    installation.vary("emulated UltraServer that stays", _ultraserver_that_stays)
    files, node = NodeFiles(lab.node(NODE)), lab.node(NODE)
    driver = wait_driver_ready(installation, NODE)
    _tell(kept_host(lab, NODE, driver), FORMER_SERVER, FORMER_PLACE)
    eventually("the node's label to tell its server", lambda: _labelled(kube, FORMER_SERVER), 30)
    whole = request(selectors=[f"device.attributes['{DRIVER}'].resourceType == 'neuron_node'"])
    stays = pod("stays", templates={"neurons": "node"}, node=NODE)
    stays["spec"]["restartPolicy"] = "Always"
    namespace.apply(template("node", whole, configs=[config(FOUR_NODES)]), stays)
    namespace.wait_ready("stays")
    assert _place(namespace) == (FORMER_SERVER, FORMER_PLACE)
    uid = uid_of(namespace.claim_of("stays"))
    names = [device["name"] for device in files.specs()[uid]["devices"]]

    set_boot_id(kept_host(lab, NODE, driver), NEXT_BOOT)
    node.reboot()  # the driver's start writes the emulated host anew, as another election would
    wait_driver_ready(installation, NODE, restarts=restart_count(driver) + 1, within=90)
    nudge(namespace, "stays")

    def runs_again() -> bool:
        found = namespace.pod("stays")
        return found is not None and restart_count(found) == 1 and is_ready(found)

    eventually("the pod to run again", runs_again, 120)
    assert _place(namespace) == (SERVER, PLACE)
    assert namespace.numbers("stays") == list(range(16))
    assert [device["name"] for device in files.specs()[uid]["devices"]] == names, "kubelet may still pass these"
    assert files.checkpoint()[uid]["bootId"] == NEXT_BOOT
