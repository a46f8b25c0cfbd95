"""Reading what users and clusters have: from YAML or JSON to objects, and to the pods and claims that want devices.

``read_manifests`` gives ``Manifests``, ``attempts`` the claims to allocate, pod by pod.
"""

from dra_driver.manifests.attempts import (
    NEURON_RESOURCES,
    Attempt,
    attempts,
    left_out,
    offering,
    special_claim,
    with_uid,
)
from dra_driver.manifests.documents import ManifestError, Origin
from dra_driver.manifests.model import ClaimReference, ExclusiveGroup, Manifests, PodWithClaims
from dra_driver.manifests.read import NAMESPACE, read_manifests, read_stored

__all__ = [
    "NAMESPACE",
    "NEURON_RESOURCES",
    "Attempt",
    "ClaimReference",
    "ExclusiveGroup",
    "ManifestError",
    "Manifests",
    "Origin",
    "PodWithClaims",
    "attempts",
    "left_out",
    "offering",
    "read_manifests",
    "read_stored",
    "special_claim",
    "with_uid",
]
