"""An emulated EFA DRA driver, for tests and trials without EFA devices."""
