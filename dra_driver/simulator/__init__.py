"""What Kubernetes would do with a claim, computed without a cluster. Values in, values out; no files, no network."""
