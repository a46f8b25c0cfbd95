"""Why a claim fits or not, in sentences: for each node, device, clause and constraint.

``explain`` takes a ``Question`` and gives an ``Explanation``; ``text`` and ``plain`` write it down.
"""

from __future__ import annotations

from dra_driver.simulator.explain.explanation import Question, explain
from dra_driver.simulator.explain.report import plain, text
from dra_driver.simulator.explain.values import Explanation

__all__ = ["Explanation", "Question", "explain", "plain", "text"]
