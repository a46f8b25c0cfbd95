"""Which EFA device is paired with each chip: one row per pairing family.

The PCI addresses are the same on every node of a family. Chip N of a node is paired with entry N of the row.

Source: github ``aws-neuron/connected-device-maps-over-efa-for-neuron`` (Apache-2.0), ``lookup/neuron/*.json``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EfaPairing:
    """``bdfs[N]`` is the PCI address (``dddd:bb:dd.f``) of the EFA device next to chip N; chips may share one."""

    family: str
    bdfs: tuple[str, ...]


def _pairing(family: str, addresses: str) -> EfaPairing:
    """Build a row from addresses as ``lspci`` prints them, without the PCI domain, which is always 0000."""
    return EfaPairing(family, tuple(f"0000:{address}" for address in addresses.split()))


EFA_PAIRINGS = {
    pairing.family: pairing
    for pairing in (
        _pairing(
            "trn1",
            "10:1a.0 10:1a.0 a0:1a.0 a0:1a.0 20:19.0 20:19.0 90:19.0 90:19.0 "
            "20:1a.0 20:1a.0 90:1a.0 90:1a.0 10:19.0 10:19.0 a0:19.0 a0:19.0",
        ),
        _pairing(
            "trn1n",
            "10:17.0 10:1a.0 a0:17.0 a0:1a.0 20:19.0 20:18.0 90:19.0 90:18.0 "
            "20:17.0 20:1a.0 90:17.0 90:1a.0 10:19.0 10:18.0 a0:19.0 a0:18.0",
        ),
        _pairing(
            "trn2",
            "c9:00.0 b4:00.0 b3:00.0 ca:00.0 6c:00.0 57:00.0 56:00.0 6d:00.0 "
            "98:00.0 83:00.0 82:00.0 99:00.0 f5:00.0 e0:00.0 df:00.0 f6:00.0",
        ),
        _pairing(
            "trn3",
            "be:00.0 a9:00.0 a8:00.0 bf:00.0 61:00.0 4c:00.0 4b:00.0 62:00.0 "
            "8d:00.0 78:00.0 77:00.0 8e:00.0 ea:00.0 d5:00.0 d4:00.0 eb:00.0",
        ),
        _pairing(
            "trn3pds",
            "a9:00.0 a8:00.0 bf:00.0 be:00.0 d5:00.0 d4:00.0 eb:00.0 ea:00.0 "
            "4c:00.0 4b:00.0 62:00.0 61:00.0 78:00.0 77:00.0 8e:00.0 8d:00.0",
        ),
    )
}
"""Pairing family to its row."""
