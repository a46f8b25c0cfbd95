"""Generated protobuf messages; ``scripts/generate-stubs`` makes them from ``proto/``."""
