"""Pictures of an instance type's chips and links, with a set of chips marked: as plain text and as SVG."""

from dra_driver.topology.drawing.plain import text
from dra_driver.topology.drawing.vector import svg

__all__ = ["svg", "text"]
