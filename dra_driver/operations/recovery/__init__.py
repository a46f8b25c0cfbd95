"""``dra-driver recover``: a controller, once a cluster, that acts on sick nodes."""
