"""Claims, made ready for any node: classes found, selectors compiled, everything checked that needs no devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from dra_driver.manifests.objects import (
    DeviceClass,
    DeviceRequest,
    DeviceSelector,
    DeviceSubRequest,
    DeviceToleration,
    ExactDeviceRequest,
    Quantity,
    ResourceClaim,
)
from dra_driver.simulator.allocator.pool_devices import BrokenSelector, Selector, Selectors
from dra_driver.util.errors import DriverError

MAX_RESULTS = 32
"""Devices of one claim (Kubernetes limit)."""


class AllocationError(DriverError):
    """Ends the scheduling of the pod everywhere, as opposed to "not on this node"."""


@dataclass(frozen=True, eq=False, slots=True)
class RequestAlternative:
    """A request, or one of the sub-requests of which the first available is taken."""

    name: str
    parent: str
    """The request of a sub-request; "" for a request."""
    device_class: DeviceClass
    selectors: tuple[Selector, ...]
    """Of the class, then of the request."""
    places: tuple[str, ...]
    """What each selector is called in an error."""
    key: tuple[str, ...]
    """The selectors' expressions: equal keys decide equally."""
    all_devices: bool
    count: int
    admin: bool
    tolerations: tuple[DeviceToleration, ...]
    capacity: Mapping[str, Quantity]
    where: str
    """What it is called in an error."""

    @property
    def label(self) -> str:
        """As in an allocation result."""
        return f"{self.parent}/{self.name}" if self.parent else self.name

    @property
    def names(self) -> tuple[str, str]:
        """Request and sub-request ("" when there is none), as constraints name them."""
        return (self.parent, self.name) if self.parent else (self.name, "")


@dataclass(frozen=True, eq=False, slots=True)
class PreparedRequest:
    """A request; ``ranked`` ones have sub-requests."""

    name: str
    options: tuple[RequestAlternative, ...]
    ranked: bool


@dataclass(frozen=True, eq=False, slots=True)
class PreparedClaim:
    """A claim whose requests can be searched for."""

    claim: ResourceClaim
    requests: tuple[PreparedRequest, ...]


def prepare(claim: ResourceClaim, classes: Mapping[str, DeviceClass], selectors: Selectors) -> PreparedClaim:
    """The claim, ready. AllocationError when a class is missing or the claim has something of an unknown kind."""
    reference = f"{claim.metadata.namespace}/{claim.metadata.name}" if claim.metadata.namespace else claim.metadata.name
    workshop = _Workshop(f"claim {reference}", classes, selectors)
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
            raise AllocationError(
                f"{where}: could not retrieve device class {item.device_class_name}: not found",
                remedy="apply the DeviceClass, or name one that exists",
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
            # As the API server fills it in.
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
    """A selector of another kind in a class has no expression, which Kubernetes cannot compile."""
    return tuple(selector.cel.expression if selector.cel is not None else "" for selector in selectors)
