"""Claims prepared for any node: classes resolved, selectors compiled, and all checks made that need no devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from dra_driver.kube.objects.meta import Quantity
from dra_driver.kube.objects.resource import (
    DeviceClass,
    DeviceRequest,
    DeviceSelector,
    DeviceSubRequest,
    DeviceToleration,
    ExactDeviceRequest,
    ResourceClaim,
)
from dra_driver.neuron.names import is_own_class
from dra_driver.simulator.allocator.pool_devices import BrokenSelector, Selector, Selectors
from dra_driver.util.errors import DriverError

MAX_RESULTS = 32
"""Maximum number of devices per claim (Kubernetes limit)."""


class AllocationError(DriverError):
    """Ends the scheduling of the pod on all nodes, as opposed to rejecting one node."""


@dataclass(frozen=True, eq=False, slots=True)
class RequestAlternative:
    """A request, or one of the subrequests of which the first available one is used."""

    name: str
    parent: str
    """The parent request of a subrequest; "" for a request."""
    device_class: DeviceClass
    selectors: tuple[Selector, ...]
    """Those of the class, then those of the request."""
    places: tuple[str, ...]
    """How error messages name each selector."""
    key: tuple[str, ...]
    """The selectors' expressions: equal keys give equal results."""
    all_devices: bool
    count: int
    admin: bool
    tolerations: tuple[DeviceToleration, ...]
    capacity: Mapping[str, Quantity]
    where: str
    """Its name in error messages."""

    @property
    def label(self) -> str:
        """Its name in an allocation result."""
        return f"{self.parent}/{self.name}" if self.parent else self.name

    @property
    def names(self) -> tuple[str, str]:
        """Request and subrequest ("" if there is none), as constraints name them."""
        return (self.parent, self.name) if self.parent else (self.name, "")


@dataclass(frozen=True, eq=False, slots=True)
class PreparedRequest:
    """A request; a ``ranked`` one has subrequests."""

    name: str
    options: tuple[RequestAlternative, ...]
    ranked: bool


@dataclass(frozen=True, eq=False, slots=True)
class PreparedClaim:
    """A claim whose requests can be searched for."""

    claim: ResourceClaim
    requests: tuple[PreparedRequest, ...]


def prepare(claim: ResourceClaim, classes: Mapping[str, DeviceClass], selectors: Selectors) -> PreparedClaim:
    """Prepare a claim. Raises AllocationError if a class is missing or a part of the claim is of an unknown kind."""
    workshop = _Workshop(f"claim {claim.metadata.full_name}", classes, selectors)
    return PreparedClaim(claim, tuple(workshop.request(request) for request in claim.spec.devices.requests))


class _Workshop:
    def __init__(self, where: str, classes: Mapping[str, DeviceClass], selectors: Selectors) -> None:
        self._where = where
        self._classes = classes
        self._selectors = selectors

    def request(self, request: DeviceRequest) -> PreparedRequest:
        if request.first_available:
            options = tuple(self._option(item, item.name, request.name) for item in request.first_available)
            return PreparedRequest(request.name, options, ranked=True)
        if request.exactly is None:
            raise AllocationError(
                f"{self._where}, request {request.name}: missing device class name (unsupported request type?)"
            )
        return PreparedRequest(request.name, (self._option(request.exactly, request.name, ""),), ranked=False)

    def _option(self, item: ExactDeviceRequest | DeviceSubRequest, name: str, parent: str) -> RequestAlternative:
        where = f"{self._where}, request {name}"
        for place, selector in enumerate(item.selectors):
            if selector.cel is None:
                raise AllocationError(f"{where}, selector #{place}: CEL expression empty (unsupported selector type?)")
        device_class = self._classes.get(item.device_class_name)
        if device_class is None:
            remedy = "apply the DeviceClass, or name one that exists"
            if is_own_class(item.device_class_name):
                remedy = (
                    "install the driver, which brings this DeviceClass (docs/operate/install.md), "
                    "or name one that exists"
                )
            raise AllocationError(
                f"{where}: could not retrieve device class {item.device_class_name}: not found", remedy=remedy
            )
        if item.allocation_mode not in ("ExactCount", "All"):
            raise AllocationError(f"{where}: unsupported count mode {item.allocation_mode}")
        of_class = _expressions(device_class.spec.selectors)
        of_request = _expressions(item.selectors)
        return RequestAlternative(
            name=name,
            parent=parent,
            device_class=device_class,
            selectors=tuple(self._compiled(text) for text in (*of_class, *of_request)),
            places=(
                *(f"class {device_class.metadata.name}: selector #{place}" for place in range(len(of_class))),
                *(f"{self._where}: selector #{place}" for place in range(len(of_request))),
            ),
            key=(*of_class, *of_request),
            all_devices=item.allocation_mode == "All",
            count=item.count or 1,
            admin=isinstance(item, ExactDeviceRequest) and bool(item.admin_access),
            # The default that the API server sets.
            tolerations=tuple(one if one.operator else replace(one, operator="Equal") for one in item.tolerations),
            capacity=item.capacity.requests if item.capacity is not None else {},
            where=where,
        )

    def _compiled(self, expression: str) -> Selector:
        try:
            return self._selectors.compile(expression)
        except DriverError as error:
            return BrokenSelector(error.what)


def _expressions(selectors: Sequence[DeviceSelector]) -> tuple[str, ...]:
    """A selector of another kind in a class has no expression, which fails to compile, as in Kubernetes."""
    return tuple(selector.cel.expression if selector.cel is not None else "" for selector in selectors)
