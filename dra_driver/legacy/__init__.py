"""The pair for clusters without Dynamic Resource Allocation: a scheduler extender and a device plugin."""
