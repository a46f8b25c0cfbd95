"""Schemas of custom resources, as test data: see main."""
