"""Generated names like those of the API server and the controllers, but deterministic.

Source: ``k8s.io/apiserver/pkg/storage/names`` and ``k8s.io/apimachinery/pkg/util/rand``.
"""

from __future__ import annotations

import hashlib
import uuid

_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
"""Neither vowels nor characters that are easily confused."""
MAX_PREFIX_LENGTH = 58
"""Maximum length of ``generateName`` before the five random characters."""
MAX_NAMES = 3
"""Maximum number of names that a message lists."""


def suffix(seed: str, length: int = 5) -> str:
    """A suffix of this length that looks random and is derived from ``seed``."""
    number = int.from_bytes(hashlib.sha256(seed.encode()).digest())
    characters = ""
    for _ in range(length):
        number, place = divmod(number, len(_ALPHABET))
        characters += _ALPHABET[place]
    return characters


def uid(text: str) -> str:
    """A placeholder for the UID that only the API server knows; always the same for the same object."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, text))


def generated(prefix: str, seed: str) -> str:
    """The name that the API server would generate from ``generateName``."""
    return prefix[:MAX_PREFIX_LENGTH] + suffix(f"{prefix}/{seed}")
