"""Errors that end the scheduling of a pod on all nodes: which device and clause they come from."""

from __future__ import annotations

from dra_driver.simulator.allocator import NodeView, Refusal
from dra_driver.simulator.explain.diagnosis import Case, claim_name
from dra_driver.simulator.explain.findings import Finding, findings
from dra_driver.simulator.explain.values import Diagnosis
from dra_driver.simulator.explain.views import request_view


def error_diagnosis(case: Case, node: NodeView, refusal: Refusal) -> Diagnosis:
    """What the error says, and the devices on which a selector fails."""
    views = []
    for claim, prepared in zip(case.claims, case.prepared, strict=True):
        for request in prepared.requests:
            for option in request.options:
                found = [finding for _, finding in findings(option, (), case.around(node))]
                if any(_to_blame(item, refusal) for item in found):
                    views.append(request_view(claim_name(claim), option, found))
    what = "a selector fails here" if views else "an error ends the search here"
    return Diagnosis("error", f"{what}: {refusal.reason}", tuple(views))


def _to_blame(finding: Finding, refusal: Refusal) -> bool:
    return finding.state == "error" and not finding.in_use and finding.why in refusal.reason
