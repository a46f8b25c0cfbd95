"""What the simulator needs of a live cluster, read once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from dra_driver.cli.errors import UsageError
from dra_driver.util.errors import DriverError

if TYPE_CHECKING:
    from dra_driver.kube.api import ResourceApi
    from dra_driver.kube.client import Transport
    from dra_driver.manifests import Manifests
    from dra_driver.manifests.objects import DeviceClass

Listed = tuple[str, str, list[dict[str, Any]]]
"""API version, kind, and the objects of that kind."""
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
TAINT_RULES: Final = (
    "DeviceTaintRule",
    "devicetaintrules",
    tuple(f"resource.k8s.io/{version}" for version in ("v1", "v1beta2", "v1alpha3")),
)
"""Most servers before 1.37 serve none."""


@contextmanager
def asking(kubeconfig: str | None) -> Iterator[Transport]:
    """The API server of a kubeconfig, for as long as it takes.

    Args:
        kubeconfig: file; None is ``$KUBECONFIG`` or ``~/.kube/config``.

    Raises:
        UsageError: it cannot be used, or the server does not answer. Exit status 1 is an answer about devices.
    """
    from dra_driver.kube.client import Transport

    try:
        transport = Transport.from_kubeconfig(kubeconfig)
        try:
            yield transport
        finally:
            transport.close()
    except DriverError as error:
        raise UsageError(str(error)) from error


def read_cluster(kubeconfig: str | None) -> tuple[Manifests, str]:
    """The objects of a cluster, and its release such as ``1.37`` ("" when it does not tell).

    Raises:
        UsageError: see ``asking``. ManifestError: the cluster has something that cannot be read.
    """
    from dra_driver.kube.api import ResourceApi
    from dra_driver.manifests import Manifests, read_stored
    from dra_driver.simulator.cluster import merge

    with asking(kubeconfig) as transport:
        rules, notes = _taint_rules(transport)
        found = read_stored([*(_listed(transport, *wanted) for wanted in WANTED), *rules])
        release = released(ResourceApi(transport))
    return merge(found, Manifests(not_considered=notes)), release


def _taint_rules(transport: Transport) -> tuple[list[Listed], tuple[str, ...]]:
    """None where they are not served; where they may not be listed, a note says so."""
    from dra_driver.kube.errors import ApiError

    try:
        return [_listed(transport, *TAINT_RULES)], ()
    except ApiError as error:
        if error.status not in (403, 404):
            raise
        return [], ("DeviceTaintRules, which this user may not list",) if error.status == 403 else ()


def read_classes(transport: Transport) -> tuple[DeviceClass, ...]:
    """The DeviceClasses of a cluster; errors as for ``read_cluster``."""
    from dra_driver.manifests import read_stored

    return read_stored([_listed(transport, *CLASSES)]).classes


def _listed(transport: Transport, kind: str, plural: str, versions: tuple[str, ...]) -> Listed:
    """The newest version that is served, the kind, and its objects."""
    from dra_driver.kube.api import Collection
    from dra_driver.kube.types import Resource

    collection = Collection(transport, Resource(dict, kind, plural, versions))
    items, _ = collection.list_all()
    return collection.version, kind, items


def released(api: ResourceApi) -> str:
    """The release of an API server, such as ``1.37``; "" when it does not tell."""
    release = api.server_version().release
    return "" if release is None else ".".join(map(str, release))
