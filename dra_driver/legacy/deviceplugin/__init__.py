"""One node's chips are offered by the DRA driver or by a device plugin, never by both."""
