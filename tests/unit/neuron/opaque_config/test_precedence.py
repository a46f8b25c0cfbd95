from __future__ import annotations

import pytest

from dra_driver.kube.objects.resource import DeviceAllocationConfiguration
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.neuron.opaque_config import ConfigError, Effective, effective
from tests.builders.claims import config, neuron_config
from tests.golden import golden_error

ULTRA = {"apiVersion": "neuron.aws.com/v1", "kind": "UltraServerConfig", "ultraserverMode": 2}
WORKLOAD, OTHER = (f"b2b1e5a0-0000-4000-8000-00000000000{digit}" for digit in "ab")


def sizes(entries: list[DeviceAllocationConfiguration], *requests: str) -> dict[str, int | None]:
    found = effective(entries, requests, DRIVER_NAME)
    return {request: value.logical_neuron_core for request, value in found.items()}


def test_without_entries_nothing_holds() -> None:
    assert effective([], ["a", "b/c"], DRIVER_NAME) == {"a": Effective(), "b/c": Effective()}


def test_the_claim_beats_the_class_wherever_it_stands() -> None:
    of_claim, of_class = config(neuron_config(1)), config(neuron_config(2), source="FromClass")
    assert sizes([of_class, of_claim], "a") == {"a": 1}
    assert sizes([of_claim, of_class], "a") == {"a": 1}


def test_a_later_entry_beats_an_earlier_one() -> None:
    assert sizes([config(neuron_config(1)), config(neuron_config(2))], "a") == {"a": 2}


def test_an_entry_that_leaves_the_field_out_changes_nothing() -> None:
    silent = {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig"}
    assert sizes([config(neuron_config(1)), config(silent)], "a") == {"a": 1}


def test_a_workload_is_named_by_either_kind_for_the_requests_that_it_reaches() -> None:
    named = config({**ULTRA, "workload": WORKLOAD})
    other = config({**neuron_config(1), "workload": OTHER}, "b")
    assert effective([named, other], ["a", "b"], DRIVER_NAME) == {
        "a": Effective(None, 2, WORKLOAD),
        "b": Effective(1, 2, OTHER),
    }


def test_an_entry_reaches_its_requests_only() -> None:
    assert sizes([config(neuron_config(1), "a")], "a", "b") == {"a": 1, "b": None}


def test_an_entry_for_a_request_reaches_its_subrequests() -> None:
    assert sizes([config(neuron_config(1), "a")], "a/small", "a/large") == {"a/small": 1, "a/large": 1}


def test_an_entry_for_a_subrequest_reaches_only_that() -> None:
    assert sizes([config(neuron_config(1), "a/small")], "a/small", "a/large", "a") == {
        "a/small": 1,
        "a/large": None,
        "a": None,
    }


def test_a_request_whose_name_begins_the_same_is_another() -> None:
    assert sizes([config(neuron_config(1), "neuron")], "neurons", "neuron-x/y") == {"neurons": None, "neuron-x/y": None}


def test_an_empty_list_of_requests_means_all() -> None:
    assert sizes([config(neuron_config(2))], "a", "b/c") == {"a": 2, "b/c": 2}


def test_entries_of_other_drivers_are_ignored_whatever_they_hold() -> None:
    assert sizes([config({"kind": 7}, driver="gpu.example.com"), DeviceAllocationConfiguration("FromClaim")], "a") == {
        "a": None
    }


def test_both_kinds_hold_side_by_side() -> None:
    found = effective([config(ULTRA), config(neuron_config(1))], ["a"], DRIVER_NAME)
    assert found == {"a": Effective(1, 2)}


def test_an_illegal_entry_is_refused_even_if_it_reaches_nothing_or_is_overridden() -> None:
    for entries in ([config(neuron_config(3), "other")], [config(neuron_config(3)), config(neuron_config(1))]):
        with golden_error(ConfigError):
            effective(entries, ["a"], DRIVER_NAME)


def test_the_error_counts_entries_as_the_allocation_does() -> None:
    entries = [config(neuron_config(1)), config({}, source="FromClass")]
    with pytest.raises(ConfigError, match=r"config\[1\]\.opaque\.parameters\.apiVersion"):
        effective(entries, ["a"], DRIVER_NAME)
