"""``dra-driver recover``: a controller, one per cluster, that acts on sick nodes."""
