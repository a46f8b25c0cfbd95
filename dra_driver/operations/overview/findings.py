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
    """What a reason means, and what helps."""

    who: Who
    meaning: str
    """For the reference page."""
    remedy: str
    """Names in braces are those of the objects concerned; "" where the text says what helps."""


_UNKNOWN: Final = Row(Who.ADMINISTRATOR, "", "")


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
    row = REMEDIES.get(reason, _UNKNOWN)
    sentence = text if text.endswith("...") else text.removesuffix(".")
    try:
        remedy = row.remedy.format_map(names)
    except KeyError:
        row, remedy = _UNKNOWN, ""
    return Finding(reason, sentence, remedy, row.who, since, claim)


_KUBELET_RETRIES: Final = "kubelet tries again by itself, at the latest {retry}"
_RECREATE: Final = "then recreate the pod with its claim, because a claim keeps its parameters and devices"
_READ: Final = "read why: kubectl -n {namespace} describe pod {pod}"

REMEDIES: Final[Mapping[str, Row]] = {
    # A node's driver refuses a claim (docs/use/in-containers.md).
    "InvalidParameters": Row(
        Who.OWNER,
        "the parameters of the claim are wrong, or not possible for its devices",
        f"correct the parameter in the ResourceClaimTemplate or DeviceClass; {_RECREATE}",
    ),
    "CoreSize": Row(
        Who.OWNER,
        "cores of one chip would have different logical sizes",
        "use the logical core size that the chip has now, or select another chip or node in the request; "
        f"{_RECREATE}; or wait until no other claim has cores of the chip",
    ),
    "ConflictingDevices": Row(
        Who.OWNER,
        "the devices of the claim overlap, or clash with those of another claim of the pod",
        f"change the claims or the pod's containers as the message says; {_RECREATE}",
    ),
    "NotContiguous": Row(
        Who.OWNER,
        "the chips or cores of the claim have gaps between them",
        f"ask for connected chips by a constraint on a device group, or for one device that is a group; {_RECREATE}",
    ),
    "UltraServerMode": Row(
        Who.OWNER,
        "the UltraServer does not offer the mode",
        f"request a mode that the node offers, or keep the pod off the node by a nodeSelector; {_RECREATE}",
    ),
    "UltraServerElecting": Row(Who.NOBODY, "the UltraServer does not know its mode yet", f"wait; {_KUBELET_RETRIES}"),
    "UltraServerWorkload": Row(
        Who.OWNER,
        "the node is allocated to an UltraServer workload, and the claim is not of it",
        "delete the pod: made anew, with the workload's template or a class of the driver, it gets a node that fits",
    ),
    "UnknownDevice": Row(
        Who.OWNER,
        "the node publishes no such device",
        "recreate the pod with its claim, so that the scheduler allocates anew",
    ),
    "DeviceMissing": Row(
        Who.ADMINISTRATOR,
        "a chip of the claim is not on the host",
        "repair the node, or drain it and replace its instance; or recreate the pod with its claim, so that it gets "
        "other chips",
    ),
    "DeviceInUse": Row(
        Who.NOBODY,
        "a device of the claim is still prepared for another one",
        f"wait until the other claim is unprepared; {_KUBELET_RETRIES}",
    ),
    "DeviceHeldBack": Row(
        Who.ADMINISTRATOR,
        "a device plugin may have given the chip to a pod",
        "delete the pods there that use the device plugin's resources, and keep the device plugin off the node; "
        f"{_KUBELET_RETRIES}",
    ),
    "DeviceUnhealthy": Row(
        Who.OWNER,
        "a chip of the claim is unhealthy, and the driver is set to refuse such claims",
        "recreate the pod with its claim, so that it gets chips without this taint",
    ),
    "AllocatedAgain": Row(
        Who.OWNER,
        "containers may still use the devices that the claim had before",
        "delete all pods on the node that use the claim, this one too, and make them anew: kubelet unprepares the "
        "claim once none of them is left",
    ),
    "PodNotRead": Row(
        Who.ADMINISTRATOR, "the driver cannot read the pod", f"do what the message says; {_KUBELET_RETRIES}"
    ),
    "NotPrepared": Row(
        Who.ADMINISTRATOR,
        "the driver cannot prepare the claim, for another reason",
        f"do what the message says; {_KUBELET_RETRIES}",
    ),
    # kubelet says why it could not prepare claims, and nobody has said more of them.
    "FailedPrepareDynamicResources": Row(
        Who.OWNER,
        "kubelet cannot prepare the claims of the pod",
        f"do what the message says; {_KUBELET_RETRIES}; after a change of template or class, recreate the pod with its "
        "claim, because a claim keeps its parameters",
    ),
    "ClaimNotAllocated": Row(
        Who.OWNER,
        "the pod came to its node without devices for its claims",
        "make the pod anew without spec.nodeName, which bypasses kube-scheduler (a nodeSelector on "
        "kubernetes.io/hostname chooses the node), and with a scheduler that allocates claims",
    ),
    "PodGroupClaimRefused": Row(
        Who.ADMINISTRATOR,
        "kubelet does not let the pod use the claim of its PodGroup",
        "turn on the feature gates GenericWorkload and DRAWorkloadResourceClaims in the kubelet of node {node}, too; "
        f"{_KUBELET_RETRIES}",
    ),
    "OldClaimPrepared": Row(
        Who.NOBODY,
        "kubelet still has a claim of this name that is gone",
        f"wait until the pod that had the former claim has ended; {_KUBELET_RETRIES}",
    ),
    "DriverNotRegistered": Row(
        Who.ADMINISTRATOR,
        "kubelet knows no such driver",
        f"see that driver {{driver}} runs on node {{node}} and is ready; {_KUBELET_RETRIES}",
    ),
    "DriverDoesNotAnswer": Row(
        Who.ADMINISTRATOR,
        "the driver does not answer kubelet in time",
        f"read the log of driver {{driver}} on node {{node}}; {_KUBELET_RETRIES}",
    ),
    # The pod's claims.
    "ClaimGone": Row(
        Who.OWNER,
        "the claim of a pod that has a node does not exist any more",
        "delete the pod and make it anew: the driver keeps its devices until it has ended, and it cannot get them back "
        "once a container of it has to start again",
    ),
    "ClaimEnding": Row(
        Who.OWNER,
        "the claim of a pod without a node is being deleted",
        "wait until the pods that use the claim have ended; a finalizer other than "
        "resource.kubernetes.io/delete-protection has to be removed by whoever has set it, or by kubectl -n "
        "{namespace} edit resourceclaim; then create the claim anew: kubectl -n {namespace} apply -f FILE",
    ),
    "ClaimMissing": Row(
        Who.OWNER,
        "the claim of a pod without a node does not exist",
        "create the claim: kubectl -n {namespace} apply -f FILE",
    ),
    "TemplateMissing": Row(
        Who.OWNER,
        "the template of a claim does not exist",
        "create the ResourceClaimTemplate in namespace {namespace}, or recreate the pod with the right name of one",
    ),
    "ClaimNotCreated": Row(
        Who.ADMINISTRATOR,
        "no claim is created from a template that is there, and nobody says why",
        "see that kube-controller-manager runs (its lease is renewed every few seconds: kubectl -n kube-system get "
        "lease kube-controller-manager -o yaml)",
    ),
    "QuotaExceeded": Row(
        Who.ADMINISTRATOR,
        "a quota keeps a claim from being created",
        "raise the quota (kubectl -n {namespace} describe quota), or delete claims that it counts and nobody uses; the "
        "claim is then created by itself",
    ),
    # Pods that do not exist.
    "PodQuotaExceeded": Row(
        Who.ADMINISTRATOR,
        "a quota keeps pods of a workload from being created",
        "raise the quota (kubectl -n {namespace} describe quota), delete pods that it counts, or correct the template "
        "of the pods as the message says; they are then created by themselves",
    ),
    "LimitRangeExceeded": Row(
        Who.OWNER,
        "a LimitRange keeps pods of a workload from being created",
        "correct what the template of the pods asks for, or the LimitRange (kubectl -n {namespace} describe "
        "limitrange); they are then created by themselves",
    ),
    "FailedCreate": Row(
        Who.OWNER,
        "pods of a workload cannot be created, for another reason",
        "correct what the message names; once the pods can be created, they are created by themselves",
    ),
    # Admission, of claims and of pods.
    "WebhookRefused": Row(
        Who.ADMINISTRATOR,
        "a webhook refuses a claim, its allocation or a pod, or does not answer",
        "correct what the message names, or repair or delete the webhook (kubectl get "
        "validatingwebhookconfigurations,mutatingwebhookconfigurations); what it refused is then tried again by itself",
    ),
    "PolicyRefused": Row(
        Who.ADMINISTRATOR,
        "a ValidatingAdmissionPolicy refuses a claim, its allocation or a pod",
        "correct what the message names, or the policy (kubectl get validatingadmissionpolicies,"
        "validatingadmissionpolicybindings); what it refused is then tried again by itself",
    ),
    "FailedResourceClaimCreation": Row(
        Who.OWNER,
        "a claim cannot be created, for another reason",
        "correct what the message names; once the claim can be created, it is created by itself",
    ),
    "GroupIncomplete": Row(
        Who.OWNER,
        "other pods of the group do not run",
        "explain the others: dra-driver explain pod/{other} -n {namespace}",
    ),
    # Scheduling.
    "SchedulingGated": Row(
        Who.OWNER,
        "scheduling gates keep the pod from a node",
        "see that whoever removes the gates runs, or remove them",
    ),
    "NotScheduled": Row(
        Who.ADMINISTRATOR,
        "kube-scheduler has not looked at the pod",
        "see that kube-scheduler runs (its lease is renewed every few seconds: kubectl -n kube-system get lease "
        "kube-scheduler -o yaml)",
    ),
    "OtherScheduler": Row(
        Who.OWNER,
        "the scheduler that the pod names has not looked at it",
        "see that a scheduler named {scheduler} runs, since no other takes this pod; or recreate the pod without "
        "spec.schedulerName",
    ),
    "PodGroupNotReady": Row(
        Who.OWNER,
        "the PodGroup of the pod does not exist, or has too few pods",
        "see that PodGroup {group} exists and has as many pods as it wants (kubectl -n {namespace} get podgroup "
        "{group} -o yaml); if so, that the feature gates GenericWorkload and DRAWorkloadResourceClaims are on in the "
        "API server, kube-controller-manager and kube-scheduler, and that these run",
    ),
    "LowerPriority": Row(
        Who.ADMINISTRATOR,
        "pods of lower priority have devices that the pod could have",
        "delete or scale down {holders}: kube-scheduler preempts no pod for the sake of a claim (Kubernetes up to "
        "1.37)",
    ),
    # The node.
    "NodeNotReady": Row(
        Who.ADMINISTRATOR,
        "the node is not ready",
        "read why: kubectl describe node {node}, and on the node: journalctl -u kubelet",
    ),
    "NodeUnderPressure": Row(
        Who.ADMINISTRATOR,
        "the node lacks memory, disk or process ids",
        "free what the node lacks: kubectl describe node {node}",
    ),
    # The driver of the node.
    "DriverCrashes": Row(
        Who.ADMINISTRATOR,
        "the driver of the node ends again and again",
        "if it began with a change of settings or image, correct or revert that (helm rollback to a revision from helm "
        "history; the installer script with the previous settings; kubectl rollout undo --to-revision), and with "
        "updateStrategy OnDelete, delete the pod afterwards; else read why: "
        "kubectl -n {namespace} logs {log}",
    ),
    "DriverOutOfMemory": Row(
        Who.ADMINISTRATOR,
        "the driver of the node needs more memory than it may have",
        "raise its limit (the chart's draDriver.resources.limits.memory, or devicePlugin.resources.limits.memory; "
        "--resources of the installer script), and with updateStrategy OnDelete, delete the pod "
        "afterwards",
    ),
    "DriverNotReady": Row(
        Who.ADMINISTRATOR,
        "the driver of the node runs and is not ready",
        "read why: kubectl -n {namespace} logs {pod} --tail 20",
    ),
    "DriverImage": Row(
        Who.ADMINISTRATOR,
        "the image of the driver cannot be pulled",
        "if the message names a wrong image, correct it (the chart's image.repository and image.tag; IMAGE of the "
        "installer script); else let nodes pull it, by their role or by a Secret in namespace {namespace} that "
        "imagePullSecrets names (--image-pull-secret of the script)",
    ),
    "DriverNotStarted": Row(Who.ADMINISTRATOR, "the pod of the driver does not run, for another reason", _READ),
    "NothingOffered": Row(
        Who.ADMINISTRATOR,
        "the driver runs, and offers no devices",
        "read why: kubectl -n {namespace} logs {pod} --tail 20",
    ),
    "NoDaemonSet": Row(Who.ADMINISTRATOR, "the cluster has no DaemonSet of the driver", "install the driver"),
    "DaemonSetMakesNoPod": Row(
        Who.ADMINISTRATOR,
        "the DaemonSet of the driver selects the node, and makes no pod for it",
        "read why: kubectl -n {namespace} describe daemonset {daemon_set}",
    ),
    "DriverNotCreated": Row(
        Who.ADMINISTRATOR,
        "the DaemonSet of the driver selects the node, and its pod is refused",
        "correct what the message names, such as the label pod-security.kubernetes.io/enforce, a quota or a LimitRange "
        "of namespace {namespace}, or a webhook; the pod is then created by itself",
    ),
    "DaemonSetLeavesNodeOut": Row(
        Who.ADMINISTRATOR,
        "the DaemonSet of the driver does not select the node",
        "correct the label (kubectl label node {node} KEY=VALUE --overwrite, or KEY- to remove it) or taint (kubectl "
        "taint node {node} KEY-) of the node, or the driver's nodeSelector, affinity or tolerations in its settings",
    ),
    "NoDriver": Row(
        Who.ADMINISTRATOR,
        "the node has no pod of the driver, and its DaemonSet may not be read",
        "compare the labels and taints of node {node} (kubectl describe node {node}) with the selector and affinity of "
        "the driver's DaemonSet (kubectl get daemonset -A -l {label} -o jsonpath="
        "'{{.items[*].spec.template.spec.nodeSelector}}{{.items[*].spec.template.spec.affinity}}'); if there is no "
        "DaemonSet, install the driver",
    ),
    # The pod's containers, as kubelet names it.
    "ImagePullBackOff": Row(
        Who.OWNER,
        "an image of the pod cannot be pulled",
        "correct the image, the registry, or the pod's imagePullSecrets",
    ),
    "FailedToRetrieveImagePullSecret": Row(
        Who.OWNER,
        "a Secret for pulling images does not exist",
        "create the Secret in namespace {namespace}, or correct the pod's imagePullSecrets",
    ),
    "CrashLoopBackOff": Row(
        Who.OWNER, "a container ends again and again", "read why: kubectl -n {namespace} logs {log}"
    ),
    "OutOfMemory": Row(
        Who.OWNER,
        "a container needs more memory than it may have",
        "raise the container's resources.limits.memory, or let it use less, and recreate the pod",
    ),
    "Unhealthy": Row(
        Who.OWNER,
        "a probe of a container fails",
        "mend what the probe asks for (kubectl -n {namespace} logs {log}), or correct the probe and recreate the pod",
    ),
    "Failed": Row(
        Who.OWNER,
        "a pod has failed",
        "correct what the message says (kubectl -n {namespace} logs {log} may say more), and recreate the pod unless a "
        "controller does that",
    ),
    "CreateContainerConfigError": Row(
        Who.OWNER, "a container cannot be created", "create what the message names, or correct the pod"
    ),
    "UnresolvableDevices": Row(
        Who.ADMINISTRATOR,
        "the container runtime does not find the devices of the claim",
        "see that the container runtime of node {node} reads /var/run/cdi (containerd: enable_cdi and cdi_spec_dirs), "
        "restart the runtime, and recreate the pod with its claim if it still does not start",
    ),
    "RuntimeHandlerMissing": Row(
        Who.OWNER,
        "the container runtime of the node does not know the handler of the pod's RuntimeClass",
        "recreate the pod without spec.runtimeClassName, which Neuron devices do not need, or with one whose handler "
        "the container runtime of node {node} has",
    ),
    "FailedCreatePodSandBox": Row(
        Who.ADMINISTRATOR,
        "the container runtime or the network plugin cannot start the pod",
        "repair the container runtime or the network plugin (CNI) of node {node}: kubectl describe node {node}",
    ),
    "FailedMount": Row(
        Who.OWNER,
        "a volume of the pod cannot be mounted",
        "create what the message names, or correct the pod's volumes",
    ),
    "Terminating": Row(
        Who.OWNER,
        "a pod that has no node, or has ended, is being deleted",
        "a finalizer has to be removed by whoever has set it, or by kubectl -n {namespace} edit pod {pod}; without one "
        "the pod is gone within a minute or two",
    ),
}
"""By reason."""

SAME: Final = {
    "ErrImagePull": "ImagePullBackOff",
    "InvalidImageName": "ImagePullBackOff",
    "ErrImageNeverPull": "ImagePullBackOff",
    "Error": "CrashLoopBackOff",
    "NotReady": "CrashLoopBackOff",
    "OOMKilled": "OutOfMemory",
    "CreateContainerError": "CreateContainerConfigError",
    "RunContainerError": "CreateContainerConfigError",
    "NetworkNotReady": "FailedCreatePodSandBox",
    "FailedAttachVolume": "FailedMount",
}
"""Reasons of kubelet's that have the row of another one."""


def row_of(word: str) -> str:
    """The row of the table for a reason of kubelet's."""
    return SAME.get(word, word)
