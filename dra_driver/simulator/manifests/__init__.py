"""Reading what users and clusters have: from YAML, JSON or instance types to a cluster and the claims for it.

``read_manifests`` and ``emulated`` give ``Manifests``, ``merge`` joins them, ``cluster_of`` makes the allocator's world
and ``attempts`` the claims to allocate, pod by pod; ``obstacle`` says which nodes a pod may not run on.
"""

from dra_driver.simulator.manifests.attempts import Attempt, attempts, left_out, with_uid
from dra_driver.simulator.manifests.cluster import cluster_of, merge, waiting_left_out
from dra_driver.simulator.manifests.documents import Origin
from dra_driver.simulator.manifests.emulated import driver_class, emulated
from dra_driver.simulator.manifests.errors import ManifestError
from dra_driver.simulator.manifests.expressions import selectors
from dra_driver.simulator.manifests.extended import NEURON_RESOURCES, offering, special_claim
from dra_driver.simulator.manifests.nodes import allocated_elsewhere, obstacle
from dra_driver.simulator.manifests.read import NAMESPACE, read_manifests, read_stored
from dra_driver.simulator.manifests.values import ClaimReference, ExclusiveGroup, Manifests, PodWithClaims

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
    "allocated_elsewhere",
    "attempts",
    "cluster_of",
    "driver_class",
    "emulated",
    "left_out",
    "merge",
    "obstacle",
    "offering",
    "read_manifests",
    "read_stored",
    "selectors",
    "special_claim",
    "waiting_left_out",
    "with_uid",
]
