"""What administrators run beside the driver.

``overview`` shows who has which chip, ``report`` packs an archive for a bug report, ``verification`` checks a host, and
``recovery`` drains nodes with unhealthy chips and asks for their repair. Who has which chip is counted by the rules of
``legacy`` and ``simulator``, too.
"""
