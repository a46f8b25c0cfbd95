"""Traces real calls through the driver of a node, and shows which files they enter."""
