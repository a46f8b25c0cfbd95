"""One archive for a bug report: ``dra-driver report``.

``allowed`` has the fields that may go into it, of every kind of object; ``cluster`` and ``node`` read; ``archive``
makes the file, with a manifest of what is inside. Whatever no table names stays out.
"""
