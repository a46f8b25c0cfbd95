"""Whether pods of others are kept from the nodes of workloads: the classes and the policy that are installed.

Values in, values out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final

from dra_driver.kube.api.codec import Resource
from dra_driver.kube.objects.meta import ApiObject
from dra_driver.kube.objects.resource import GROUP, VERSIONS, DeviceClass, ObjectIdentity
from dra_driver.neuron.names import (
    ADMIN_CLASS,
    CLASSES_POLICY,
    DRIVER_NAME,
    WORKLOAD_CLASS,
    WORKLOAD_UID,
    is_own_class,
)

MARK: Final = f"has(device.attributes['{DRIVER_NAME}'].{WORKLOAD_UID})"
"""Whether a device is on a node that a workload has, as the selectors of our classes say it."""
CLASSES: Final = Resource(
    DeviceClass, "DeviceClass", "deviceclasses", tuple(f"{GROUP}/{version}" for version in VERSIONS)
)


class _BindingSpec(ApiObject, frozen=True):
    policy_name: str = ""
    validation_actions: tuple[str, ...] = ()


class PolicyOrBinding(ApiObject, frozen=True):
    """A ValidatingAdmissionPolicy, or the binding of one."""

    metadata: ObjectIdentity
    spec: _BindingSpec = _BindingSpec()


_ADMISSION: Final = ("admissionregistration.k8s.io/v1",)
POLICIES: Final = Resource(PolicyOrBinding, "ValidatingAdmissionPolicy", "validatingadmissionpolicies", _ADMISSION)
BINDINGS: Final = Resource(
    PolicyOrBinding, "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", _ADMISSION
)


def gaps_of(classes: Iterable[DeviceClass], kinds: Collection[str], binding: PolicyOrBinding | None) -> Iterator[str]:
    """What lets others in, or keeps pods of workloads out.

    Args:
        classes: all.
        kinds: which of the policy and its binding are there.
        binding: of the policy.
    """
    own = {item.metadata.name: item for item in classes if is_own_class(item.metadata.name)}
    for name in (WORKLOAD_CLASS, ADMIN_CLASS):
        if name not in own:
            yield f"there is no DeviceClass {name}"
    for name, item in sorted(own.items()):
        wanted = {WORKLOAD_CLASS: MARK, ADMIN_CLASS: ""}.get(name, f"!{MARK}")
        texts = ["".join(one.cel.expression.split()) for one in item.spec.selectors if one.cel is not None]
        if not any(wanted in text for text in (*texts, "")) or (
            name == WORKLOAD_CLASS and f"!{MARK}" in "".join(texts)
        ):
            yield f"the DeviceClass {name} does not ask for {wanted}"
        if name == WORKLOAD_CLASS and item.spec.extended_resource_name:
            yield f"the DeviceClass {name} serves {item.spec.extended_resource_name}"
    missing = [resource.kind for resource in (POLICIES, BINDINGS) if resource.kind not in kinds]
    if missing:
        yield f"there is no {' and no '.join(missing)} {CLASSES_POLICY}"
    elif binding is not None and (
        binding.spec.policy_name != CLASSES_POLICY or "Deny" not in binding.spec.validation_actions
    ):
        yield f"the {BINDINGS.kind} {CLASSES_POLICY} does not deny what its policy refuses"
