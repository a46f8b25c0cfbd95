"""Clusters without Dynamic Resource Allocation: a scheduler extender, a device plugin, and migration to DRA."""
