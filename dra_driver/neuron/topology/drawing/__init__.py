"""Pictures of an instance type's chips and links, with chips or cores marked and sick ones shown, as text and SVG."""

from dra_driver.neuron.topology.drawing.marks import Marks, marks_of
from dra_driver.neuron.topology.drawing.plain import text
from dra_driver.neuron.topology.drawing.sickness import SIGNS, WELL, Sickness
from dra_driver.neuron.topology.drawing.vector import svg

__all__ = ["SIGNS", "WELL", "Marks", "Sickness", "marks_of", "svg", "text"]
