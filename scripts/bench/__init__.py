"""Measures the driver beside Kubernetes' own DRA test driver; the command is `scripts/benchmark`."""
