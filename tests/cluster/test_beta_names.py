"""Claims that were allocated under the device names of the beta of the vendor's DRA driver."""

from __future__ import annotations

import json

from tests.cluster.lib.installation import Installation
from tests.cluster.lib.kube import eventually
from tests.cluster.lib.lifecycle import uid_of
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.objects import DRIVER, claim, pod, request


def test_a_claim_under_a_name_of_the_vendors_beta_is_refused_until_its_pod_is_made_again(
    driver: Installation, namespace: Namespace
) -> None:
    """As AWS's driver has left it, since that driver itself is not public: the status is written by hand."""
    result = {"request": "neurons", "driver": DRIVER, "pool": "node-1", "device": "neurondevice2"}
    selector = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-1"]}
    wanted = {
        "devices": {"results": [result]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [selector]}]},
    }
    named = claim("beta", request())
    named["metadata"]["finalizers"] = ["resource.kubernetes.io/delete-protection"]
    waits = pod("waits", {"neurons": "beta"})
    # Bound when all is there: kubelet comes back to a pod whose claim was not allocated only after 60 to 90 s.
    waits["spec"]["schedulerName"] = "by-hand"
    namespace.apply(named, waits)
    user = {"resource": "pods", "name": "waits", "uid": uid_of(namespace.pod("waits") or {})}
    status = json.dumps({"status": {"allocation": wanted, "reservedFor": [user]}})
    namespace.kubectl("patch", "resourceclaim", "beta", "--subresource=status", "--type=merge", "-p", status)
    namespace.kube.bind("waits", namespace.name, "node-1")
    said = "beta releases of AWS's DRA driver; this driver publishes it as neuron-device-2"
    assert "delete the pods" in namespace.wait_event("waits", said)

    refused = driver.run(driver.image, check=False)
    assert refused.returncode == 1
    assert f"  {namespace.name}/beta, used by waits\n" in refused.stderr
    assert "Nothing was changed" in refused.stderr

    namespace.delete_pod("waits")
    eventually(
        "the allocation to be taken back",
        lambda: "allocation" not in (namespace.claim("beta") or {}).get("status", {}),
        30,
    )
    namespace.apply(pod("again", {"neurons": "beta"}))
    namespace.wait_ready("again")
    (held,) = namespace.allocated(namespace.claim("beta") or {})
    assert held.device.startswith("neuron-device-")
    assert driver.run(driver.image).returncode == 0
