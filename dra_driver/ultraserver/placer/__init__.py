"""Which UltraServer each group of pods gets: ``dra-driver placer``."""
