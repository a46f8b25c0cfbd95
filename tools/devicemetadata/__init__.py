"""Asks Kubernetes' own code what it makes of the driver's device metadata files (KEP-5304)."""
