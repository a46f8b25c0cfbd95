"""The one place that says which version this is (semver, published as attribute ``draDriverVersion``)."""

VERSION = "0.1.0"
