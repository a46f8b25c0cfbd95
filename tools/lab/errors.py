"""The error that lab commands show to their user."""


class LabError(Exception):
    """Says what happened, what follows, and what to do next; shown without a traceback."""
