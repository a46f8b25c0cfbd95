"""What DeviceTaintRules add to devices, as kube-scheduler sees these.

Source: ``k8s.io/dynamic-resource-allocation/resourceslice/tracker``.
"""

from __future__ import annotations

from dra_driver.kube.objects.resource import DeviceTaint, DeviceTaintRule


class TaintOfRule(DeviceTaint, frozen=True):
    """A taint that a DeviceTaintRule adds, with the rule's name."""

    rule: str = ""


def taint_of(rule: DeviceTaintRule) -> TaintOfRule:
    """The taint that a rule adds to the devices that it selects."""
    taint = rule.spec.taint
    return TaintOfRule(taint.key, taint.value, taint.effect, rule=rule.metadata.name)


def selects(rule: DeviceTaintRule, driver: str, pool: str, device: str) -> bool:
    """Whether a rule taints this device; one without a selector taints nothing."""
    selector = rule.spec.device_selector
    return selector is not None and all(
        wanted in (None, own)
        for wanted, own in ((selector.driver, driver), (selector.pool, pool), (selector.device, device))
    )
