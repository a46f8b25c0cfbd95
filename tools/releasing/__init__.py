"""What makes a release: ``scripts/release``."""
