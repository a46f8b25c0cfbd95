"""Measures the driver in comparison with Kubernetes' own DRA test driver; the command is `scripts/benchmark`."""
