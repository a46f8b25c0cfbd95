"""Groups of pods (``scheduling.k8s.io``), which Kubernetes 1.37 serves with the feature gate GenericWorkload."""

from __future__ import annotations

from typing import Final

from dra_driver.kube.objects.core import PodResourceClaim, PodResourceClaimStatus
from dra_driver.kube.objects.meta import ApiObject, ObjectMeta

GROUP: Final = "scheduling.k8s.io"
VERSIONS: Final = ("v1beta1", "v1alpha3", "v1alpha2")
"""The newest first; 1.36 has the last one."""
POD_GROUPS: Final = "podgroups"
"""The resource in ``status.reservedFor`` of a claim."""
MAX_CLAIMS: Final = 4
"""Most claims of a PodGroup."""


class PodGroupSpec(ApiObject, frozen=True):
    """``spec``, the fields in use."""

    resource_claims: tuple[PodResourceClaim, ...] = ()
    """Claims of the group (KEP-5729): a pod of it that has an equal entry uses the group's claim."""


class PodGroupStatus(ApiObject, frozen=True):
    """``status``, the fields in use."""

    resource_claim_statuses: tuple[PodResourceClaimStatus, ...] = ()


class PodGroup(ApiObject, frozen=True):
    """Pods that are scheduled as one."""

    metadata: ObjectMeta
    spec: PodGroupSpec = PodGroupSpec()
    status: PodGroupStatus = PodGroupStatus()
