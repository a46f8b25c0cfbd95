"""What is kept of templates, which tenants make as they like, and what a workload's says."""

from __future__ import annotations

import msgspec
import pytest

from dra_driver.kube.api.codec import decode
from dra_driver.kube.objects.meta import OwnerReference
from dra_driver.kube.objects.resource import DeviceAllocationConfiguration
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.neuron.opaque_config import effective
from dra_driver.ultraserver.placer.template import (
    TEMPLATES,
    TemplateRecord,
    WrittenTemplate,
    owner_of,
    step_to,
    template_of,
)
from dra_driver.ultraserver.placer.workload import Extent, Workload

UID = "0b9f4c1e-5a3d-4d5b-9f3e-2f4a6c8e0d12"
TRAIN = Workload("a", "train", UID, 0.0, Extent("trn2u.48xlarge", 1, 4, core_size=1))


def read(body: bytes, version: str = "v1") -> TemplateRecord:
    """As the watch keeps it."""
    assert TEMPLATES.from_version is not None
    return TEMPLATES.from_version(decode(body, TEMPLATES.wire, "a template"), version)  # type: ignore[no-any-return]


def stored(item: WrittenTemplate, version: str = "v1") -> TemplateRecord:
    assert TEMPLATES.to_version is not None
    document = TEMPLATES.to_version(item, version)
    assert document["apiVersion"] == f"resource.k8s.io/{version}"
    return read(msgspec.json.encode(document), version)


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
def test_what_is_written_is_right_in_every_version(version: str) -> None:
    for tolerations in (True, False):
        record = stored(template_of(TRAIN, tolerations=tolerations), version)
        assert step_to(TRAIN, record, tolerations=tolerations) is None
        assert step_to(TRAIN, record, tolerations=None) is None
        assert step_to(TRAIN, record, tolerations=not tolerations) == "replace"


def test_in_v1beta1_a_request_has_the_fields_itself() -> None:
    assert TEMPLATES.to_version is not None
    (request,) = TEMPLATES.to_version(template_of(TRAIN, tolerations=True), "v1beta1")["spec"]["spec"]["devices"][
        "requests"
    ]
    assert (request["deviceClassName"], "exactly" in request) == ("ultraserver.neuron.aws.com", False)


def test_its_parameters_are_what_the_driver_takes() -> None:
    config = template_of(TRAIN, tolerations=True).spec["spec"]["devices"]["config"]
    entries = [msgspec.convert({**one, "source": "FromClaim"}, DeviceAllocationConfiguration) for one in config]
    assert {one.opaque.parameters["workload"] for one in entries if one.opaque is not None} == {UID}
    (values,) = effective(entries, ["node"], DRIVER_NAME).values()
    assert (values.logical_neuron_core, values.ultraserver_mode, values.workload) == (1, 4, UID)


def test_a_workload_of_the_same_name_has_another_template() -> None:
    other = Workload("a", "train", UID.replace("0", "1"), 0.0, TRAIN.extent)
    record = stored(template_of(other, tolerations=True))
    assert step_to(TRAIN, record, tolerations=True) == "taken"
    ending = msgspec.structs.replace(
        record, metadata=msgspec.structs.replace(record.metadata, deletion_timestamp="2026-11-30T00:00:00Z")
    )
    assert step_to(other, ending, tolerations=True) == "wait"


@pytest.mark.parametrize("depth", [1, 400, 900, 1100, 3000, 5100])
def test_a_template_that_is_nested_too_deep_is_somebody_elses(depth: int) -> None:
    nested = b'{"a":' + b"[" * depth + b"]" * depth + b"}"
    config = b'[{"opaque":{"driver":"x","parameters":' + nested + b"}}]"
    record = read(b'{"metadata":{"name":"t"},"spec":{"spec":{"devices":{"config":' + config + b"}}}}")
    assert step_to(TRAIN, record, tolerations=True) == "taken"


@pytest.mark.parametrize("value", [b'"\xff"', b'{"\xff":1}', b'"\\ud800"', b"1e400", b"1" * 5000])
def test_a_template_that_cannot_be_read_is_somebody_elses(value: bytes) -> None:
    """The API server keeps parameters as they came."""
    config = b'[{"opaque":{"driver":"x","parameters":{"a":' + value + b"}}}]"
    record = read(b'{"metadata":{"name":"t"},"spec":{"spec":{"devices":{"config":' + config + b"}}}}")
    assert step_to(TRAIN, record, tolerations=True) == "taken"


def test_of_many_long_owners_the_workload_is_kept() -> None:
    """In fewer bytes than two names have, however many and long they are."""
    other = OwnerReference("v1", "ConfigMap", "c", "c")
    like = msgspec.structs.replace(owner_of(TRAIN), name="y" * 253, uid="y" * 36, controller=None)
    long = [msgspec.structs.replace(like, **{name: "x" * 10**5}) for name in ("api_version", "kind", "name", "uid")]
    meta = template_of(TRAIN, tolerations=True).metadata
    for others in ([other] * 9, [like] * 9, long):
        owned = msgspec.structs.replace(meta, owner_references=(*others, owner_of(TRAIN)))
        record = stored(WrittenTemplate(owned, template_of(TRAIN, tolerations=True).spec))
        assert step_to(TRAIN, record, tolerations=True) is None
        foreign = stored(WrittenTemplate(msgspec.structs.replace(meta, owner_references=tuple(others)), {}))
        assert step_to(TRAIN, foreign, tolerations=True) == "taken"
        assert len(msgspec.json.encode(foreign.metadata.owner_references)) < 600
