"""Prioritized lists of alternatives (``firstAvailable``), and selectors that cannot be evaluated."""

from __future__ import annotations

import pytest

from tests.cluster.lib.installation import Installation
from tests.cluster.lib.kube import steadily
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.objects import (
    config,
    connected,
    container,
    first_available,
    neuron_config,
    pod,
    request,
    template,
)

pytestmark = pytest.mark.nightly

CHIP = "device.attributes['neuron.aws.com'].deviceId == {}"


def results(namespace: Namespace, name: str) -> set[tuple[str, int]]:
    """Request and chip of every result of a pod's claim."""
    return {(item.request, item.chip) for item in namespace.allocated(namespace.claim_of(name))}


def lnc(namespace: Namespace, name: str, container: str = "") -> str:
    """The logical core size in a container."""
    return namespace.environment(name, container)["NEURON_LOGICAL_NC_CONFIG"]


def test_the_first_alternative_that_can_be_had_is_given(driver: Installation, namespace: Namespace) -> None:
    """A container names the request without its alternative."""
    wanted = first_available("neurons", request("too-many", 17), request("four", 4), request("one", 1))
    namespace.apply(
        template("list", wanted, constraints=[connected(4)]),
        pod("chooses", templates={"c": "list"}, containers=[container("main", ("c", "neurons"))]),
    )
    namespace.wait_ready("chooses")
    given = namespace.allocated(namespace.claim_of("chooses", "c"))
    assert [item.request for item in given] == ["neurons/four"] * 4
    assert namespace.numbers("chooses") == [0, 1, 2, 3]


def test_the_configuration_of_the_chosen_alternative_counts(driver: Installation, namespace: Namespace) -> None:
    wanted = first_available("neurons", request("too-many", 17), request("one", 1))
    configs = [config(neuron_config(2), "neurons/too-many"), config(neuron_config(1), "neurons/one")]
    namespace.apply(template("list", wanted, configs=configs), pod("chooses", templates={"neurons": "list"}))
    namespace.wait_ready("chooses")
    assert lnc(namespace, "chooses") == "1"


def test_configuration_of_a_request_reaches_its_chosen_alternative(driver: Installation, namespace: Namespace) -> None:
    wanted = first_available("neurons", request("too-many", 17), request("one", 1))
    configs = [config(neuron_config(1), "neurons")]
    namespace.apply(template("list", wanted, configs=configs), pod("chooses", templates={"neurons": "list"}))
    namespace.wait_ready("chooses")
    assert lnc(namespace, "chooses") == "1"


def test_an_alternative_is_passed_over_when_a_constraint_rules_it_out(
    driver: Installation, namespace: Namespace
) -> None:
    far, near = (request(name, 1, selectors=[CHIP.format(chip)]) for name, chip in (("far", 9), ("near", 6)))
    namespace.apply(
        template(
            "list",
            request("fixed", 1, selectors=[CHIP.format(5)]),
            first_available("other", far, near),
            constraints=[connected(4)],
        ),
        pod("chooses", templates={"neurons": "list"}),
    )
    namespace.wait_ready("chooses")
    assert results(namespace, "chooses") == {("fixed", 5), ("other/near", 6)}
    assert namespace.numbers("chooses") == [0, 1]


def test_configuration_of_alternatives_that_were_not_chosen_does_not_count(
    driver: Installation, namespace: Namespace
) -> None:
    """Else the two requests would have different sizes, and the claim would be refused."""
    first = first_available("first", request("too-many", 17), request("one", 1))
    second = first_available("second", request("two", 2), request("one", 1))
    configs = [
        config(neuron_config(2), "first/too-many", "second/one"),
        config(neuron_config(1), "first/one", "second/two"),
    ]
    containers = [container("a", ("neurons", "first")), container("b", ("neurons", "second"))]
    namespace.apply(
        template("list", first, second, configs=configs),
        pod("chooses", templates={"neurons": "list"}, containers=containers),
    )
    namespace.wait_ready("chooses")
    given = {item.request for item in namespace.allocated(namespace.claim_of("chooses"))}
    assert given == {"first/one", "second/two"}
    assert (lnc(namespace, "chooses", "a"), lnc(namespace, "chooses", "b")) == ("1", "1")
    assert sorted(namespace.numbers("chooses", "a") + namespace.numbers("chooses", "b")) == [0, 1, 2]


def test_a_selector_that_fails_keeps_the_pod_pending_and_says_why(driver: Installation, namespace: Namespace) -> None:
    broken = request(selectors=["device.attributes['neuron.aws.com'].colour == 'green'"])
    namespace.apply(template("broken", broken), pod("waits", templates={"neurons": "broken"}))
    namespace.wait_event("waits", "no such key: colour")
    steadily("the pod is Pending", lambda: namespace.phase("waits") == "Pending", during=2)
