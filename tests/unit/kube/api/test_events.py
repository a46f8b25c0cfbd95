"""Events have names that the API server takes, whatever they are about."""

from __future__ import annotations

import pytest

from dra_driver.kube.api.events import new_event
from dra_driver.kube.formats import subdomain
from dra_driver.kube.objects.core import ObjectReference


@pytest.mark.parametrize("separator", ["-", ".", "--", "-" * 40, "x"])
def test_an_event_about_a_long_name_has_a_name_that_the_api_server_takes(separator: str) -> None:
    for before in range(20, 60):
        name = ".".join(["a" * 40] * 4 + ["b" * before])[: 200 - len(separator)] + separator + "c" * 9
        about = ObjectReference(kind="Pod", namespace="team", name=name, uid="u")
        event = new_event(about, "FailedAssignment", "no room", "placer", key="k", moment=0.0, wrong=True)
        assert subdomain(about.name) == subdomain(event.metadata.name) == ""
