"""The health of a node's chips: what is read, which faults follow, and who is informed."""
