"""The numbered assumptions about hosts, and whether a host meets them: ``dra-driver verify-host``."""
