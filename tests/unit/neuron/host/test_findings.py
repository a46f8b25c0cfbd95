"""What is said of a host: each finding in words, with its severity, as it is logged."""

from __future__ import annotations

import pytest

from dra_driver.neuron.host.findings import FINDINGS, Findings
from tests.golden import golden


@pytest.mark.parametrize("code", FINDINGS)
def test_what_is_said_of_each_finding(code: str) -> None:
    findings = Findings()
    findings.add(code, "SUBJECT", "DETAIL")
    (finding,) = findings.all()
    golden(f"{finding.severity}: {finding.text}")
