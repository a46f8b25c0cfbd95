"""Tests on a real Kubernetes: see conftest.py for the options."""
