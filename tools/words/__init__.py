"""Counts words that name nothing."""
