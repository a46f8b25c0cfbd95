"""Reads the objects of users and clusters: from YAML or JSON to typed objects, and to the pods and claims to allocate.

``read_manifests`` returns ``Manifests``; ``attempts`` returns the claims to allocate, pod by pod.
"""

from dra_driver.kube.documents import ManifestError, Origin
from dra_driver.simulator.manifests.attempts import (
    Attempt,
    MissingObjectError,
    attempts,
    left_out,
    of_known_classes,
    of_templates,
    offering,
    special_claim,
    with_uid,
)
from dra_driver.simulator.manifests.model import ClaimReference, ExclusiveGroup, Manifests, Packed, PodWithClaims
from dra_driver.simulator.manifests.read import NAMESPACE, packed, read_manifests, read_stored

__all__ = [
    "NAMESPACE",
    "Attempt",
    "ClaimReference",
    "ExclusiveGroup",
    "ManifestError",
    "Manifests",
    "MissingObjectError",
    "Origin",
    "Packed",
    "PodWithClaims",
    "attempts",
    "left_out",
    "of_known_classes",
    "of_templates",
    "offering",
    "packed",
    "read_manifests",
    "read_stored",
    "special_claim",
    "with_uid",
]
