"""Traces real calls through the driver of a node, and lists the files that they enter."""
