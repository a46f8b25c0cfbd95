"""What users are told who may not read all that commands show."""

from __future__ import annotations

from dra_driver.operations.overview.reading import readable
from tests.doubles.apiserver.server import ApiServer
from tests.golden import golden


def test_who_may_not_list_taint_rules_is_told_what_that_means(server: ApiServer) -> None:
    server.fail(403, 10, path="/devicetaintrules")
    golden(readable(server.transport()).notes)
