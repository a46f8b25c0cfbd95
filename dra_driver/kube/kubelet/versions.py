"""Which versions of kubelet cannot be given new claims."""

from __future__ import annotations

from typing import Final

STOP_CALLING: Final = frozenset({"v1.34.0", "v1.34.1"})
"""They never call a driver again that they have not called for 30 minutes; pods then neither start nor end."""


def kubelet_problem(version: str) -> str:
    """Why nothing is offered anew on a node with this kubelet, or "".

    ``version``: ``status.nodeInfo.kubeletVersion`` of the Node, with whatever its vendor has added.
    """
    release = version.partition("+")[0].partition("-")[0]
    if release not in STOP_CALLING:
        return ""
    return (
        f"kubelet {release} stops calling DRA drivers after 30 minutes without a call, until it is restarted "
        "(kubernetes/kubernetes#133920): devices that no claim holds are not offered; update kubelet to 1.34.2 or later"
    )
