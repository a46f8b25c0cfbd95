"""The DRA driver of a node."""
