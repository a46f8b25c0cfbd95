"""Simulates what Kubernetes would do with a claim, without a cluster. Pure functions: no files, no network."""
