"""What the simulator needs of a live cluster, read once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dra_driver.kube.resources import ResourceApi
    from dra_driver.kube.transport import Transport
    from dra_driver.simulator.manifests import Manifests
    from dra_driver.simulator.objects import DeviceClass

DRA_VERSIONS: Final = tuple(f"resource.k8s.io/{version}" for version in ("v1", "v1beta2", "v1beta1"))
CLASSES: Final = ("DeviceClass", "deviceclasses", DRA_VERSIONS)
WANTED: Final = (
    ("Node", "nodes", ("v1",)),
    ("Pod", "pods", ("v1",)),
    ("ResourceSlice", "resourceslices", DRA_VERSIONS),
    CLASSES,
    ("ResourceClaim", "resourceclaims", DRA_VERSIONS),
    ("ResourceClaimTemplate", "resourceclaimtemplates", DRA_VERSIONS),
)
"""Kind, resource, and the API versions that it may be served in."""


def read_cluster(kubeconfig: str | None) -> tuple[Manifests, str]:
    """The objects of a cluster, and its release such as ``1.37`` ("" when it does not tell).

    Args:
        kubeconfig: file; None is ``$KUBECONFIG`` or ``~/.kube/config``.

    Raises:
        DriverError: the cluster cannot be asked. ManifestError: it has something that cannot be read.
    """
    from dra_driver.kube.resources import ResourceApi
    from dra_driver.kube.transport import Transport
    from dra_driver.simulator.manifests import read_stored

    transport = Transport.from_kubeconfig(kubeconfig)
    try:
        return read_stored([_listed(transport, *wanted) for wanted in WANTED]), released(ResourceApi(transport))
    finally:
        transport.close()


def read_classes(transport: Transport) -> tuple[DeviceClass, ...]:
    """The DeviceClasses of a cluster; errors as for ``read_cluster``."""
    from dra_driver.simulator.manifests import read_stored

    return read_stored([_listed(transport, *CLASSES)]).classes


def _listed(
    transport: Transport, kind: str, plural: str, versions: tuple[str, ...]
) -> tuple[str, str, list[dict[str, Any]]]:
    """The newest version that is served, the kind, and its objects."""
    from dra_driver.kube.collection import Collection, Resource
    from dra_driver.kube.errors import ApiError

    for version in versions:
        try:
            items, _ = Collection(transport, Resource(dict, kind, plural, (version,))).list_all()
        except ApiError as error:
            if error.status != 404 or version == versions[-1]:
                raise
            continue
        return version, kind, items
    raise AssertionError("a resource has at least one version")


def released(api: ResourceApi) -> str:
    """The release of an API server, such as ``1.37``; "" when it does not tell."""
    release = api.server_version().release
    return "" if release is None else ".".join(map(str, release))
