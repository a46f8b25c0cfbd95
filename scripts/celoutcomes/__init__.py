"""Records what Kubernetes does with CEL device selectors, for the tests of the simulator's own CEL."""
