"""Names as the API server and the controllers make them, but always the same for the same input.

Source: ``k8s.io/apiserver/pkg/storage/names`` and ``k8s.io/apimachinery/pkg/util/rand``.
"""

from __future__ import annotations

import hashlib
import uuid

_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
"""No vowels and nothing that looks like another character."""
MAX_PREFIX_LENGTH = 58
"""Characters of ``generateName`` in front of the five random ones."""
MAX_NAMES = 3
"""Names that a line about many of them has."""


def suffix(seed: str, length: int = 5) -> str:
    """So many characters that look random and follow from ``seed``."""
    number = int.from_bytes(hashlib.sha256(seed.encode()).digest())
    made = ""
    for _ in range(length):
        number, place = divmod(number, len(_ALPHABET))
        made += _ALPHABET[place]
    return made


def uid(text: str) -> str:
    """What stands for the UID that only the API server knows; always the same for the same object."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, text))


def generated(prefix: str, seed: str) -> str:
    """What the API server makes of ``generateName``."""
    return prefix[:MAX_PREFIX_LENGTH] + suffix(f"{prefix}/{seed}")
