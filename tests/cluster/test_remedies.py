"""Each remedy of ``explain``: the symptom is made, ``explain`` names it, the remedy is carried out, and the pod runs.

Those of claims that are refused, and of the node's driver, are in ``test_remedies_of_claims.py`` and
``test_remedies_of_drivers.py``; those of PodGroups and workloads in ``test_pod_groups.py`` and
``test_ultraserver_fence.py``. ``tests/unit/operations/overview/test_findings.py`` looks whether a row is in none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from lab.cluster import Cluster

from tests.cluster.lib.commands import Commands
from tests.cluster.lib.installation import NAMESPACE as INSTALLED
from tests.cluster.lib.installation import Installation
from tests.cluster.lib.kube import Kube, Object, eventually
from tests.cluster.lib.lifecycle import wait_driver_ready, wait_gone
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.objects import IMAGE, SLEEP, claim, config, container, neuron_config, pod, template
from tests.cluster.lib.objects import request as device_request
from tests.cluster.lib.remedies import LATE, remedy_of

pytestmark = pytest.mark.nightly

NODE = "node-1"


@pytest.fixture
def waiting(request: pytest.FixtureRequest, namespace: Namespace, commands: Commands) -> Callable[[str, str], str]:
    """Waits until a pod has a finding as its first one that says what helps; gives the remedy."""
    request.getfixturevalue("lenient_driver" if "lenient_driver" in request.fixturenames else "driver")

    def wait(name: str, code: str) -> str:
        return remedy_of(commands, namespace, name, code)

    return wait


Waiting = Callable[[str, str], str]


def one(name: str) -> Object:
    return pod(name, templates={"neurons": "one"}, node=NODE)


def test_a_quota_that_is_raised(namespace: Namespace, kube: Kube, commands: Commands, waiting: Waiting) -> None:
    count = "count/resourceclaims.resource.k8s.io"
    quota: Object = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "claims"}}
    namespace.apply(quota | {"spec": {"hard": {count: "0"}}})
    eventually(
        "the quota to count", lambda: (kube.get("resourcequotas", "claims", namespace.name) or {}).get("status"), 30
    )
    namespace.apply(template("one", device_request()), one("w"))
    assert "raise the quota" in waiting("w", "QuotaExceeded")
    assert " fits:" not in commands.explain(namespace, "w")
    (row,) = json.loads(commands.run("top", "-n", namespace.name, "-o", "json"))["pending"]
    assert row["findings"][0]["code"] == "QuotaExceeded"
    namespace.apply(quota | {"spec": {"hard": {count: "1"}}})
    namespace.wait_ready("w", within=LATE)


@pytest.mark.parametrize(
    ("kind", "spec", "code", "remedy"),
    [
        ("ResourceQuota", {"hard": {"pods": "0"}}, "PodQuotaExceeded", "raise the quota"),
        ("LimitRange", {"limits": [{"type": "Container", "max": {"cpu": "1m"}}]}, "LimitRangeExceeded", "LimitRange"),
    ],
)
def test_what_keeps_a_pod_from_being_created(
    kind: str, spec: Object, code: str, remedy: str, namespace: Namespace, kube: Kube, waiting: Waiting
) -> None:
    namespace.apply({"apiVersion": "v1", "kind": kind, "metadata": {"name": "few"}, "spec": spec})
    if kind == "ResourceQuota":
        eventually(
            "the quota to count", lambda: (kube.get("resourcequotas", "few", namespace.name) or {}).get("status"), 30
        )
    made = one("s")["spec"] | {"restartPolicy": "Always"}
    cpu = {"cpu": "2m"}
    made["containers"][0]["resources"] |= {"requests": cpu, "limits": cpu}
    labels = {"app": "s"}
    workload = {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": made}}
    namespace.apply(
        template("one", device_request()),
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "s"}, "spec": workload},
    )
    assert remedy in waiting("s-0", code)
    namespace.kubectl("delete", kind.lower(), "few")
    namespace.wait_ready("s-0", within=LATE)


def test_a_scheduler_that_does_not_exist(namespace: Namespace, waiting: Waiting) -> None:
    pod_of_another = one("w")
    pod_of_another["spec"]["schedulerName"] = "nobody"
    namespace.apply(template("one", device_request()), pod_of_another)
    assert "recreate the pod without spec.schedulerName" in waiting("w", "OtherScheduler")
    namespace.delete_pod("w")
    namespace.apply(one("w"))
    namespace.wait_ready("w", within=LATE)


def test_a_webhook_that_does_not_answer(namespace: Namespace, kube: Kube, waiting: Waiting) -> None:
    name = f"refuses-{namespace.name}"
    rule = {
        "apiGroups": ["resource.k8s.io"],
        "apiVersions": ["*"],
        "operations": ["CREATE"],
        "resources": ["resourceclaims"],
    }
    webhook = {
        "name": "claims.example.com",
        "rules": [rule],
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace.name}},
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "timeoutSeconds": 1,
    }
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
    kube.apply({**kind, "metadata": {"name": name}, "webhooks": [webhook]})
    try:
        namespace.apply(template("one", device_request()), one("w"))
        assert "delete the webhook" in waiting("w", "WebhookRefused")
    finally:
        kube.kubectl("delete", "validatingwebhookconfiguration", name)
    namespace.wait_ready("w", within=LATE)


def test_a_template_and_a_claim_that_are_created(namespace: Namespace, waiting: Waiting) -> None:
    namespace.apply(one("w"), pod("c", {"neurons": "later"}, node=NODE))
    assert "create the ResourceClaimTemplate" in waiting("w", "TemplateMissing")
    assert "create the claim" in waiting("c", "ClaimMissing")
    namespace.apply(template("one", device_request()), claim("later", device_request()))
    namespace.wait_ready("w", "c", within=LATE)


@pytest.fixture
def control_plane(lab: Cluster) -> Iterator[Cluster]:
    """The lab, whose controllers and scheduler are stopped by the test."""
    yield lab
    for name in ("kube-controller-manager", "kube-scheduler"):
        lab.control_plane.start(name)


@pytest.mark.parametrize(
    ("program", "code"), [("kube-controller-manager", "ClaimNotCreated"), ("kube-scheduler", "NotScheduled")]
)
def test_a_program_of_the_control_plane_that_does_not_run(
    program: str, code: str, control_plane: Cluster, namespace: Namespace, waiting: Waiting
) -> None:
    namespace.apply(template("one", device_request()))
    control_plane.control_plane.stop(program)
    namespace.apply(one("w"))
    assert program in waiting("w", code)
    control_plane.control_plane.start(program)
    namespace.wait_ready("w", within=LATE)


def test_a_pod_of_lower_priority_that_is_deleted(namespace: Namespace, kube: Kube, waiting: Waiting) -> None:
    name = f"high-{namespace.name}"
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    kube.apply({**kind, "metadata": {"name": name}, "value": 1000})
    try:
        low, high = pod("low", templates={"neurons": "all"}, node=NODE), one("w")
        high["spec"]["priorityClassName"] = name
        namespace.apply(template("all", device_request(count=None)), template("one", device_request()), low)
        namespace.wait_ready("low")
        namespace.apply(high)
        assert f"delete or scale down {namespace.name}/low (priority 0)" in waiting("w", "LowerPriority")
        assert namespace.phase("low") == "Running", "nothing is preempted"
        namespace.delete_pod("low")
        namespace.wait_ready("w", within=LATE)
    finally:
        kube.kubectl("delete", "priorityclass", name)


def test_gates_that_are_removed(namespace: Namespace, waiting: Waiting) -> None:
    gated = one("w")
    gated["spec"]["schedulingGates"] = [{"name": "example.com/wait"}]
    namespace.apply(template("one", device_request()), gated)
    assert "remove them" in waiting("w", "SchedulingGated")
    namespace.kubectl("patch", "pod", "w", "--type=merge", "-p", json.dumps({"spec": {"schedulingGates": []}}))
    namespace.wait_ready("w", within=LATE)


def test_a_node_whose_kubelet_is_started_again(
    lab: Cluster, namespace: Namespace, commands: Commands, waiting: Waiting
) -> None:
    namespace.apply(template("one", device_request()), one("w"))
    namespace.wait_ready("w")
    lab.node(NODE).stop_kubelet()
    try:
        assert "journalctl -u kubelet" in waiting("w", "NodeNotReady")
        assert {chip["state"] for chip in commands.node(NODE)["chips"]} == {"unknown"}
        assert "is not ready" in commands.run("health")
    finally:
        lab.node(NODE).start_kubelet()
    eventually("the pod to be well", lambda: "Running" in _explained(commands, namespace, "w"), 90)


def _explained(commands: Commands, namespace: Namespace, name: str) -> str:
    try:
        return commands.explain(namespace, name, 0)
    except AssertionError:
        return ""


def test_a_claim_that_was_removed_under_its_pod(namespace: Namespace, commands: Commands, waiting: Waiting) -> None:
    namespace.apply(template("one", device_request()), one("w"))
    namespace.wait_ready("w")
    name = namespace.claim_of("w")["metadata"]["name"]
    namespace.kubectl("delete", "resourceclaim", name, "--wait=false")
    namespace.kubectl("patch", "resourceclaim", name, "--type=merge", "-p", '{"metadata": {"finalizers": null}}')
    assert "delete the pod" in waiting("w", "ClaimGone")
    assert commands.node(NODE)["counts"]["free"] is None
    namespace.delete_pod("w")
    namespace.apply(one("w"))
    namespace.wait_ready("w", within=LATE)


def test_parameters_that_are_corrected(lenient_driver: Installation, namespace: Namespace, waiting: Waiting) -> None:
    namespace.apply(template("one", device_request(), configs=[config(neuron_config(3))]), one("w"))
    assert "recreate the pod" in waiting("w", "InvalidParameters")
    namespace.delete_pod("w")
    namespace.kubectl("delete", "resourceclaimtemplate", "one")
    namespace.apply(template("one", device_request(), configs=[config(neuron_config(1))]), one("w"))
    namespace.wait_ready("w", within=LATE)


def test_an_image_that_is_corrected(namespace: Namespace, waiting: Waiting) -> None:
    wrong = pod("w", templates={"neurons": "one"}, containers=[container("main", "neurons")], node=NODE)
    wrong["spec"]["containers"][0] |= {"image": "registry.invalid/none:1", "command": SLEEP}
    namespace.apply(template("one", device_request()), wrong)

    def code() -> str | None:
        for name in ("ErrImagePull", "ImagePullBackOff"):
            try:
                return waiting("w", name)
            except AssertionError:
                continue
        return None

    assert "correct the image" in (code() or "")
    namespace.kubectl("set", "image", "pod/w", f"main={IMAGE}")
    namespace.wait_ready("w", within=LATE)
    namespace.delete_pod("w")
    wait_gone(namespace, "w")


def recreated(namespace: Namespace, name: str) -> None:
    namespace.delete_pod(name)
    namespace.apply(one(name))
    namespace.wait_ready(name, within=LATE)


def test_a_pod_that_names_its_node(namespace: Namespace, waiting: Waiting) -> None:
    named = pod("w", templates={"neurons": "one"})
    named["spec"]["nodeName"] = NODE
    namespace.apply(template("one", device_request()), named)
    assert "without spec.nodeName" in waiting("w", "ClaimNotAllocated")
    recreated(namespace, "w")


def test_a_runtime_class_whose_handler_the_node_has_not(namespace: Namespace, kube: Kube, waiting: Waiting) -> None:
    name = f"no-handler-{namespace.name}"
    kube.apply({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}, "handler": "none"})
    try:
        of_class = one("w")
        of_class["spec"]["runtimeClassName"] = name
        namespace.apply(template("one", device_request()), of_class)
        assert "without spec.runtimeClassName" in waiting("w", "RuntimeHandlerMissing")
        recreated(namespace, "w")
    finally:
        kube.kubectl("delete", "runtimeclass", name)


def test_an_init_container_that_fails_is_told_with_a_log_that_can_be_read(
    namespace: Namespace, waiting: Waiting
) -> None:
    prepare = container("prepare", command=["sh", "-c", "echo no such bucket; exit 3"])
    failing = pod("w", templates={"neurons": "one"}, init=[prepare], node=NODE)
    failing["spec"]["restartPolicy"] = "Always"
    namespace.apply(template("one", device_request()), failing)
    _, _, command = waiting("w", "Error").partition("kubectl ")
    assert "no such bucket" in namespace.kube.kubectl(*command.split())
    recreated(namespace, "w")


def test_a_container_that_is_not_ready_is_told_by_its_probe(namespace: Namespace, waiting: Waiting) -> None:
    probed = one("w")
    probed["spec"]["containers"][0]["readinessProbe"] = {"exec": {"command": ["false"]}, "periodSeconds": 1}
    namespace.apply(template("one", device_request()), probed)
    assert "correct the probe" in waiting("w", "Unhealthy")
    recreated(namespace, "w")


def test_a_claim_that_a_finalizer_keeps(namespace: Namespace, waiting: Waiting) -> None:
    kept = claim("mine", device_request())
    namespace.apply(kept | {"metadata": {"name": "mine", "finalizers": ["example.com/audit"]}})
    namespace.kubectl("delete", "resourceclaim", "mine", "--wait=false")
    namespace.apply(pod("w", {"neurons": "mine"}, node=NODE))
    assert "a finalizer other than" in waiting("w", "ClaimEnding")
    namespace.kubectl("patch", "resourceclaim", "mine", "--type=merge", "-p", '{"metadata": {"finalizers": null}}')
    namespace.apply(kept)
    namespace.wait_ready("w", within=LATE)


def test_a_driver_whose_pod_is_refused(
    driver: Installation, namespace: Namespace, kube: Kube, waiting: Waiting
) -> None:
    label = "pod-security.kubernetes.io/enforce"
    kube.kubectl("label", "--overwrite", "namespace", INSTALLED, f"{label}=restricted")
    try:
        kube.kubectl("-n", INSTALLED, "delete", "pod", driver.pod(NODE)["metadata"]["name"], "--grace-period=1")
        namespace.apply(template("one", device_request()), one("w"))
        assert label in waiting("w", "DriverNotCreated")
    finally:
        kube.kubectl("label", "--overwrite", "namespace", INSTALLED, f"{label}=privileged")
        wait_driver_ready(driver, NODE, within=LATE)
    namespace.wait_ready("w", within=LATE)


def test_pods_of_a_service_account_that_is_created(namespace: Namespace, waiting: Waiting) -> None:
    made = one("s")["spec"] | {"restartPolicy": "Always", "serviceAccountName": "later"}
    labels = {"app": "s"}
    workload = {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": made}}
    namespace.apply(
        template("one", device_request()),
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "s"}, "spec": workload},
    )
    assert "correct what the message names" in waiting("s-0", "FailedCreate")
    namespace.kubectl("create", "serviceaccount", "later")
    namespace.wait_ready("s-0", within=LATE)


def test_a_policy_that_refuses_claims(namespace: Namespace, kube: Kube, waiting: Waiting) -> None:
    name = f"refuses-{namespace.name}"
    api = "admissionregistration.k8s.io/v1"
    rule = {
        "apiGroups": ["resource.k8s.io"],
        "apiVersions": ["*"],
        "operations": ["CREATE"],
        "resources": ["resourceclaims"],
    }
    within = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace.name}}}
    validations = [{"expression": "false", "message": "no claims today"}]
    spec = {"matchConstraints": {"resourceRules": [rule], **within}, "validations": validations}
    kube.apply({"apiVersion": api, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name}, "spec": spec})
    binding = {"policyName": name, "validationActions": ["Deny"]}
    kind = "ValidatingAdmissionPolicyBinding"
    kube.apply({"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": binding})
    try:
        probe = json.dumps(claim("probe", device_request()))
        command = ("-n", namespace.name, "create", "--dry-run=server", "-f", "-")

        def acts() -> bool:
            return "no claims today" in kube.access.kubectl(*command, stdin=probe, check=False).stderr

        eventually("the policy to act", acts)
        namespace.apply(template("one", device_request()), one("w"))
        assert "correct what the message names, or the policy" in waiting("w", "PolicyRefused")
    finally:
        kube.kubectl("delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", name)
    namespace.wait_ready("w", within=LATE)


def test_a_claim_with_admin_access_in_a_namespace_that_may_not_have_it(
    namespace: Namespace, kube: Kube, waiting: Waiting
) -> None:
    label = "resource.kubernetes.io/admin-access"
    kube.kubectl("label", "namespace", namespace.name, f"{label}=true")
    namespace.apply(template("one", device_request(admin=True)))
    kube.kubectl("label", "namespace", namespace.name, f"{label}-")
    namespace.apply(one("w"))
    assert "correct what the message names" in waiting("w", "FailedResourceClaimCreation")
    kube.kubectl("label", "namespace", namespace.name, f"{label}=true")
    namespace.wait_ready("w", within=LATE)


def of_config_map(**more: object) -> Object:
    needy = one("w")
    needy["spec"]["volumes"] = more.get("volumes", [])
    needy["spec"]["containers"][0] |= {key: value for key, value in more.items() if key != "volumes"}
    return needy


@pytest.mark.parametrize(
    ("code", "more"),
    [
        (
            "FailedMount",
            {
                "volumes": [{"name": "later", "configMap": {"name": "later"}}],
                "volumeMounts": [{"name": "later", "mountPath": "/later"}],
            },
        ),
        ("CreateContainerConfigError", {"envFrom": [{"configMapRef": {"name": "later"}}]}),
    ],
)
def test_a_configmap_that_is_created(code: str, more: Object, namespace: Namespace, waiting: Waiting) -> None:
    namespace.apply(template("one", device_request()), of_config_map(**more))
    assert "create what the message names" in waiting("w", code)
    namespace.kubectl("create", "configmap", "later")
    namespace.wait_ready("w", within=LATE)


def test_a_container_that_gets_more_memory(namespace: Namespace, waiting: Waiting) -> None:
    hungry = one("w")
    hungry["spec"]["restartPolicy"] = "Always"
    hungry["spec"]["containers"][0] |= {"command": ["sh", "-c", "text=x; while :; do text=$text$text; done"]}
    hungry["spec"]["containers"][0]["resources"]["limits"] = {"memory": "20Mi"}
    namespace.apply(template("one", device_request()), hungry)
    assert "resources.limits.memory" in waiting("w", "OutOfMemory")
    recreated(namespace, "w")


def test_a_pod_that_has_failed(namespace: Namespace, waiting: Waiting) -> None:
    failing = one("w")
    failing["spec"]["containers"][0]["command"] = ["sh", "-c", "echo no such bucket; exit 3"]
    namespace.apply(template("one", device_request()), failing)
    remedy = waiting("w", "Failed")
    assert "recreate the pod" in remedy
    assert "no such bucket" in namespace.kube.kubectl(*remedy.partition("(kubectl ")[2].partition(" may ")[0].split())
    recreated(namespace, "w")


def test_a_pod_without_a_node_that_a_finalizer_keeps(namespace: Namespace, waiting: Waiting) -> None:
    kept = pod("w", templates={"neurons": "many"}, node=NODE)
    kept["metadata"]["finalizers"] = ["example.com/audit"]
    namespace.apply(template("many", device_request(count=17)), kept)
    namespace.wait_event("w", "cannot allocate all claims")
    namespace.kubectl("delete", "pod", "w", "--wait=false")
    assert "whoever has set it" in waiting("w", "Terminating")
    namespace.kubectl("patch", "pod", "w", "--type=merge", "-p", '{"metadata": {"finalizers": null}}')
    wait_gone(namespace, "w")


def test_a_group_of_which_one_does_not_run(namespace: Namespace, waiting: Waiting) -> None:
    def member(name: str, wanted: str, worker: str) -> Object:
        made = pod(name, templates={"neurons": wanted}, node=NODE)
        prefix = "leaderworkerset.sigs.k8s.io/"
        made["metadata"]["labels"] = {f"{prefix}group-key": "g", f"{prefix}name": "g", f"{prefix}worker-index": worker}
        made["metadata"]["annotations"] = {f"{prefix}size": "2"}
        return made

    namespace.apply(template("one", device_request()), template("many", device_request(count=17)))
    namespace.apply(member("g-0", "one", "0"), member("g-0-1", "many", "1"))
    namespace.wait_ready("g-0")
    remedy = waiting("g-0", "GroupIncomplete")
    assert "explain pod/g-0-1" in remedy
    namespace.delete_pod("g-0-1")
    namespace.apply(member("g-0-1", "one", "1"))
    namespace.wait_ready("g-0-1", within=LATE)


def test_a_secret_for_images_that_does_not_exist(namespace: Namespace, commands: Commands, waiting: Waiting) -> None:
    private = one("w")
    private["spec"]["containers"][0] |= {"image": "registry.invalid/private:1"}
    private["spec"]["imagePullSecrets"] = [{"name": "later"}]
    namespace.apply(template("one", device_request()), private)

    def told() -> str:
        try:
            found = commands.findings(namespace, "w")
        except AssertionError:
            return ""
        return next((item["remedy"] for item in found if item["code"] == "FailedToRetrieveImagePullSecret"), "")

    assert "create the Secret" in eventually("the Secret to be named", told, 120)
    namespace.kubectl("create", "secret", "generic", "later")
    # What the Secret opens cannot be had here: an image that needs none stands for it.
    namespace.kubectl("set", "image", "pod/w", f"main={IMAGE}")
    namespace.wait_ready("w", within=LATE)


@contextmanager
def edited(path: Path, old: str, new: str) -> Iterator[None]:
    """A file in which a text is another one."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    try:
        yield
    finally:
        path.write_text(text)


def test_a_runtime_that_does_not_read_the_drivers_directory(
    lab: Cluster, namespace: Namespace, waiting: Waiting
) -> None:
    node = lab.node(NODE)
    try:
        with edited(node.layout.config / "containerd.toml", '"/var/run/cdi"', '"/var/run/other"'):
            node.restart_containerd()
            namespace.apply(template("one", device_request()), one("w"))
            assert "enable_cdi and cdi_spec_dirs" in waiting("w", "UnresolvableDevices")
    finally:
        node.restart_containerd()
    namespace.wait_ready("w", within=LATE)


def test_a_network_plugin_that_cannot_be_run(lab: Cluster, namespace: Namespace, waiting: Waiting) -> None:
    network = lab.node(NODE).layout.directory / "cni-conf/10-lab.conflist"
    with edited(network, '"type": "bridge"', '"type": "none-such"'):
        namespace.apply(template("one", device_request()), one("w"))
        assert "repair the container runtime or the network plugin" in waiting("w", "FailedCreatePodSandBox")
    namespace.wait_ready("w", within=LATE)


def test_a_node_that_lacks_something(
    lab: Cluster, namespace: Namespace, kube: Kube, commands: Commands, waiting: Waiting
) -> None:
    node = lab.node(NODE)
    settings = node.layout.config / "kubelet.json"
    signal = "memory.available"
    lacking = json.dumps(
        json.loads(settings.read_text())
        | {"evictionSoft": {signal: "99%"}, "evictionSoftGracePeriod": {signal: "1h"}}
        | {"evictionPressureTransitionPeriod": "1s"}
    )
    # A pod that kubelet has taken, and whose container does not run for a reason of its own.
    namespace.apply(template("one", device_request()), of_config_map(envFrom=[{"configMapRef": {"name": "later"}}]))
    waiting("w", "CreateContainerConfigError")
    try:
        with edited(settings, settings.read_text(), lacking):
            node.restart_kubelet()
            assert f"kubectl describe node {NODE}" in waiting("w", "NodeUnderPressure")
    finally:
        node.restart_kubelet()
    assert waiting("w", "CreateContainerConfigError")
    namespace.kubectl("create", "configmap", "later")
    namespace.wait_ready("w", within=LATE)
    taints = "node.kubernetes.io/memory-pressure"
    eventually("the taint to be gone", lambda: taints not in json.dumps((kube.get("nodes", NODE) or {})["spec"]), 60)
