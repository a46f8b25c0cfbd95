"""Two claims of a pod with different parameters: refused where one container would use both, as two requests are."""

from __future__ import annotations

import pytest

from dra_driver.driver.claims.model import CheckpointEntry, PreparedClaims, PrepareError
from dra_driver.driver.claims.sharing import ONE_VALUE
from tests.builders.claims import SETTINGS, claim, config, host, needs, neuron_config, plan, pod
from tests.golden import golden_error

FIRST = plan(claim(1, [4], pods=["p"], template=True), host(), PreparedClaims(), SETTINGS)
SECOND = claim(2, [5], pods=["p"], template=True, configs=[config(neuron_config(1))])
HELD = PreparedClaims([CheckpointEntry(FIRST)])


def test_a_container_that_would_be_told_two_sizes_is_refused() -> None:
    asked = needs(SECOND, host(), HELD, SETTINGS, pods={})
    assert ([item.uid for item in asked.pods], asked.optional) == (["p"], True)
    with golden_error(PrepareError):
        plan(SECOND, host(), HELD, SETTINGS, pods={"p": pod("p", main=["claim-1", "claim-2"])})


@pytest.mark.parametrize(
    "containers",
    [{"a": ["claim-1"], "b": ["claim-2"]}, {"a": ["claim-2"]}, {"a": ["claim-1/other", "claim-2"]}],
    ids=["a claim each", "only one", "another request of it"],
)
def test_containers_that_use_one_of_them_each_are_served(containers: dict[str, list[str]]) -> None:
    made = plan(SECOND, host(), HELD, SETTINGS, pods={"p": pod("p", **containers)})
    assert made.env["NEURON_LOGICAL_NC_CONFIG"] == "1"
    assert made.warnings == ()


def test_where_pods_cannot_be_read_it_is_a_warning() -> None:
    """There is no right to read them where no cores are offered."""
    made = plan(SECOND, host(), HELD, SETTINGS, pods={"p": pod("p")})
    assert ONE_VALUE in made.warnings[0]


def test_the_same_size_twice_asks_for_no_pod() -> None:
    same = claim(2, [5], pods=["p"], template=True)
    assert plan(same, host(), HELD, SETTINGS, pods={}).warnings == ()
