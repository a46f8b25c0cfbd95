"""Explains why a claim fits or not, in sentences: for each node, device, clause and constraint.

``explain`` takes a ``Question`` and returns an ``Explanation``; ``explanations`` explains everything in a set of files;
``text``, ``texts``, ``brief``, ``obstacles`` and ``plain`` format them.
"""

from __future__ import annotations

from dra_driver.simulator.explain.batch import Target, explanations
from dra_driver.simulator.explain.explanation import Question, explain
from dra_driver.simulator.explain.report import brief, obstacles, plain, text, texts
from dra_driver.simulator.explain.values import Explanation

__all__ = [
    "Explanation",
    "Question",
    "Target",
    "brief",
    "explain",
    "explanations",
    "obstacles",
    "plain",
    "text",
    "texts",
]
