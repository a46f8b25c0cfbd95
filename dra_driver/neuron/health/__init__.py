"""The health of a node's chips: what is read, which faults that shows, and who is told."""
