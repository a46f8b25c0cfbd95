"""What somebody may have meant who wrote a selector that no device matches: a name or a value that is nearly right."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Final

from dra_driver.kube.objects.resource import Device
from dra_driver.neuron.topology.instance_types import lookup
from dra_driver.neuron.topology.node_hardware import MEANINGS
from dra_driver.simulator.cel import references

_TEXT: Final = re.compile(r"['\"]([^'\"]+)['\"]")
_NEARLY: Final = 0.85
"""Of values: a letter in six or more may be wrong, missing or too much."""
_MOST: Final = 2
"""Suggestions for one word."""


def spellings(clause: str, devices: Sequence[tuple[str, Device]]) -> Iterator[tuple[str, str]]:
    """Words of a clause, each with one that the devices have and that is written nearly so.

    Args:
        clause: of a selector, as it stands there.
        devices: that there are, with their driver.
    """
    for reference in references(clause):
        values: dict[str, set[str]] = {}
        for driver, device in devices:
            for full, attribute in device.attributes.items():
                domain, _, name = full.rpartition("/")
                if reference.domain == (domain or driver):
                    values.setdefault(name, set()).update(filter(None, (attribute.string, attribute.version)))
        if reference.name not in values:
            alike = [name for name in values if name.lower() == reference.name.lower()]
            yield from ((reference.name, name) for name in alike or get_close_matches(reference.name, values, n=_MOST))
            continue
        for text in _TEXT.findall(clause):
            if text not in MEANINGS and lookup(text) is None:  # that is what was meant, and no node has it
                near = get_close_matches(text, sorted(values[reference.name]), n=_MOST, cutoff=_NEARLY)
                yield from ((text, value) for value in near if value != text)
