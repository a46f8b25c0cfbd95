"""What the code takes from a host, as a numbered list, and whether a host is so: ``dra-driver verify-host``."""
