"""What containers are told of their devices: the files, and where they are mounted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dra_driver.driver.claims.container_edits import cdi_spec, metadata_path
from dra_driver.driver.claims.files import decoded, encoded
from dra_driver.driver.claims.metadata import MetadataDirectory, files
from dra_driver.driver.claims.model import CheckpointEntry
from dra_driver.util.errors import DriverError
from tests.builders.claims import claim, host, result, uid
from tests.builders.device_metadata import CASES, annotated, attributes, documents, planned
from tests.golden import golden_error
from tests.paths import ROOT

RECORDED = json.loads((ROOT / "tests/data/device-metadata.json").read_text())["files"]
AGAIN = "run scripts/record-device-metadata"


def test_kubernetes_own_library_takes_every_file() -> None:
    assert [row["case"] for row in RECORDED if row["answer"]["refused"]] == []
    assert {row["answer"]["version"] for row in RECORDED} == {"metadata.resource.k8s.io/v1beta1"}


def test_the_files_are_those_that_it_was_asked_about() -> None:
    assert documents() == {row["case"]: row["file"] for row in RECORDED}, AGAIN


@pytest.mark.parametrize("row", RECORDED, ids=lambda row: row["case"])
def test_containers_see_each_file_where_the_library_looks_for_it(row: dict[str, Any]) -> None:
    case, _, name = row["case"].partition(": ")
    plan = planned(CASES[case])
    request = name.removesuffix(".json")
    assert metadata_path(plan, request) == row["answer"]["path"]
    mounts = {
        (mount.host_path, mount.container_path, mount.options)
        for device in cdi_spec(plan).devices
        for mount in device.container_edits.mounts
    }
    assert (f"{plan.metadata}/{name}", row["answer"]["path"], ("ro", "bind")) in mounts


def test_a_container_of_one_request_sees_the_file_of_that_request_alone() -> None:
    first, second = cdi_spec(planned(CASES["two requests"])).devices
    assert [mount.host_path.rpartition("/")[2] for mount in first.container_edits.mounts] == ["first.json"]
    assert [mount.host_path.rpartition("/")[2] for mount in second.container_edits.mounts] == ["second.json"]


def test_a_device_that_two_requests_have_shows_the_files_of_both() -> None:
    both = claim(1, [result(1, "use"), result(1, "look", admin_access=True)])
    (device,) = cdi_spec(planned(both)).devices
    names = [mount.host_path.rpartition("/")[2] for mount in device.container_edits.mounts]
    assert names == ["look.json", "use.json"]


def test_the_attributes_are_those_that_are_published() -> None:
    plan = planned(CASES["chips of a claim"])
    (told,) = json.loads(files(plan)["neurons.json"])["requests"]
    published = attributes(host())
    assert {device["name"]: device["attributes"] for device in told["devices"]} == {
        f"neuron-device-{chip}": json.loads(msgspec.json.encode(published[f"neuron-device-{chip}"]))
        for chip in (4, 5, 6, 7)
    }


def test_a_plan_keeps_what_was_told_over_a_restart() -> None:
    plan = planned(CASES["a chip of a claim from a template"])
    read = decoded(encoded(CheckpointEntry(plan)), plan.uid)
    assert read.plan == plan
    assert files(read.plan) == files(plan)


def test_an_annotation_that_is_no_name_leads_nowhere() -> None:
    plan = planned(annotated(claim(1, [0], name="c"), "../../etc"))
    assert plan.pod_claim == ""
    assert metadata_path(plan, "neurons").endswith("/resourceclaims/c/neurons/neuron.aws.com-metadata.json")


def test_files_are_written_once_mended_and_removed(tmp_path: Path) -> None:
    directory = MetadataDirectory(tmp_path)
    plan = planned(CASES["two requests"], tmp_path)
    assert (directory.write(plan), directory.write(plan)) == (True, False)
    file = tmp_path / plan.uid / "first.json"
    assert file.stat().st_mode & 0o777 == 0o644
    file.write_text("{")
    assert not directory.complete(plan)
    assert (directory.write(plan), directory.complete(plan)) == (True, True)
    assert list(directory.claims()) == [plan.uid]
    assert (directory.remove(plan.uid), directory.remove(plan.uid)) == (True, False)
    assert list(directory.claims()) == []


def test_what_is_no_directory_is_no_claims_and_no_link_is_followed(tmp_path: Path) -> None:
    elsewhere, directory = tmp_path / "elsewhere", MetadataDirectory(tmp_path / "files")
    elsewhere.mkdir()
    directory.path.mkdir()
    (directory.path / uid(1)).mkdir()
    (directory.path / uid(2)).symlink_to(elsewhere)
    (directory.path / uid(3)).write_text("kept")
    assert list(directory.claims()) == [uid(1)]


def test_a_directory_that_cannot_be_written_is_explained(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text("a file")
    plan = planned(CASES["cores"], tmp_path / "metadata")
    with golden_error(DriverError):
        MetadataDirectory(tmp_path / "metadata").write(plan)
