"""The version, defined only here (semver, published as attribute ``draDriverVersion``)."""

VERSION = "0.1.0"
