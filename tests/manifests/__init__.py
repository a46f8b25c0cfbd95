"""Examples, manifests, scripts: schema, lint, round trip, and the installer against a stand-in for kubectl."""
