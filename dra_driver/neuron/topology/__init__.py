"""The hardware: instance types, fabrics, connected sets and pictures of them. Pure functions and values."""
