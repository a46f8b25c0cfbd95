"""Clusters without Dynamic Resource Allocation: a scheduler extender, a device plugin, and the way from them to DRA."""
