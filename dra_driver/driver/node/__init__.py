"""What is known of the node, and what follows from it."""
