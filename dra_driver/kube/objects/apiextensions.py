"""What says which other kinds of objects there are (``apiextensions.k8s.io/v1``)."""

from __future__ import annotations

import msgspec

from dra_driver.kube.objects.meta import ApiObject, JsonObject, ObjectMeta


class CustomResourceNames(ApiObject, frozen=True):
    """``spec.names``."""

    plural: str = ""
    kind: str = ""


class CustomResourceValidation(ApiObject, frozen=True):
    """``spec.versions[].schema``: a JSON schema."""

    open_api_v3_schema: JsonObject = msgspec.field(name="openAPIV3Schema", default_factory=dict)


class CustomResourceSubresources(ApiObject, frozen=True):
    """``spec.versions[].subresources``: with ``status``, it is written apart from all else."""

    status: JsonObject | None = None


class CustomResourceDefinitionVersion(ApiObject, frozen=True):
    """``spec.versions[]``; objects are stored in one of them."""

    name: str
    served: bool = False
    storage: bool = False
    schema: CustomResourceValidation = CustomResourceValidation()
    subresources: CustomResourceSubresources = CustomResourceSubresources()


class CustomResourceDefinitionSpec(ApiObject, frozen=True):
    """``spec``."""

    group: str = ""
    scope: str = ""
    names: CustomResourceNames = CustomResourceNames()
    versions: tuple[CustomResourceDefinitionVersion, ...] = ()


class CustomResourceDefinition(ApiObject, frozen=True):
    """A CustomResourceDefinition; only administrators of a cluster write them."""

    metadata: ObjectMeta
    spec: CustomResourceDefinitionSpec = CustomResourceDefinitionSpec()
