"""Pictures of an instance type's chips and links, some chips marked and sick ones shown: as text and as SVG."""

from dra_driver.topology.drawing.plain import text
from dra_driver.topology.drawing.sickness import SIGNS, WELL, Sickness
from dra_driver.topology.drawing.vector import svg

__all__ = ["SIGNS", "WELL", "Sickness", "svg", "text"]
