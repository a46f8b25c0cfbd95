"""Draws the Grafana dashboard's panels without Grafana."""
