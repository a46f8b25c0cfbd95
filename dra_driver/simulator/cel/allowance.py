"""How much one evaluation may make.

Kubernetes refuses an expression whose estimated cost is too high, but the estimate knows nothing of what ``replace``
returns, of lists that are doubled again and again, or of the parts that are alive at the same time. A few hundred bytes
in somebody's claim can ask for gigabytes that way, and whoever looks at the claim must not have to find them.
"""

from __future__ import annotations

import threading
from typing import Final

from dra_driver.simulator.cel.errors import UnsupportedError

MOST: Final = 16 << 20
"""Characters that an evaluation may make; an item of a list counts as ``ITEM`` of them."""
ITEM: Final = 8


class _Left(threading.local):
    count = MOST


_left = _Left()


def renew() -> None:
    """Begin with an evaluation in this thread."""
    _left.count = MOST


def take(count: int) -> None:
    """Count what is about to be made. Raises UnsupportedError when it is too much."""
    _left.count -= count
    if _left.count < 0:
        raise UnsupportedError(
            "runtime", f"it makes texts and lists of more than {MOST >> 20} million characters: not simulated"
        )
