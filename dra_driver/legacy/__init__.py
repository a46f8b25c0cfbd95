"""Clusters without Dynamic Resource Allocation: a scheduler extender, a device plugin, and migration to DRA.

Migration reads pod specs with the simulator's ``manifests``; the two daemons load nothing of it.
"""
