"""What can be wrong with a pod or a node, by reason: what helps, and who can do it. One table for all commands.

A finding rests on what the cluster says: an Event, a condition, the reason in a claim's status, a DaemonSet, the state
of a pod. Commands tell it before anything that they work out, and work out nothing against it. A remedy belongs to a
reason, never to a state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

RETRY_SECONDS: Final = 90
"""kubelet comes back to a pod that it could not start within this time, and with some luck (jitter) after two thirds of
it (``k8s.io/kubernetes/pkg/kubelet/pod_workers.go``: 1.5 times ``--sync-frequency``)."""


class Who(StrEnum):
    """Who can do something about it."""

    OWNER = "owner"
    """Who made the pod."""
    ADMINISTRATOR = "administrator"
    """Of the cluster."""
    NOBODY = "nobody"
    """It ends by itself."""


class Row(NamedTuple):
    """What helps for a reason."""

    who: Who
    remedy: str
    """Names in braces are those of the objects concerned; "" where the text says what helps."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong, as the cluster says it."""

    reason: str
    """One word: the cluster's own, where it has one."""
    text: str
    """A sentence without a full stop."""
    remedy: str = ""
    """What helps, a sentence without a full stop; "" where the text says that itself."""
    who: Who = Who.ADMINISTRATOR
    since: str = ""
    """RFC 3339, or ""."""
    claim: str = ""
    """Name of the claim whose status says the same; "" if none does."""

    def document(self) -> dict[str, str | None]:
        """The same as plain values."""
        return {
            "code": self.reason,
            "message": self.text,
            "since": self.since or None,
            "remedy": self.remedy or None,
            "who": self.who.value,
        }


def finding(reason: str, text: str, *, since: str = "", claim: str = "", **names: str) -> Finding:
    """A finding with the remedy of its reason; one that the table lacks has none.

    Args:
        reason: its reason. Nodes and kubelets may have chosen it: one that names a row whose objects are not given here
            is none of ours.
        text: a sentence.
        since: RFC 3339, or "".
        claim: see ``Finding``.
        **names: of the objects that the remedy names.
    """
    who, remedy = REMEDIES.get(reason, Row(Who.ADMINISTRATOR, ""))
    sentence = text if text.endswith("...") else text.removesuffix(".")
    try:
        remedy = remedy.format_map(names)
    except KeyError:
        who, remedy = Row(Who.ADMINISTRATOR, "")
    return Finding(reason, sentence, remedy, who, since, claim)


_KUBELET_RETRIES: Final = "kubelet tries again by itself, at the latest {retry}"
_RECREATE: Final = "then recreate the pod with its claim, because a claim keeps its parameters and devices"
_READ: Final = "read why: kubectl -n {namespace} describe pod {pod}"

REMEDIES: Final[Mapping[str, Row]] = {
    # A node's driver refuses a claim (docs/use/in-containers.md).
    "InvalidParameters": Row(
        Who.OWNER, f"correct the parameter in the ResourceClaimTemplate or DeviceClass; {_RECREATE}"
    ),
    "CoreSize": Row(
        Who.OWNER,
        "use the logical core size that the chip has now, or select another chip or node in the request; "
        f"{_RECREATE}; or wait until no other claim has cores of the chip",
    ),
    "ConflictingDevices": Row(Who.OWNER, f"change the claims or the pod's containers as the message says; {_RECREATE}"),
    "NotContiguous": Row(
        Who.OWNER,
        f"ask for connected chips by a constraint on a device group, or for one device that is a group; {_RECREATE}",
    ),
    "UltraServerMode": Row(
        Who.OWNER,
        f"request a mode that the node offers, or keep the pod off the node by a nodeSelector; {_RECREATE}",
    ),
    "UltraServerElecting": Row(Who.NOBODY, f"wait; {_KUBELET_RETRIES}"),
    "UnknownDevice": Row(Who.OWNER, "recreate the pod with its claim, so that the scheduler allocates anew"),
    "DeviceMissing": Row(
        Who.ADMINISTRATOR,
        "repair the node, or drain it and replace its instance; or recreate the pod with its claim, so that it gets "
        "other chips",
    ),
    "DeviceInUse": Row(Who.NOBODY, f"wait until the other claim is unprepared; {_KUBELET_RETRIES}"),
    "DeviceHeldBack": Row(
        Who.ADMINISTRATOR,
        "delete the pods there that use the device plugin's resources, and keep the device plugin off the node; "
        f"{_KUBELET_RETRIES}",
    ),
    "DeviceUnhealthy": Row(Who.OWNER, "recreate the pod with its claim, so that it gets chips without this taint"),
    "AllocatedAgain": Row(
        Who.NOBODY,
        f"wait until the containers that use the former devices have ended, or delete their pod; {_KUBELET_RETRIES}",
    ),
    "PodNotRead": Row(Who.ADMINISTRATOR, f"do what the message says; {_KUBELET_RETRIES}"),
    "NotPrepared": Row(Who.ADMINISTRATOR, f"do what the message says; {_KUBELET_RETRIES}"),
    # kubelet says why it could not prepare claims, and nobody has said more of them.
    "FailedPrepareDynamicResources": Row(
        Who.OWNER,
        f"do what the message says; {_KUBELET_RETRIES}; after a change of template or class, recreate the pod with its "
        "claim, because a claim keeps its parameters",
    ),
    "OldClaimPrepared": Row(Who.NOBODY, f"wait until the pod that had the former claim has ended; {_KUBELET_RETRIES}"),
    "DriverNotRegistered": Row(
        Who.ADMINISTRATOR,
        f"see that driver {{driver}} runs on node {{node}} and is ready; {_KUBELET_RETRIES}",
    ),
    "DriverDoesNotAnswer": Row(
        Who.ADMINISTRATOR,
        f"read the log of driver {{driver}} on node {{node}}; {_KUBELET_RETRIES}",
    ),
    # The pod's claims.
    "ClaimGone": Row(
        Who.OWNER,
        "delete the pod and make it anew: the driver keeps its devices until it has ended, and it cannot get them back "
        "once a container of it has to start again",
    ),
    "ClaimMissing": Row(Who.OWNER, "create the claim: kubectl -n {namespace} apply -f FILE"),
    "TemplateMissing": Row(
        Who.OWNER,
        "create the ResourceClaimTemplate in namespace {namespace}, or recreate the pod with the right name of one",
    ),
    "ClaimNotCreated": Row(
        Who.ADMINISTRATOR,
        "see that kube-controller-manager runs (its lease is renewed every few seconds: kubectl -n kube-system get "
        "lease kube-controller-manager -o yaml)",
    ),
    "QuotaExceeded": Row(
        Who.ADMINISTRATOR,
        "raise the quota (kubectl -n {namespace} describe quota), or delete claims that it counts and nobody uses; the "
        "claim is then created by itself",
    ),
    "WebhookRefused": Row(
        Who.ADMINISTRATOR,
        "correct what the message names, or repair or delete the webhook (kubectl get "
        "validatingwebhookconfigurations,mutatingwebhookconfigurations); what it refused is then tried again by itself",
    ),
    "PolicyRefused": Row(
        Who.ADMINISTRATOR,
        "correct what the message names, or the policy (kubectl get validatingadmissionpolicies,"
        "validatingadmissionpolicybindings); what it refused is then tried again by itself",
    ),
    "FailedResourceClaimCreation": Row(
        Who.OWNER,
        "correct what the message names; once the claim can be created, it is created by itself",
    ),
    "GroupIncomplete": Row(Who.OWNER, "explain the others: dra-driver explain pod/{other} -n {namespace}"),
    # Scheduling.
    "SchedulingGated": Row(Who.OWNER, "see that whoever removes the gates runs, or remove them"),
    "NotScheduled": Row(
        Who.ADMINISTRATOR,
        "see that kube-scheduler runs (its lease is renewed every few seconds: kubectl -n kube-system get lease "
        "kube-scheduler -o yaml)",
    ),
    "OtherScheduler": Row(
        Who.OWNER,
        "see that a scheduler named {scheduler} runs, since no other takes this pod; or recreate the pod without "
        "spec.schedulerName",
    ),
    # The node.
    "NodeNotReady": Row(
        Who.ADMINISTRATOR,
        "read why: kubectl describe node {node}, and on the node: journalctl -u kubelet",
    ),
    "NodeUnderPressure": Row(Who.ADMINISTRATOR, "free what the node lacks: kubectl describe node {node}"),
    # The driver of the node.
    "DriverCrashes": Row(
        Who.ADMINISTRATOR,
        "if it began with a change of settings or image, correct or revert that (helm rollback to a revision from helm "
        "history; the installer script with the previous settings; kubectl rollout undo --to-revision), and with "
        "updateStrategy OnDelete, delete the pod afterwards; else read why: "
        "kubectl -n {namespace} logs {pod} --previous",
    ),
    "DriverNotReady": Row(Who.ADMINISTRATOR, "read why: kubectl -n {namespace} logs {pod} --tail 20"),
    "DriverImage": Row(
        Who.ADMINISTRATOR,
        "if the message names a wrong image, correct it (the chart's image.repository and image.tag; IMAGE of the "
        "installer script); else let nodes pull it, by their role or by a Secret in namespace {namespace} that "
        "imagePullSecrets names (--image-pull-secret of the script)",
    ),
    "DriverNotStarted": Row(Who.ADMINISTRATOR, _READ),
    "NothingOffered": Row(Who.ADMINISTRATOR, "read why: kubectl -n {namespace} logs {pod} --tail 20"),
    "NoDaemonSet": Row(Who.ADMINISTRATOR, "install the driver"),
    "DaemonSetMakesNoPod": Row(Who.ADMINISTRATOR, "read why: kubectl -n {namespace} describe daemonset {daemon_set}"),
    "DaemonSetLeavesNodeOut": Row(
        Who.ADMINISTRATOR,
        "correct the label (kubectl label node {node} KEY=VALUE --overwrite, or KEY- to remove it) or taint (kubectl "
        "taint node {node} KEY-) of the node, or the driver's nodeSelector, affinity or tolerations in its settings",
    ),
    "NoDriver": Row(
        Who.ADMINISTRATOR,
        "compare the labels and taints of node {node} (kubectl describe node {node}) with the selector and affinity of "
        "the driver's DaemonSet (kubectl get daemonset -A -l {label} -o jsonpath="
        "'{{.items[*].spec.template.spec.nodeSelector}}{{.items[*].spec.template.spec.affinity}}'); if there is no "
        "DaemonSet, install the driver",
    ),
    # The pod's containers, as kubelet names it.
    "ImagePullBackOff": Row(Who.OWNER, "correct the image, the registry, or the pod's imagePullSecrets"),
    "FailedToRetrieveImagePullSecret": Row(
        Who.OWNER, "create the Secret in namespace {namespace}, or correct the pod's imagePullSecrets"
    ),
    "CrashLoopBackOff": Row(Who.OWNER, "read why: kubectl -n {namespace} logs {pod} --previous"),
    "CreateContainerConfigError": Row(Who.OWNER, "create what the message names, or correct the pod"),
    "UnresolvableDevices": Row(
        Who.ADMINISTRATOR,
        "see that the container runtime of node {node} reads /var/run/cdi (containerd: enable_cdi and cdi_spec_dirs), "
        "restart the runtime, and recreate the pod with its claim if it still does not start",
    ),
    "FailedCreatePodSandBox": Row(
        Who.ADMINISTRATOR,
        "repair the container runtime or the network plugin (CNI) of node {node}: kubectl describe node {node}",
    ),
    "FailedMount": Row(Who.OWNER, "create what the message names, or correct the pod's volumes"),
    "Terminating": Row(Who.OWNER, _READ),
}
"""By reason."""

_SAME: Final = {
    "ErrImagePull": "ImagePullBackOff",
    "InvalidImageName": "ImagePullBackOff",
    "ErrImageNeverPull": "ImagePullBackOff",
    "Error": "CrashLoopBackOff",
    "OOMKilled": "CrashLoopBackOff",
    "CreateContainerError": "CreateContainerConfigError",
    "RunContainerError": "CreateContainerConfigError",
    "NetworkNotReady": "FailedCreatePodSandBox",
    "FailedAttachVolume": "FailedMount",
}


def row_of(word: str) -> str:
    """The row of the table for a reason of kubelet's: several have one remedy."""
    return _SAME.get(word, word)
