"""Records how Kubernetes evaluates CEL device selectors, for the tests of the simulator's own CEL."""
