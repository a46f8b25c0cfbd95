"""The DRA driver of a node: the product.

``agent`` wires it together, ``resourceslices`` publishes what the node offers, ``claims`` prepares what was allocated.
"""
