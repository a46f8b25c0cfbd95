"""The error that lab commands show to the user."""


class LabError(Exception):
    """States what happened, the consequence, and the remedy; shown without a traceback."""
