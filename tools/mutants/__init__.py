"""Whether any test notices when a line of the driver is broken: see `main`."""
